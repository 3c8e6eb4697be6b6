"""The native code does what plain Python says."""

import gc
import weakref
from collections import defaultdict

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch.lower.expand import expand, find_weights
from gluon_dynbatch.lower.segment import SegmentTable
from gluon_dynbatch.plan.check import check_plan
from gluon_dynbatch.plan.make import make_plan
from gluon_dynbatch.record.recorder import STATE
from gluon_dynbatch.record.tape import Tape
from gluon_dynbatch.record.types import TYPES
from gluon_dynbatch.schedule import group_by_depth
from tests import strategies


def by_readers(graph, groups):
    """Order units by launch and, within one, by where the unit that they follow reads them."""
    ends = [*graph.input0[1:].tolist(), len(graph.term0) - 1]
    reads, extra = defaultdict(list), {}  # per slot: launch, port and summand; reader
    for unit in np.argsort(groups, kind="stable").tolist():
        inputs = range(int(graph.input0[unit]), ends[unit])
        extra[unit] = int(graph.term0[ends[unit]] - graph.term0[inputs.start]) - len(inputs)
        for port, number in enumerate(inputs):
            for level, at in enumerate(range(*graph.term0[number : number + 2])):
                reads[int(graph.term[at])].append(((int(groups[unit]), port, level), unit))
    rank, position = {}, {}
    for launch in reversed(range(max(groups) + 1)):
        members = np.flatnonzero(groups == launch).tolist()
        for unit in members:
            slots = np.flatnonzero(graph.slot_unit == unit).tolist()
            read = [where for slot in slots for where in reads[slot]]
            once = [where for slot in slots if len(reads[slot]) == 1 for where in reads[slot]]
            follows = [(groups[reader], reader, place[1:], place) for place, reader in once or read]
            _, leader, _, place = (max if once else min)(follows, default=(0, unit, 0, (np.inf,)))
            rank[unit] = -extra[unit], place, position.get(leader, unit)
        for at, unit in enumerate(sorted(members, key=rank.get)):
            position[unit] = at
    return sorted(range(len(groups)), key=lambda unit: (groups[unit], position[unit]))


@settings(max_examples=40)
@given(strategies.PROGRAMS, st.sampled_from(["block", "operator"]))
def test_members_stand_where_their_readers_do(program, granularity):
    with gdb.batching(granularity="block", policy="depth"):
        for sample in program.samples:
            program.fn(sample)
        tape = STATE.recorder.tape
        assume(tape.node_entry)
        graph = expand(tape, granularity, find_weights(tape), SegmentTable())
        groups = group_by_depth(graph.dependencies)
        plan = make_plan(graph, groups, tape.external_type, TYPES.__getitem__)
    check_plan(plan)
    found = [unit for launch in plan.launches for unit in launch.units.tolist()]
    assert found == by_readers(graph, groups)


def test_integers_that_are_looked_into_do_not_move():
    vector = Tape().sources
    vector.append(1)
    view = memoryview(vector)
    with pytest.raises(BufferError):
        vector.extend(range(1000))
    view.release()
    vector.extend(range(1000))
    assert len(vector) >= 1001


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
