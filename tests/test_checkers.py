"""The checks of ``debug=True`` find damaged tapes, graphs and plans."""

import contextlib
import ctypes

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.lower.graph import check_graph
from gluon_dynbatch.native import planning
from gluon_dynbatch.plan.check import check_plan, check_transposed
from gluon_dynbatch.plan.transpose import transpose
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.record.tape import Tape, check_tape
from tests.cells import WIDTH, Attention, cell, dense, heads_of, inputs, ready, unary
from tests.common import FIXED, SCOPES
from tests.inside import change_reference
from tests.test_plan import plan_of

INPUT = mx.nd.ones((2, 4))


def record(net):
    """Record a call of a block, and operators on views of its result and on zeros."""
    y = net(INPUT)
    mx.nd.concat(y[0:1], y[1:2], mx.nd.zeros((1, 3)), dim=0).detach()
    return STATE.recorder.tape


#: The line of the first call in `record`.
LINE = record.__code__.co_firstlineno + 2


def test_a_tape_is_printed_with_a_line_per_call():
    """A wrong call adds at most arrays that are never read."""
    net = dense()
    with gdb.batching(**FIXED):
        tape = record(net)
        assert str(tape).splitlines() == [
            f"%1 float32(2, 3) = {net.name}(%0 (2, 4))  # {__file__}:{LINE} in record",
            "%3 float32(3, 3) = Concat(%1[0:3] (1, 3), %1[3:6] (1, 3), %2[0:3] (1, 3))"
            f"  # {__file__}:{LINE + 1} in record",
            f"%4 float32(3, 3) = identity(%3 (3, 3))  # {__file__}:{LINE + 1} in record",
        ]
        with pytest.raises(gdb.ShapeError):
            net(mx.nd.ones((1, 5)))
        check_tape(record(net))
    assert str(tape).startswith(f"%1 float32(2, 3) = {net.name}(%0 (2, 4))  # {__file__}:{LINE} ")
    assert str(Tape()) == ""


def test_a_viewed_vector_of_a_tape_does_not_grow():
    net = dense()
    with gdb.batching(**FIXED):
        tape = record(net)
        with memoryview(tape.sources), pytest.raises(BufferError):
            net(mx.nd.ones((1, 4)))
        check_tape(record(net))


def put(vector, index, number):
    """Return a function that writes a number into a vector of a tape."""

    def damage(tape):
        numbers = np.frombuffer(getattr(tape, vector), "i8" if vector == "offsets" else "i4")
        address = numbers.ctypes.data + index * numbers.itemsize
        c_type = ctypes.c_int64 if vector == "offsets" else ctypes.c_int32
        c_type.from_address(address).value = number  # views are read-only

    return damage


DAMAGED_TAPES = {
    "call 0: %1 is no earlier value": put("sources", 0, 1),
    "call 1: %-1 is no earlier value": put("sources", 3, -1),
    "call 1: reads beyond %1": put("offsets", 2, 4),
    "call 1: no entry 1000000": put("node_entry", 1, 10**6),
    "%4: not registered by its array": put("external_values", 1, 4),
    "counts of calls": lambda tape: tape.node_place.pop(),
    "counts of operands": lambda tape: tape.offsets.append(0),
    "a value is not defined exactly once": lambda tape: tape.value_type.append(0),
}


@pytest.mark.parametrize("message", DAMAGED_TAPES)
def test_damaged_tapes_are_found(message):
    with pytest.raises(KeyError), gdb.batching(**FIXED):
        tape = record(dense())
        check_tape(tape)
        DAMAGED_TAPES[message](tape)
        with pytest.raises(AssertionError) as raised:
            check_tape(tape)
        assert message in str(raised.value)
        raise KeyError  # prevents the flush of the damaged tape


def test_a_flush_with_debug_checks_its_tape():
    with pytest.raises(AssertionError, match="not registered"), gdb.batching(debug=True):
        record(dense()).originals[0] = mx.nd.ones(1)


@pytest.mark.parametrize("kind", ["prelu", "leaky", "elu", "selu", "gelu"])
def test_debug_knows_what_mxnet_rounds_to_single_precision(kind):
    """Alone, MXNet computes these of doubles in single precision; native steps do not."""
    slope = [mx.nd.array([0.3], dtype="float64")] if kind == "prelu" else []
    net = cell(lambda F, x, *slope: F.LeakyReLU(x * 1.1, *slope, act_type=kind, slope=0.3))
    random = np.random.RandomState(0)
    samples = [mx.nd.array(random.normal(size=(n, 4)), dtype="float64") for n in (1, 3, 2)]
    for options in SCOPES:
        with gdb.batching(**{**options, "debug": True}):
            for x in samples:
                net(x, *slope)


def changed(part, field, at, by):
    """Return a graph, or its dependencies, with one number of an array changed."""
    if field not in part._fields:
        return part._replace(dependencies=changed(part.dependencies, field, at, by))
    array = getattr(part, field).copy()
    array[at] += by
    return part._replace(**{field: array})


DAMAGED_GRAPHS = {
    "no earlier unit has": lambda g: changed(g, "term", 0, 1 - g.term[0]),
    "missing external": lambda g: changed(g, "term", 0, -9),
    "negative": lambda g: changed(g, "term_offset", 0, -1),
    "signature of another": lambda g: changed(g, "term_offset", -1, 4),
    "order of their calls": lambda g: g._replace(node=g.node[::-1]),
    "slots do not add up": lambda g: changed(g, "slot0", 1, 1),
    "has another unit": lambda g: changed(g, "slot_unit", 1, 1),
    "inputs do not add up": lambda g: changed(g, "input0", 1, 1),
    "a sum": lambda g: changed(g, "term0", -1, 1),
    "has no rows": lambda g: changed(g, "rows", 0, -g.dependencies.rows[0]),
    "predecessors are not": lambda g: changed(g, "preds", 0, 1),
    "offsets": lambda g: changed(g, "offsets", 1, 1),
}


@pytest.mark.parametrize("match", DAMAGED_GRAPHS)
def test_damaged_graphs_are_found(match):
    """Two queries read a memory that a third call computes: {a}, {attention x 2}."""
    a, lookup = ready(unary()), ready(Attention())
    with gdb.batching(**FIXED) as batch:
        memory = a(mx.nd.ones((3, WIDTH)))
        results = [lookup(x, memory) for x in inputs(2)]
    graph = batch.plan.graph
    assert len(results) == 2
    check_graph(graph)
    with pytest.raises(AssertionError, match=match):
        check_graph(DAMAGED_GRAPHS[match](graph))


def with_table(plan, name, change, *at):
    """Return a plan, or its members, with one number of a table changed."""
    if name not in plan._fields:
        return plan._replace(members=with_table(plan.members, name, change, *at))
    table = getattr(plan, name).copy()
    table[at] += change
    return plan._replace(**{name: table})


def with_joined(plan):
    """Move the units of the second launch into the first."""
    columns = plan.members._asdict()
    columns["launch"] = np.maximum(columns["launch"] - 1, 0)
    columns.update((name, np.delete(columns[name], 1)) for name in ("first", "part0"))
    return plan._replace(members=type(plan.members)(**columns), order=plan.order[:-1])


def with_another_row(plan):
    """Read from the right launch, but from the wrong member."""
    _, arena, start, rows, _ = plan.regions[0].tolist()
    operands, index = plan.operands.copy(), plan.inputs.first[2]
    slices = [(planning.SLICE, arena, (start + k) * WIDTH, 1, WIDTH) for k in range(rows)]
    operands[index] = next(row for row in slices if row != tuple(operands[index].tolist()))
    return plan._replace(operands=operands)


def with_pieces(plan, column):
    pieces = plan.pieces.copy()
    pieces[:, column] += 1
    return plan._replace(pieces=pieces)


#: A golden plan, the message, and the damage.  The launches of "chains" are {a a a}, {a a}, {a}.
DAMAGED_PLANS = [
    ("chains", "exactly", lambda p: with_table(p, "units", 1, -1)),
    ("chains", "in order", lambda p: p._replace(order=p.order[::-1])),
    ("chains", "later", lambda p: p._replace(graph=changed(p.graph, "preds", 0, 1))),
    ("chains", "another launch", lambda p: with_table(p, "launch", 1, 0)),
    ("by_agenda", "mixes signatures", with_joined),
    ("by_agenda", "units of a part", lambda p: p._replace(graph=changed(p.graph, "segment", 0, 1))),
    ("chains", "no parts", lambda p: with_table(p, "part0", -1, 1)),
    ("chains", "rows", lambda p: with_table(p, "rows", 1, 0)),
    ("chains", "written exactly once", lambda p: with_table(p, "regions", -1, 1, 2)),
    ("chains", "results and fills", lambda p: p._replace(filled=())),
    ("chains", "another location", lambda p: with_table(p, "element_of", 1, 0)),
    ("chains", "reads other rows", with_another_row),
    *(("trees", ".", lambda p, column=c: with_pieces(p, column)) for c in range(1, 5)),
]


@pytest.mark.parametrize("case, match, change", DAMAGED_PLANS)
def test_damaged_plans_are_found(case, match, change):
    plan = plan_of(case)
    check_plan(plan)
    with pytest.raises(AssertionError, match=match):
        check_plan(change(plan))


#: Damage to the transposed plan of "chains", the heads of which are the last results.
DAMAGED_TRANSPOSED = {
    "in reverse": lambda p: {"order": p.order[::-1]},
    "gets no gradient": lambda p: {"operands": p.operands * [[1], [0], [1], [1]]},
    "results and fills": lambda p: {"operands": p.operands[1:]},
    "gradients flow to other rows": lambda p: {"operands": p.operands * [[1], [1], [1], [0]]},
    "written exactly once": lambda p: {"regions": p.regions * [[1], [1], [0], [1]]},
}


@pytest.mark.parametrize("match", DAMAGED_TRANSPOSED)
def test_damaged_transposed_plans_are_found(match):
    plan = plan_of("chains")
    ends = [int(plan.graph.slot0[launch.units[-1]]) for launch in plan.launches]
    heads = heads_of(plan, ends)
    backward = transpose(plan, heads)
    check_transposed(plan, heads, backward)
    broken = backward._replace(**DAMAGED_TRANSPOSED[match](backward))
    with pytest.raises(AssertionError, match=match):
        check_transposed(plan, heads, broken)
    ((numbers, sizes),) = backward.filled
    swapped = backward._replace(filled=((numbers[::-1], sizes),))
    with pytest.raises(AssertionError, match="gradients flow to other rows"):
        check_transposed(plan, heads, swapped)


@pytest.mark.parametrize(
    "terms, change, is_wrong", [(20_000, 0, False), (20_000, 1, True), (2, 1e-3, True)]
)
def test_launches_are_compared_with_calls_alone(monkeypatch, terms, change, is_wrong):
    """Sums of many terms that cancel have the rounding errors of their terms."""
    random = np.random.RandomState(0)
    product, weight = cell(lambda F, x, w: F.dot(x, w)), mx.nd.array(random.randn(terms, 5))
    samples = [mx.nd.array(random.randn(1, terms)) for _ in range(40)]
    change_reference(monkeypatch, change)
    wrong = pytest.raises(gdb.MismatchError, match="other values in launch 0 than alone")
    with wrong if is_wrong else contextlib.nullcontext(), gdb.batching(**FIXED, debug=True):
        for x in samples:
            product(x, weight)


@pytest.mark.parametrize("change", [0, 1])
@pytest.mark.parametrize("mean, deviation", [(1e3, 1), (1e3, 1e-2), (1e4, 1), (-3e5, 1)])
def test_rounding_errors_of_arguments_are_no_mismatch(monkeypatch, front, mean, deviation, change):
    """A mean of large numbers has errors that are large beside the differences from it."""
    random = np.random.RandomState(0)
    norm = cell(
        lambda F, x, gain, shift, factor: (F.npx.layer_norm if front == "np" else F.LayerNorm)(
            x * factor, gain, shift
        )
    )
    made = (mx.np if front == "np" else mx.nd).array
    gain, shift = made(random.uniform(0.5, 1, 8)), made(random.randn(8))
    factor = made(1.0) if front == "np" else 1.0  # it has no axes
    samples = [made(mean + deviation * random.randn(2, 8)) for _ in range(4)]
    change_reference(monkeypatch, change)
    wrong = pytest.raises(gdb.MismatchError, match="other values in launch 0 than alone")
    with wrong if change else contextlib.nullcontext(), gdb.batching(**FIXED, debug=True):
        for x in samples:
            norm(x, gain, shift, factor)
