"""The native code and the Python code beside it record, and plan, the same."""

import gc
import weakref
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch import native
from gluon_dynbatch.lower import expand
from gluon_dynbatch.lower.segment import SegmentTable
from gluon_dynbatch.plan import order, plan
from gluon_dynbatch.plan.check import check_plan
from gluon_dynbatch.record import recorder
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.recorder import STATE
from gluon_dynbatch.record.tape import Tape
from gluon_dynbatch.record.types import TYPES
from gluon_dynbatch.schedule import depth
from tests import strategies

ROOT = Path(__file__).parents[1]
needs_planning = pytest.mark.skipif(native.PLANNING is None, reason="native code was not built")


def recording_of(program):
    """Return everything that a program records, as plain values."""
    with gdb.batching(granularity="block", policy="depth") as batch:
        for sample in program.samples:
            program.fn(sample)
        made = STATE.recorder.tape
        told = {
            name: list(getattr(made, name))
            for name in ("node_entry", "node_value0", "sources", "offsets", "value_type", "wheres")
        }
        told["entries"] = dict(made.entries)
        told["lazies"] = len(made.lazies)
    assert batch.report.nodes == len(told["node_entry"])
    return told


@settings(max_examples=40)
@given(strategies.PROGRAMS)
def test_known_kinds_of_calls_are_recorded_as_new_ones_are(program):
    """Python records what is not seen before or not made of arrays and lists; here, all of it."""
    recording_of(program)
    native = recording_of(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.recording, "call", lambda *_: NotImplemented)
        patch.setattr(LazyNDArray, "__getitem__", LazyNDArray._index)
        python = recording_of(program)
    # Samples are numbered by when they are met, lines by where: both are the same place here.
    assert native == python


def test_the_tape_knows_what_is_still_held():
    net = gdb.convert(mx.gluon.nn.Activation("relu"))
    net.hybridize()
    ones = mx.nd.ones((1, 2))
    with gdb.batching(granularity="block", policy="depth"):
        kept, dropped, read = (net(ones) for _ in range(3))
        more = [kept * k for k in range(3)]
        del dropped, more[1]
        made = STATE.recorder.tape
        read.become(ones)
        assert [id(lazy) for lazy in made.held()] == [id(lazy) for lazy in (kept, *more)]
        alive = [reference() for reference in made.lazies]
        assert made.held() == [lazy for lazy in alive if lazy is not None and lazy._real is None]


def planned(program, granularity, table):
    """Return units, groups and plan of what a program records."""
    with gdb.batching(granularity="block", policy="depth"):
        for sample in program.samples:
            program.fn(sample)
        made = STATE.recorder.tape
        assume(made.node_entry)
        last = len(made.value_type)
        unused = expand.find_unused(made, range(last * 3 // 4, last))
        units = expand.expand(made, granularity, expand.find_weights(made), table, unused)
        groups = depth.group_by_depth(units.dependencies)
        types = [TYPES[made.value_type[value]] for value in made.external_values]
        result = plan.make_plan(units, groups, types)
    check_plan(result)
    return units, groups, result


@needs_planning
@settings(max_examples=40)
@given(strategies.PROGRAMS, st.sampled_from(["block", "operator"]))
def test_both_plan_the_same(program, granularity):
    table = SegmentTable()
    native_units, native_groups, native_plan = planned(program, granularity, table)
    with pytest.MonkeyPatch.context() as patch:
        for module in (order, plan):
            patch.setattr(module, "PLANNING", None)
        units, groups, result = planned(program, granularity, table)
    assert native_units.segments == units.segments
    for name, native_array, array in [
        *zip(units._fields, native_units, units),
        *zip(units.dependencies._fields, native_units.dependencies, units.dependencies),
    ]:
        if isinstance(array, np.ndarray):
            assert native_array.dtype == array.dtype and (native_array == array).all(), name
    assert (native_groups == groups).all()
    for native_launch, launch in zip(native_plan.launches, result.launches):
        assert (native_launch.units == launch.units).all()
    assert str(native_plan) == str(result)


@pytest.mark.parametrize("width", [4, 8])
def test_integers_behave_as_an_array(width):
    made = Tape()
    vector = made.sources if width == 4 else made.offsets
    assert len(vector) == 0 and bytes(vector) == b"" and not vector
    for i in range(100):
        vector.append(i)
    vector.extend(memoryview(vector)[:3].tolist())
    vector.extend((7, -1))
    wanted = [*range(100), 0, 1, 2, 7, -1]
    assert list(vector) == wanted and vector[4] == 4
    assert memoryview(vector).itemsize == width
    assert np.array(vector).tolist() == wanted
    assert np.frombuffer(vector, dtype=f"i{width}").tolist() == wanted
    with pytest.raises(IndexError):
        vector[len(wanted)]
    with pytest.raises(TypeError):
        vector.append("1")


def test_integers_that_are_looked_into_do_not_move():
    vector = Tape().sources
    vector.append(1)
    view = memoryview(vector)
    with pytest.raises(BufferError):
        vector.extend(range(1000))
    view.release()
    vector.extend(range(1000))
    assert len(vector) >= 1001


def test_call_checks_what_it_is_given():
    with pytest.raises(TypeError):
        native.recording.call(None, {}, 0, 0, ())
    with pytest.raises(TypeError):
        native.recording.call()


def test_a_recording_is_freed_with_its_arrays():
    net = gdb.convert(mx.gluon.nn.Dense(2, in_units=2))
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((4, 2))

    def flush():
        with gdb.batching(granularity="block", policy="depth"):
            rows = net(x)
            return [net(rows[i : i + 1]) for i in range(4)] + [rows[1], rows[-1], rows[0:2]]

    def recordings():
        gc.collect()
        return sum(isinstance(o, Tape) for o in gc.get_objects())

    flush()
    before = recordings()
    held = [flush() for _ in range(3)]
    watched = [weakref.ref(array) for arrays in held for array in arrays]
    with pytest.raises(KeyError), gdb.batching(granularity="block", policy="depth"):
        held.append([net(x[0:1])])
        watched.append(weakref.ref(held[-1][0]))
        raise KeyError
    assert all(reference() is not None for reference in watched)
    del held
    assert recordings() == before
    assert all(reference() is None for reference in watched)
