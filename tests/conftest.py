"""Settings of all tests: repeatable random numbers, Hypothesis without deadlines, fixtures."""

import contextlib
import gc
import os
import random
import zlib

# Tests run in several processes, which would take the cores from each other. NumPy, MXNet and the
# package read this on import.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none
from mxnet import npx

# No limits of time: the first call of a block, which traces and compiles it, takes longer, and the
# machine may be busy.
UNTIMED = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "print_blob": True,
}
settings.register_profile("default", derandomize=True, max_examples=50, **UNTIMED)
# See `depth.py`: pytest --hypothesis-profile=deep
settings.register_profile("deep", max_examples=1000, **UNTIMED)
settings.load_profile("default")

#: All tests may use the fixtures of this module.
pytest_plugins = ["tests.common"]
_SEED = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption(
        "--seed", type=int, help="seed of every test's random numbers (default: from its name)"
    )
    parser.addoption(
        "--one-in", type=int, default=1, metavar="N", help="run one test in N, always the same ones"
    )


def pytest_collection_modifyitems(config, items):
    """Select the tests that `--one-in` asks for, by a hash of their names."""
    parts = {True: [], False: []}
    for item in items:
        parts[zlib.crc32(item.nodeid.encode()) % config.getoption("--one-in") == 0].append(item)
    if parts[False]:
        config.hook.pytest_deselected(items=parts[False])
        items[:] = parts[True]


def pytest_collection_finish():
    """Exclude the tests, which are most of the heap, from garbage collection."""
    # The first run of Hypothesis searches the objects of the collector, so it precedes the freeze.
    given(none())(lambda nothing: None)()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def earlier_modules_are_frozen():
    """Exclude the objects that earlier modules left from garbage collection as well."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def numpy_semantics_are_off():
    """Switch NumPy's semantics of MXNet off after a test, also if it fails."""
    yield
    npx.reset_np()


@pytest.fixture(autouse=True)
def seed(request):
    """Seed Python, NumPy and MXNet; the report of a failure has the seed."""
    value = request.config.getoption("--seed")
    if value is None:
        value = zlib.crc32(request.node.nodeid.encode()) & 0x7FFFFFFF
    request.node.stash[_SEED] = value
    random.seed(value)
    np.random.seed(value)
    # Modules whose tests do not depend on numbers that MXNet draws skip its seed: 1.3 ms a test.
    if getattr(request.module, "MXNET_DRAWS", True):
        # On Python 3.8 and 3.9, `subprocess` never returns while the backward pass of an earlier
        # test is pending. Errors in that pass belong to the earlier test.
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()
        mx.random.seed(value)
    return value


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed and _SEED in item.stash:
        command = f'python -m pytest "{item.nodeid}" --seed={item.stash[_SEED]}'
        report.sections.append(("to repeat", command))
