"""What "auto" does: granularity and policy are settled, accounts say what runs at once."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray
from tests.cells import dense, equal, inputs, ready
from tests.common import by_mxnets_operators
from tests.test_pieces import Given


def make_net():
    return dense(3, 3, activation="tanh")


net = pytest.fixture(make_net, name="net")


def gru():
    cell = ready(gluon.rnn.GRUCell(3, input_size=3))
    return lambda x: cell(x, [x])[0]


def run(net, samples, **options):
    """Open a scope, always at this one place."""
    with gdb.batching(**options) as batch:
        outputs = [net(x) for x in samples]
    return batch, outputs


# What accounts settle


READ = {"dynamic": (make_net, autograd.pause), "in training": (gru, autograd.record),
        "stock": (lambda: ready(gluon.nn.Dense(3, in_units=3)), autograd.pause)}  # fmt: skip


@pytest.mark.parametrize("make, mode", READ.values(), ids=list(READ))
def test_where_every_value_is_read_calls_run_at_once_from_the_second_scope_on(make, mode):
    """Blocks that are not dynamic are counted too; minibatches may grow and shrink."""
    net, counts = make(), (20, 25, 30, 3, 30, 100, 100, 100)
    with mode():
        found = [run(lambda x: net(x).asnumpy(), inputs(n, 3))[0].report for n in counts]
    assert [report.at_once for report in found[:5]] == [0, 25, 30, 3, 30]
    assert found[-1].at_once == 100 and not found[-1].flushes
    assert found[-1].choice.startswith("auto: run calls at once")
    assert "at once     100 calls" in str(found[-1])


def test_wide_launches_are_recorded_whatever_the_sizes(net):
    for count in (60, 150, 40, 80, 400):
        batch, _ = run(net, inputs(count, 3))
        assert batch.report.at_once == 0 and batch.report.nodes == count
    assert batch.report.choice.startswith("auto: record calls")


def test_a_plan_that_is_never_known_counts(net):
    """Twelve calls pay for a flush, but not for planning it anew each time."""

    def chains(steps):
        with gdb.batching() as batch:
            for x in inputs(2, 3):
                for _ in range(steps):
                    x = net(x)
        return batch.report.at_once

    assert [chains(6) for _ in range(4)] == [0, 0, 0, 0]
    assert chains(7) == 0 and chains(7) == 14


def test_launches_that_mxnet_runs_save_less_than_native_ones():
    """Samples of as many widths as there are samples share no launch."""
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
def test_whoever_asks_for_something_is_not_run_at_once(net, options):
    for _ in range(4):
        batch, _ = run(net, inputs(1, 3), **options)
        assert batch.report.at_once == 0 and batch.report.nodes == 1


# What tells scopes apart


def test_recording_begins_when_more_calls_come_than_expected(net):
    for _ in range(2):
        run(net, inputs(1, 3))
    samples = inputs(60, 3)
    batch, got = run(net, samples)
    assert batch.report.at_once == 2 and batch.report.nodes == 58, "twice as many are at once"
    assert type(got[0]) is mx.nd.NDArray and type(got[-1]) is LazyNDArray
    equal(got, [net(x) for x in samples], 1e-5)
    batch, _ = run(net, samples)
    assert batch.report.at_once == 0, "it is known that they are more by now"


def test_gradients_over_calls_at_once_and_recorded_ones(net):
    samples = inputs(40, 3)
    weight, found = net.weight, []
    for count in (None, 1, 1, 40):
        with autograd.record():
            outputs = [net(x) for x in samples] if count is None else run(net, samples[:count])[1]
        autograd.backward(outputs)
        found.append(weight.grad().asnumpy())
    np.testing.assert_allclose(found[-1], found[0], rtol=1e-4, atol=1e-5)


def test_an_exception_says_nothing_of_a_place_and_hybridizing_anew_ends_what_was_expected(net):
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


def test_another_place_or_model_is_recorded(net):
    other = make_net()
    for _ in range(3):
        small, large = run(net, inputs(1, 3))[0], run(other, inputs(300, 3))[0]
        assert large.report.at_once == 0 and large.report.nodes == 300
    assert small.report.at_once == 1
    with gdb.batching() as batch:
        net(inputs(1, 3)[0])
    assert batch.report.at_once == 0 and batch.report.nodes == 1


# What runs ahead of the end of a scope


@pytest.fixture(scope="module")
def wide():
    """So much work that a little more than a thousand calls are worth a flush of their own."""
    return dense(700, 1000)


def wide_rows(count):
    return [mx.nd.random.normal(0, 0.003, (1, 1000)) for _ in range(count)]


def nodes(batch):
    return [flush.nodes for flush in batch.report.flushes]


def test_what_is_pending_runs_ahead_if_it_is_much_and_nobody_asks_for_something(net, wide):
    samples = wide_rows(1100)
    batch, outputs = run(wide, samples)
    assert nodes(batch) == [1024, 76] and not batch.report.forced
    equal(outputs, [wide(x) for x in samples], 1e-5)
    for options in ({"policy": "depth"}, {"max_rows": 5000}):
        assert nodes(run(wide, samples, **options)[0]) == [1100]
    assert nodes(run(net, inputs(1100, 3))[0]) == [1100], "it is little work"
    with autograd.record():
        batch, _ = run(wide, samples)
    assert nodes(batch) == [1100], "it may go backward"


def test_calls_go_on_from_what_ran_ahead(wide):
    """Half of the samples are cut between their two calls."""
    head = dense(3, 700)
    samples = wide_rows(1024)
    with gdb.batching() as batch:
        middles = [wide(x) for x in samples]
        outputs = [head(middle[:, 0:700]) for middle in middles]
    assert nodes(batch)[0] == 1024
    equal(outputs, [head(wide(x)) for x in samples], 1e-4)


def test_fibers_run_ahead(wide):
    samples = wide_rows(1030)

    def read(x):
        total = wide(x).sum()
        return total.asscalar() + 1

    with gdb.batching() as batch:
        got = batch.map(read, samples)
    assert nodes(batch)[0] == 2048
    np.testing.assert_allclose(got, [wide(x).sum().asscalar() + 1 for x in samples], rtol=1e-3)


def test_only_the_first_minibatch_of_a_stream_runs_ahead(wide, caplog):
    samples = wide_rows(2200)
    with caplog.at_level("DEBUG", "gluon_dynbatch"):
        results = list(gdb.imap(wide, samples, batch_size=1100))
    assert len(caplog.records) == 3
    equal(results, [wide(x) for x in samples], 1e-4)


def test_pieces_run_ahead_but_what_is_traced_stays_whole(wide):
    chain = Given(lambda block, *arrays: mx.nd.add_n(*map(block.net, arrays)), wide)
    samples = wide_rows(1100)
    with gdb.batching() as batch:
        first = chain(*samples)
        again = [chain(*samples[:2]) for _ in range(500)]
    assert nodes(batch)[0] == 1101, "cut before the next sample"
    assert batch.report.traced.known == 499
    equal([first, *again], [chain(*samples)] + 500 * [chain(*samples[:2])], 1e-3)
