"""Runs tests of one of MXNet's modules in one way, as the other process asks.

``python -m tests.mxnet_suite.worker CHECKOUT MODULE WAY SEED GIGABYTES`` writes the names of the
tests, then reads a name per line and writes how that test ended.  Everything else that is written,
by tests or by MXNet, goes to the standard error.
"""

import contextlib
import faulthandler
import functools
import importlib
import json
import os
import random
import resource
import sys
import traceback
import types
import unittest
import zlib

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

import gluon_dynbatch as gdb
from gluon_dynbatch.record import intercept
from gluon_dynbatch.record.hooks import REPLACES
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.state import STATE

from .pool import SHOW_STACKS
from .ways import WAYS

#: Last lines of a traceback that are kept.
FRAMES = 12


def install_nose():
    """Provide the few names of nose that the tests import; it does not run on Python 3.10."""

    def make_decorator(function):
        return functools.wraps(function)

    def raises(*kinds):
        def decorate(function):
            @functools.wraps(function)
            def test(*args, **kwargs):
                with unittest.TestCase().assertRaises(kinds):
                    function(*args, **kwargs)

            return test

        return decorate

    tools = types.ModuleType("nose.tools")
    case = unittest.TestCase()
    tools.make_decorator, tools.raises = make_decorator, raises
    tools.assert_raises, tools.ok_ = case.assertRaises, case.assertTrue
    nose = types.ModuleType("nose")
    nose.tools = tools
    sys.modules.update({"nose": nose, "nose.tools": tools})


def load(checkout, name):
    """Import a module of tests; return the tests by name."""
    install_nose()
    folder = os.path.join(checkout, "tests", "python", "unittest")
    sys.path.insert(0, folder)
    module = importlib.import_module(name)
    # The module puts the checkout's own mxnet, which is not built, before the installed one.
    inside = os.path.join(os.path.realpath(checkout), "python")
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != inside]
    module.type = type_of
    tests = {
        key: value
        for key, value in vars(module).items()
        if key.startswith("test") and isinstance(value, types.FunctionType)
    }
    return {key: tests[key] for key in sorted(tests, key=lambda key: position(tests[key]))}


def type_of(value):
    """Return the type of a value; some tests ask whether it is `NDArray` itself."""
    kind = type(value)
    return NDArray if kind is LazyNDArray else kind


def position(test):
    """Return the line of a test, below its decorators."""
    return getattr(test, "__wrapped__", test).__code__.co_firstlineno


def seed_all(seed, name):
    value = zlib.crc32(f"{seed} {name}".encode()) & 0x7FFFFFFF
    for module in (random, np.random, mx.random):
        module.seed(value)


def leftovers():
    """Say what of a scope is left after a test."""
    left = []
    if STATE.batch is not None or STATE.recorder is not None:
        left.append("a scope is open")
    if any(hasattr(getattr(hook.owner, hook.name), REPLACES) for hook in intercept.OPEN):
        left.append("functions of MXNet are replaced")
    return left


def run(test, way, seed):
    """Run a test; return how it ended, and how many calls were recorded."""
    seed_all(seed, test.__name__)
    STATE.decisions.clear()  # "auto" decides for each test anew
    batches = []
    try:
        with WAYS[way]():
            batches.append(STATE.batch)
            test()
        mx.nd.waitall()
        result = {"result": "passes"}
    except unittest.SkipTest as skip:
        result = {"result": "skipped", "message": str(skip)}
    except Exception as error:  # of any kind: the other process judges it
        result = {"result": "fails", **describe(error)}
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()
    left = leftovers()
    if left:
        result = {"result": "fails", "kind": "LeftBehind", "message": ", ".join(left)}
    return {**result, "calls": sum(batch.report.nodes for batch in batches if batch is not None)}


def describe(error):
    """Return the kind of an error, its message and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    lines = [f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames]
    return {
        "kind": type(error).__name__,
        "typed": isinstance(error, gdb.DynBatchError),
        "message": str(error),
        "trace": "\n".join(lines),
    }


def main(checkout, module, way, seed, gigabytes):
    most = int(float(gigabytes) * (1 << 30))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.set_inheritable(answers.fileno(), False)
    os.dup2(2, 1)
    faulthandler.enable()
    faulthandler.register(SHOW_STACKS)

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    tests = load(checkout, module)
    answer(list(tests))
    for line in sys.stdin:
        answer(run(tests[line.strip()], way, int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
