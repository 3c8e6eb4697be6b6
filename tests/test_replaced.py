"""What is replaced of MXNet is what the table says, for as long as it says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Iterator, Set, Tuple

import mxnet as mx
import pytest
from mxnet.base import _LIB

import gluon_dynbatch as gdb
from gluon_dynbatch.record.intercept import FOR_GOOD, OPEN, RECORDS, replace_for_good
from tests.cells import dense

ROOT = Path(__file__).parents[1]
Place = Tuple[Any, str]


def owners() -> Iterator[Any]:
    """Yield MXNet's C library, its modules, and the classes in them."""
    yield _LIB
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "mxnet" and module is not None:
            yield module
            classes = (value for value in vars(module).values() if isinstance(value, type))
            yield from (kind for kind in classes if kind.__module__.startswith("mxnet"))


def replaced() -> Set[Place]:
    """Look for functions of this package where MXNet has its own."""
    found = set()
    for owner in owners():
        for name, value in list(vars(owner).items()):
            home = getattr(value, "__globals__", {}).get("__name__", "")
            if home.split(".")[0] == "gluon_dynbatch":
                found.add((owner, name))
    return found


def listed(*tables: Any) -> Set[Place]:
    return {(one.owner, one.name) for table in tables for one in table}


ALL = (OPEN, RECORDS, FOR_GOOD)


def test_each_function_has_one_row_and_a_reason():
    assert len(listed(*ALL)) == sum(map(len, ALL))
    assert all(one.why for table in ALL for one in table)


def test_without_a_scope_only_what_is_replaced_for_good_is():
    for_good = listed(FOR_GOOD)
    assert replaced() == for_good
    net, x = dense(), mx.nd.ones((1, 4))
    with gdb.batching(granularity="block", policy="depth"):
        net(x)
        assert replaced() == listed(*ALL)
        with gdb.batching():
            net(x)
        assert replaced() == listed(*ALL)
    assert replaced() == for_good
    with pytest.raises(ZeroDivisionError), gdb.batching():
        net(x)
        raise ZeroDivisionError
    assert replaced() == for_good


def test_a_scope_that_runs_calls_at_once_replaces_the_function_that_counts_them():
    net, x = dense(), mx.nd.ones((1, 4))
    seen = []
    for _ in range(4):
        with gdb.batching() as batch:
            seen.append(replaced())
            net(x).asnumpy()
    assert batch.report.at_once
    assert seen[0] == listed(*ALL)
    assert seen[-1] == listed(OPEN, FOR_GOOD)


def test_nothing_is_replaced_that_the_table_lacks():
    with pytest.raises(KeyError):
        replace_for_good("waitall", lambda original: original)


def test_documents_say_how_many():
    good, others = len(FOR_GOOD), len(OPEN) + len(RECORDS)
    for document in ("docs/limits.md", "docs/design/architecture.md"):
        text = " ".join((ROOT / document).read_text("utf-8").split())
        assert f"{others} functions of MXNet" in text, document
        assert f"{good} for good" in text, document
