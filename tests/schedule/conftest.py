from functools import partial

import pytest

from tests.schedule import dags


@pytest.fixture(params=[dags.breadth_first, dags.depth_first], ids=["forth", "back"])
def draw(request):
    """Read a drawing; every test that does so runs under two labellings."""
    return partial(dags.draw, order=request.param)
