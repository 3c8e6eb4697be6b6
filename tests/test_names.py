"""One name a thing: no two classes of the package have one name."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import gluon_dynbatch

ROOT = Path(gluon_dynbatch.__file__).parent
#: Classes of Python and of Cython that are one thing: the first is, or describes, the second.
SAME = {
    "Kernel": "kernel/step.py describes what native/kernels.pxi runs",
    "Library": "record/state.py is the protocol of trace/entry.py",
    "Observer": "flush.py has the protocol of observe.py",
    "Tape": "record/tape.py extends that of native/recording.pyx",
}


def classes(path):
    """Return the names of the classes of a file."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return re.findall(r"^(?:cdef )?class (\w+)", text, re.MULTILINE)


def test_no_two_classes_have_one_name():
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxi"):
            for name in classes(path):
                found[name].append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert set(twice) == set(SAME), twice
