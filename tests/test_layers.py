"""The imports in the package follow the order of docs/design/architecture.md."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import networkx as nx

PACKAGE = "gluon_dynbatch"
ROOT = Path(__file__).parents[1] / PACKAGE
PAGE = (ROOT.parent / "docs/design/architecture.md").read_text("utf-8")
#: Folders and top-level modules, as in the table; each imports only from those before it.
TABLE = PAGE.split("| folder or module |")[1].split("\n\n")[0]
ORDER = re.findall(r"`(\w+)/?`", " ".join(re.findall(r"^\| (`.*?) \|", TABLE, re.MULTILINE)))
TESTS = Path(__file__).parent
#: Those that never import MXNet; they may import the errors, of which some are MXNet's.
PURE = [
    "modes", "native", "show", "report", "cache", "rules", "schedule", "plan",
]  # fmt: skip


def module_name(path):
    parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def is_pure(module):
    return any(f"{module}.".startswith(f"{PACKAGE}.{pure}.") for pure in PURE)


def position(module):
    """Return the position of a module in `ORDER`; the package itself comes last."""
    folder = module.split(".")[1:2]
    return ORDER.index(folder[0]) if folder else len(ORDER)


def running(node):
    """Yield a node and all nodes in it, except those below ``if TYPE_CHECKING:``."""
    yield node
    for_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    for child in node.orelse if for_typing else ast.iter_child_nodes(node):
        yield from running(child)


def imported(node, module):
    """Return the modules that a node imports; most nodes import none."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return set()
    is_package = MODULES[module].name == "__init__.py"
    above = module.split(".")[: -node.level + is_package or None] if node.level else []
    base = ".".join([*above, *filter(None, [node.module])])
    # A name that is not a module of the package is defined in the module after "from".
    names = {f"{base}.{alias.name}" for alias in node.names}
    return {name if name in MODULES else base for name in names}


def imports(walk):
    """Return the graph of all imports among the nodes that `walk` yields of each module."""
    edges = (
        (module, target)
        for module, tree in trees().items()
        for node in walk(tree)
        for target in imported(node, module)
    )
    return nx.from_edgelist(edges, create_using=nx.DiGraph)


@lru_cache(maxsize=None)
def trees():
    """Return the syntax trees of all modules, which take seconds."""
    return {module: ast.parse(path.read_text("utf-8")) for module, path in MODULES.items()}


@lru_cache(maxsize=None)
def all_imports():
    """Return imports, also those below ``if TYPE_CHECKING:``, which a reader follows as well."""
    return imports(ast.walk)


def test_pure_modules_never_import_mxnet():
    """They do not import it through another module of the package either."""
    for module, target in imports(running).edges:
        if is_pure(module):
            assert target.split(".")[0] != "mxnet", module
            right = target not in MODULES or is_pure(target) or target == f"{PACKAGE}.errors"
            assert right, f"{module} imports {target}"


def test_the_order_has_every_folder_and_module():
    assert {module.split(".")[1] for module in MODULES if module != PACKAGE} == set(ORDER)


def test_imports_only_go_down():
    wrong = [(a, b) for a, b in all_imports().edges if b in MODULES and position(b) > position(a)]
    assert wrong == []


def test_no_cycles_among_modules():
    # `from . import native_code` names the package itself.
    ours = all_imports().subgraph(MODULES).copy()
    ours.remove_edges_from([(module, module) for module in MODULES])
    cycles = [sorted(part) for part in nx.strongly_connected_components(ours) if len(part) > 1]
    assert cycles == []


def test_no_function_imports_a_module_of_the_package():
    for module, tree in trees().items():
        for function in running(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for node in running(function):
                    ours = {name for name in imported(node, module) if name.startswith(PACKAGE)}
                    assert not ours, f"{module}:{node.lineno} imports {ours} in {function.name}()"


#: Files of tests that may use private names of the package, beside `tests/inside.py`.
INSIDE = {
    "inside.py": "asks for what nobody sees from outside, in one function each",
    "continuous/test_joining.py": "waits for the queue of a batcher",
    "continuous/test_leaving.py": "waits for the queue of a batcher",
    "continuous/test_rounds.py": "waits for the queue of a batcher",
    "test_serving.py": "waits for the queue of a batcher",
    "misuse/test_failures.py": "lets any function fail",
    "test_profiling.py": "holds a call of the profiler",
}
#: Names with an underscore that are public: of named tuples, of notebooks, and MXNet's.
PUBLIC = re.compile(
    r"_(asdict|replace|fields|repr_html|render_traceback)_?$|_cached_(graph|op_args)$|_arange$"
)


def private_names(path, names):
    """Return the private names of the package that a file uses."""
    text = path.read_text("utf-8")
    own = set(re.findall(r"(?:self\.|\bdef )(_[a-z]\w*)", text))
    used = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            used |= {alias.name for alias in node.names}
    return {name for name in used & names - own if not PUBLIC.match(name)}


def test_tests_know_the_inside_by_one_file():
    """A redesign that keeps the contracts changes no test."""
    defined = {
        name
        for path in ROOT.rglob("*.py*")
        if path.suffix in (".py", ".pyx")
        for name in re.findall(
            r"(?:\bself\.|\bdef |^ *#: .*\n *|^)(_[A-Za-z]\w*)\b(?= *[=:(])",
            path.read_text("utf-8"),
            re.MULTILINE,
        )
    }
    users = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if private_names(path, defined)
    }
    assert users == set(INSIDE), users ^ set(INSIDE)
    assert {"_ALIVE", "_ONES", "_owner"} <= private_names(TESTS / "inside.py", defined)


def lengths(path):
    """Yield the functions of a file, each with its number of lines without its text."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[0]
                of_text = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) else 0
                yield node.name, node.end_lineno - node.lineno + 1 - of_text
    elif path.suffix in (".c", ".h"):
        for found in re.finditer(r"^(\w[^;{}]*\)) \{\n(?:(?!\}).*\n)*\}", text, re.MULTILINE):
            yield found.group(1), found.group().count("\n") + 1
    else:
        text = re.sub(r'^ *"""(?:.|\n)*?"""\n', "", text, flags=re.MULTILINE)
        start = r"^( *)((?:cdef|cpdef|def) (?!class |struct )[^=\n]*?\(.*)\n"
        inner = r"(?:(?:\1 +\S.*|\1\).*| *)\n)*"
        for found in re.finditer(start + inner, text, re.MULTILINE):
            yield found.group(2), found.group().rstrip().count("\n") + 1


def test_no_file_or_function_is_long():
    """A file of Python or Cython has fewer than 400 lines; a function, of C as well, at most 50.

    The text of functions does not count.
    """
    counts = []
    generated = {path.with_suffix(".c") for path in ROOT.rglob("*.pyx")}
    for path in {*ROOT.rglob("*.*")} - generated:
        if path.suffix in (".py", ".pyx", ".pxi", ".pyi", ".c", ".h"):
            length = len(path.read_text("utf-8").splitlines())
            assert length < 400 or path.suffix in (".c", ".h"), path
            counts += [(lines, name, path.name) for name, lines in lengths(path)]
    assert [count for count in counts if count[0] > 50] == []
    assert len(counts) > 2000


#: Files of tests that replace functions or limits of the package, beside `tests/inside.py`.
REPLACE = {
    "common.py": "flushes after so many calls",
    "misuse/test_failures.py": "lets any function fail",
    "kernel/test_team.py": "notes a number of threads, which it does not set",
    "schedule/test_policies.py": "registers a policy, as users do",
    "continuous/test_joining.py": "lets rounds reach their limits",
    "continuous/test_leaving.py": "lets rounds reach their limits",
    "continuous/test_rounds.py": "lets rounds reach their limits",
    "continuous/test_streams.py": "lets streams reach their limits",
    "test_explain.py": "fixes the times of a report",
}


def replaces(path):
    """Return whether a file of tests replaces an attribute of the package."""
    tree = ast.parse(path.read_text("utf-8"))
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            roots = {x.id for x in ast.walk(node.args[0]) if isinstance(x, ast.Name)}
            is_ours = roots & (ours | {"gdb"}) or PACKAGE in ast.dump(node.args[0])
            if node.func.attr in ("setattr", "setitem", "object") and is_ours:
                return True
    return False


def test_tests_replace_steps_of_the_package_by_one_file():
    """A redesign that keeps the contracts changes no test."""
    users = {p.relative_to(TESTS).as_posix() for p in TESTS.rglob("*.py") if replaces(p)}
    assert users == {*REPLACE, "inside.py"}, users ^ {*REPLACE, "inside.py"}
