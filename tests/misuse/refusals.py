"""What tests of errors share: the errors they expect, and the harm that none may do.

A line that must be named carries the comment ``# wrong``.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import re
import traceback
from typing import Any, Iterator, List, Type

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn
from mxnet.ndarray import register

import gluon_dynbatch as gdb
from gluon_dynbatch.record.recorder import STATE

LIBRARIES = tuple(os.path.join(os.path.dirname(m.__file__), "") for m in (mx, gdb, contextlib))
INVOKE = register._imperative_invoke
PLACE = re.compile(r"(\S+\.py):(\d+) in ")


def user_frame(error: BaseException) -> traceback.FrameSummary:
    """Return the last frame of a traceback that is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith(LIBRARIES) and f.filename[0] != "<"][-1]


def named_lines(text: str) -> List[str]:
    """Return the source lines that a message names as ``file:line in function``."""
    return [linecache.getline(name, int(line)).rstrip() for name, line in PLACE.findall(text)]


@contextlib.contextmanager
def refused(kind: Type[BaseException], *texts: str, late: bool = False) -> Iterator[None]:
    """Expect one of our errors that names the marked line, with a way out and these texts.

    With `late`, the error comes up elsewhere, but it still names the marked line.
    """
    with pytest.raises(kind) as caught:
        yield
    assert isinstance(caught.value, gdb.DynBatchError)
    message = str(caught.value)
    if not late:
        assert user_frame(caught.value).line.endswith("# wrong"), user_frame(caught.value)
    lines = named_lines(message)
    assert len(lines) == 1 and lines[0].endswith("# wrong"), message
    for text in (*texts, "what to do: "):
        assert text in message, message


class Apply(gdb.DynamicHybridBlock):
    """A cell that does what it is given."""

    def __init__(self, fn: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self._fn = fn

    def hybrid_forward(self, F, *args):
        return self._fn(F, *args)


def cell(fn: Any) -> Apply:
    block = Apply(fn, prefix="the_cell_")
    block.hybridize()
    return block


def array(*shape: int, **kwargs: Any) -> mx.nd.NDArray:
    values = np.random.RandomState(sum(shape)).uniform(-1, 1, shape)
    return mx.nd.array(values, **{"dtype": "float32", **kwargs})


def dense(**kwargs: Any) -> gdb.DynamicHybridBlock:
    block = gdb.convert(nn.Dense(3, in_units=4, prefix="the_dense_", **kwargs))
    block.initialize(mx.init.Uniform(1))
    block.hybridize()
    return block


@pytest.fixture(params=[False, True], ids=["predicting", "recording"])
def net(request: Any) -> Iterator[gdb.DynamicHybridBlock]:
    """Give a model, and check that the test did no harm to it, to autograd or to MXNet."""
    block = dense()
    parameters = list(block.collect_params().values())
    for p in parameters:
        p.grad()[:] = 7
    before = [(p.data().asnumpy(), p.grad().asnumpy()) for p in parameters]
    with autograd.record() if request.param else contextlib.nullcontext():
        yield block
        gc.collect()
        assert autograd.is_recording() == autograd.is_training() == request.param
        assert STATE.batch is None and STATE.recorder is None
        assert register._imperative_invoke is INVOKE
        for p, (value, gradient) in zip(parameters, before):
            np.testing.assert_array_equal(p.data().asnumpy(), value)
            np.testing.assert_array_equal(p.grad().asnumpy(), gradient)
        works(block)


def works(block: gdb.DynamicHybridBlock) -> None:
    """Check that the next scope batches and gives the loop's values."""
    samples = [array(1, 4) * i for i in range(3)]
    wanted = [block(x).asnumpy() for x in samples]
    with gdb.batching(granularity="block") as batch:
        got = [block(x) for x in samples]
    assert (batch.report.nodes, batch.report.launches) == (3, 1)
    np.testing.assert_allclose([y.asnumpy() for y in got], wanted, 1e-5, 1e-6)
