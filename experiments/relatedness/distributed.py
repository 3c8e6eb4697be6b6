"""Several processes that train one model on MXNet's key-value store, each a share of a minibatch.

Every process draws the same minibatches and takes its share; the store adds gradients and losses
up. So the parameters, and the loss of every step, are those of one process, to float tolerance.
"""

import contextlib
import os
import sys
import threading

import mxnet as mx

#: Key of the losses in the store; parameters have small numbers.
LOSSES = 1 << 30


def launched():
    """Whether this process is one of several."""
    return os.environ.get("DMLC_ROLE") == "worker"


class Group:
    """The processes that `launch.py` has started; this one alone, without a store, if it has not.

    If the others take longer than `timeout` seconds, this one ends, as MXNet cannot be interrupted
    while it waits.
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
        """End this process if what is done within takes longer than `timeout`."""

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
        """Let a trainer take its parameters from the store now, in all processes at once.

        By itself it does so in its first step, after the first gradients; what one process takes
        then has been seen to be other than what the next one has.
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
        """Add up the losses of all processes."""
        total = float(losses.sum())
        if self.store is None:
            return total
        with self.patience():
            value = mx.nd.array([total])
            self.store.pushpull(LOSSES, value, out=value)
            return float(value.asscalar())


def prepare(trainer):
    """Have all gradients count as new and zero, in case only other processes compute some."""
    for parameter in trainer._params:
        if parameter.grad_req != "null":
            parameter.zero_grad()
            for data in parameter.list_data():
                data._fresh_grad = True
