"""Which attributes of which classes a program may change, among the objects that it can reach."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import os
import sys
import sysconfig
import types
from typing import Any, Dict, Iterator, List, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter, contrib, rnn

from ..record.hooks import REPLACES
from .stores import IN_PLACE, SETTERS, stores_of

#: Methods that make, copy or show an object: no sample calls them on an object of all samples.
NOT_CALLED = frozenset([
    "__init__", "__new__", "__del__", "__repr__", "__str__", "__setattr__", "__delattr__",
    "__getattribute__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__",
    "__copy__", "__deepcopy__", "__init_subclass__", "__set_name__", "__post_init__",
])  # fmt: skip
#: Special methods that count as called only where the source shows it.
CALLED_BY_NAME = IN_PLACE | set(SETTERS.values())
#: Methods that MXNet calls.
CALLED = frozenset(["forward", "hybrid_forward"])
#: Libraries whose code does not change the user's objects, but for MXNet's cells with state.
SKIPPED = tuple(
    os.path.join(os.path.dirname(os.path.abspath(path)), "")
    for path in (mx.__file__, np.__file__, os.path.dirname(__file__))
)
CELLS = tuple(
    os.path.dirname(os.path.abspath(path)) for path in (rnn.__file__, contrib.rnn.__file__)
)
STDLIB = sysconfig.get_paths()["stdlib"]
#: Folders of tools that run programs, and are no part of them.
TOOLS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "hypothesis"))
#: Values that lead neither to code nor to attributes.
LEAVES = (str, bytes, int, float, complex, type(None), mx.nd.NDArray, Parameter, np.ndarray)
#: Limits on the items of one container, and on the objects of one class, that are looked at.
MOST_ITEMS, MOST_OF_CLASS = 64, 16
CONTAINERS = (list, tuple, set, frozenset)


class How(enum.IntEnum):
    """How an attribute may change."""

    #: The object in it, or an item of that, gets or loses attributes.
    OWNER = 1
    #: The object in it, or an item of that, is changed in place.
    CHANGED = 2
    #: It is set or deleted.
    SET = 3


@functools.lru_cache(maxsize=4096)
def is_skipped(filename: str) -> bool:
    """Return whether a file belongs to a library."""
    if filename.startswith(SKIPPED):
        return not filename.startswith(CELLS)
    in_library = filename.startswith(STDLIB) and "site-packages" not in filename
    return in_library or any(tool in filename for tool in TOOLS)


class ProgramReach:
    """Follows a function to all functions, classes and objects that it can reach.

    It overestimates: a method counts as called if any code that is reached refers to its name.
    """

    def __init__(self, root: Any):
        self._names: Set[str] = set(CALLED)
        #: By class, the attributes that its methods set on their first argument.
        self._own: Dict[type, Set[str]] = {}
        self._foreign: Set[str] = set()
        self._changed: Set[str] = set()
        self._owners: Set[str] = set()
        #: Classes of containers whose methods change these in place.
        self._changing: Set[type] = set()
        #: Objects of Python classes, by class.
        self._objects: Dict[type, List[Any]] = {}
        #: Methods that are not known to be called, with the classes that define them.
        self._methods: Dict[Tuple[type, str], List[Any]] = {}
        self._seen: Set[Any] = set()
        #: Keeps what was looked at, so that no other object gets its id.
        self._held: List[Any] = []
        self._pending: List[Any] = [root]
        called: Any = True
        while called:
            while self._pending:
                self._look(self._pending.pop())
            called = [key for key in self._methods if key[1] in self._names]
            for key in called:
                for function in self._methods.pop(key):
                    self._look_at_code(function, key[0])

    def attributes(self) -> Dict[type, Dict[str, How]]:
        """Return by class the attributes that may change, and how."""
        found: Dict[type, Dict[str, How]] = {}
        names = self._foreign | self._changed | self._owners
        for class_, objects in self._objects.items():
            # Not ``dir``, which would list hundreds of names for each class of blocks.
            spaces = [vars(x) for x in (*objects, *class_.__mro__) if hasattr(x, "__dict__")]
            present = {name for name in names if any(name in space for space in spaces)}
            is_block = issubclass(class_, Block)
            stored = {name for name in self._foreign if is_block or name in present}
            for base in class_.__mro__:
                stored |= self._own.get(base, set())
            # The strongest comes last.
            hows = dict.fromkeys(self._owners & present, How.OWNER)
            changed = self._changed & present | self._with_own_methods(objects)
            hows.update(dict.fromkeys(changed, How.CHANGED))
            hows.update(dict.fromkeys(stored, How.SET))
            if hows:
                found[class_] = hows
        return found

    def _with_own_methods(self, objects: List[Any]) -> Set[str]:
        """Return the attributes that hold containers whose methods change them in place."""
        if not self._changing:
            return set()
        fields = itertools.chain(*(vars(x).items() for x in objects if hasattr(x, "__dict__")))
        kinds = tuple(self._changing)
        containers = (*CONTAINERS, dict)
        return {n for n, x in fields if isinstance(x, containers) and isinstance(x, kinds)}

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks that the program reaches."""
        for class_, objects in self._objects.items():
            if issubclass(class_, Block):
                yield from objects

    def _look(self, value: Any) -> None:
        """Look at a value: at what it refers to, or at its code."""
        if isinstance(value, LEAVES) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._held.append(value)
        value = getattr(value, REPLACES, value) if isinstance(value, types.FunctionType) else value
        if isinstance(value, types.FunctionType):
            self._look_at_code(value)
        elif isinstance(value, types.MethodType):
            self._names.add(value.__name__)
            self._pending += [value.__self__, value.__func__]
        elif isinstance(value, functools.partial):
            self._pending += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, type):
            self._look_at_class(value)
        elif isinstance(value, (*CONTAINERS, dict)):
            items = dict.values(value) if isinstance(value, dict) else value
            self._pending += itertools.islice(items, MOST_ITEMS)
            if is_python(type(value)):
                self._look_at_class(type(value))
        elif not isinstance(value, types.ModuleType):
            self._look_at_object(value)

    def _look_at_object(self, value: Any) -> None:
        class_, is_block = type(value), isinstance(value, Block)
        if not (is_block or is_python(class_)):
            return
        objects = self._objects.setdefault(class_, [])
        if is_block:
            self._pending += value._children.values()
        if len(objects) < MOST_OF_CLASS or is_block and is_python(class_):
            objects.append(value)
            self._look_at_class(class_)
            if is_python(class_):
                self._pending += vars(value).values() if hasattr(value, "__dict__") else ()

    def _look_at_class(self, class_: type) -> None:
        """Note the methods of a class that the program may call."""
        for base in class_.__mro__:
            if (id(base), "methods") in self._seen or not is_python(base):
                continue
            self._seen.add((id(base), "methods"))
            for name, member in vars(base).items():
                functions = list(functions_of(member))
                if functions and name not in NOT_CALLED:
                    self._methods[base, name] = functions
                    if name.startswith("__") and name not in CALLED_BY_NAME:
                        self._names.add(name)

    def _look_at_code(self, function: types.FunctionType, class_: Any = None) -> None:
        """Note what a function, or a method of a class, changes and refers to."""
        code = function.__code__
        if code.co_filename.startswith(SKIPPED[-1]):
            self._pending += _closed_over(function)  # a wrapper of the user's function
        if _is_of_library(function) or (code, class_, id(function)) in self._seen:
            return
        self._seen.add((code, class_, id(function)))
        stores = stores_of(code)
        owned = self._foreign if class_ is None else self._own.setdefault(class_, set())
        owned |= stores.own
        self._foreign |= stores.foreign
        self._changed |= stores.changed
        self._owners |= stores.owners
        if class_ is not None and stores.changes_first:
            self._changing.add(class_)
        self._names |= stores.names
        self._pending += _closed_over(function)
        globals_ = function.__globals__
        for name in stores.names & globals_.keys():
            value = globals_[name]
            if isinstance(value, types.ModuleType):
                members = vars(value)
                self._pending += [members[n] for n in stores.names & members.keys()]
            else:
                self._pending.append(value)


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of a function's free variables."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not yet set
            yield cell.cell_contents


@functools.lru_cache(maxsize=4096)
def _is_library(module: str) -> bool:
    """Return whether the classes of a module change attributes in code that is not looked at."""
    filename = getattr(sys.modules.get(module), "__file__", None)
    is_built_in = module in sys.builtin_module_names and module not in ("builtins", "__main__")
    return is_built_in or (filename is not None and is_skipped(filename))


def _is_of_library(function: types.FunctionType) -> bool:
    """Return whether a function belongs to a library, also one that MXNet generates as a text."""
    filename = function.__code__.co_filename
    generated = filename == "<string>" and _is_library(function.__globals__.get("__name__", ""))
    return generated or is_skipped(filename)


def is_python(class_: type) -> bool:
    """Return whether the methods of a class are Python code that may change attributes."""
    return bool(class_.__flags__ & (1 << 9)) and not _is_library(class_.__module__)


def functions_of(member: Any) -> Iterator[types.FunctionType]:
    """Yield the functions behind a member of a class, such as a method or a property."""
    parts = [member]
    if isinstance(member, (staticmethod, classmethod)):
        parts = [member.__func__]
    elif isinstance(member, property):
        parts = [member.fget, member.fset, member.fdel]
    elif isinstance(member, (functools.cached_property, functools.partialmethod)):
        parts = [member.func]
    return (part for part in parts if isinstance(part, types.FunctionType))
