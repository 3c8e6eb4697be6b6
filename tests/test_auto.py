"""What "auto" does at one place: accounts where they are certain, the clock where they are not."""

import itertools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch import auto
from gluon_dynbatch.accounts import Account, Searches
from gluon_dynbatch.auto import GROWTH
from gluon_dynbatch.race import MOST_SCOPES, Race
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.report import FlushReport
from gluon_dynbatch.schedule import Analysis
from tests.cells import equal, ready


@pytest.fixture
def net():
    return make_net()


def make_net():
    return ready(gdb.convert(gluon.nn.Dense(3, in_units=3, activation="tanh")))


class Clock:
    """Time goes by only where a test says so; what is waited for is counted."""

    def __init__(self):
        self.now = 1.0
        self.waits = 0

    def wait(self):
        self.waits += 1


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(auto.time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(auto.mx.nd, "waitall", made.wait)
    return made


def rows(count):
    return [mx.nd.random.normal(shape=(1, 3)) for _ in range(count)]


def run(net, samples, **options):
    """Open a scope, always at this one place."""
    with gdb.batching(**options) as batch:
        outputs = [net(x) for x in samples]
    return batch, outputs


def run_reading(net, samples):
    """Read every value at once, at this one place."""
    with gdb.batching() as batch:
        for x in samples:
            net(x).asnumpy()
    return batch


def used(batch):
    """What a scope was run with."""
    return batch.report.flushes[-1].granularity if batch.report.flushes else "at once"


def settle(clock, do, seconds, most=100):
    """Open scopes until nothing is waited for; each is as long as `seconds` says of its setting."""
    ran = []
    while len(ran) < most:
        before = clock.waits
        batch = do()
        quiet = clock.waits == before
        clock.now += seconds[used(batch)]
        if quiet and ran:
            break
        ran.append(used(batch))
    return ran, batch


# What is settled by the clock


@pytest.mark.parametrize("best", ["operator", "block"])
def test_the_faster_granularity_wins_in_few_scopes(net, clock, best):
    samples = rows(40)
    seconds = {"operator": 2.0, "block": 2.0, "graph": 9.0, best: 1.0}
    ran, batch = settle(clock, lambda: run(net, samples)[0], seconds)
    assert len(ran) <= 12 and used(batch) == best
    assert batch.report.choice.startswith(f"auto: settled on {best}")


def test_a_trial_lasts_from_one_scope_to_the_next(net, clock, monkeypatch):
    """So that what comes after the scope, such as the backward pass, counts as well."""
    seen = []
    monkeypatch.setattr(Race, "observe", lambda race, *what: seen.append(what))
    samples = rows(40)
    for seconds in (1.0, 2.0, 4.0):
        run(net, samples)
        clock.now += seconds
    run(net, samples)
    # Of the first scope nothing was known when it began, so nothing was waited for.
    assert [(setting.granularity, took, calls) for setting, took, calls in seen] == [
        ("operator", 2.0, 40), ("operator", 4.0, 40)
    ]  # fmt: skip


def test_an_exception_leaves_no_trial_behind(net, clock, monkeypatch):
    seen = []
    monkeypatch.setattr(Race, "observe", lambda race, *what: seen.append(what))
    samples = rows(40)
    run(net, samples)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run(net, itertools.chain(samples, _fail()))
    batch, got = run(net, samples)
    assert seen == [] and batch.report.nodes == 40
    equal(got, [net(x) for x in samples], 1e-5)


def _fail():
    raise ZeroDivisionError
    yield


def test_one_setting_serves_a_whole_scope(net):
    with gdb.batching() as batch:
        for x in rows(3):
            net(x).asnumpy()
    assert len({(f.granularity, f.policy) for f in batch.report.flushes}) == 1
    assert len(batch.report.flushes) == 3


def report(**fields):
    """Make the report of a flush of 100 calls in 10 launches that took 1 ms."""
    values = dict.fromkeys(FlushReport._fields, 0)
    values.update(units=100, launches=10, dispatch_ms=1.0)
    return FlushReport(**{**values, **fields})


# What accounts settle


def test_where_every_value_is_read_calls_run_at_once_from_the_second_scope_on(net):
    samples = rows(30)
    assert run_reading(net, samples).report.nodes == 30
    for _ in range(3):
        batch = run_reading(net, samples)
        assert batch.report.at_once == 30 and not batch.report.flushes
    assert "launches are hardly wider than calls" in batch.report.choice


@pytest.mark.parametrize("sizes", [(5, 30, 30, 30, 100, 100, 100), (40, 40, 20, 3)])
def test_minibatches_of_reading_scopes_may_grow_and_shrink(net, sizes):
    for count in sizes:
        batch = run_reading(net, rows(count))
    assert batch.report.at_once == sizes[-1] and not batch.report.flushes


@pytest.mark.parametrize(
    "flush, ratio",
    [
        # 0.4 ms of recording and 1 ms of handing out, against 100 calls of 0.1 ms
        ({}, 0.14),
        ({"analysis_ms": 8.6}, 1.0),
        ({"launches": 100}, 1.4),
    ],
)
def test_the_account_of_a_scope(flush, ratio):
    account = Account()
    account.note(100, report(**flush))
    assert account.ratio == pytest.approx(ratio)
    assert account.narrow == ("launches" in flush)


def test_calls_at_once_take_part_where_the_account_is_open(net, clock, monkeypatch):
    monkeypatch.setattr(Account, "ratio", 0.5)
    samples = rows(40)
    seconds = {"operator": 3.0, "block": 3.5, "graph": 3.5, "at once": 1.0}
    ran, batch = settle(clock, lambda: run(net, samples)[0], seconds)
    assert batch.report.at_once == 40 and len(ran) <= 12
    _, got = run(net, samples)
    assert all(type(y) is mx.nd.NDArray for y in got)
    equal(got, [net(x) for x in samples], 1e-5)
    assert "at once     40 calls" in str(batch.report)


def test_calls_at_once_take_no_part_where_recording_clearly_pays(net, clock, monkeypatch):
    monkeypatch.setattr(Account, "ratio", 0.1)
    samples = rows(40)
    ran, batch = settle(clock, lambda: run(net, samples)[0], dict.fromkeys(MODES, 1.0))
    assert "at once" not in ran


MODES = ("operator", "block", "graph", "at once")


@pytest.mark.parametrize(
    "options",
    [
        {"strict": True}, {"debug": True}, {"max_rows": 2}, {"granularity": "block"},
        {"policy": "depth"}, {"analysis_budget": None}, {"analysis_budget": 5},
    ],
)  # fmt: skip
def test_whoever_asks_for_something_is_not_run_at_once(net, options):
    for _ in range(4):
        batch, _ = run(net, rows(1), **options)
        assert batch.report.at_once == 0 and batch.report.nodes == 1


def test_a_search_goes_on_while_it_earns_what_it_costs():
    account = Searches()
    for _ in range(3):
        assert account.pay
        account.note(Analysis(None, 1, 5.0, True, 0, 5.0), 1)
    assert not account.pay
    account.note(Analysis(None, 1, 5.0, True, 1, 5.0), 1.0)
    assert account.pay


# What tells workloads apart


def test_different_blocks_in_every_minibatch_are_one_workload(clock):
    """Forty kinds of modules, three in each minibatch, between an encoder and a head."""
    nets = [make_net() for _ in range(42)]
    encoder, head, modules = nets[0], nets[1], nets[2:]
    turn = itertools.count()

    def do():
        first = 3 * next(turn)
        with gdb.batching() as batch:
            for x in rows(8):
                h = encoder(x)
                for k in range(3):
                    h = modules[(first + k) % 40](h)
                head(h)
        return batch

    ran, batch = settle(clock, do, {"operator": 1.0, "block": 3.2, "graph": 9.0})
    assert len(ran) <= 12 and used(batch) == "operator"


def test_sizes_may_wander_by_four(net, clock):
    sizes = itertools.cycle([40, 150, 20, 80, 40, 100, 25, 64])
    do = lambda: run(net, rows(next(sizes)))[0]  # noqa: E731
    ran, batch = settle(clock, do, {"operator": 1.0, "block": 60.0, "graph": 60.0})
    assert len(ran) <= 12 and used(batch) == "operator"


def test_two_workloads_in_turns_at_one_place_both_settle(clock):
    small, large = make_net(), make_net()
    turn = itertools.cycle([(small, 5), (large, 300)])

    def do():
        which, count = next(turn)
        return run(which, rows(count))[0]

    ran, _ = settle(clock, do, dict.fromkeys(MODES, 1.0))
    assert len(ran) <= 2 * MOST_SCOPES


def test_whatever_comes_every_place_stops_waiting(clock):
    """Another model in every scope: nothing can be told of the next one."""
    do = lambda: run(make_net(), rows(10))[0]  # noqa: E731
    for _ in range(8):
        do()
    settled = make_net()
    ran, _ = settle(clock, lambda: run(settled, rows(10))[0], dict.fromkeys(MODES, 1.0))
    assert len(ran) <= MOST_SCOPES + auto.PATIENCE


def test_recording_begins_when_more_calls_come_than_expected(net):
    for _ in range(2):
        run(net, rows(1))
    samples = rows(60)
    batch, got = run(net, samples)
    assert batch.report.at_once == GROWTH and batch.report.nodes == 60 - GROWTH
    assert type(got[0]) is mx.nd.NDArray and type(got[-1]) is LazyNDArray
    equal(got, [net(x) for x in samples], 1e-5)
    batch, _ = run(net, samples)
    assert batch.report.at_once == 0, "they have been recognised as another workload"


def test_gradients_over_calls_at_once_and_recorded_ones(net):
    samples = rows(40)
    weight, found = net.weight, []
    for count in (None, 1, 1, 40):
        with autograd.record():
            outputs = [net(x) for x in samples] if count is None else run(net, samples[:count])[1]
        autograd.backward(outputs)
        found.append(weight.grad().asnumpy())
    np.testing.assert_allclose(found[-1], found[0], rtol=1e-4, atol=1e-5)


def test_hybridizing_anew_ends_what_was_expected(net):
    for _ in range(2):
        batch, _ = run(net, rows(1))
    assert batch.report.at_once == 1
    net.hybridize(granularity="block", policy="depth")
    batch, _ = run(net, rows(4))
    assert batch.report.at_once == 0 and batch.report.flushes[0].granularity == "block"


def test_another_place_or_model_is_recorded(net):
    for _ in range(3):
        at_once = run(net, rows(1))[0]
    assert at_once.report.at_once == 1
    with gdb.batching() as batch:
        net(rows(1)[0])
    assert batch.report.at_once == 0 and batch.report.nodes == 1
    for _ in range(2):
        batch, _ = run(make_net(), rows(20))
        assert batch.report.at_once == 0 and batch.report.nodes == 20


def test_blocks_that_are_not_dynamic_are_counted_too():
    plain = gluon.nn.Dense(3, in_units=3)
    plain.initialize()
    plain.hybridize()
    batches = [run_reading(plain, rows(6)) for _ in range(4)]
    assert [b.report.at_once for b in batches] == [0, 6, 6, 6]


# Parts


@pytest.fixture
def parts(monkeypatch, clock):
    """Minibatches of eight calls may run in two parts."""
    monkeypatch.setattr(auto, "MOST_WHOLE", 8)
    monkeypatch.setattr(Account, "ratio", 0.0)
    return clock


def settled_on_parts(parts, do):
    """Run until a scope runs in two parts, and a few scopes more; return the last one's batch."""
    seconds = {"operator": 2.0, "block": 9.0, "graph": 9.0}
    for _ in range(40):
        batch = do()
        flushes = len(batch.report.flushes)
        parts.now += 1.0 if flushes > 1 else seconds[used(batch)]
    assert flushes > 1
    return batch


def test_large_minibatches_run_in_two_parts(parts, net):
    samples = rows(12)
    batch = settled_on_parts(parts, lambda: run(net, samples)[0])
    assert [flush.nodes for flush in batch.report.flushes] == [6, 6]
    assert batch.report.forced == {}
    equal(run(net, samples)[1], [net(x) for x in samples])


def test_parts_end_where_a_sample_begins(parts, net):
    """A call like the very first one is taken for the begin of a sample."""
    other = make_net()

    def chain(x):
        return other(other(net(x)))

    samples = rows(4)
    batch = settled_on_parts(parts, lambda: run(chain, samples)[0])
    assert [flush.nodes for flush in batch.report.flushes] == [6, 6]


def test_gradients_through_parts(parts, net):
    """Later samples read results of earlier ones, across the border between parts."""
    samples = rows(12)

    def chain():
        state = samples[0]
        for x in samples:
            state = net(x + state)
        return [state]

    def do():
        with autograd.record(), gdb.batching(granularity="auto") as batch:
            outputs = [*chain(), *(net(x) for x in samples)]
        autograd.backward(outputs)
        return batch

    with autograd.record():
        outputs = [*chain(), *(net(x) for x in samples)]
    autograd.backward(outputs)
    wanted = net.weight.grad().asnumpy()
    for _ in range(8):
        do()
        parts.now += 1.0
        np.testing.assert_allclose(net.weight.grad().asnumpy(), wanted, rtol=1e-4, atol=1e-5)
