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


def test_each_file_is_on_the_page_of_files():
    """By its path, or by its name in a paragraph or table that has its folder."""
    page = (ROOT.parent / "docs/design/rooms.md").read_text("utf-8").split("\n## Files\n")[1]
    blocks, listed = re.split(r"\n\n(?!\|)", page), set()
    for block in blocks:
        names = re.findall(r"`([\w/]+(?:\.\w+|/))`", block)
        folders = {name.rpartition("/")[0] for name in names}
        listed |= {*names, *(f"{folder}/{name}" for folder in folders for name in names)}
    generated = {path.with_suffix(".c") for path in ROOT.rglob("*.pyx")}
    suffixes = ".py", ".pyx", ".pxi", ".pxd", ".c", ".h"
    files = {path for path in ROOT.rglob("*") if path.suffix in suffixes} - generated
    files = {path.relative_to(ROOT).as_posix() for path in files if path.name != "__init__.py"}
    assert sorted(files - listed) == []
    known, root = {name.rpartition("/")[2] for name in files}, ROOT.parent
    named = re.findall(r"`([\w/]+\.(?:pyx?|px[id]|[ch]))`", page)
    gone = {name for name in named if name.rpartition("/")[2] not in known}
    assert [name for name in gone - {"__init__.py"} if not (root / name).exists()] == []


#: Each native struct and class says who owns it, and until when, or that it needs no owner.
SAYS_OWNER = re.compile(r"\b(owned\W+by|plain\W+values?)\b", re.IGNORECASE)


def without_owner_in_c(text):
    """Yield structs whose comments say nothing, nor does that of the file, for all of them."""
    head = re.match(r"/\*.*?\*/", text, re.DOTALL)
    if head and SAYS_OWNER.search(head.group()):
        return
    for found in re.finditer(r"^(?:\w+ )*struct(?: \w+)? \{", text, re.MULTILINE):
        before = text[: found.start()].rpartition("/*")[2]
        says = before.rstrip().endswith("*/") and SAYS_OWNER.search(before)
        if not says:
            yield text[found.start() :].split("\n}")[1].split("\n")[0] or found.group()


def without_owner_in_cython(text):
    """Yield structs and classes; a comment above some structs is one of all of them."""
    of_all = False
    for block in re.split(r"\n\n+(?=\S)", text):
        definition = re.search(r"^cdef (class|struct) (\w+)", block, re.MULTILINE)
        if definition is None:
            of_all = bool(SAYS_OWNER.search(block)) if block.startswith("#") else False
        elif definition.group(1) == "class":
            # Without a docstring, it is declared here and defined elsewhere.
            if '"""' in block and not SAYS_OWNER.search(block.split('"""')[1]):
                yield definition.group(2)
        elif not of_all and not SAYS_OWNER.search("".join(re.findall(r"^ +#.*", block, re.M))):
            yield definition.group(2)


def test_each_native_struct_and_class_says_who_owns_it():
    native = ROOT / "native"
    cython = [path for path in native.iterdir() if path.suffix in (".pyx", ".pxi", ".pxd")]
    files = {path: without_owner_in_cython for path in cython}
    files.update({path: without_owner_in_c for path in (native / "c").iterdir()})
    found = {path.name: [*check(path.read_text("utf-8"))] for path, check in files.items()}
    assert {name: silent for name, silent in found.items() if silent} == {}
    assert len(files) > 50
