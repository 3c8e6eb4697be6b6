"""Fixtures and helpers of many tests: comparisons with the loop, expected errors, clean-up checks.

The comment ``# wrong`` marks the line that an error must name.
"""

import contextlib
import ctypes
import gc
import linecache
import os
import re
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.base import _LIB

import gluon_dynbatch as gdb
from gluon_dynbatch.native import executing, recording
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.record import intercept
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.run.direct import free_ones
from gluon_dynbatch.run.gradient import forget
from gluon_dynbatch.scope import RUNTIME, OpenScope
from gluon_dynbatch.testing import check_against_loop
from tests import cells, inside
from tests.cells import WIDTH, array, attached, equal

ROOT = Path(__file__).parents[1]

#: Seconds until what takes a few counts as hung: the machine may be busy.
PATIENCE = 300

#: Fixed options, in place of those that "auto" would choose.
FIXED = {"granularity": "block", "policy": "depth"}
SCOPES = [{**FIXED, "granularity": granularity} for granularity in GRANULARITIES]
SCOPES.append({**FIXED, "debug": True})

ALL = pytest.mark.parametrize("granularity", GRANULARITIES)
SAMPLES = [array(1, 4) * i for i in range(1, 6)]


# NumPy's semantics


@contextlib.contextmanager
def semantics(front):
    """Switch NumPy's semantics on for "np", and off for "nd", as ``npx.set_np()`` does."""
    active = front == "np"
    # MXNet refuses arrays of `mx.np` without NumPy's shapes.
    shapes, arrays = mx.util.np_shape(active), mx.util.np_array(active)
    first, second = (shapes, arrays) if active else (arrays, shapes)
    with first, second:
        yield


#: Of the GNU C library: each byte of new memory is the complement of the lowest byte given.
M_PERTURB = -6


@contextlib.contextmanager
def filled_memory(byte=0x4B):
    """Fill new memory with a byte, so that values which nothing has written differ from others."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: 0)
    mallopt(M_PERTURB, byte ^ 0xFF)
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)


@pytest.fixture(params=["nd", "np"])
def front(request):
    """Run a test with arrays of `mx.nd`, and again with those of `mx.np`."""
    with semantics(request.param):
        yield request.param


# Clean-up checks

HOOKED = [(hook.owner, hook.name) for hook in intercept.OPEN]
ORIGINALS = [getattr(owner, name) for owner, name in HOOKED]


def originals_are_back():
    return [getattr(owner, name) for owner, name in HOOKED] == ORIGINALS


def assert_nothing_is_left():
    """Check that no scope is open and that MXNet is in its original state."""
    assert STATE.batch is None and STATE.recorder is None and originals_are_back()
    assert gc.isenabled()
    assert not autograd.is_recording() and not autograd.is_training()


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    assert_nothing_is_left()


@pytest.fixture
def nodes(monkeypatch):
    """Return the list of nodes that scopes add to MXNet's tape."""
    added, original = [], _LIB.MXCustomFunctionRecord

    def record(*args):
        added.append(args)
        return original(*args)

    monkeypatch.setattr(_LIB, "MXCustomFunctionRecord", record)
    return added


@pytest.fixture
def net():
    return cells.dense(prefix="the_dense_")


@pytest.fixture(params=executing.instruction_sets())
def instruction_set(request):
    executing.use_instruction_set(request.param)
    yield
    executing.use_instruction_set()


def alive():
    """Count arrays by references to their classes: the collector does not track all arrays."""
    recording.free_spares()
    free_ones()
    gc.collect()
    return sum(map(_references, (mx.nd.NDArray, LazyNDArray)))


def _references(cls):
    others = sum(not isinstance(referrer, cls) for referrer in gc.get_referrers(cls))
    return sys.getrefcount(cls) - others


def none_left(before):
    """Return whether the count of arrays falls to `before`; MXNet's threads may need a moment."""
    for _ in range(400):
        forget()  # which the next flush would do
        if alive() <= before:
            return True
        time.sleep(0.05)
    return False


# Comparisons with the loop


def same_as_loop(program, scopes=(FIXED, {**FIXED, "debug": True})):
    """Run a program in each scope, and what it returns after the scope; compare with the loop."""
    wanted = program()()
    for options in scopes:
        with gdb.batching(**options) as batch:
            finish = program()
        equal(finish(), wanted)
        assert batch.report.nodes
    return wanted


def check(fn, samples, block, launches=None, granularities=GRANULARITIES, **options):
    """Compare with the loop at every granularity; return the last scope.

    With `launches`, all calls must merge, into this many launches at each granularity.
    """
    for granularity in granularities:
        batch = check_against_loop(
            fn, samples, block.collect_params(), granularity=granularity, analysis_budget=None,
            **options,
        )  # fmt: skip
        if launches is not None:
            assert batch.report.alone == []
            assert batch.report.launches == launches, granularity
    return batch


def prepared(block, convert=True, scale=0.6):
    """Convert, initialise with the same values each time, and hybridize."""
    return cells.ready(gdb.convert(block) if convert else block, scale)


def several(kind, *parts):
    """Return a container block of this class with these children."""
    container = kind()
    for part in parts:
        container.add(part)
    return container


def loop_and_scope(run, rtol=1e-4, atol=1e-5, **options):
    """Call `run` with an empty context and with a scope, compare the results, and return both."""
    wanted, got = (
        leaves(run(scope)) for scope in (contextlib.nullcontext(), gdb.batching(**options))
    )
    equal(got, wanted, rtol, atol)
    return wanted, got


def works(block):
    """Check that the next scope merges calls, and gives the loop's values and gradients."""
    batch = check_against_loop(block, SAMPLES, block.collect_params().values(), **FIXED)
    assert (batch.report.nodes, batch.report.launches) == (5, 1)


def state_of(block):
    return leaves([(p.data(), p.grad()) for p in block.collect_params().values()])


def arrays(*shapes, dtype="float32"):
    random = np.random.RandomState(2)
    return attached([mx.nd.array(random.uniform(-1, 1, s), dtype=dtype) for s in shapes])


#: The numbers of rows of some samples.
LENGTHS = (1, 3, 2, 5, 3)


def ragged(lengths=LENGTHS):
    """Return sequences of different lengths, each (steps, width), with gradients."""
    return arrays(*[(n, WIDTH) for n in lengths])


def host(value):
    """Convert a nest of arrays into lists and NumPy arrays, for comparisons."""
    if isinstance(value, mx.nd.NDArray):
        return value.asnumpy()
    if isinstance(value, dict):
        value = [*value.items()]
    return [host(item) for item in value] if isinstance(value, (list, tuple)) else value


def same(got, wanted):
    """Check that nests of arrays, numbers and strings are equal, with their types and shapes."""
    got, wanted = host(got), host(wanted)
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted):
            same(a, b)
    elif isinstance(wanted, np.ndarray):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
    else:
        assert got == wanted and type(got) is type(wanted)


def leaves(value):
    """Return copies of the arrays in a nest."""
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return [leaf for item in items for leaf in leaves(item)]
    return [value.asnumpy() if isinstance(value, mx.nd.NDArray) else value.copy()]


# Expected errors

LIBRARIES = tuple(os.path.join(os.path.dirname(m.__file__), "") for m in (mx, gdb, contextlib))
#: Tracebacks name compiled modules by relative paths.
LIBRARIES += ("gluon_dynbatch/",)


def user_frame(error):
    """Return the last frame of a traceback that is in user code."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith(LIBRARIES) and f.filename[0] != "<"][-1]


def named_lines(text):
    """Return the source lines that a message names as ``file:line in function``."""
    locations = re.findall(r"(\S+\.py):(\d+) in ", text)
    return [linecache.getline(name, int(line)).rstrip() for name, line in locations]


@contextlib.contextmanager
def refused(kind, *texts, late=False, recorded=True):
    """Expect an error of the package, with these texts, that is raised at the marked line.

    Its message names that line and says what to do, except with ``recorded=False``.  With `late`,
    it may be raised at another line.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert isinstance(caught.value, gdb.DynBatchError)
    message = str(caught.value)
    if not late:
        assert user_frame(caught.value).line.endswith("# wrong"), user_frame(caught.value)
    if recorded:
        lines = named_lines(message.partition("\n  at: ")[2])
        texts = (*texts, "what to do: ")
        assert len(lines) == 1 and lines[0].endswith("# wrong"), message
    for text in texts:
        assert text in message, message


@pytest.fixture(params=[False, True], ids=["predicting", "recording"])
def unharmed(request):
    """Provide a model, and check that the test changes neither the model, autograd nor MXNet."""
    block = cells.dense(prefix="the_dense_")
    for p in block.collect_params().values():
        p.grad()[:] = 7
    before = state_of(block)
    with autograd.record() if request.param else contextlib.nullcontext():
        yield block
        assert autograd.is_recording() == autograd.is_training() == request.param
        assert STATE.batch is None and STATE.recorder is None and originals_are_back()
        equal(state_of(block), before, 0, 0)
        works(block)


# The interpreter, other threads and processes


@contextlib.contextmanager
def interpreter_with(name, value):
    """Change a setting of ``sys`` for a while: "recursionlimit" by ``sys.setrecursionlimit``."""
    before = getattr(sys, f"get{name}")()
    getattr(sys, f"set{name}")(value)
    try:
        yield
    finally:
        getattr(sys, f"set{name}")(before)


def in_thread(work):
    """Call a function in another thread; return what it returns, or raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@contextlib.contextmanager
def by_mxnets_operators():
    """Run every launch with MXNet's operators, as if no segment had a kernel."""
    kernels = RUNTIME.dispatcher.kernels
    kernels.native = False
    try:
        yield
    finally:
        kernels.native = True


@contextlib.contextmanager
def many_parts(calls=1):
    """Run pending calls ahead after so many calls, whatever the options of the scope are."""
    with patch.object(recording, "CALLS_PER_CHECK", calls), patch.object(
        OpenScope, "run_ahead", inside.run_ahead
    ):
        yield
