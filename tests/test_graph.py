"""From a tape to a graph: what is shared, what is recurrent, who reads what, and what may merge."""

from __future__ import annotations

import gc
from collections import defaultdict

import mxnet as mx
import networkx as nx
import pytest
from hypothesis import assume, given, settings

import gluon_dynbatch as gdb
from gluon_dynbatch.lower import expand as expanding
from gluon_dynbatch.lower.expand import expand, find_weights
from gluon_dynbatch.lower.graph import check_graph
from gluon_dynbatch.lower.segment import SegmentTable
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.run.dispatch import Dispatcher
from gluon_dynbatch.testing import check_against_loop
from tests import strategies
from tests.cells import WIDTH, Attention, Unary, array, attached, cell, inputs, ready, widths


def tape_of(program):
    """Yield the tape that a program records, as long as its scope is open."""
    with gdb.batching(granularity="block", policy="depth"):
        _held = [program.fn(sample) for sample in program.samples]
        tape = STATE.recorder.tape
        assume(len(tape.node_entry))
        yield tape


@settings(max_examples=30)
@given(strategies.PROGRAMS)
def test_what_is_shared_and_what_is_recurrent(program):
    for tape in tape_of(program):
        weights = find_weights(tape)
        survey = expanding._Survey(tape, weights)
        families, maker, delivers = defaultdict(list), {}, set()
        for entry, operands, results in tape.calls():
            families[entry.token, len(operands)].append(operands)
            for place, (value, _) in zip(entry.places, operands):
                if value in maker:
                    delivers.add((maker[value], entry.token, place))
            maker.update(dict.fromkeys(results, entry.token))
        graph = nx.DiGraph()
        graph.add_edges_from((a, b) for a, b, _ in delivers)
        wanted = defaultdict(set)
        for a, b, place in delivers:
            if nx.has_path(graph, b, a):
                wanted[b].add(place)
        found = survey.recurrent()
        for number, entry in tape.entries.items():
            assert found.get(survey.callee[number], set()) == wanted[entry.token]
            read = families[entry.token, len(entry.in_types)]
            shared = set()
            for i, kind in enumerate(entry.in_types):
                arrays = [operands[i] for operands in read]
                same = len(set(arrays)) == 1 and len(arrays) > 1
                weight = all(value in weights and not offset for value, offset in arrays)
                if kind.shape[0] > 1 and (same or weight):
                    shared.add(i)
            if len(shared) == len(entry.in_types):
                shared = set()
            assert survey.shared(entry) == shared


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_gradients_of_a_shared_array_add_up_whatever_reads_it(granularity):
    """MXNet's ``clip`` overwrites gradients that are to be added; two launches read the weight."""
    clipped = cell(lambda F, x, weight: F.dot(x, F.clip(weight, -0.5, 0.5)))
    (weight,) = attached([array(WIDTH, WIDTH)])
    samples = [(x, weight) for x in inputs(3)]
    batch = check_against_loop(
        lambda s: clipped(clipped(*s), s[1]), samples, granularity=granularity, policy="depth"
    )
    assert widths(batch) == [3, 3]


# The checker ------------------------------------------------------------------------------------


@pytest.fixture
def graph():
    """Two queries over a memory that a third call makes: {a}, {attention x 2} share it."""
    a, lookup = ready(Unary()), ready(Attention())
    with gdb.batching(granularity="block", policy="depth") as batch:
        memory = a(mx.nd.ones((3, WIDTH)))
        results = [lookup(x, memory) for x in inputs(2)]
    assert len(results) == 2
    check_graph(batch.plan.graph)
    return batch.plan.graph


def changed(array, at, by):
    array = array.copy()
    array[at] += by
    return array


BROKEN = {
    "what is not made": lambda g: {"term": changed(g.term, 0, 1 - g.term[0])},
    "no external": lambda g: {"term": changed(g.term, 0, -9)},
    "not made before": lambda g: {"term": changed(g.term, -1, 9)},
    "negative": lambda g: {"term_offset": changed(g.term_offset, 0, -1)},
    "signature of another": lambda g: {"term_offset": changed(g.term_offset, -1, 4)},
    "order of their calls": lambda g: {"node": g.node[::-1]},
    "slots do not add up": lambda g: {"slot0": changed(g.slot0, 1, 1)},
    "units of slots": lambda g: {"slot_unit": changed(g.slot_unit, 1, 1)},
    "inputs do not add up": lambda g: {"input0": changed(g.input0, 1, 1)},
    "terms do not add up": lambda g: {"term_size": g.term_size[:-1]},
    "a sum": lambda g: {"term0": changed(g.term0, -1, 1)},
    "has no terms": lambda g: {"term0": changed(g.term0, 1, 1)},
    "not one per unit": lambda g: {"node": g.node[:-1]},
}
BROKEN_DEPENDENCIES = {
    "no rows": lambda d: {"rows": changed(d.rows, 0, -d.rows[0])},
    "predecessors are not": lambda d: {"preds": changed(d.preds, 0, 1)},
    "offsets": lambda d: {"offsets": changed(d.offsets, 1, 1)},
    "of another": lambda d: {"signature": d.signature * 0},
}


@pytest.mark.parametrize("match", BROKEN)
def test_refuses_a_broken_graph(graph, match):
    with pytest.raises(AssertionError, match=match):
        check_graph(graph._replace(**BROKEN[match](graph)))


@pytest.mark.parametrize("match", BROKEN_DEPENDENCIES)
def test_refuses_broken_dependencies(graph, match):
    broken = graph.dependencies._replace(**BROKEN_DEPENDENCIES[match](graph.dependencies))
    with pytest.raises(AssertionError, match=match):
        check_graph(graph._replace(dependencies=broken))


# What is kept -----------------------------------------------------------------------------------


def test_what_is_compiled_goes_with_the_calls():
    """Neither cuts nor executables outlive the segment they are for."""
    unary, table, dispatcher = ready(Unary()), SegmentTable(), Dispatcher()
    x = inputs(1)[0]
    with gdb.batching(granularity="block", policy="depth"):
        y = unary(x)
        tape = STATE.recorder.tape
        (segment,) = expand(tape, "block", find_weights(tape), table).segments
        assert dispatcher.executable(segment) is dispatcher.executable(segment)
        assert dispatcher.built == 1
        again = expand(tape, "block", find_weights(tape), table)
        assert again.segments == [segment]
    assert len(dispatcher._executables) == len(table._segments) == len(table._cuts) == 1
    del again, segment, tape, y, unary, x
    gc.collect()
    assert len(dispatcher._executables) == len(table._segments) == len(table._cuts) == 0
