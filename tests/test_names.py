"""One name a thing: no two classes, and no two functions, of the package have one name."""

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
    "Tape": "record/tape.py extends that of native/tapes.pxi",
}
#: The same of functions.
SAME_FUNCTIONS = {
    "use_threads": "run/team.py calls that of native/executing.pyx, and knows the processors",
}
#: A function of an operator has its name in each of these: how it is merged, expressed, and written
#: with other operators.
OF_OPERATORS = "rules", "kernel", "rules/numpy"


def names_in(path, kinds, pattern):
    """Return the names that a file defines: `kinds` of Python, or what `pattern` finds."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return [node.name for node in ast.parse(text).body if isinstance(node, kinds)]
    return re.findall(pattern, text, re.MULTILINE)


def named_twice(kinds, pattern):
    """Return the files of each name that several have; an operator's count as one."""
    found, seen = defaultdict(set), set()
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxi"):
            file = path.relative_to(ROOT).as_posix()
            folder = path.parent.relative_to(ROOT).as_posix()
            for name in names_in(path, kinds, pattern):
                is_first = folder in OF_OPERATORS and (name, folder) not in seen
                seen.add((name, folder))
                found[name].add("an operator" if is_first else file)
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_two_classes_have_one_name():
    twice = named_twice(ast.ClassDef, r"^(?:cdef )?class (\w+)")
    assert set(twice) == set(SAME), twice


def test_no_two_functions_have_one_name():
    """Functions of modules; those that only their file uses, with an underscore, are left out."""
    twice = named_twice(ast.FunctionDef, r"^(?:cdef|cpdef|def)\b(?! class)[^(=\n]*?(\w+)\(")
    public = {name: files for name, files in twice.items() if not name.startswith("_")}
    assert set(public) == set(SAME_FUNCTIONS), public


def test_each_word_has_one_row_and_a_file_that_defines_it():
    page = (ROOT.parent / "docs/design/words.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w.*?) \| .+ \| (`.+`) \|$", page, re.MULTILINE)
    words = [word for row, _ in rows for word in row.split(", ")]
    assert [word for word in set(words) if words.count(word) > 1] == []
    assert len(rows) == len(re.findall(r"^\| (?!word |-)", page, re.MULTILINE)) > 50
    for row, where in rows:
        file, *names = re.findall(r"`(.+?)`", where)
        text = (ROOT / file).read_text("utf-8")
        for name in names:
            assert re.search(rf"\b(class|struct) {name}\b", text), f"{row}: {name} in {file}"
