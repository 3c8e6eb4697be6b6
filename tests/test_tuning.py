"""What "auto" does at one place: one setting per scope, small minibatches at once."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch import tuning
from gluon_dynbatch.analysis import Controller
from gluon_dynbatch.batch import RUNTIME
from gluon_dynbatch.lazy import LazyNDArray
from gluon_dynbatch.tuning import AT_ONCE, size_of


class Chooser(Controller):
    """Prefers calls at once wherever they are on offer, and keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.offered = []
        self.observed = []
        #: Workloads above this size are recorded.
        self.largest = 99

    def choose(self, key, candidates):
        self.offered.append((key, tuple(candidates)))
        at_once = AT_ONCE in candidates and key.size <= self.largest
        return (AT_ONCE if at_once else candidates[0]), True

    def observe(self, key, setting, seconds, units):
        self.observed.append((key, setting, seconds, units))


@pytest.fixture
def chooser(monkeypatch):
    made = Chooser()
    monkeypatch.setattr(RUNTIME, "controller", made)
    return made


@pytest.fixture
def net():
    dense = gdb.convert(gluon.nn.Dense(3, in_units=3, activation="tanh"))
    dense.initialize(mx.init.Xavier())
    dense.hybridize()
    return dense


def run(net, samples, **options):
    """Open a scope, always at this one place."""
    with gdb.batching(**options) as batch:
        outputs = [net(x) for x in samples]
    return batch, outputs


def rows(count):
    return [mx.nd.random.normal(shape=(1, 3)) for _ in range(count)]


def equal(got, wanted):
    for a, b in zip(got, wanted):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-5, atol=1e-6)


def test_the_first_scope_is_recorded_and_later_small_ones_run_at_once(chooser, net):
    samples = rows(5)
    first, got = run(net, samples)
    assert first.report.at_once == 0 and first.report.nodes == 5
    equal(got, [net(x) for x in samples])
    second, got = run(net, samples)
    assert second.report.at_once == 5 and not second.report.flushes
    assert all(type(y) is mx.nd.NDArray for y in got)
    equal(got, [net(x) for x in samples])
    assert "at once     5 calls" in str(second.report)


def test_recording_begins_when_more_calls_come_than_predicted(chooser, net):
    chooser.largest = 1
    run(net, rows(2))
    samples = rows(60)
    batch, got = run(net, samples)
    assert batch.report.at_once == 2 * 4 ** size_of(2) == 8
    assert batch.report.nodes == 52
    assert type(got[0]) is mx.nd.NDArray and type(got[-1]) is LazyNDArray
    equal(got, [net(x) for x in samples])


def test_gradients_over_calls_at_once_and_recorded_ones(chooser, net):
    samples = rows(40)
    weight = net.weight
    for scope in ("none", "first", "second"):
        with autograd.record():
            outputs = (
                [net(x) for x in samples]
                if scope == "none"
                else run(net, samples[: 2 if scope == "first" else 40])[1]
            )
        autograd.backward(outputs)
        if scope == "none":
            wanted = weight.grad().asnumpy()
    np.testing.assert_allclose(weight.grad().asnumpy(), wanted, rtol=1e-4, atol=1e-5)


def test_large_minibatches_are_never_offered_to_run_at_once(chooser, net):
    for _ in range(2):
        batch, _ = run(net, rows(300))
        assert batch.report.nodes == 300
    assert all(AT_ONCE not in candidates for _, candidates in chooser.offered)


@pytest.mark.parametrize(
    "options",
    [
        {"strict": True}, {"debug": True}, {"max_rows": 2}, {"granularity": "block"},
        {"policy": "depth"}, {"analysis_budget": None}, {"analysis_budget": 5},
    ],
)  # fmt: skip
def test_whoever_asks_for_something_is_not_run_at_once(chooser, net, options):
    for _ in range(3):
        batch, _ = run(net, rows(4), **options)
        assert batch.report.at_once == 0 and batch.report.nodes == 4


def test_hybridizing_anew_ends_the_prediction(chooser, net):
    run(net, rows(4))
    assert run(net, rows(4))[0].report.at_once == 4
    net.hybridize(granularity="block", policy="depth")
    batch, _ = run(net, rows(4))
    assert batch.report.at_once == 0 and batch.report.flushes[0].granularity == "block"


def test_a_trial_lasts_from_one_scope_to_the_next(chooser, net, monkeypatch):
    """So that what comes after the scope, such as the backward pass, counts as well."""
    now = [0.0]
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: now[0])
    waits = []
    monkeypatch.setattr(tuning.mx.nd, "waitall", lambda: waits.append(now[0]))
    for seconds in (1.0, 2.0, 4.0):
        run(net, rows(4))
        now[0] += seconds
    assert waits == [0.0, 1.0, 3.0]
    assert [(setting, seconds, calls) for _, setting, seconds, calls in chooser.observed] == [
        (AT_ONCE, 2.0, 4)
    ], "the first scope was recorded though another choice was made: no trial"


def test_an_exception_leaves_no_trial_behind(chooser, net):
    run(net, rows(4))
    with pytest.raises(ZeroDivisionError), gdb.batching():
        net(rows(1)[0])
        raise ZeroDivisionError
    batch, got = run(net, rows(4))
    assert batch.report.at_once == 4
    assert type(net(rows(1)[0])) is mx.nd.NDArray


def test_one_setting_serves_a_whole_scope(net, monkeypatch):
    chooser = Chooser()
    chooser.choose = lambda key, candidates: (
        chooser.offered.append(key) or (candidates[len(chooser.offered) % 2], True)
    )
    monkeypatch.setattr(RUNTIME, "controller", chooser)
    with gdb.batching() as batch:
        for x in rows(3):
            net(x).asnumpy()
    assert len({(f.granularity, f.policy) for f in batch.report.flushes}) == 1
    assert len(chooser.offered) == 1 and len(batch.report.flushes) == 3


def test_sizes_are_powers_of_four():
    assert [size_of(n) for n in (0, 1, 3, 4, 15, 16, 63, 64, 255, 256)] == [
        0, 1, 1, 2, 2, 3, 3, 4, 4, 5,
    ]  # fmt: skip


def test_what_ran_at_once_counts_for_the_size_it_had(chooser, net):
    for count in (2, 5, 2, 2, 2):
        run(net, rows(count))
    workloads = [(key.size, setting) for key, setting, _, _ in chooser.observed]
    assert workloads == [(size_of(5), AT_ONCE), (size_of(2), AT_ONCE)]


def test_as_many_run_at_once_as_the_largest_size_that_does(chooser, net):
    for count in (200, 60, 10, 2):
        chooser.largest = 0
        run(net, rows(count))
    chooser.largest = 3
    batch, _ = run(net, rows(200))
    assert batch.report.at_once == 2 * 4**3
    run(net, rows(2))
    chooser.largest = 4
    batch, _ = run(net, rows(200))
    assert batch.report.at_once == 200


def test_two_places_have_habits_of_their_own(chooser, net):
    run(net, rows(4))
    with gdb.batching() as batch:
        net(rows(1)[0])
    assert batch.report.at_once == 0 and batch.report.nodes == 1


# Parts


@pytest.fixture
def parts(chooser, monkeypatch):
    """Prefer parts of four calls wherever they are on offer."""
    monkeypatch.setattr(tuning, "PARTS", (4,))

    def choose(key, candidates):
        chooser.offered.append((key, tuple(candidates)))
        return next((c for c in candidates if c.hold), candidates[0]), True

    monkeypatch.setattr(chooser, "choose", choose)
    return chooser


def test_large_minibatches_run_in_parts(parts, net):
    samples = rows(12)
    batch, _ = run(net, samples)
    assert [flush.nodes for flush in batch.report.flushes] == [12], "nothing is known of it yet"
    batch, got = run(net, samples)
    assert [flush.nodes for flush in batch.report.flushes] == [4, 4, 4]
    assert batch.report.forced == {}
    equal(got, [net(x) for x in samples])
    run(net, samples)
    assert [(setting.hold, calls) for _, setting, _, calls in parts.observed] == [(4, 12)]


def test_parts_end_where_a_sample_begins(parts, net):
    """A call like the very first one is taken for the begin of a sample."""
    other = gdb.convert(gluon.nn.Dense(3, in_units=3))
    other.initialize()
    other.hybridize()

    def chain(x):
        return other(other(net(x)))

    samples = rows(4)
    for expected in ([12], [6, 6]):
        batch, got = run(chain, samples)
        assert [flush.nodes for flush in batch.report.flushes] == expected
    equal(got, [chain(x) for x in samples])


def test_gradients_through_parts(parts, net):
    """Later samples read results of earlier ones, across the border between parts."""
    weight, found = net.weight, []
    samples = rows(12)

    def chain():
        state = samples[0]
        for x in samples:
            state = net(x + state)
        return [state]

    for scope in (False, True, True):
        with autograd.record():
            if scope:
                with gdb.batching() as batch:
                    outputs = chain()
            else:
                outputs = chain()
        autograd.backward(outputs)
        found.append(weight.grad().asnumpy())
    assert len(batch.report.flushes) > 1
    for got in found[1:]:
        np.testing.assert_allclose(got, found[0], rtol=1e-4, atol=1e-5)


def test_what_is_too_small_makes_everything_smaller_too_small(chooser, net, monkeypatch):
    """Rare sizes need no trials of their own once a larger one has been settled."""
    run(net, rows(20))
    monkeypatch.setattr(chooser, "choose", lambda key, candidates: (AT_ONCE, False))
    assert run(net, rows(20))[0].report.at_once == 20

    def refuse(key, candidates):
        raise AssertionError("nothing is left to choose")

    monkeypatch.setattr(chooser, "choose", refuse)
    for count in (2, 5, 20, 1):
        assert run(net, rows(count))[0].report.at_once == count


def test_nothing_is_replaced_in_mxnet_while_calls_run_at_once(chooser, net):
    originals = (mx.nd.register._imperative_invoke, gluon.HybridBlock.forward)
    run(net, rows(2))
    with_hooks = []

    def look(x):
        with_hooks.append((mx.nd.register._imperative_invoke, gluon.HybridBlock.forward))
        return net(x)

    batch, _ = run(look, rows(2))
    assert batch.report.at_once == 2 and with_hooks == [originals] * 2


def test_a_model_that_tells_of_no_calls_is_always_recorded(chooser):
    plain = gluon.nn.Dense(3, in_units=3)
    plain.initialize()
    plain.hybridize()
    run(plain, rows(3))  # perhaps taken for the model that was last run at this place
    for _ in range(3):
        batch, _ = run(plain, rows(3))
        assert batch.report.at_once == 0 and batch.report.nodes == 3
