"""Reads the imports of the package and holds the direction of the architecture."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

import networkx as nx
import pytest

PACKAGE = "gluon_dynbatch"
ROOT = Path(__file__).parents[1] / PACKAGE
#: The rooms and the modules beside them; each imports only from those before it.
ORDER = (
    "errors",
    "modes",
    "native",
    "show",
    "report",
    "cache",
    "rules",
    "record",
    "trace",
    "schedule",
    "options",
    "lower",
    "kernel",
    "plan",
    "run",
    "debug",
    "auto",
    "flush",
    "samples",
    "fibers",
    "scope",
    "block",
    "stream",
    "serving",
    "testing",
    "explain",
    "__main__",
)
#: What never imports MXNet.
PURE = (
    "errors",
    "modes",
    "native",
    "show",
    "report",
    "rules",
    "show",
    "record.structure",
    "schedule",
    "plan",
    "cache",
)
Resolved = Tuple[ast.stmt, Set[str]]


def module_name(path: Path) -> str:
    parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: Dict[str, Path] = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def is_pure(module: str) -> bool:
    return any(f"{module}.".startswith(f"{PACKAGE}.{pure}.") for pure in PURE)


def room(module: str) -> str:
    return (module.split(".") + [""])[1]


def is_for_typing(node: ast.AST) -> bool:
    """Recognise ``if TYPE_CHECKING:``, whose body never runs."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def statements(node: ast.AST, kinds: Tuple[type, ...]) -> Iterator[ast.stmt]:
    """Yield the statements of some kinds in `node` that can run."""
    if isinstance(node, kinds):
        yield node
    children = node.orelse if is_for_typing(node) else ast.iter_child_nodes(node)
    for child in children:
        yield from statements(child, kinds)


def base_of(node: ast.ImportFrom, module: str, path: Path) -> str:
    """Return the absolute name behind ``from``."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def imports(tree: ast.AST, module: str, path: Path) -> Iterator[Resolved]:
    """Yield every import statement with the modules it names."""
    for node in statements(tree, (ast.Import, ast.ImportFrom)):
        if isinstance(node, ast.Import):
            yield node, {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, module, path)
            names = {f"{base}.{alias.name}" for alias in node.names}
            # What is no module of ours is a name inside the module behind "from".
            yield node, {name if name in MODULES else base for name in names}


def names_mxnet(modules: Set[str]) -> bool:
    return any(name.split(".")[0] == "mxnet" for name in modules)


TREES = {module: ast.parse(path.read_text("utf-8")) for module, path in MODULES.items()}
IMPORTS: Dict[str, List[Resolved]] = {
    module: list(imports(TREES[module], module, path)) for module, path in MODULES.items()
}


@pytest.mark.parametrize("module", [module for module in MODULES if is_pure(module)])
def test_pure_modules_never_import_mxnet(module):
    """Neither by themselves nor through another module of ours."""
    for node, named in IMPORTS[module]:
        assert not names_mxnet(named), f"{MODULES[module]}:{node.lineno} imports mxnet"
        impure = {name for name in named if name in MODULES and not is_pure(name)}
        assert not impure, f"{MODULES[module]}:{node.lineno} imports {impure}, which may use mxnet"


def test_every_room_has_its_place():
    assert {room(module) for module in MODULES} - {""} == set(ORDER)


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_go_down(module):
    if not room(module):
        return  # what users import comes last
    for node, named in IMPORTS[module]:
        above = {
            n for n in named if n in MODULES and ORDER.index(room(n)) > ORDER.index(room(module))
        }
        assert not above, f"{MODULES[module]}:{node.lineno} imports {above}, which come later"


def test_no_cycles_among_modules():
    graph = nx.DiGraph()
    for module, found in IMPORTS.items():
        for _, named in found:
            # `from . import native_code` names the package itself.
            graph.add_edges_from((module, n) for n in named if n in MODULES and n != module)
    tangled = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert tangled == []


@pytest.mark.parametrize("module", MODULES)
def test_no_function_imports_a_module_of_the_package(module):
    path = MODULES[module]
    for function in statements(TREES[module], (ast.FunctionDef, ast.AsyncFunctionDef)):
        for node, named in imports(function, module, path):
            ours = {name for name in named if name.split(".")[0] == PACKAGE}
            assert not ours, f"{path}:{node.lineno} imports {ours} inside {function.name}()"
