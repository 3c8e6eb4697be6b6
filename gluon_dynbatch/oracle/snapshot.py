"""What a program can change, as it is at one time, so that the program can run again from there.

It follows a program to all that it refers to.  Unlike `ProgramReach`, it need not know what
changes: it keeps the content of everything, and restores what has changed.
"""

from __future__ import annotations

import collections
import io
import random
import types
from functools import partial
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import Block, Parameter
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray

from ..native.recording import is_unrealised, plain_array
from ..record.hooks import REPLACES
from ..samples.reach import functions_of, is_python, is_skipped
from ..samples.stores import INTERNAL
from ..samples.turns import NO_VALUE, Guard

#: Values that nothing changes.
ATOMS = (str, bytes, int, float, complex, type(None), range, slice, np.generic, random.SystemRandom)
#: Packages whose objects are not part of what a program computes.
MACHINERY = frozenset(
    ["logging", "threading", "concurrent", "multiprocessing", "asyncio", "weakref", "ctypes"]
    + ["gluon_dynbatch", "greenlet"]
)


class ContentKind(NamedTuple):
    """How the content of an object is read, and put back if it has changed."""

    read: Callable[[Any], Any]
    put_back: Callable[[Any, Any], None]


class Snapshot:
    """The content of objects at one time."""

    def __init__(self) -> None:
        #: Whether all that was found can be restored.  An iterator cannot, for example.
        self.complete = True
        self._found: Dict[Any, Any] = {}
        self._contents: List[Tuple[ContentKind, Any, Any]] = []
        self._pending: List[Any] = [random._inst, np.random.mtrand._rand]

    def add(self, *values: Any) -> None:
        """Keep the content of all that the values refer to and that was not found before."""
        self._pending += values
        while self._pending:
            value = self._pending.pop()
            if not isinstance(value, ATOMS) and id(value) not in self._found:
                self._found[id(value)] = value
                self._look(value)

    def renewed(self) -> Snapshot:
        """Return the content of the same objects now."""
        now = Snapshot()
        now._found = self._found
        now._contents = [(kind, owner, kind.read(owner)) for kind, owner, _ in self._contents]
        return now

    def restore(self) -> None:
        """Put the contents of all objects back."""
        for kind, owner, content in self._contents:
            kind.put_back(owner, content)

    def dtypes(self) -> Set[str]:
        """Return the names of the dtypes of all arrays."""
        return {str(x.dtype) for kind, _, x in self._contents if kind is ARRAY}

    def _keep(self, kind: ContentKind, owner: Any) -> Any:
        content = kind.read(owner)
        self._contents.append((kind, owner, content))
        return content

    def _look(self, value: Any) -> None:
        """Keep the content of an object, and note what it refers to."""
        if isinstance(value, NDArray):
            if not is_unrealised(value):  # nothing has written to one that is
                is_dense = not isinstance(value, BaseSparseNDArray)
                self._keep(ARRAY if is_dense else SPARSE, value)
                self._pending.append(value.grad)
        elif isinstance(value, types.FunctionType):
            self._look_at_function(getattr(value, REPLACES, value))
        elif isinstance(value, types.MethodType):
            self._pending += [value.__self__, value.__func__]
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._pending.append(value.__self__)
        elif isinstance(value, type):
            self._look_at_class(value)
        elif isinstance(value, Parameter):
            self._pending += [*(value._data or ()), *(value._grad or ())]
        elif not isinstance(value, types.ModuleType):
            self._look_at_object(value)

    def _look_at_object(self, value: Any) -> None:
        kinds = (kind for class_, kind in KINDS.items() if isinstance(value, class_))
        kind = next(kinds, None)
        content: Any = None if kind is None else self._keep(kind, value)
        if isinstance(value, dict):
            self._pending += [part for item in content for part in item]
        elif isinstance(value, np.ndarray):
            self._pending += content.ravel().tolist() if content.dtype.hasobject else ()
        elif isinstance(value, (list, set, collections.deque)):
            self._pending += content
        elif isinstance(value, (tuple, frozenset)):
            self._pending += value
        elif isinstance(value, partial):
            self._pending += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, io.IOBase):
            self.complete = self.complete and (value.closed or not value.readable())
        elif isinstance(value, collections.abc.Iterator) and not is_python(type(value)):
            self.complete = False
        module = str(type(value).__module__).split(".")[0]
        if module not in MACHINERY or isinstance(value, Block):
            self._look_at_fields(value)

    def _look_at_fields(self, value: Any) -> None:
        """Keep the attributes of an object."""
        class_ = type(value)
        if hasattr(value, "__dict__"):
            self._pending += self._keep(ATTRIBUTES, value).values()
            self._pending += [vars(value).get("_children"), vars(value).get("_reg_params")]
        self._pending += [class_] if is_python(class_) else []
        for base in class_.__mro__ if is_python(class_) else ():
            for slot in vars(base).values():
                if isinstance(slot, types.MemberDescriptorType):
                    self._pending.append(self._keep(SLOT, (slot, value)))

    def _look_at_class(self, class_: type) -> None:
        """Keep the attributes of a class, and look at its methods."""
        for base in class_.__mro__:
            if is_python(base) and (base, "members") not in self._found:
                self._found[base, "members"] = base
                for member in self._keep(CLASS, base).values():
                    self._pending += [*functions_of(member)] or [member]

    def _look_at_function(self, function: types.FunctionType) -> None:
        """Keep the variables that a function refers to."""
        for cell in function.__closure__ or ():
            self._pending.append(self._keep(CELL, cell))
        if is_skipped(function.__code__.co_filename):
            return
        self._pending += [function.__defaults__, function.__kwdefaults__, vars(function)]
        names = set(_names_in(function.__code__))
        for value in self._keep(VARIABLES, (function.__globals__, names)).values():
            self._pending.append(value)
            file = getattr(value, "__file__", None)
            if isinstance(value, types.ModuleType) and file and not is_skipped(file):
                self._pending += self._keep(VARIABLES, (vars(value), names)).values()


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names in a function and in those inside it, and strings, which may be names."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):
            yield constant


def _same(left: Any, right: Any) -> bool:
    """Return whether two lists hold the same objects in the same order."""
    return len(left) == len(right) and all(a is b for a, b in zip(left, right))


def _container(base: Any, fill: Any) -> ContentKind:
    """Return the kind of a built-in container; classes that extend it may override its methods."""

    def put_back(container: Any, content: List[Any]) -> None:
        if not _same(list(base.__iter__(container)), content):
            base.clear(container)
            fill(container, content)

    return ContentKind(lambda container: list(base.__iter__(container)), put_back)


def _put_back_items(mapping: Any, content: List[Tuple[Any, Any]]) -> None:
    now = list(dict.items(mapping))
    if not _same([*chain(*now)], [*chain(*content)]):
        is_ordered = isinstance(mapping, collections.OrderedDict)
        base: Any = collections.OrderedDict if is_ordered else dict
        base.clear(mapping)
        for key, value in content:
            base.__setitem__(mapping, key, value)


def _put_back_array(array: NDArray, content: np.ndarray[Any, Any]) -> None:
    if array.asnumpy().tobytes() != content.tobytes():
        # Only operators can write to an array in a layout of oneDNN.
        with autograd.pause(autograd.is_training()):
            plain = plain_array(array)
            values = mx.nd.array(content.reshape(plain.shape), array.ctx, content.dtype)
            mx.nd.identity(values, out=plain)


def _put_back_numpy(array: np.ndarray[Any, Any], content: np.ndarray[Any, Any]) -> None:
    if array.flags.writeable:
        array[...] = content


def _named(
    read: Callable[[Any], Dict[str, Any]],
    set_: Callable[[Any, str, Any], None],
    delete: Callable[[Any, str], None],
) -> ContentKind:
    """Return a kind whose content has names; a name without a value has the value `NO_VALUE`."""

    def put_back(owner: Any, content: Dict[str, Any]) -> None:
        now = read(owner)
        for name in now.keys() | content.keys():
            value = content.get(name, NO_VALUE)
            if value is not now.get(name, NO_VALUE):
                set_(owner, name, value) if value is not NO_VALUE else delete(owner, name)

    return ContentKind(read, put_back)


def _cell_content(cell: Any) -> Dict[str, Any]:
    try:
        return {"cell_contents": cell.cell_contents}
    except ValueError:
        return {}


def _members(class_: type) -> Dict[str, Any]:
    """Return the attributes of a class that a program may set, without guards of other maps."""
    members = {name: x for name, x in vars(class_).items() if not name.startswith("__")}
    return {name: x._own if isinstance(x, Guard) else x for name, x in members.items()}


def _slot_value(owner: Tuple[Any, Any]) -> Dict[str, Any]:
    slot, value = owner
    try:
        return {slot.__name__: slot.__get__(value)}
    except AttributeError:
        return {}


def _attributes(owner: Any) -> Dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if name not in INTERNAL}


def _variables(owner: Tuple[Dict[str, Any], Set[str]]) -> Dict[str, Any]:
    return {name: owner[0][name] for name in owner[1] & owner[0].keys()}


ATTRIBUTES = _named(
    _attributes,
    lambda owner, name, value: vars(owner).__setitem__(name, value),
    lambda owner, name: vars(owner).__delitem__(name),
)
VARIABLES = _named(
    _variables,
    lambda owner, name, value: owner[0].__setitem__(name, value),
    lambda owner, name: owner[0].__delitem__(name),
)
SLOT = _named(
    _slot_value,
    lambda owner, _, value: owner[0].__set__(owner[1], value),
    lambda owner, _: owner[0].__delete__(owner[1]),
)
CLASS = _named(_members, type.__setattr__, type.__delattr__)
CELL = _named(_cell_content, setattr, delattr)
ARRAY = ContentKind(lambda array: array.asnumpy(), _put_back_array)
SPARSE = ContentKind(lambda array: array.copy(), lambda array, content: content.copyto(array))
KINDS: Dict[type, ContentKind] = {
    dict: ContentKind(lambda mapping: list(dict.items(mapping)), _put_back_items),
    list: _container(list, list.extend),
    set: _container(set, set.update),
    collections.deque: _container(collections.deque, collections.deque.extend),
    bytearray: _container(bytearray, bytearray.extend),
    np.ndarray: ContentKind(np.copy, _put_back_numpy),
    random.Random: ContentKind(lambda draws: draws.getstate(), lambda draws, x: draws.setstate(x)),
    np.random.RandomState: ContentKind(
        lambda draws: draws.get_state(), lambda draws, x: draws.set_state(x)
    ),
    np.random.Generator: ContentKind(
        lambda draws: draws.bit_generator.state,
        lambda draws, x: setattr(draws.bit_generator, "state", x),
    ),
}
