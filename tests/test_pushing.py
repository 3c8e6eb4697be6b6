"""One thread at a time pushes to MXNet's engine, however long it takes, unless it waits there."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest

from gluon_dynbatch.native.executing import OneAtATime
from tests.common import PATIENCE, in_thread
from tests.forks import output_of

#: Longer than a thread that waits within its push keeps others waiting.
LONG = 0.3
SQUARE = np.ones((512, 512))


def compute(ended):
    """Use the processor, mostly without Python's lock, and note the time when that ends."""
    start = time.monotonic()
    while time.monotonic() < start + LONG:
        SQUARE.dot(SQUARE)
    ended.append(time.monotonic())


def test_a_push_ends_before_another_thread_begins_one():
    """In the middle of two pushes, operations could be queued in opposite orders."""
    ended = []
    with ThreadPoolExecutor(2) as pool:
        for result in [pool.submit(OneAtATime(compute), ended) for _ in range(2)]:
            result.result(PATIENCE)
    assert ended[1] - ended[0] >= LONG


def test_a_thread_that_waits_within_its_push_lets_others_push():
    """What it waits for may be an operator in Python, which pushes in a thread of MXNet."""
    gate, entered = threading.Event(), threading.Event()

    def wait():
        entered.set()
        return gate.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(OneAtATime(wait))
        assert entered.wait(PATIENCE)
        OneAtATime(gate.set)()
        assert waiting.result(PATIENCE)


def test_a_thread_pushes_within_its_push():
    assert OneAtATime(lambda: OneAtATime(lambda: 3)())() == 3
    with pytest.raises(ZeroDivisionError):
        OneAtATime(lambda: 1 // 0)()
    assert in_thread(OneAtATime(lambda: 4)) == 4  # the error has ended the push


def test_a_fork_forgets_a_thread_that_pushes():
    gate, entered = threading.Event(), threading.Event()

    def wait():
        entered.set()
        compute([])
        return gate.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(OneAtATime(wait))
        assert entered.wait(PATIENCE)
        child = os.fork()
        if not child:
            os._exit(OneAtATime(lambda: 5)())
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 5
        gate.set()
        assert waiting.result(PATIENCE)


STOPPED = """
import os, subprocess, threading
from tests.fuzz.threads import run

def stop():
    # A shell stops this process: it cannot let itself go on.
    turn = "kill -STOP $0; sleep 0.03; kill -CONT $0; sleep 0.01"
    command = f"for i in $(seq 30); do {turn}; done"
    subprocess.run(["sh", "-c", command, str(os.getpid())], check=True)

thread = threading.Thread(target=stop)
thread.start()
print(min(run(("update", "update_in_reverse"), 2)) > 0)
thread.join()
"""


def test_a_process_that_is_stopped_goes_on():
    """Its threads have lost their processors in the middle of pushes, for longer than one takes."""
    assert output_of(STOPPED).split() == ["True"]


class Doubled(mx.operator.CustomOp):
    """Pushes operations, in a thread of MXNet."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)


@mx.operator.register("dynbatch_test_doubled")
class DoubledProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Doubled()


def test_an_operator_waits_for_one_in_python():
    """`boolean_mask` waits for its mask while it is pushed."""
    for _ in range(3):
        mask = mx.nd.Custom(mx.nd.array([0, 1, 1]), op_type="dynbatch_test_doubled")
        chosen = mx.nd.contrib.boolean_mask(mx.nd.array([3, 4, 5]), mask)
        np.testing.assert_array_equal(chosen.asnumpy(), [4, 5])
