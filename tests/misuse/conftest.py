"""Every test here does something wrong, or rare; none may leave anything behind."""

from __future__ import annotations

from typing import Iterator

import pytest
from mxnet import autograd
from mxnet.ndarray import register

import gluon_dynbatch as gdb
from gluon_dynbatch.record.recorder import STATE
from tests.cells import dense

INVOKE = register._imperative_invoke


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    assert STATE.batch is None and STATE.recorder is None
    assert register._imperative_invoke is INVOKE
    assert not autograd.is_recording() and not autograd.is_training()


@pytest.fixture
def net() -> gdb.DynamicHybridBlock:
    return dense()
