"""The tape: what it shows, and that it is in order."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.recorder import STATE
from gluon_dynbatch.record.tape import Tape
from tests.cells import cell, dense
from tests.checks import check_tape
from tests.common import FIXED


@pytest.fixture
def net() -> gdb.DynamicHybridBlock:
    return dense()


#: Of the first call in `record`.
LINE = 29


def record(net: Any) -> Tape:
    """Record a call of a block, and operators on views of its result and on zeros."""
    y = net(mx.nd.ones((2, 4)))  # line LINE
    mx.nd.concat(y[0:1], y[1:2], mx.nd.zeros((1, 3)), dim=0).detach()
    return STATE.recorder.tape


def test_a_line_per_call(net):
    with gdb.batching(**FIXED):
        tape = record(net)
        assert str(tape).splitlines() == [
            f"%1 float32(2, 3) = {net.name}(%0 (2, 4))  # {__file__}:{LINE} in record",
            "%3 float32(3, 3) = Concat(%1[0:3] (1, 3), %1[3:6] (1, 3), %2 (1, 3))"
            f"  # {__file__}:{LINE + 1} in record",
            f"%4 float32(3, 3) = _copy(%3 (3, 3))  # {__file__}:{LINE + 1} in record",
        ]
    assert str(tape).startswith(f"%1 float32(2, 3) = {net.name}(%0 (2, 4))\n")
    assert str(Tape()) == ""


def test_tapes_that_break_off_are_in_order(net):
    """A wrong call leaves at most arrays behind that nobody reads."""
    with gdb.batching(**FIXED):
        with pytest.raises(gdb.ShapeError):
            net(mx.nd.ones((1, 5)))
        check_tape(record(net))


def test_reading_a_value_while_a_call_is_traced():
    """It computes what was recorded, and with it the tape that the call was to be put on."""
    outer, inner = dense(), cell(lambda F, x: x + float(before[0].asnumpy().sum()))
    x = mx.nd.ones((1, 4))
    before = [outer(x)]
    wanted = (before[0] + before[0].sum()).asnumpy()
    with gdb.batching(**FIXED) as batch:
        before = [outer(x)]
        got = inner(outer(x))
        again = inner(outer(x))
    assert len(batch.report.flushes) == 2
    for y in (got, again):
        assert abs(y.asnumpy() - wanted).max() < 1e-5
