"""Small arrays and comparisons for the tests beside this file."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Callable, List, Sequence

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb
from gluon_dynbatch.run.gradient import forget

ROOT = Path(__file__).parents[2]

#: A setting that does not change while a test runs.
FIXED = {"granularity": "block", "policy": "depth"}


def array(*shape: int, seed: int = 0) -> mx.nd.NDArray:
    values = np.random.RandomState(sum(shape) + seed).uniform(-1, 1, shape)
    return mx.nd.array(values, dtype="float32")


def equal(got: Any, wanted: Any) -> None:
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        a, b = a.asnumpy(), b.asnumpy()
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def same_as_loop(
    program: Callable[[], Callable[[], List[Any]]],
    scopes: Sequence[Any] = (FIXED, {**FIXED, "debug": True}),
) -> List[Any]:
    """Run a program, and after its scope what it returns; compare that with the loop's."""
    wanted = program()()
    for options in scopes:
        with gdb.batching(**options) as batch:
            end = program()
        equal(end(), wanted)
        assert batch.report.nodes
    return wanted


def output_of(program: str, given: str = "", **environment: str) -> str:
    """Run a program in a process of its own; one that fails or hangs fails the test."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        input=given,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    return ran.stdout


def alive() -> int:
    """Count arrays."""
    gc.collect()
    return sum(isinstance(thing, mx.nd.NDArray) for thing in gc.get_objects())


def none_left(before: int) -> bool:
    """Whether there are no more arrays than before; MXNet's threads may take a moment."""
    for _ in range(40):
        forget()  # as the next flush does
        if alive() <= before:
            return True
        time.sleep(0.05)
    return False
