"""Dynamic blocks that are traced once per structure: the loop's results, and what is not kept."""

from __future__ import annotations

import copy
import enum
import random
from dataclasses import dataclass
from typing import Any, NamedTuple, Tuple

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.native import recording
from gluon_dynbatch.record.where import where_of
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, TreeNet, array, make_cells, ready
from tests.common import FIXED, SCOPES, nothing_is_left_behind
from tests.strategies import MODELS, PROGRAMS, examples
from tests.test_structure import CLOSE, described, nests

__all__ = ["nothing_is_left_behind"]


class Given(gdb.DynamicHybridBlock):
    """A dynamic block that does what it is given; it counts how often."""

    def __init__(self, fn, net=None, **attributes):
        super().__init__(prefix="given_")
        self._fn = fn
        if net is not None:
            self.net = net
        for name, value in attributes.items():
            setattr(self, name, value)
        self.hybridize(trace_once=True)

    def forward(self, *args):
        RUNS.append(self)
        return self._fn(self, *args)


RUNS = []
NET = ready(gdb.convert(nn.Dense(WIDTH, in_units=WIDTH, flatten=False)))


def traced(fn, *attributes, **named):
    return Given(fn, ready(gdb.convert(nn.Dense(WIDTH, in_units=WIDTH, flatten=False))), **named)


def chain(block, x, times):
    for _ in range(times):
        x = block.net(x)
    return x


def scope(block, samples, **options):
    """Run samples in a scope, and compare with the loop; return the scope's account of tracing."""
    params = [] if block is None else block.collect_params().values()
    return check_against_loop(
        lambda sample: block(*sample), samples, params, **{**FIXED, **options}
    ).report.traced


def x(seed=0, rows=1):
    return array(rows, WIDTH, seed=seed)


# What is kept


@given(one=nests(st.sampled_from(CLOSE)), other=nests(st.sampled_from(CLOSE)))
@examples(200)
def test_keys_are_equal_for_equal_structures_only(one: Any, other: Any) -> None:
    keys = [recording.Structure(None).write(0, value) for value in (one, copy.deepcopy(one), other)]
    assert keys[0] == keys[1]
    assert (keys[0] == keys[2]) == (described(one) == described(other))


@pytest.mark.parametrize("options", SCOPES[:3])
@given(program=PROGRAMS)
@examples(6)
def test_programs_give_what_the_loop_gives_when_they_are_traced_and_when_they_are_known(
    program: Any, options: Any
) -> None:
    run_three_times(program, options, options)


@given(program=MODELS)
@examples(4)
def test_debug_finds_nothing_against_them(program: Any) -> None:
    run_three_times(program, FIXED, SCOPES[3])


def run_three_times(program: Any, first: Any, later: Any) -> None:
    block = Given(lambda block, sample: program.fn(sample), program.block)
    try:
        for options in (first, later, later):
            batch = check_against_loop(block, program.samples, program.params, **options)
        account = batch.report.traced
        assert account.known + account.new + sum(r.calls for r in account.refused.values())
    finally:
        program.block.hybridize()


TREES = st.recursive(
    st.just([]), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=4
)


@given(trees=st.lists(TREES, min_size=1, max_size=5))
@examples(15)
def test_trees_are_run_once_each_and_subtrees_with_them(trees: Any) -> None:
    cells = make_cells()
    net = TreeNet(cells.child_sum)
    net.hybridize(trace_once=True)
    samples = [(tree, x(i)) for i, tree in enumerate(trees)]
    first = scope(net, samples)
    again = scope(net, samples)
    assert not first.refused and not again.refused
    assert again.new == 0 and again.known == len(trees)


def test_equal_structures_are_one_and_others_are_not():
    block = traced(chain)
    assert scope(block, [(x(1), 2), (x(2), 2), (x(3), 3), (x(4), 2)]).new == 2
    assert scope(block, [(x(5), 3), (x(6), 2)]).new == 0
    assert scope(block, [(x(5, 2), 2)]).new == 1  # another shape
    assert scope(block, [(x(5, 2), True)]).new == 1  # equal, and of another type


class Shape(NamedTuple):
    times: int
    names: Tuple[str, ...]


@dataclass(frozen=True)
class Frozen:
    times: int


class Node:
    def __init__(self, times, array=None):
        self.times, self.array = times, array


class Slotted:
    __slots__ = ("times", "__hidden")

    def __init__(self, times):
        self.times = times
        self.__hidden = times


class Extended(NamedTuple("Extended", [("names", tuple)])):
    """A tuple with attributes."""


def extended(times):
    made = Extended(())
    made.times = times
    return made


class Kind(enum.Enum):
    ONE, TWO = 1, 2

    @property
    def times(self):
        return self.value


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Shape(n, ("a",)),
        Frozen,
        Node,
        Slotted,
        lambda n: Node(np.int32(n)),
        extended,
        Kind,
        lambda n: Node(range(n)[-1] + 1, np.arange(3)),
    ],
)
def test_objects_are_told_apart_by_value(make):
    block = traced(lambda block, x, shape: chain(block, x, shape.times))
    account = scope(block, [(x(1), make(1)), (x(2), make(1)), (x(3), make(2)), (x(4), make(2))])
    assert (account.new, account.known, account.refused) == (2, 2, {})


def test_an_object_that_was_changed_is_another():
    block = traced(lambda block, x, shape: chain(block, x, shape.times))
    shape = Node(1)
    scope(block, [(x(), shape)])
    shape.times = 2
    assert scope(block, [(x(), shape)]).new == 1


def test_arrays_within_objects_are_arguments():
    block = traced(lambda block, node: chain(block, node.array, node.times))
    account = scope(block, [(Node(2, x(i)),) for i in range(3)])
    assert (account.new, account.known) == (1, 2)


def test_objects_that_refer_to_each_other():
    def ring(times):
        one, other = Node(times), Node(times)
        one.next, other.next = other, one
        return one

    block = traced(lambda block, x, node: chain(block, x, node.next.next.times))
    account = scope(block, [(x(i), ring(2)) for i in range(3)])
    assert (account.new, account.known) == (1, 2)


def test_the_same_array_twice_is_another_structure_than_two():
    block = traced(lambda block, a, b: block.net(a) + 2 * block.net(b))
    same = x(1)
    samples = [(same, same), (x(1), x(2)), (x(3), x(4)), (same, same)]
    account = scope(block, samples)
    assert (account.new, account.known) == (2, 2)


@pytest.mark.parametrize("attach", [False, True])
def test_views_of_recorded_arrays_that_are_not_lazy_and_of_results(attach):
    def both(block, rows, at):
        h = block.net(rows[0:1])
        for i in range(1, at):
            h = block.net(rows[i : i + 1] + h)
        return h[0], block.net(rows)[1:2], block.net(rows[0:2][1:2])

    block = traced(both)
    samples = [(x(i, 4), 3) for i in range(4)]
    for rows, _ in samples if attach else ():
        rows.attach_grad()
    scope(block, samples)
    assert scope(block, samples).known == 4


def test_results_of_other_calls_as_arguments_and_views_of_them():
    inner = traced(lambda block, a, b: block.net(a) - b[0:1])
    outer = traced(lambda block, x: inner(block.net(x)[1:3], block.net(x)), inner=inner)
    samples = [(x(i, 4),) for i in range(3)]
    scope(outer, samples)
    assert scope(outer, samples).known == 3

    def around(sample):
        h = outer.net(sample)
        return inner(h[0:2], h), inner(h[2:4], h), inner(h, h)

    for _ in range(2):
        check_against_loop(around, [x(i, 4) for i in range(3)], **FIXED)


def test_constants_parameters_and_arrays_of_the_block():
    def use(block, x):
        state = mx.nd.zeros((1, WIDTH))
        weight = block.net.weight.data()
        product = mx.nd.FullyConnected(block.net(x), weight, no_bias=True, num_hidden=WIDTH)
        return block.net(state) + product * block.mask, mx.nd.ones((1, 2)), state, state

    block = traced(use, mask=x(9))
    samples = [(x(i),) for i in range(3)]
    assert not scope(block, samples).refused
    block.net.weight.set_data(2 * block.net.weight.data())
    block.mask[:] = 3
    account = scope(block, samples)
    assert (account.new, account.known) == (0, 3)


def test_constants_that_are_returned_are_arrays_of_their_own():
    block = traced(lambda block, x: (block.net(x), mx.nd.zeros((1, 2)), mx.nd.zeros((1, 2))))
    for _ in range(2):
        with gdb.batching(**FIXED):
            _, one, other = block(x())
            one[:] = 1
        assert one.asnumpy().all() and not other.asnumpy().any()


def test_an_argument_is_returned_as_it_is_and_one_array_twice_is_one():
    def same(block, a, b):
        h = block.net(a)
        return {"b": b, "h": [h, (h, h[0])], "a": a}

    block = traced(same)
    with gdb.batching(**FIXED) as batch:
        for i in range(2):
            a, b = x(i), block.net(x(i))
            result = block(a, b)
            assert result["a"] is a and result["b"] is b
            assert result["h"][0] is result["h"][1][0]
    assert batch.report.traced.known == 1


def test_results_share_memory_as_without_a_piece():
    def views(block, x):
        h = block.net(x)
        return h, h[0], h.reshape((WIDTH,)), h.expand_dims(0)

    block = traced(views)
    for _ in range(2):
        with gdb.batching(**FIXED):
            h, row, flat, copied = block(x())
        h[:] = 7
        assert (row.asnumpy() == 7).all() and (flat.asnumpy() == 7).all()
        assert (copied.asnumpy() != 7).all()


def test_each_mode_is_traced():
    block = traced(lambda block, x: mx.nd.Dropout(block.net(x), p=0.5))
    for _ in range(2):
        with gdb.batching(**FIXED):
            quiet = [block(x()) for _ in range(3)]
        with autograd.record(), gdb.batching(**FIXED) as batch:
            noisy = [block(x()) for _ in range(3)]
        assert all((q.asnumpy() != 0).all() for q in quiet)
        assert len({n.asnumpy().tobytes() for n in noisy}) > 1
    assert (batch.report.traced.new, batch.report.traced.known) == (0, 3)


def test_random_numbers_drawn_between_samples():
    block = traced(chain)
    for _ in range(2):
        with gdb.batching(**FIXED) as batch:
            for times in (1, 2, 3):
                random.random()
                np.random.uniform()
                block(x(), times)
    assert batch.report.traced.known >= 2


def test_the_mode_that_forward_itself_switches():
    def part(block, x):
        with autograd.pause():
            h = block.net(x)
        return block.net(h)

    block = traced(part)
    samples = [(x(i),) for i in range(3)]
    scope(block, samples)
    assert scope(block, samples).known == 3


def test_stock_cells_count_their_calls_in_vain():
    cell = rnn.LSTMCell(WIDTH, input_size=WIDTH)
    cell.initialize()

    def unroll(block, x, times):
        states = block.cell.begin_state(1)
        for _ in range(times):
            x, states = block.cell(x, states)
        return x

    block = Given(unroll, cell=cell)
    samples = [(x(i), 1 + i % 2) for i in range(4)]
    scope(block, samples)
    account = scope(block, samples)
    assert (account.known, account.refused) == (4, {})


def test_lines_of_the_users_are_kept():
    block = traced(chain)
    with gdb.batching(**FIXED) as batch:
        for _ in range(2):
            block(x(), 2)
        first, _, third, _ = batch._recorder.tape.wheres
    assert first == third and "x = block.net(x)" in line_of(where_of(third))


def test_a_copied_block_has_pieces_of_its_own():
    block = Given(chain)
    other = copy.deepcopy(block)
    assert other._pieces is not block._pieces and len(other._pieces) == 0


def test_off_unless_asked():
    block = traced(chain)
    block.hybridize()
    assert block._pieces is None and scope(block, [(x(), 1)] * 2).new == 0


def test_memory_is_bounded():
    block = traced(chain)
    block._pieces._held._capacity = 20_000
    scope(block, [(x(), n) for n in range(40)])
    assert 0 < len(block._pieces) < 40 and block._pieces.size <= 20_000
    assert scope(block, [(x(), 39)]).known == 1
    assert scope(block, [(x(), 0)]).new == 1


def test_pieces_go_with_their_block_and_hold_no_arrays():
    block = traced(lambda block, x: block.net(x))
    given_ = x()
    import weakref

    with gdb.batching(**FIXED):
        result = block(given_)
    gone = weakref.ref(result)
    del result
    assert gone() is None


# What is not kept


def not_kept(block, *samples, because):
    """Run twice, compare with the loop, and check what the report says."""
    for _ in range(2):
        account = scope(block, list(samples))
        assert account.known == 0
        reasons = [one.reason for one in account.refused.values()]
        assert any(because in reason for reason in reasons), reasons
        assert all(one.where.filename.endswith(".py") for one in account.refused.values())


def read_argument(block, x):
    return chain(block, x, 1 + int(x.asnumpy()[0, 0] > 0))


def read_result(block, x):
    h = block.net(x)
    return chain(block, h, 1 + int(h.asnumpy()[0, 0] > 0))


def read_as_number(block, x):
    return block.net(x) * x[0, 0].asscalar()


def run_at_once(block, x):
    return block.net(x * 2)


def write_argument(block, x):
    x[:] = 1
    return block.net(x)


def write_out(block, x):
    mx.nd.ones((1, WIDTH), out=block.mask)
    return block.net(x)


def make_array(block, x):
    return block.net(x) + mx.nd.array([[1.0] * WIDTH])


def draw_python(block, x):
    return chain(block, x, random.randint(1, 1) or 1)


def draw_numpy(block, x):
    return block.net(x) * (0 * np.random.uniform() + 1)


def draw_mxnet(block, x):
    return block.net(x) + 0 * mx.nd.random.uniform(shape=(1, WIDTH))


def keep_elsewhere(block, x):
    ELSEWHERE.append(block.net(x))
    return block.net(x)


def keep_in_block(block, x):
    block.last = block.net(x)
    return block.last


def count_in_block(block, x):
    block.calls = getattr(block, "calls", 0) + 1
    return block.net(x)


def foreign_block(block, x):
    return NET(x)


def foreign_array(block, x):
    return block.net(x) * FOREIGN


def return_foreign(block, x):
    return block.net(x), FOREIGN


def cut(block, x):
    return block.net(x).detach()


ELSEWHERE = []
FOREIGN = x(8)


@pytest.mark.parametrize(
    "fn, because",
    [
        (read_argument, "asks for a value"),
        (read_result, "asks for a value"),
        (read_as_number, "asks for a value"),
        (run_at_once, "runs at once"),
        (write_argument, "writes to an array"),
        (write_out, "writes to an array"),
        (make_array, "makes one of given values"),
        (draw_python, "drawn in Python"),
        (draw_numpy, "drawn in Python"),
        (draw_mxnet, "runs at once"),
        (keep_elsewhere, "held elsewhere"),
        (keep_in_block, "changes an attribute"),
        (count_in_block, "changes an attribute"),
        (foreign_block, "no attribute of the block"),
        (foreign_array, "neither an argument"),
        (return_foreign, "no call recorded"),
        (cut, "cut from the gradient graph"),
    ],
)
def test_what_is_not_kept(fn, because):
    block = traced(fn, mask=x(7))
    not_kept(block, (x(1),), (x(2),), because=because)
    ELSEWHERE.clear()


def test_what_writes_to_its_results_is_not_kept():
    def write(block, x):
        h = block.net(x)
        h[:] = 1
        return block.net(h)

    block = traced(write)
    with gdb.batching(**FIXED) as batch:
        block(x())
    assert "writes to an array" in next(iter(batch.report.traced.refused))[1]


def test_what_changes_its_arguments_is_not_kept():
    def mark(block, x, node):
        node.array = block.net(x)
        return node.array

    def grow(block, x, items):
        items.append(1)
        return chain(block, x, len(items))

    not_kept(traced(mark), (x(1), Node(1)), (x(2), Node(1)), because="changes its arguments")
    block = traced(grow)
    with gdb.batching(**FIXED) as batch:
        block(x(), [1])
    assert "changes its arguments" in next(iter(batch.report.traced.refused.values())).reason


@pytest.mark.parametrize("thing", [random.Random(), iter([1, 2])])
def test_arguments_whose_changes_cannot_be_noticed(thing):
    block = traced(lambda block, x, thing: block.net(x))
    not_kept(block, (x(), thing), because="whose changes cannot be noticed")


def test_arguments_that_are_nested_too_deep():
    def linked(count):
        node = None
        for _ in range(count):
            made = Node(1)
            made.next, node = node, made
        return node

    block = traced(lambda block, x, node: block.net(x))
    assert scope(block, [(x(), linked(1000))] * 2).known == 1
    not_kept(block, (x(), linked(5000)), because="nested too deep")


def test_a_generator_of_random_numbers_in_the_block():
    block = traced(lambda block, x: block.net(x) * (block.rng.rand() > -1))
    block.rng = np.random.RandomState(0)
    not_kept(block, (x(),), because="an attribute is of type RandomState")


def test_an_exception_is_told_with_its_line_and_nothing_is_kept():
    def fail(block, x, fails):
        h = block.net(x)
        if fails:
            raise KeyError("no")  # wrong
        return h

    block = traced(fail)
    for _ in range(2):
        with gdb.batching(**FIXED) as batch:
            with pytest.raises(KeyError):
                block(x(), True)
            block(x(), False)
        [one] = batch.report.traced.refused.values()
        assert "KeyError" in one.reason and "# wrong" in line_of(one.where)
    assert batch.report.traced.known == 1


def line_of(where):
    with open(where.filename) as file:
        return file.read().splitlines()[where.line - 1]


def test_the_line_that_reads_a_value_is_told():
    def read(block, x):
        h = block.net(x)
        if h.asnumpy().sum() > 100:  # wrong
            return h
        return block.net(h)

    block = traced(read)
    with gdb.batching(**FIXED) as batch:
        block(x())
    [one] = batch.report.traced.refused.values()
    assert "# wrong" in line_of(one.where) and str(one.where) in str(batch.report)


def test_an_inner_block_that_reads_keeps_the_outer_from_being_kept():
    inner = traced(read_result)
    outer = traced(lambda block, x: block.inner(block.net(x)), inner=inner)
    not_kept(outer, (x(),), because="asks for a value")


def test_after_many_refusals_it_is_run_without_ado():
    block = traced(make_array)
    account = scope(block, [(x(),)] * 40)
    assert account.new < 40 and sum(one.calls for one in account.refused.values()) == 40


# What makes pieces invalid


def changed(change, fn=chain, **attributes):
    """Return the accounts of tracing before and after a change of the block."""
    block = traced(fn, **attributes)
    samples = [(x(i), 2) for i in range(2)]
    scope(block, samples)
    before = scope(block, samples)
    change(block)
    after = scope(block, samples)
    assert before.known == 2
    return after


def scaled(block, x, times):
    for scale in block.scales:
        x = block.net(x) * scale * block.scale * block.more["a"]
    return chain(block, x, times)


@pytest.mark.parametrize(
    "change",
    [
        lambda block: setattr(block, "scale", 3.0),
        lambda block: block.scales.append(2.0),
        lambda block: block.scales.__setitem__(0, 2.0),
        lambda block: block.more.update(a=2.0),
        lambda block: vars(block).update(scale=5.0),
    ],
)
def test_attributes(change):
    assert changed(change, scaled, scale=1.0, scales=[1.0], more={"a": 1.0}).new == 1


def test_an_attribute_that_comes_back_finds_its_pieces():
    block = traced(scaled, scale=1.0, scales=[1.0], more={"a": 1.0})
    samples = [(x(), 1)]
    for scale in (1.0, 2.0):
        block.scale = scale
        scope(block, samples)
    block.scale = 1.0
    assert scope(block, samples).known == 1


def another_dense(block):
    block.net = ready(gdb.convert(nn.Dense(WIDTH, in_units=WIDTH, flatten=False)), 0.3)


@pytest.mark.parametrize(
    "change, new",
    [
        (another_dense, 1),
        (lambda block: block.net.hybridize(), 1),
        (lambda block: block.net.hybridize(False), 2),
        (lambda block: block.hybridize(trace_once=True), 1),
    ],
)
def test_children_and_hybridize(change, new):
    account = changed(change)
    assert (account.new, account.known) == (new, 2 - new)


def test_a_parameter_with_other_values_or_another_grad_req():
    assert changed(lambda block: block.net.weight.set_data(block.net.weight.data() * 2)).known == 2
    frozen = lambda block: block.net.collect_params().setattr("grad_req", "null")  # noqa: E731
    assert changed(frozen).known == 2


def test_a_cast_block():
    block = traced(lambda block, x: mx.nd.dot(block.net(x), block.net.weight.data()))
    scope(block, [(x(),)] * 2)
    block.cast("float64")
    account = scope(block, [(x().astype("float64"),)] * 2)
    assert (account.new, account.known) == (1, 1)
    block.net.bias.cast("float64")


def test_hooks_run_each_time():
    block = traced(chain)
    seen = []
    scope(block, [(x(), 1)])
    handle = block.net.register_forward_hook(lambda *_: seen.append(1))
    account = scope(block, [(x(), 1)] * 2)
    assert account.known == 0 and "hooks" in next(iter(account.refused))[1]
    seen.clear()
    with gdb.batching(**FIXED):
        block(x(), 3)
    assert len(seen) == 3
    handle.detach()
    assert scope(block, [(x(), 1)]).known == 1
    block.register_forward_hook(lambda *_: seen.append(2))
    seen.clear()
    with gdb.batching(**FIXED):
        block(x(), 1)
    assert seen == [2]


# debug=True


def test_debug_runs_forward_each_time():
    block = traced(chain)
    RUNS.clear()
    for _ in range(2):
        with gdb.batching(**FIXED, debug=True):
            block(x(), 2)
    assert len(RUNS) == 2


def test_debug_tells_what_depends_on_something_else():
    times = [1]
    block = traced(lambda block, x: chain(block, x, times[0]))
    with gdb.batching(**FIXED):
        block(x())
    times[0] = 2
    with pytest.raises(gdb.MismatchError, match="other calls"), gdb.batching(**FIXED, debug=True):
        block(x())


# Beside other parts


@pytest.mark.parametrize("first", [False, True])
def test_a_forward_that_waits_while_others_run(first):
    """Some samples wait, in the middle, until all others have been recorded and computed."""
    greenlet = pytest.importorskip("greenlet")

    def wait(block, x, waits):
        h = block.net(x)
        if waits:
            if not first:
                greenlet.getcurrent().parent.switch()
            if float(block.inner(h, 1).asnumpy().sum()) > 100:
                return h
        return block.inner(h, 2)

    block = traced(wait, inner=traced(chain))
    samples = [(x(i), i % 3 == 0) for i in range(6)]
    wanted = [wait_at_once(block, *sample) for sample in samples]
    for _ in range(3):
        results = {}
        with gdb.batching(**FIXED) as batch:
            runs = [
                greenlet.greenlet(lambda i=i, s=s, r=results: r.update({i: block(*s)}))
                for i, s in enumerate(samples)
            ]
            for run in runs:
                run.switch()
            batch.flush()
            for run in runs:
                if not run.dead:
                    run.switch()
        for i, sample in enumerate(wanted):
            np.testing.assert_allclose(results[i].asnumpy(), sample.asnumpy(), 1e-5)
    assert batch.report.traced.known >= 4


def wait_at_once(block, x, waits):
    return chain(block.inner, block.net(x), 2)


def test_parts_of_a_minibatch_begin_with_a_sample():
    block = traced(chain)
    with gdb.batching(**FIXED) as batch:
        batch._recorder.hold = 5
        results = [block(x(i), 3) for i in range(4)]
    assert len(batch.report.flushes) == 2 and batch.report.nodes == 12
    wanted = [chain(block, x(i), 3).asnumpy() for i in range(4)]
    np.testing.assert_allclose([r.asnumpy() for r in results], wanted, 1e-5)
