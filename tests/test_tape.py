"""The tape: what it shows, and what its checker finds."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.recorder import STATE
from gluon_dynbatch.record.tape import Tape, check_tape
from gluon_dynbatch.record.types import TYPES
from tests.cells import cell, dense
from tests.common import FIXED


@pytest.fixture
def net() -> gdb.DynamicHybridBlock:
    return dense()


#: Of the first call in `record`.
LINE = 31


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


def change(vector: str, place: int, number: int) -> Callable[[Tape], None]:
    """Return what puts a number somewhere into the arrays of a tape."""

    def damage(tape: Tape) -> None:
        numbers = np.frombuffer(getattr(tape, vector), "i8" if vector == "offsets" else "i4")
        address = numbers.ctypes.data + place * numbers.itemsize
        kind = ctypes.c_int64 if vector == "offsets" else ctypes.c_int32
        kind.from_address(address).value = number  # readers cannot write

    return damage


def retype(place: int, **fields: Any) -> Callable[[Tape], None]:
    """Return what gives a value another type."""

    def damage(tape: Tape) -> None:
        kind = TYPES[tape.value_type[place]]._replace(**fields)
        change("value_type", place, TYPES.id_of(kind))(tape)

    return damage


WRONG = {
    "later value": (change("sources", 0, 1), "call 0: %1 is no earlier value"),
    "negative value": (change("sources", 3, -1), "call 1: %-1 is no earlier value"),
    "offset beyond": (change("offsets", 2, 4), "call 1: reads beyond %1"),
    "offset below": (change("offsets", 1, -1), "call 1: reads beyond %1"),
    "whole beyond": (change("offsets", 0, 1), "call 0: reads beyond %0"),
    "entry": (change("node_entry", 1, 10**6), "call 1: no entry 1000000"),
    "result": (change("node_value0", 1, 2), "call 1: %2 is no earlier value"),
    "external": (change("external_values", 1, 4), "%4: not known by its array"),
    "wheres": (lambda tape: tape.wheres.pop(), "counts of calls"),
    "externals": (lambda tape: tape.externals.pop(), "externals"),
    "offsets": (lambda tape: tape.offsets.append(0), "counts of operands"),
    "value": (lambda tape: tape.value_type.append(0), "a value is not made exactly once"),
    "operand": (
        lambda tape: [tape.sources.append(0), tape.offsets.append(0)],
        "operands do not match the entries",
    ),
    "dtype": (retype(0, dtype="float64"), "call 0: %0 is of another type"),
    "shape": (retype(4, shape=(9,)), "call 2: results of other types"),
}


@pytest.mark.parametrize("damage", WRONG)
def test_the_checker_finds(net, damage):
    change, message = WRONG[damage]
    with pytest.raises(KeyError), gdb.batching(**FIXED):
        tape = record(net)
        check_tape(tape)
        change(tape)
        with pytest.raises(AssertionError) as raised:
            check_tape(tape)
        assert message in str(raised.value)
        raise KeyError  # what is damaged is not to be computed


def test_debug_checks_the_tape_of_every_flush(net):
    """A scope whose tape is damaged in a way that only the checker looks at."""
    with pytest.raises(AssertionError, match="not known"), gdb.batching(debug=True):
        record(net).external_ids.clear()
    with gdb.batching():
        record(net).external_ids.clear()


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
