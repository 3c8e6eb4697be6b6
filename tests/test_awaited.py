"""A thread that waits for the values of a small flush runs it itself."""

import threading
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import array, dense, equal
from tests.common import FIXED, PATIENCE
from tests.forks import output_of
from tests.gates import GATE, gated
from tests.inside import interrupt_after_flush, pushes_here

STEPS = 6


def states(net, count, steps=STEPS, reads=True, options=FIXED):
    """Return the states of samples after some steps, with all that was read on the way."""
    read = []
    with gdb.batching(**options) as batch:
        hidden = [array(1, 4) * (i + 1) for i in range(count)]
        for _ in range(steps):
            hidden = [mx.nd.tanh(net(h)) for h in hidden]
            if reads:
                read += [h.asnumpy() for h in hidden]
            else:
                batch.flush()
    return read, hidden


def looped(net, count, steps=STEPS):
    read, hidden = [], [array(1, 4) * (i + 1) for i in range(count)]
    for _ in range(steps):
        hidden = [mx.nd.tanh(net(h)) for h in hidden]
        read += [h.asnumpy() for h in hidden]
    return read, hidden


@pytest.mark.parametrize("count", [1, 2, 7])
def test_reads_of_known_plans_run_here_and_other_flushes_do_not(monkeypatch, count):
    net = dense(4, 4)
    for _ in range(3):
        states(net, count)
    pushed = pushes_here(monkeypatch)
    read, hidden = states(net, count)
    assert pushed == STEPS * [True]
    wanted = looped(net, count)
    equal([mx.nd.array(each) for each in read], [mx.nd.array(each) for each in wanted[0]])
    equal(hidden, wanted[1])
    pushed.clear()
    equal(states(net, count, reads=False)[1], wanted[1])
    assert not any(pushed)


def test_one_sample_takes_one_push_a_step(monkeypatch):
    """Its first state is an array, and later ones are in arenas: one program reads both."""
    net = dense(4, 4)
    for _ in range(3):
        states(net, 1)
    pushed = pushes_here(monkeypatch)
    states(net, 1, reads=False)
    assert len(pushed) == STEPS


def test_large_flushes_are_queued(monkeypatch):
    net = dense(64, 64)
    pushed = []
    for _ in range(2):
        with gdb.batching(**FIXED):
            xs = [array(64, 64) * (i + 1) for i in range(80)]
            ys = [net(x) for x in xs]
            pushed = pushed or pushes_here(monkeypatch)
            equal([ys[3]], [net(xs[3])])
    assert pushed and not any(pushed)


@given(count=st.integers(1, 5), steps=st.integers(1, 5), data=st.data())
def test_gradients_are_those_of_the_loop(count, steps, data):
    """Some steps are read, so parts of the graph have been run in the thread that records."""
    reads = data.draw(st.lists(st.booleans(), min_size=steps, max_size=steps))
    net = dense(4, 4)

    def train():
        hidden = [array(1, 4) * (i + 1) for i in range(count)]
        for reads_now in reads:
            hidden = [mx.nd.tanh(net(h)) for h in hidden]
            if reads_now:
                hidden = [h * (1 + (h[0, 0].asscalar() > 0)) for h in hidden]
        return mx.nd.add_n(*[h.sum() for h in hidden])

    def gradient():
        return net.weight.grad().copy()

    with autograd.record():
        train().backward()
    wanted = gradient()
    for _ in range(2):
        with autograd.record(), gdb.batching(**FIXED):
            loss = train()
        loss.backward()
        equal([gradient()], [wanted])


@pytest.mark.parametrize("first", [0, 1])
def test_an_array_that_failed_spoils_no_other_value(first):
    """The engine skips what reads it; so it is pushed again, as what runs in any case."""
    nets, x = (dense(4, 4), dense(4, 4)), array(1, 4)
    right = nets[0].weight.data().copy()

    def both():
        with gdb.batching(**FIXED):
            results = [net(x) for net in nets]
            values = []
            for result in (results[first], results[1 - first]):
                try:
                    values.append(result.asnumpy())
                except mx.MXNetError as error:
                    assert "potrf" in str(error)
                    values.append(None)
            return values, results[1].asnumpy()

    both()
    nets[0].weight.data()[:] = mx.nd.linalg.potrf(-mx.nd.ones((4, 4)))
    values, again = both()
    assert values[0] is None  # the first one that is read has the error, as when it is queued
    equal([mx.nd.array(again)], [nets[1](x)])
    nets[0].weight.set_data(right)
    equal([mx.nd.array(both()[0][first])], [nets[0](x)])


def test_it_waits_for_what_it_reads(monkeypatch):
    """Another thread can use the engine meanwhile."""
    net, x = dense(4, 4), array(1, 4)
    wanted = net(x)
    for _ in range(2):
        with gdb.batching(**FIXED):
            net(x).asnumpy()
    weight = net.weight.data()
    begins = threading.Event()

    def open_later():
        assert begins.wait(PATIENCE)
        value = (mx.nd.ones((2,)) + 1).asnumpy()
        GATE.set()
        return value.sum()

    GATE.clear()
    pushed = pushes_here(monkeypatch)
    try:
        with ThreadPoolExecutor(1) as pool:
            opened = pool.submit(open_later)
            weight[:] = gated(weight * 2)
            with gdb.batching(**FIXED):
                y = net(x)
                begins.set()
                value = y.asnumpy()
            assert opened.result(PATIENCE) == 4
    finally:
        GATE.set()
    assert pushed == [True]
    net.weight.set_data(weight / 2)
    equal([net(x)], [wanted])
    assert abs(value - wanted.asnumpy()).max() > 0


def test_threads_run_their_flushes_at_the_same_time():
    """A program that a thread runs does not keep others from the engine."""
    net = dense(4, 4)
    wanted = [looped(net, count)[1] for count in (1, 2, 3, 4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            found = pool.map(lambda count: states(net, count)[1], (1, 2, 3, 4))
            for got, expected in zip(found, wanted):
                equal(got, expected)


def test_an_interrupt_after_a_flush_loses_nothing(monkeypatch):
    net, x = dense(4, 4), array(1, 4)
    x.attach_grad()
    with autograd.record(), gdb.batching(**FIXED):
        first = net(x)
        first.asnumpy()
        second = net(first)
        interrupt_after_flush(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            second.asnumpy()
        value = second.asnumpy()
        third = net(second)
    third.backward()
    got = x.grad.copy()
    with autograd.record():
        ys = [net(x)]
        ys += [net(ys[-1])]
        ys += [net(ys[-1])]
    ys[-1].backward()
    equal([mx.nd.array(value), third, got], [ys[1], ys[2], x.grad])


def test_interrupts_at_any_time_spoil_no_later_scope():
    """Also those that come when a flush has just ended."""
    ended, interrupted, is_right = output_of(INTERRUPTED).split()[-3:]
    assert int(ended) and int(interrupted) and is_right == "True"


INTERRUPTED = """
import _thread, random, signal, sys, threading, time
from tests.cells import array
sys.unraisablehook = lambda unraisable: None  # interrupts within __del__ of MXNet's arrays
net = dense(4, 4)
works, ended, interrupted = False, 0, 0

def handle(*_):
    global works
    if works:
        works = False
        raise KeyboardInterrupt

def work():
    with gdb.batching(granularity="block", policy="depth"):
        hidden = [array(1, 4) * (i + 1) for i in range(3)]
        for _ in range(10):
            hidden = [mx.nd.tanh(net(h)) for h in hidden]
            read = [h.asnumpy() for h in hidden]
    return np.concatenate(read)

def interrupt():
    for _ in range(150):
        time.sleep(random.random() * 5e-3)
        _thread.interrupt_main()

wanted = work()
signal.signal(signal.SIGINT, handle)
thread = threading.Thread(target=interrupt, daemon=True)
thread.start()
while thread.is_alive() or not ended:
    try:
        works = True
        found = work()
        works = False
        equal([mx.nd.array(found)], [mx.nd.array(wanted)])
        ended += 1
    except KeyboardInterrupt:
        interrupted += 1
print(ended, interrupted, np.allclose(work(), wanted))
"""
