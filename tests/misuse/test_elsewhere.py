"""Lazy arrays and scopes in other threads and processes."""

from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.cells import equal
from tests.common import FIXED, SAMPLES
from tests.forks import output_of


def test_other_threads_can_use_computed_arrays_but_no_pending_ones(net):
    """They can neither read a pending array nor pass it to a call in their own scope."""

    def in_threads(use):
        with ThreadPoolExecutor(len(outputs)) as pool:
            return [pool.submit(use, y) for y in outputs]

    def read(y):
        return y.asnumpy()

    def call(y):
        with gdb.batching(**FIXED):
            mx.nd.tanh(y)

    wanted = net(SAMPLES[0])
    with gdb.batching(**FIXED) as batch:
        outputs = [net(SAMPLES[0]) for _ in range(8)]
        for future in in_threads(read) + in_threads(call):
            assert isinstance(future.exception(), gdb.ScopeError)
            assert f"{__file__}:" in str(future.exception())
        assert all(y.pending for y in outputs)
        batch.flush()
        equal([future.result() for future in in_threads(read)], [wanted] * 8)
    equal([future.result() for future in in_threads(read)], [wanted] * 8)


LOADING = """
    from mxnet.gluon.data import ArrayDataset, DataLoader, SimpleDataset

    net = dense()
    net.initialize("ones", force_reinit=True)
    numbers = np.arange(24, dtype="float32").reshape(6, 4)

    def load(mode, make):
        with mode, gdb.batching(granularity="block", policy="depth") as batch:
            before = [net(mx.nd.array(row[None])) for row in numbers]
            data = make(before)
            # Workers are forked here, after the loader has waited for pending work.
            loaded = list(DataLoader(data, 2, num_workers=2))
            after = [net(x.as_in_context(mx.cpu())) for x in loaded]
        print([y.asnumpy()[0, 0] for y in before])
        print([y.asnumpy()[:, 0].tolist() for y in after])
        print("flushes", len(batch.report.flushes))

    for mode in mx.autograd.record(), mx.autograd.pause():
        load(mode, lambda before: ArrayDataset(numbers))
    pairs = lambda ys: SimpleDataset([mx.nd.concat(y, y[:, :1], dim=1)[0] for y in ys])
    load(mx.autograd.pause(), pairs)
"""


def test_loader_that_forks_workers_in_an_open_scope():
    """With and without gradients; a worker computes the pending arrays that it inherits."""
    lines = [line for line in output_of(LOADING).splitlines() if line[:1] in ("[", "f")]
    sums = np.arange(24).reshape(6, 4).sum(axis=1).astype(float)
    first = [str(sums.tolist()), str(sums.reshape(3, 2).tolist()), "flushes 2"]
    assert lines[:8] == [*first, *first, first[0], str((4 * sums).reshape(3, 2).tolist())]


TRAINING = """
    from mxnet.gluon import nn

    def stays_finite(tied, optimizer):
        # Leaving out the loss that is not finite takes two backward passes.  They read the table
        # if it is tied, as a weight, but not to look up rows.
        table = nn.Embedding(9, 64)
        out = nn.Dense(9, in_units=64, params=table.params if tied else None)
        net = nn.HybridSequential()
        net.add(table, nn.Dense(64, in_units=64, activation="relu"), out)
        ready(gdb.convert(net), 0.1)
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})
        for step in range(6):
            with mx.autograd.record(), gdb.batching(granularity="block"):
                rows = net[0](mx.nd.arange(9))
                bad = [np.inf if i == step else 1 for i in range(9)]
                losses = [net[2](net[1](rows[i : i + 1] * bad[i])).sum() for i in range(9)]
            mx.autograd.backward([loss for i, loss in enumerate(losses) if i != step])
            trainer.step(1)
        params = net.collect_params().values()
        return all(np.isfinite(p.data().asnumpy()).all() for p in params)

    print("finite", *map(stays_finite, (False, False, True), ("sgd", "adam", "adam")))
"""


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_trainer_step_right_after_backward(engine):
    """Nothing is read in between: a backward pass that waited for the optimizer would hang."""
    assert output_of(TRAINING, MXNET_ENGINE_TYPE=engine).endswith("finite True True True\n")


EXITING = """
    import queue, threading

    ready, never = threading.Barrier(4), queue.Queue()

    def read(k):
        while True:
            mx.nd.ones((1, 2)).asnumpy()

    def wait(k):
        never.get()

    def compute(k):
        while True:
            sum(range(100))

    def sample(run, k):
        try:
            (mx.nd.ones((1, 2)) * k).asnumpy()  # waits for the other samples
            if k == 2:
                ready.wait()
                run(k)
        finally:
            os.write(1, f"{run.__name__} {k}\\n".encode())

    for run in read, wait, compute:
        work = lambda run=run: gdb.map(lambda k: sample(run, k), [0, 1, 2, 3])
        threading.Thread(target=work, daemon=True).start()
    ready.wait()
"""


def test_daemon_threads_within_a_map_when_python_exits():
    """Their samples end as at an exception, unless the thread waits for something else."""
    ended = output_of(EXITING).splitlines()
    ends = {f"{run} {k}" for run in ("read", "compute") for k in range(4)} | {"wait 0", "wait 1"}
    # The exception may come just before the thread waits.
    assert len(ended) == len(set(ended)) and set(ended) - {"wait 2", "wait 3"} == ends
