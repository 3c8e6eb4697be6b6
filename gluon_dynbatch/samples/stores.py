"""Which attributes a program may change: read from the source of the functions that it can reach.

In a map, later samples run while earlier ones wait for values.  Which attributes an earlier sample
may still change must be known before, so this reads the code instead of watching a run.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import types
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Set

from ..native.recording import without_collector
from ..record.identity import IGNORED

#: Methods that change a list, dictionary, set, deque, queue or NumPy array in place.
MUTATORS = frozenset([
    "append", "appendleft", "extend", "extendleft", "insert", "remove", "reverse", "sort",
    "pop", "popleft", "popitem", "clear", "update", "setdefault", "add", "discard", "rotate",
    "difference_update", "intersection_update", "subtract", "symmetric_difference_update",
    "move_to_end", "put", "put_nowait", "get_nowait", "fill", "__setitem__", "__delitem__",
])  # fmt: skip
#: Functions that change their first argument in place.
CHANGING = frozenset([
    "heappush", "heappop", "heapreplace", "heappushpop", "heapify", "shuffle", "insort",
    "insort_left", "insort_right", "setitem", "delitem", "next", "iadd",
])  # fmt: skip
#: Functions and methods whose results are, or have among their items, those of their argument.
GIVING = frozenset([
    "zip", "enumerate", "reversed", "iter", "list", "tuple", "sorted", "next", "filter", "map",
    "items", "values", "get", "setdefault", "pop", "popleft", "popitem", "__getitem__",
])  # fmt: skip
#: Attributes that MXNet's blocks use for names, graphs and parameters.
INTERNAL = IGNORED | {"_modified", "_active", "_flags", "_children", "_reg_params"}
#: Instructions that change an item of a container.
ITEM_STORES = frozenset(["STORE_SUBSCR", "DELETE_SUBSCR"])

#: Expressions whose value is a new container or number: no other object has a method called on it.
NEW = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant)
CONSTRUCTORS = frozenset([
    "list", "dict", "set", "tuple", "deque", "defaultdict", "OrderedDict", "Counter", "str", "int",
    "float", "len", "range", "sorted",
])  # fmt: skip
#: Methods that ``x[i] = y``, ``del x[i]``, and ``x += y`` and its like call.
SETTERS = {ast.Store: "__setitem__", ast.Del: "__delitem__"}
IN_PLACE = frozenset(["__iadd__", "__isub__", "__imul__", "__itruediv__", "__ior__", "__iand__"])

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Stores(NamedTuple):
    """What the source of one function says, without the functions that it calls."""

    #: Attributes that it sets or deletes: of its first argument, and of other objects.
    own: FrozenSet[str]
    foreign: FrozenSet[str]
    #: Attributes whose objects it may change in place.
    changed: FrozenSet[str]
    #: Attributes whose objects, or items of these, get or lose attributes.
    owners: FrozenSet[str]
    #: Names and attributes that it refers to.
    names: FrozenSet[str]
    #: Whether it may change its first argument in place.
    changes_first: bool


@functools.lru_cache(maxsize=4096)
def stores_of(code: types.CodeType) -> Stores:
    """Return what a function may change and what it refers to, with the functions inside it."""
    nodes = _functions(code.co_filename).get(code.co_firstlineno, [])
    nodes = [node for node in nodes if getattr(node, "name", "<lambda>") == code.co_name]
    if not nodes:
        return _without_source(code)
    search = _Search(code.co_varnames[0] if code.co_argcount else None)
    for node in nodes:
        search.find_aliases(node)
        search.visit(node)
    return Stores(
        own=frozenset(search.own),
        foreign=frozenset(search.foreign),
        changed=frozenset(search.changed),
        owners=frozenset(search.owners),
        names=frozenset(search.names),
        changes_first=search.changes_first,
    )


@functools.lru_cache(maxsize=256)
def _functions(filename: str) -> Dict[int, List[Any]]:
    """Return the functions in a file by the numbers of their first lines."""
    found: Dict[int, List[Any]] = {}
    source = "".join(linecache.getlines(filename))
    try:
        # The collector might run Python code, and let another thread parse meanwhile: then CPython
        # 3.11 raises SystemError, because threads share the state of its parser.
        tree = without_collector(lambda: ast.parse(source))
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(d.lineno for d in decorators)])
            found.setdefault(first, []).append(node)
    return found


def _without_source(code: types.CodeType) -> Stores:
    """Return what the instructions of a function show: at least what it changes."""
    stored: Set[str] = set()
    loaded: Set[str] = set()
    names = set(code.co_names)
    changes_items = bool(names & (MUTATORS | CHANGING))
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            stored.add(instruction.argval)
        elif instruction.opname == "LOAD_ATTR":
            loaded.add(instruction.argval)
        changes_items = changes_items or instruction.opname in ITEM_STORES
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            stores = _without_source(inner)
            stored, loaded = stored | stores.foreign, loaded | stores.changed
            names |= stores.names
    return Stores(
        own=frozenset(),
        foreign=frozenset(stored - INTERNAL),
        changed=frozenset(loaded if changes_items else ()),
        owners=frozenset(loaded if stored else ()),
        names=frozenset(names | IN_PLACE | set(SETTERS.values())),
        changes_first=changes_items,
    )


class _Search(ast.NodeVisitor):
    """Finds the attributes that a function changes."""

    def __init__(self, first: Optional[str]):
        #: The name of the first argument, for example ``self``.
        self._first = first
        self.own: Set[str] = set()
        self.foreign: Set[str] = set()
        self.changed: Set[str] = set()
        self.owners: Set[str] = set()
        self.names: Set[str] = set()
        self.changes_first = False
        #: Per variable, the expressions that it may be, or be an item of.
        self._values: Dict[str, List[ast.AST]] = {}

    def find_aliases(self, function: ast.AST) -> None:
        """Note what each variable may be: after ``h = self.h``, a change of ``h`` is one of it."""
        for node in ast.walk(function):
            if isinstance(node, ast.arg):
                self._values.setdefault(node.arg, []).append(node)
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                value = node.value
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                targets, value = [node.target], node.iter
            else:
                continue
            for target in targets:
                self._find_values(target, value)

    def _find_values(self, target: ast.AST, value: ast.AST) -> None:
        """Note what an assignment, or the items of one, give to variables."""
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        targets, values = getattr(target, "elts", ()), getattr(value, "elts", ())
        if both and len(targets) == len(values):
            for pair in zip(targets, values):
                self._find_values(*pair)
            return
        for name in ast.walk(target):
            # Not ``names`` in ``names[0] = value``.
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                self._values.setdefault(name.id, []).append(value)

    def visit_Name(self, node: ast.Name) -> None:
        """Note a name."""
        self.names.add(node.id)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Note a string, which may be a name for ``getattr``."""
        if isinstance(node.value, str) and node.value.isidentifier():
            self.names.add(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note an attribute, and whether it is set or deleted."""
        if not self._is_new(node.value):
            self.names.add(node.attr)
        if not isinstance(node.ctx, ast.Load):
            self._set(node.value, node.attr)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Note the attribute of which an item is set or deleted."""
        if not isinstance(node.ctx, ast.Load):
            self._change(node.value)
            if not self._is_new(node.value):
                self.names.add(SETTERS[type(node.ctx)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Note the attribute that ``items += more`` changes in place."""
        self._change(node.target)
        if not self._is_new(node.target):
            self.names |= IN_PLACE
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Note the object of a method, or the argument of a function, that changes it."""
        name = _called(node)
        if isinstance(node.func, ast.Attribute) and name in MUTATORS:
            self._change(node.func.value)
        if name in CHANGING and node.args:
            self._change(node.args[0])
        if name in ("setattr", "delattr") and len(node.args) > 1:
            for part in ast.walk(node.args[1]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    self._set(node.args[0], part.value)
        self.generic_visit(node)

    def _is_new(self, node: ast.AST) -> bool:
        """Return whether an object was made in the function, as a container or number of Python."""
        if isinstance(node, ast.Name):
            values = self._values.get(node.id, [node])
            return not any(isinstance(v, ast.Name) or not self._is_new(v) for v in values)
        if isinstance(node, ast.BinOp):  # ``[None] * n``
            sides = [side for side in (node.left, node.right) if not isinstance(side, ast.Name)]
            return any(map(self._is_new, sides))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in CONSTRUCTORS
        return isinstance(node, NEW)

    def _set(self, owner: ast.AST, name: str) -> None:
        if name not in INTERNAL:
            is_own = isinstance(owner, ast.Name) and owner.id == self._first
            (self.own if is_own else self.foreign).add(name)
            self.owners.update(set(self._attributes(owner, frozenset())) - INTERNAL)

    def _change(self, node: ast.AST) -> None:
        is_super = isinstance(node, ast.Call) and _called(node) == "super"
        is_first = isinstance(node, ast.Name) and node.id == self._first
        self.changes_first = self.changes_first or is_super or is_first
        self.changed.update(set(self._attributes(node, frozenset())) - INTERNAL)

    def _attributes(self, node: ast.AST, seen: FrozenSet[str]) -> Iterator[str]:
        """Yield the attributes that the value of an expression may be, or be an item of."""
        parts: Iterable[ast.AST] = ()
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)):
            parts = [node.value]
        elif isinstance(node, ast.Name) and node.id not in seen:
            parts, seen = self._values.get(node.id, ()), seen | {node.id}
        elif isinstance(node, (ast.BoolOp, ast.IfExp, ast.Tuple, ast.List)):
            parts = ast.iter_child_nodes(node)
        elif isinstance(node, ast.Call) and _called(node) in ("getattr", "vars"):
            yield from (c.value for c in node.args if isinstance(c, ast.Constant))
        elif isinstance(node, ast.Call) and _called(node) in GIVING:
            parts = [*node.args, getattr(node.func, "value", node.func)]
        for part in parts:
            yield from self._attributes(part, seen)


def _called(node: ast.Call) -> Any:
    """Return the name of the function or method that an expression calls."""
    return getattr(node.func, "attr", getattr(node.func, "id", None))
