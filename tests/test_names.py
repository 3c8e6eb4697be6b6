"""One name a thing: no two classes, functions or shared constants of the package have one name."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import gluon_dynbatch

ROOT = Path(gluon_dynbatch.__file__).parent
#: Functions of Python and of Cython that are one thing: the first is, or describes, the second.
SAME_FUNCTIONS = {
    "use_threads": "run/team.py calls that of native/executing.pyx, and knows the processors",
}
#: A function of an operator has its name in each of these: how it is merged, expressed, written
#: with other operators, and computed.
OF_OPERATORS = "rules", "kernel", "rules/numpy", "native/c"
#: Macros of C that stand for types and loops, defined anew for each instruction set or list.
MACROS = re.compile(r"[A-Z]$")

CYTHON_TYPES = r"^ *(?:cdef |ctypedef )?(?:class|struct|fused|enum) (\w+)"
C_TYPES = r"^\} (\w+);|^(?:typedef )?struct (\w+) \{|^typedef [^;{(]*?(\w+);"
CYTHON_FUNCTIONS = r"^(?:cdef|cpdef|def)\b(?! class)[^(=\n]*?(\w+)\("
C_FUNCTIONS = r"^(?!typedef|#|\s|\}|/)[\w \*]*?\b(?:F\((\w+)\)|(?!F\()(\w+))\([^;]*?\)\s*\{"
CONSTANTS = r"^(?:cdef [\w ]+? )?\*?([A-Z][A-Z_0-9]+)(?:\[[^]\n]*\])? = "


def sources():
    """Yield the files of the package with their text; not the C code that Cython writes."""
    generated = {path.with_suffix(".c") for path in ROOT.rglob("*.pyx")}
    for path in sorted({*ROOT.rglob("*.*")} - generated):
        if path.suffix in (".py", ".pyx", ".pxi", ".pxd", ".c", ".h"):
            yield path, path.read_text("utf-8")


def found(pattern, text):
    """Return what any group of a pattern finds."""
    return [next(filter(None, m.groups())) for m in re.finditer(pattern, text, re.MULTILINE)]


def assigned(text):
    """Yield the names that a module of Python assigns, with the values."""
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield name.id, node.value


def types_in(path, text):
    """Return the classes, structs and names of types that a file defines, but for type variables.

    A struct that Cython declares as C has it, under its name, is not defined anew, nor is a class
    that a file declares for other modules.
    """
    if path.suffix == ".py":
        classes = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        aliases = [
            name
            for name, value in assigned(text)
            if re.match(r"[A-Z][a-z]", name) and "TypeVar" not in ast.dump(value)
        ]
        return classes + aliases
    if path.suffix in (".c", ".h"):
        return [name for name in found(C_TYPES, text) if f"struct {name} {name};" not in text]
    declared = found(r"^cdef class (\w+)", text) if path.suffix == ".pxd" else []
    names = found(CYTHON_TYPES, text)
    return [name for name in names if not name.startswith("gdb_") and name not in declared]


def functions_in(path, text):
    if path.suffix == ".py":
        return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    if path.suffix == ".pxd":  # others are declared for other modules
        text = "".join(re.findall(r"^cdef inline .*\n", text, re.MULTILINE))
    return found(C_FUNCTIONS if path.suffix in (".c", ".h") else CYTHON_FUNCTIONS, text)


def constants_in(path, text):
    if path.suffix == ".py":
        return [name for name, _ in assigned(text) if name.isupper()]
    pattern = r"^#define (\w+)" if path.suffix in (".c", ".h") else CONSTANTS
    return [name for name in found(pattern, text) if not MACROS.match(name)]


def named_twice(names_in):
    """Return the files of each name that several have; an operator's count as one."""
    files, seen = defaultdict(set), set()
    for path, text in sources():
        file = path.relative_to(ROOT).as_posix()
        folder = path.parent.relative_to(ROOT).as_posix()
        for name in {*names_in(path, text)}:
            is_first = folder in OF_OPERATORS and (name, folder) not in seen
            seen.add((name, folder))
            files[name].add("an operator" if is_first else file)
    return {name: where for name, where in files.items() if len(where) > 1}


def test_no_two_classes_have_one_name():
    """In Python, Cython and C: classes, structs and names of types."""
    assert named_twice(types_in) == {}


def test_no_two_functions_have_one_name():
    """In all three; those of Python that only their file uses, with an underscore, are left out."""
    public = {n: files for n, files in named_twice(functions_in).items() if not n.startswith("_")}
    assert set(public) == set(SAME_FUNCTIONS), public


def test_no_two_constants_have_one_name_if_another_file_uses_one_of_them():
    used = set()
    for path, text in sources():
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom):
                    used |= {alias.name for alias in node.names}
                elif isinstance(node, ast.Attribute):
                    used.add(node.attr)
    twice = named_twice(constants_in)
    assert {name: files for name, files in twice.items() if name in used} == {}


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
