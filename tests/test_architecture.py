"""Modules and tests are where docs/design/architecture.md says."""

import re
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import dense, inputs
from tests.walks import walk

ROOT = Path(gdb.__file__).parent
PAGE = (ROOT.parent / "docs/design/architecture.md").read_text("utf-8")


def walks(net, count):
    """Train on some samples; return the walks of a known call, and of the value of the first."""
    samples = inputs(count)
    with autograd.record(), gdb.batching(granularity="operator"):
        results = [net(net(x)) for x in samples]
        _, call = walk(lambda: net(samples[0]))
        value, read = walk(results[0].asnumpy)
    wanted = net(net(samples[0])).asnumpy()
    np.testing.assert_allclose(value, wanted, 1e-5)
    mx.nd.waitall()
    return call, read


def test_walks_are_those_of_the_page():
    """Kinds of calls and their kernels are known; the plan is new, as there are more samples."""
    net = dense(4, prefix="cell_")
    for count in (3, 4):
        walks(net, count)
    call, read = walks(net, 5)
    assert call == [], "a known call leaves native code"
    table = PAGE.split("## One call and one value")[1].split("\n## ")[0]
    rows = re.findall(r"^\| \w[^|]* \| (`.*) \|$", table, re.MULTILINE)
    assert read == re.findall(r"`([\w/]+)`", " ".join(rows)), f"write {read}"


def test_each_file_of_tests_has_a_contract_on_the_page():
    table = PAGE.split("\n| contract | test |\n")[1].split("\n\n")[0].rstrip()
    rows = re.findall(r"^\| .* \| (`tests/.*`) \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n"), "each row names files or folders of tests"
    named = [set(re.findall(r"`(tests/[\w/.]+)`", row)) for row in rows]
    listed, root = set().union(*named), ROOT.parent
    files = {path.relative_to(root) for path in (root / "tests").rglob("test_*.py")}
    covered = [f for f in files if {str(f), *(f"{parent}/" for parent in f.parents)} & listed]
    assert sorted(files - set(covered)) == []
    assert [name for name in listed if not (root / name).exists()] == []


def test_the_walks_name_what_there_is():
    """Each file of the walks of a call and a value exists, and defines the names behind it."""
    page = (ROOT.parent / "docs/design/rooms.md").read_text("utf-8")
    walks = re.sub(r"\s+", " ", page.split("\n## Files\n")[0])
    found = re.findall(r"`([\w/]+\.(?:pyx?|pxi|c))`((?:[:,] `\w+`)*)", walks)
    assert len(found) > 40
    for file, names in found:
        text = (ROOT / file).read_text("utf-8")
        for name in re.findall(r"\w+", names):
            pattern = rf"^[^#\n]*\b(def|class|cdef|cpdef|void)\b[^(\n]*\b{name}\b|^{name}\b"
            assert re.search(pattern, text, re.MULTILINE), f"{name} is not in {file}"
