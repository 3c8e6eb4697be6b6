"""Several threads for one launch: whatever their number, results are the same to the last bit."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.native import executing
from gluon_dynbatch.scope import RUNTIME
from tests.common import output_of
from tests.test_threads import in_threads


class Chain(gdb.DynamicHybridBlock):
    """Steps that are wide enough for two threads from some 100 rows on."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.inner = nn.Dense(200, in_units=150, flatten=False)
            self.outer = nn.Dense(150, in_units=200, flatten=False)

    def hybrid_forward(self, F, x, scale):  # noqa: N803
        inner = F.broadcast_mul(F.tanh(self.inner(x)), F.sigmoid(scale))
        return x + F.softmax(self.outer(inner))


def made():
    mx.random.seed(3)
    block = Chain()
    block.initialize(mx.init.Uniform(0.3))
    block.hybridize()
    random = np.random.RandomState(3)
    rows = [mx.nd.array(random.randn(1, 150)) for _ in range(120)]
    return block, [(row, mx.nd.array(random.randn(1, 1))) for row in rows]


def results(block, samples, threads):
    executing.use_threads(threads)
    RUNTIME.plans.clear()  # a program has memory for as many threads as there were
    first, _ = samples[0]
    first.attach_grad()
    with autograd.record(), gdb.batching(granularity="block", policy="depth"):
        ends = []
        for i, (row, scale) in enumerate(samples):
            state = row
            for _ in range(1 + i % 3):
                state = block(state, scale)
            ends.append((state * state).sum())
    autograd.backward(ends)
    trained = [p.grad() for p in block.collect_params().values()]
    return [array.asnumpy() for array in (mx.nd.concat(*ends, dim=0), *trained, first.grad)]


def same(got, wanted):
    return len(got) == len(wanted) and all(map(np.array_equal, got, wanted))


@pytest.fixture(autouse=True)
def one_thread():
    """Leave one thread to the tests that follow."""
    yield
    executing.use_threads(1)


@pytest.mark.parametrize("threads", [2, 3])
def test_results_do_not_depend_on_threads(threads):
    block, samples = made()
    wanted = results(block, samples, 1)
    assert np.isfinite(wanted[0]).all() and wanted[0].any()
    assert same(results(block, samples, threads), wanted)
    with pytest.raises(ZeroDivisionError), gdb.batching():
        block(*samples[0])
        raise ZeroDivisionError
    assert same(results(block, samples, threads), wanted)


def test_two_scopes_at_once():
    """Who finds the others at work does everything alone."""
    pairs = [made() for _ in range(2)]
    wanted, got = results(*pairs[0], 1), [None, None]

    def work(i):
        got[i] = results(*pairs[i], 3)

    in_threads(work, 2)
    assert same(got[0], wanted) and same(got[1], wanted)


FORKED = """
import os, sys
from pathlib import Path
from gluon_dynbatch.native import executing
from tests.test_team import made, results, same

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

block, samples = made()
wanted = results(block, samples, 1)
before = threads()
assert same(results(block, samples, 2), wanted)
print(threads() - before)
if sys.argv[1] == "fork":
    child = os.fork()
    if not child:
        os._exit(10 + same(results(block, samples, 2), wanted))
    print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))
print(same(results(block, samples, 3), wanted))
"""


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_threads_are_made_when_needed_and_again_in_a_child(engine):
    """The process ends by itself, too: nobody waits for threads that sleep.

    The naive engine runs everything in the thread that asks for it.
    """
    how, wanted = ("", ["1", "True"]) if engine == "NaiveEngine" else ("fork", ["1", "11", "True"])
    said = output_of(FORKED, how, OMP_NUM_THREADS="2", MXNET_ENGINE_TYPE=engine).split()
    assert said[-len(wanted) :] == wanted
