"""What all tests share: repeatable random numbers, Hypothesis without a stopwatch, fixtures."""

import contextlib
import gc
import os
import random
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import none

# The first call of a block traces and compiles it, so that examples differ in time by nature.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

#: Whose fixtures every test may ask for.
pytest_plugins = ["tests.common"]
_SEED = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption(
        "--seed", type=int, help="seed of every test's random numbers (default: from its name)"
    )


def pytest_collection_finish():
    """Take the tests out of what is searched for garbage; they are most of what there is."""
    # Hypothesis asks the collector who holds its random numbers, once, when it first runs.
    given(none())(lambda nothing: None)()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def earlier_modules_are_no_garbage():
    """Take what earlier tests left out of what is searched as well: the heap only grows."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed(request):
    """Seed Python, NumPy and, if it is loaded, MXNet; a failing test says how to repeat it."""
    value = request.config.getoption("--seed")
    if value is None:
        value = zlib.crc32(request.node.nodeid.encode()) & 0x7FFFFFFF
    request.node.stash[_SEED] = value
    random.seed(value)
    np.random.seed(value)
    # Which takes MXNet milliseconds.
    if "mxnet" in sys.modules and getattr(request.module, "MXNET_DRAWS", True):
        mxnet = sys.modules["mxnet"]
        # On Python 3.8 and 3.9 `subprocess` never returns if another test's backward pass is
        # pending. What failed there was that test's own.
        with contextlib.suppress(mxnet.MXNetError):
            mxnet.nd.waitall()
        mxnet.random.seed(value)
    return value


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed and _SEED in item.stash:
        command = f'python -m pytest "{item.nodeid}" --seed={item.stash[_SEED]}'
        report.sections.append(("to repeat", command))
