"""What all tests of requests under way use."""

import pytest

from tests import cells
from tests.continuous.walking import Walk
from tests.test_serving import no_thread_is_left  # noqa: F401


@pytest.fixture(scope="module")
def cell():
    return cells.dense(4, 4, prefix="step_", activation="tanh")


@pytest.fixture
def walk(cell):
    return Walk(cell)


@pytest.fixture
def oracle(cell):
    """Return the states of a sample without a scope."""
    return Walk(cell).loop
