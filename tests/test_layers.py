"""Reads the imports of the package and holds the direction of the architecture."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

import networkx as nx
import pytest

PACKAGE = "gluon_dynbatch"
ROOT = Path(__file__).parents[1] / PACKAGE
PURE = (
    "errors",
    "structure",
    "graph",
    "native",
    "order",
    "analysis",
    "plan",
    "plan_check",
    "gradient_plan",
    "cache",
    "race",
    "report",
    "rules",
)
Resolved = Tuple[ast.stmt, Set[str]]


def module_name(path: Path) -> str:
    parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: Dict[str, Path] = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def is_pure(module: str) -> bool:
    return module.split(".")[1:2] != [] and module.split(".")[1] in PURE


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


def test_the_package_was_found():
    assert {f"{PACKAGE}.errors", f"{PACKAGE}.analysis", f"{PACKAGE}.analysis.depth"} <= set(MODULES)


@pytest.mark.parametrize("module", [module for module in MODULES if is_pure(module)])
def test_pure_modules_never_import_mxnet(module):
    """Neither by themselves nor through another module of ours."""
    for node, named in IMPORTS[module]:
        assert not names_mxnet(named), f"{MODULES[module]}:{node.lineno} imports mxnet"
        impure = {name for name in named if name in MODULES and not is_pure(name)}
        assert not impure, f"{MODULES[module]}:{node.lineno} imports {impure}, which may use mxnet"


def test_no_cycles_among_modules():
    graph = nx.DiGraph()
    for module, found in IMPORTS.items():
        for _, named in found:
            graph.add_edges_from((module, name) for name in named if name in MODULES)
    tangled = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert tangled == [] and list(nx.nodes_with_selfloops(graph)) == []


@pytest.mark.parametrize("module", MODULES)
def test_no_function_imports_a_module_of_the_package(module):
    path = MODULES[module]
    for function in statements(TREES[module], (ast.FunctionDef, ast.AsyncFunctionDef)):
        for node, named in imports(function, module, path):
            ours = {name for name in named if name.split(".")[0] == PACKAGE}
            assert not ours, f"{path}:{node.lineno} imports {ours} inside {function.name}()"


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("import mxnet as mx", {"mxnet"}),
        ("from mxnet.gluon import nn", {"mxnet.gluon"}),
        ("def f():\n  import mxnet.nd", {"mxnet.nd"}),
        ("from gluon_dynbatch.analysis import depth", {"gluon_dynbatch.analysis.depth"}),
        ("from gluon_dynbatch.analysis import analyze", {"gluon_dynbatch.analysis"}),
        ("from .depth import cut", {"gluon_dynbatch.analysis.depth"}),
        ("from . import depth", {"gluon_dynbatch.analysis.depth"}),
        ("from ..errors import Where", {"gluon_dynbatch.errors"}),
        ("if TYPE_CHECKING:\n  import mxnet", set()),
        ("if typing.TYPE_CHECKING:\n  import mxnet\nelse:\n  import os", {"os"}),
    ],
)
def test_reads_imports_as_python_does(code, named):
    path = MODULES["gluon_dynbatch.analysis.agenda"]
    found = list(imports(ast.parse(code), "gluon_dynbatch.analysis.agenda", path))
    assert set().union(*(modules for _, modules in found)) == named
