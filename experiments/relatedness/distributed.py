"""Training with several processes and MXNet's key-value store.

Every process draws the same minibatches and takes its share of each; the store sums gradients and
losses. So the parameters and the loss of every step equal those of one process, up to rounding.
"""

import contextlib
import gc
import os
import sys
import threading
import time
from itertools import cycle

import mxnet as mx

#: Seconds for which one worker trains alone, to compare all with it; untimed seconds before.
ALONE_SECONDS, WARM_SECONDS = 1.0, 0.5
#: Key of the losses in the store; the keys of parameters are small numbers.
LOSSES = 1 << 30


def launched():
    """Return whether this process is one of several."""
    return os.environ.get("DMLC_ROLE") == "worker"


class Group:
    """The processes that `launch.py` has started, or this process alone, without a store.

    If the others take longer than `timeout` seconds, this process ends, because waiting in MXNet
    cannot be interrupted.
    """

    def __init__(self, timeout=300.0):
        self.timeout = timeout
        self.rank, self.size = 0, 1
        self.store = None
        if launched():
            with self.patience("the others have not joined"):
                self.store = mx.kv.create("dist_sync")
                self.rank, self.size = self.store.rank, self.store.num_workers
                self.store.init(LOSSES, mx.nd.zeros(1))

    @contextlib.contextmanager
    def patience(self, reason="the others do not answer"):
        """End this process if the body takes longer than `timeout`."""

        def give_up():
            print(f"error: {reason} within {self.timeout:g} s (--kvstore-timeout)", file=sys.stderr)
            sys.stderr.flush()
            os._exit(2)

        timer = threading.Timer(self.timeout, give_up)
        timer.daemon = True
        if launched():
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def join(self, trainer):
        """Make a trainer take its parameters from the store now, in all processes at once.

        By default, a trainer does so in its first step, after the first gradients; then processes
        have been observed to get different parameters.
        """
        with self.patience():
            if not trainer._kv_initialized:
                trainer._init_kvstore()
            if trainer._params_to_init:
                trainer._init_params()
            mx.nd.waitall()

    def share(self, samples):
        """Take this process's part of a minibatch; it may be empty."""
        return samples[self.rank :: self.size]

    def sum(self, losses):
        """Sum the losses of all processes."""
        total = float(losses.sum())
        if self.store is None:
            return total
        with self.patience():
            value = mx.nd.array([total])
            self.store.pushpull(LOSSES, value, out=value)
            return float(value.asscalar())


def rate_alone(runner, batches):
    """Return the samples per second of training in this process alone, some seconds; undo it.

    The `runner` has a trainer of its own, without a store.
    """
    gc.freeze()  # keeps the garbage collector from scanning the data
    parameters = runner.workload.model.collect_params().values()
    before = [(parameter, parameter.data().copy()) for parameter in parameters]
    pending, samples = None, 0
    for seconds in (WARM_SECONDS, ALONE_SECONDS):
        mx.nd.waitall()
        began, samples = time.perf_counter(), 0
        for batch in cycle(batches):
            pending, previous = runner.step(batch), pending
            samples += len(batch)
            if previous is not None:  # as in training, losses are read one minibatch late
                previous.asnumpy()
            if time.perf_counter() - began > seconds:
                break
    mx.nd.waitall()
    rate = samples / (time.perf_counter() - began)
    for parameter, value in before:
        parameter.set_data(value)
    return rate


def prepare(trainer):
    """Zero all gradients and mark them as fresh, in case only other processes compute some."""
    for parameter in trainer._params:
        if parameter.grad_req != "null":
            parameter.zero_grad()
            for data in parameter.list_data():
                data._fresh_grad = True
