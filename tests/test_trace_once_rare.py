"""Structures that hardly ever come again are soon run without being traced, with equal results."""

import json

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests import inside
from tests.cells import WIDTH, array, dense
from tests.common import FIXED
from tests.depth import examples

ASKED = 8


class Repeated(gdb.DynamicHybridBlock):
    """Applies some of many cells in a row."""

    def __init__(self, cells):
        super().__init__()
        self.cells = [dense(WIDTH) for _ in range(cells)]
        for cell in self.cells:
            self.register_child(cell)

    def forward(self, x, route):
        for number in route:
            x = self.cells[number % len(self.cells)](x)
        return x


@pytest.fixture(autouse=True)
def few_are_asked(monkeypatch):
    inside.limit(monkeypatch, "runs that may be lost by traces", ASKED)


def repeated(cells=2, warm=True):
    net = Repeated(cells)
    if warm:
        net(array(1, WIDTH), range(cells))
    net.hybridize(trace_once=True)
    if warm:
        for cell in net.cells:
            cell(array(1, WIDTH))
    return net


def routes(first, count):
    """Return different routes, whose numbers as binary digits begin at `first`."""
    return [tuple(map(int, f"{number:b}")) for number in range(first, first + count)]


def run(net, some):
    """Run routes in a scope of their own; return what is known of traces."""
    with gdb.batching(**FIXED) as batch:
        results = [net(array(1, WIDTH), route) for route in some]
        mx.nd.waitall()
    assert all(result.shape == (1, WIDTH) for result in results)
    traced = batch.report.traced
    return traced.known, traced.new, traced.left


def test_new_structures_are_no_longer_traced():
    net = repeated()
    for number in range(2, 40):
        known, new, left = run(net, routes(number * ASKED, ASKED))
    assert (known, new) == (0, 0) and left == ASKED


def test_structures_that_come_again_are_traced():
    net, some = repeated(), routes(100, ASKED)
    for number in range(2, 6):
        run(net, routes(number * 1000, ASKED))
    counts = [run(net, some) for _ in range(100)]
    assert counts[-1] == (ASKED, 0, 0)
    assert sum(left for _, _, left in counts) > 0


def test_the_report_says_so():
    net = repeated()
    for number in range(2, 20):
        with gdb.batching(**FIXED) as batch:
            for route in routes(number * ASKED, ASKED):
                net(array(1, WIDTH), route)
    assert f"{ASKED} not recorded: hardly any structure comes again" in str(batch.report)
    assert json.loads(batch.report.to_json())["traced"]["left"] == ASKED


def test_a_block_whose_children_are_compiled_meanwhile_is_not_looked_at_each_time():
    net = repeated(cells=60, warm=False)
    known, new, left = run(net, [(number,) for number in range(60)])
    assert known == 0 and left > new > 0


@examples(15)
@given(st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=60))
def test_values_and_gradients_equal_the_loop(some):
    net = repeated(4)
    samples = [(array(1, WIDTH, seed=k), tuple(route)) for k, route in enumerate(some)]
    for _ in range(2):
        check_against_loop(
            lambda x, route: net(x, route), samples, net.collect_params(), **FIXED
        )  # fmt: skip
