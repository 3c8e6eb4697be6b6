"""What "auto" decides: which calls run at once, and which flushes run ahead."""

import gc
from unittest.mock import Mock

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch import auto
from gluon_dynbatch.record.lazy import LazyNDArray
from tests import inside
from tests.cells import dense, equal, inputs, ready
from tests.common import by_mxnets_operators
from tests.test_trace_once import FunctionBlock


def make_net():
    return dense(3, 3, activation="tanh")


net = pytest.fixture(make_net, name="net")


def gru():
    cell = ready(gluon.rnn.GRUCell(3, input_size=3))
    return lambda x: cell(x, [x])[0]


def run(net, samples, **options):
    """Open a scope; all scopes of a test are opened at this line."""
    with gdb.batching(**options) as batch:
        outputs = [net(x) for x in samples]
    return batch, outputs


# Decisions of an account


READ = {"dynamic": (make_net, autograd.pause), "in training": (gru, autograd.record),
        "stock": (lambda: ready(gluon.nn.Dense(3, in_units=3)), autograd.pause)}  # fmt: skip


@pytest.mark.parametrize("make, mode", READ.values(), ids=list(READ))
def test_if_every_value_is_read_calls_run_at_once_from_the_second_scope_on(make, mode):
    """Calls of Gluon's own blocks count as well; minibatches may grow and shrink."""
    net, counts = make(), (20, 25, 30, 3, 30, 100, 100, 100)
    with mode():
        reports = [run(lambda x: net(x).asnumpy(), inputs(n, 3))[0].report for n in counts]
    assert [report.at_once for report in reports[:5]] == [0, 25, 30, 3, 30]
    last = reports[-1]
    assert last.at_once == 100 and not last.flushes
    assert last.choice.startswith("later scopes here run their calls at once")
    assert "at once     100 calls" in str(last)


def new_at(address, cls):
    """Return a new object of a class that has this address, which one of its size had."""
    spares = []
    while len(spares) < 100_000:
        new = cls.__new__(cls)
        if id(new) == address:
            return new
        spares.append(new)
    pytest.skip("the address was given to something else")


def test_a_new_block_has_no_decision_of_one_that_was_freed():
    def reads(net):
        reports = [run(lambda x: net(x).asnumpy(), inputs(9, 3))[0].report for _ in range(2)]
        return [report.at_once for report in reports]

    net = gluon.nn.Dense(3, in_units=3)
    assert reads(ready(net)) == [0, 9]
    address = id(net)
    del net
    gc.collect()
    net = new_at(address, gluon.nn.Dense)
    net.__init__(3, in_units=3)
    assert reads(ready(net)) == [0, 9]


def test_calls_of_wide_launches_are_recorded_at_any_size(net):
    for count in (60, 150, 40, 80, 400):
        batch, _ = run(net, inputs(count, 3))
        assert batch.report.at_once == 0 and batch.report.nodes == count
    assert batch.report.choice.startswith("later scopes here record their calls")


def test_the_cost_of_plans_that_are_never_reused_counts(net):
    """Eight calls pay for a flush, but not for a new plan each time."""

    def chains(steps):
        with gdb.batching() as batch:
            for x in inputs(2, 3):
                for _ in range(steps):
                    x = net(x)
        return batch.report.at_once

    assert [chains(4) for _ in range(4)] == [0, 0, 0, 0]
    assert chains(5) == 0 and chains(5) == 10


def test_launches_that_mxnet_runs_save_less_than_native_ones():
    """Each call has a width of its own, so none shares a launch."""
    nets = [dense(n, 3) for n in range(1, 60)]

    def scope():
        x = inputs(1, 3)[0]
        with gdb.batching() as batch:
            for net in nets:
                net(x)
        return batch.report.at_once

    assert [scope() for _ in range(3)] == [0, 0, 0]
    with by_mxnets_operators():
        scope()
        assert scope() == len(nets)


@pytest.mark.parametrize(
    "options",
    [
        {"strict": True}, {"debug": True}, {"max_rows": 2}, {"granularity": "block"},
        {"policy": "depth"}, {"analysis_budget": None}, {"analysis_budget": 5},
    ],
)  # fmt: skip
def test_a_scope_with_an_option_does_not_run_calls_at_once(net, options):
    for _ in range(4):
        batch, _ = run(net, inputs(1, 3), **options)
        assert batch.report.at_once == 0 and batch.report.nodes == 1


@pytest.mark.parametrize(
    "recorded, at_once, text",
    [
        (100, 160, "record their calls, which takes less time"),
        (100, 140, "record their calls, but both ways take about as long"),
        (140, 100, "run their calls at once, but both ways take about as long"),
        (160, 100, "run their calls at once, which takes less time"),
    ],
)
def test_the_report_tells_what_was_decided_and_if_it_was_close(recorded, at_once, text):
    account, report = auto.Account({}), gdb.Report()
    account.note(auto.Costs(1, 5, 5, at_once, recorded, plan=1000), cached=False)
    account.close(report)
    assert report.choice == f"later scopes here {text}"


# Which scopes share decisions


def test_recording_starts_after_more_calls_than_expected(net):
    for _ in range(2):
        run(net, inputs(1, 3))
    samples = inputs(60, 3)
    batch, got = run(net, samples)
    assert batch.report.at_once == 2 and batch.report.nodes == 58, "twice as many run at once"
    assert type(got[0]) is mx.nd.NDArray and type(got[-1]) is LazyNDArray
    equal(got, [net(x) for x in samples], 1e-5)
    batch, _ = run(net, samples)
    assert batch.report.at_once == 0, "the decision counts all calls of the last scope"


def test_gradients_over_calls_at_once_and_recorded_ones(net):
    samples = inputs(40, 3)
    weight, gradients = net.weight, []
    for count in (None, 1, 1, 40):
        with autograd.record():
            outputs = [net(x) for x in samples] if count is None else run(net, samples[:count])[1]
        autograd.backward(outputs)
        gradients.append(weight.grad().asnumpy())
    np.testing.assert_allclose(gradients[-1], gradients[0], rtol=1e-4, atol=1e-5)


def test_exceptions_decide_nothing_and_hybridizing_resets_decisions(net):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run(net, (1 / 0 for _ in range(1)))
    assert run(net, inputs(40, 3))[0].report.nodes == 40
    for _ in range(3):
        batch, _ = run(net, inputs(1, 3))
    assert batch.report.at_once == 1
    net.hybridize(granularity="block", policy="depth")
    batch, _ = run(net, inputs(4, 3))
    assert batch.report.at_once == 0 and batch.report.flushes[0].granularity == "block"


def test_a_scope_at_another_line_or_with_another_model_is_recorded(net):
    wide_net = make_net()
    for _ in range(3):
        small, large = run(net, inputs(1, 3))[0], run(wide_net, inputs(300, 3))[0]
        assert large.report.at_once == 0 and large.report.nodes == 300
    assert small.report.at_once == 1
    with gdb.batching() as batch:
        net(inputs(1, 3)[0])
    assert batch.report.at_once == 0 and batch.report.nodes == 1


# Flushes before the end of a scope


@pytest.fixture(scope="module")
def wide():
    """Return a block of which some thousand calls are enough work for a flush."""
    return dense(700, 1000)


def wide_rows(count):
    return [mx.nd.random.normal(0, 0.003, (1, 1000)) for _ in range(count)]


def nodes(batch):
    return [flush.nodes for flush in batch.report.flushes]


def test_much_pending_work_runs_ahead_unless_an_option_is_given(net, wide):
    samples = wide_rows(1100)
    mx.nd.waitall()  # while earlier work is unfinished, none runs ahead
    batch, outputs = run(wide, samples)
    assert nodes(batch) == [1024, 76] and not batch.report.forced
    equal(outputs, [wide(x) for x in samples], 1e-5)
    for options in ({"policy": "depth"}, {"max_rows": 5000}):
        assert nodes(run(wide, samples, **options)[0]) == [1100]
    mx.nd.waitall()
    assert nodes(run(net, inputs(1100, 3))[0]) == [1100], "it is little work"
    assert nodes(run(wide, samples)[0]) == [1100], "little is left after 1024 calls"


@pytest.mark.parametrize("mode, parts", [(autograd.pause, 1024), (autograd.record, 3072)])
def test_as_many_parts_as_pay(net, monkeypatch, mode, parts):
    """With a backward pass, a flush costs more.  The second scope knows how long the first was."""
    inside.limit(monkeypatch, "work that runs ahead", (1000, 1000))
    samples = inputs(4096, 3)
    for first in (parts, 1024):
        mx.nd.waitall()
        with mode():
            batch, outputs = run(net, samples)
        assert nodes(batch)[0] == first and sum(nodes(batch)) == 4096
        equal(outputs, [net(x) for x in samples], 1e-5)


def test_nothing_runs_ahead_while_earlier_work_is_unfinished(net, wide, monkeypatch):
    """That of an earlier scope, or of its backward pass."""
    samples = wide_rows(1100)
    for unfinished, parts in ([], [1024, 76]), ([Mock(given=False)], [1100]):
        inside.with_earlier_work(monkeypatch, unfinished)
        with gdb.batching() as batch:
            outputs = [wide(x) for x in samples]
        assert nodes(batch) == parts
        equal(outputs, [wide(x) for x in samples], 1e-5)


def test_later_calls_read_results_that_ran_ahead(wide):
    """The first call of each sample runs ahead of the second one."""
    mx.nd.waitall()
    head = dense(3, 700)
    samples = wide_rows(1024)
    with gdb.batching() as batch:
        middles = [wide(x) for x in samples]
        outputs = [head(middle[:, 0:700]) for middle in middles]
    assert nodes(batch)[0] == 1024
    equal(outputs, [head(wide(x)) for x in samples], 1e-4)


def test_fibers_run_ahead(wide):
    mx.nd.waitall()
    samples = wide_rows(1030)

    def read(x):
        total = wide(x).sum()
        return total.asscalar() + 1

    with gdb.batching() as batch:
        got = batch.map(read, samples)
    assert nodes(batch)[0] == 2048
    np.testing.assert_allclose(got, [wide(x).sum().asscalar() + 1 for x in samples], rtol=1e-3)


def test_pieces_run_ahead_but_a_traced_call_is_not_split(wide):
    chain = FunctionBlock(lambda block, *arrays: mx.nd.add_n(*map(block.net, arrays)), wide)
    samples = wide_rows(1100)
    mx.nd.waitall()
    with gdb.batching() as batch:
        first = chain(*samples)
        again = [chain(*samples[:2]) for _ in range(500)]
    # A sum of so many arrays is two calls.
    assert nodes(batch)[0] == 1102, "cut before the next sample"
    assert batch.report.traced.known == 499
    equal([first, *again], [chain(*samples)] + 500 * [chain(*samples[:2])], 1e-3)
