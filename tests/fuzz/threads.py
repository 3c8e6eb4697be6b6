"""Two and four threads train and call one model, in scopes and without.

``python -m tests.fuzz.threads SECONDS`` prints the turns of each thread.  After a deadlock it never
ends, so callers limit its time.
"""

import sys
import threading
import time

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import ready
from tests.common import FIXED

LAYERS, WIDTH = 6, 16
SCOPE = {**FIXED, "granularity": "operator"}
#: The work of the threads that run at once, as names of methods of `Work`.
TEAMS = [
    ("update", "update_in_reverse"),
    ("train", "call"),
    ("train", "call_in_scope"),
    ("train_in_scope", "call"),
    ("train_in_scope", "call_in_scope"),
    ("call", "call_in_scope", "call_in_scope", "call"),
    ("train", "train_in_scope", "call", "call_in_scope"),
]


def stack():
    net = nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(nn.Dense(WIDTH, in_units=WIDTH, activation="tanh", flatten=False))
    return ready(gdb.convert(net), 1)


class Work:
    """What threads do with a model, once per call of a method."""

    def __init__(self, net):
        # MXNet fails if two threads record with one array, see docs/limits.md.
        self._net, self._samples = net, [mx.nd.ones((1, WIDTH)) * k for k in range(8)]
        options = {"learning_rate": 1e-4, "momentum": 0.9}
        self._trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options)
        self._weights = [parameter.data() for parameter in net.collect_params().values()]

    def call(self):
        for _ in range(4):
            outputs = [self._net(sample) for sample in self._samples]
            outputs[-1].wait_to_read()
        return [output.asnumpy() for output in outputs]

    def call_in_scope(self):
        with gdb.batching(**SCOPE):
            outputs = [self._net(sample) for sample in self._samples]
        return [output.asnumpy() for output in outputs]

    def update(self):
        return self._write(self._weights)

    def update_in_reverse(self):
        return self._write(self._weights[::-1])

    def _write(self, weights):
        """Push operations that write all weights, and change none."""
        zeros = [0.0] * len(weights)
        for _ in range(50):
            pairs = [array for weight in weights for array in (weight, weight)]
            mx.nd.multi_sgd_update(
                *pairs, out=weights, lrs=zeros, wds=zeros, num_weights=len(weights)
            )
        return self.call_in_scope()

    def train(self):
        with autograd.record():
            losses = [(self._net(sample) ** 2).sum() for sample in self._samples]
        return self._step(losses)

    def train_in_scope(self):
        with autograd.record(), gdb.batching(**SCOPE):
            losses = [(self._net(sample) ** 2).sum() for sample in self._samples]
        return self._step(losses)

    def _step(self, losses):
        autograd.backward(losses)
        # Another trainer may have used the gradients already.
        self._trainer.step(len(losses), ignore_stale_grad=True)
        return [loss.asnumpy() for loss in losses]


def run(team, seconds):
    """Let a team work for some seconds; return the number of turns of each thread, at least one."""
    net = stack()
    wanted = Work(net).call()
    deadline, turns, failures = time.monotonic() + seconds, [0] * len(team), []
    start = threading.Barrier(len(team))

    def work(number):
        method = getattr(Work(net), team[number])
        trains = any(name.startswith("train") for name in team)
        try:
            start.wait()
            while (time.monotonic() < deadline or not turns[number]) and not failures:
                results = method()
                if not trains:
                    np.testing.assert_allclose(results, wanted, rtol=1e-5, atol=1e-6)
                assert np.isfinite(results).all()
                turns[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(team))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return turns


def main(seconds):
    """Let each team work for its share of some seconds."""
    for team in TEAMS:
        print(*team, *run(team, seconds / len(TEAMS)), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
