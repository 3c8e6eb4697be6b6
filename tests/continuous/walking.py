"""Requests that take steps of a cell, and yield values on the way."""

import contextlib
import threading
import time

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb
from tests.common import PATIENCE
from tests.test_serving import FOREVER, factor, no_thread_is_left  # noqa: F401


def vector(number):
    return np.random.RandomState(number).uniform(-1, 1, (1, 4)).astype("float32")


def as_array(x):
    return x if isinstance(x, mx.nd.NDArray) else mx.nd.array(x)


class Walk:
    """Applies a cell again and again, and reads a value each time; it yields some values.

    Its functions do not refer to it: requests would wait for others that change its attributes.
    """

    def __init__(self, cell):
        #: Samples in the order in which they begin, take steps, and end, whatever ends them.
        self.begun, self.steps, self.ended = begun, taken, ended = [], [], []
        self.released = released = threading.Event()

        def yielding(number, steps, *bad):
            """Yield the state after each step; with no number of steps, walk until released."""
            begun.append(number)
            h, step = as_array(vector(number)), 0
            try:
                while not released.is_set() if steps is None else step < steps:
                    h, step = cell(h), step + 1
                    taken.append((number, step))
                    h = h * (1 + (h.sum().asscalar() > 0))
                    if step in bad:
                        raise KeyError(number)
                    if -step in bad:
                        h = h + factor(-1).sum()
                    yield h
            finally:
                ended.append(number)

        def last(number, steps, *bad):
            """Return the last state."""
            return list(yielding(number, steps, *bad))[-1]

        def loop(number, steps):
            """Return the states of a sample without a scope."""
            return [h.asnumpy() for h in yielding(number, steps)]

        self.yielding, self.last, self.loop = yielding, last, loop


@contextlib.contextmanager
def serving(*args, **options):
    """Yield a batcher; if the test fails, end requests that would never end."""
    batcher = gdb.RequestBatcher(*args, **options)
    try:
        yield batcher
    except BaseException:
        batcher.close(timeout_s=0)
        raise
    batcher.close()


def settled(condition, seconds=PATIENCE):
    """Return whether a condition becomes true while another thread works."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(0.005)
    return True


LENGTHS = [5, 1, 9, 2, 30, 1, 3, 12, 7, 4] * 4
