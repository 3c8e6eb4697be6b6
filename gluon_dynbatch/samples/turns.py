"""Attributes that samples of a map change: each sample reads what it would read in the loop.

A sample may set an attribute at any time, and reads what it has set itself.  To read any other
value, it waits for its *turn*: until all earlier samples have ended.
"""

from __future__ import annotations

import sys
import threading
import types
from typing import Any, Dict, Iterator, List, Tuple

import greenlet
from mxnet.gluon import Block, Parameter

from ..record.state import STATE
from ..record.where import user_line
from ..report.findings import Finding
from .reach import How, ProgramReach, is_python

NO_VALUE: Any = object()
#: Values that samples share: networks, and code.
SHARED = (Block, Parameter, type, types.FunctionType, types.MethodType, types.ModuleType)
#: Values that nothing changes in place.
IMMUTABLE = (str, bytes, int, float, complex, type(None), range, slice, types.BuiltinFunctionType)


class Change:
    """An attribute that a sample has set: of its two values, the one that is not in place."""

    __slots__ = ("_guard", "_owner", "_value")

    def __init__(self, guard: Guard, owner: Any, value: Any):
        self._guard, self._owner, self._value = guard, owner, value

    def swap(self) -> None:
        """Exchange the value of the sample and the one that others see."""
        value = self._guard.value(self._owner)
        self._guard.put(self._owner, self._value)
        self._value = value


class View:
    """What one sample sees: the attributes that it set while earlier samples have not ended."""

    __slots__ = ("changes", "ended")

    def __init__(self) -> None:
        self.changes: Dict[Tuple[int, str], Change] = {}
        self.ended = False

    def swap(self) -> None:
        """Put the values of this sample in place, or take them away."""
        for change in self.changes.values():
            change.swap()


class Guard:
    """Stands for an attribute in a class while maps run: it notes when a sample reads or sets it.

    The values stay where they are, in the dictionaries or slots of the objects.
    """

    def __init__(self, class_: type, name: str, how: How):
        self._class, self._name, self.how = class_, name, how
        #: The class attribute that this replaces, and the one that objects have by default.
        self._own = vars(class_).get(name, NO_VALUE)
        self._default = getattr_static(class_, name)
        self._is_slot = isinstance(self._default, types.MemberDescriptorType)

    def install(self) -> None:
        """Put the guard into the class."""
        setattr(self._class, self._name, self)

    def remove(self) -> None:
        """Restore the class, unless the program has set its attribute."""
        if vars(self._class).get(self._name) is not self:
            return
        if self._own is NO_VALUE:
            delattr(self._class, self._name)
        else:
            setattr(self._class, self._name, self._own)

    def value(self, owner: Any) -> Any:
        """Return the value in an object; `NO_VALUE` if it has none of its own."""
        if not self._is_slot:
            return vars(owner).get(self._name, NO_VALUE)
        try:
            return self._default.__get__(owner, type(owner))
        except AttributeError:
            return NO_VALUE

    def put(self, owner: Any, value: Any) -> None:
        """Set the value in an object, or with `NO_VALUE`, delete it."""
        if self._is_slot:
            if value is not NO_VALUE:
                self._default.__set__(owner, value)
            elif self.value(owner) is not NO_VALUE:
                self._default.__delete__(owner)
        elif value is NO_VALUE:
            vars(owner).pop(self._name, None)
        else:
            vars(owner)[self._name] = value

    def __get__(self, owner: Any, class_: Any = None) -> Any:
        if owner is not None:
            value = self.value(owner)
            fiber = greenlet.getcurrent()
            in_map = getattr(fiber, "mapper", None) is not None
            # Gluon looks at an attribute before it sets it.
            sets = sys._getframe(1).f_code is Block.__setattr__.__code__
            if in_map and not sets and self._may_change(value):
                self._await_turn(owner)
                value = self.value(owner)
            if value is not NO_VALUE:
                return value
        if self._default is NO_VALUE or (self._is_slot and owner is not None):
            kind = self._class if owner is None else type(owner)
            raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}")
        bind = getattr(type(self._default), "__get__", None)
        return self._default if bind is None else bind(self._default, owner, class_)

    def __set__(self, owner: Any, value: Any) -> None:
        self._note(owner)
        self.put(owner, value)

    def __delete__(self, owner: Any) -> None:
        self._await_turn(owner)
        if self.value(owner) is NO_VALUE:
            raise AttributeError(self._name)
        self._note(owner)
        self.put(owner, NO_VALUE)

    def _may_change(self, value: Any) -> bool:
        """Return whether an earlier sample may change what the attribute holds."""
        value = self._default if value is NO_VALUE else value
        if isinstance(value, SHARED):
            return False
        if self.how is How.SET:
            return True
        if self.how is How.OWNER:
            value = _first_item(value)
        if value is NO_VALUE or isinstance(value, IMMUTABLE):
            return False
        # Attributes of objects in Python have guards of their own.
        return isinstance(value, (dict, list, set)) or not is_python(type(value))

    def _note(self, owner: Any) -> None:
        """Note in all samples that are running that they set the attribute."""
        key = id(owner), self._name
        for fiber in _running():
            view = fiber.view
            if view is not None and view is not fiber.mapper.views[0] and key not in view.changes:
                view.changes[key] = Change(self, owner, self.value(owner))

    def _await_turn(self, owner: Any) -> None:
        """Wait until the sample may read the attribute of an object."""
        key = id(owner), self._name
        for outer in _running():
            view, mapper = outer.view, outer.mapper
            if view is None or view is mapper.views[0] or key in view.changes:
                continue
            recorder = STATE.recorder
            if recorder is None:  # within a trace or a flush, no other sample can run
                return
            recorder.refuse("it reads an attribute that an earlier sample may change")
            finding = Finding("turn", f"{type(owner).__name__}.{self._name}", "", 1, user_line())
            recorder.report.found.add([finding])
            await_turn(mapper)


def _first_item(value: Any) -> Any:
    """Return the first item of a container, or of the first container in it; or another value."""
    while type(value) in (dict, list, tuple, set):  # others may have attributes
        value = next(iter(value.values() if isinstance(value, dict) else value), None)
    return value


def _running() -> Iterator[Any]:
    """Yield the fiber that is running, and those that run the maps around it."""
    fiber: Any = greenlet.getcurrent()
    while getattr(fiber, "mapper", None) is not None:
        yield fiber
        fiber = fiber.parent


def await_turn(mapper: Any) -> None:
    """Switch to other samples until the sample that is running in a map is its first one."""
    if mapper.ending:
        raise greenlet.GreenletExit
    wait_for(mapper)


def wait_for(thing: Any) -> None:
    """Park the current fiber until its `Fibers` resumes it, as it may for this thing."""
    fiber: Any = greenlet.getcurrent()
    if fiber.mapper.ending or fiber.ending:
        raise greenlet.GreenletExit
    fiber.awaits = thing
    try:
        fiber.parent.switch()
    finally:
        fiber.awaits = None


def getattr_static(class_: type, name: str) -> Any:
    """Return an attribute of a class without calling it, and without guards."""
    for base in class_.__mro__:
        found = vars(base).get(name, NO_VALUE)
        if isinstance(found, Guard):
            found = found._own
        if found is not NO_VALUE:
            return found
    return NO_VALUE


def _within(block: Block) -> Iterator[Any]:
    """Yield a block, those below it, and the objects in their attributes."""
    yield block
    yield from vars(block).values()
    for child in block._children.values():
        yield from _within(child)


#: The guards in place, with the number of maps that need each of them.
_GUARDS: Dict[Tuple[type, str], List[Any]] = {}
_LOCK = threading.Lock()


class Guards:
    """The guards that one map needs."""

    def __init__(self, program: Any):
        self._keys: List[Tuple[type, str]] = []
        reach = ProgramReach(program)
        for class_, names in reach.attributes().items():
            for name, how in names.items():
                default = getattr_static(class_, name)
                is_slot = isinstance(default, types.MemberDescriptorType)
                if is_slot or not hasattr(type(default), "__set__"):
                    self._add(class_, name, how)
        #: Blocks whose recordings would not notice guards, with these recordings.
        self._paused: List[Tuple[Block, Any]] = []
        classes = tuple({class_ for class_, _ in self._keys})
        for block in reach.blocks() if classes else ():
            pieces = vars(block).get("_pieces")
            if pieces is not None and any(isinstance(x, classes) for x in _within(block)):
                self._paused.append((block, pieces))
                vars(block)["_pieces"] = None

    def _add(self, class_: type, name: str, how: How) -> None:
        with _LOCK:
            if (class_, name) not in _GUARDS:
                guard = Guard(class_, name, how)
                try:
                    guard.install()
                except (AttributeError, TypeError):
                    return  # the class refuses new attributes
                _GUARDS[class_, name] = [guard, 0]
            entry = _GUARDS[class_, name]
            entry[0].how = max(entry[0].how, how)
            entry[1] += 1
        self._keys.append((class_, name))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def remove(self) -> None:
        """Remove the guards that no other map needs."""
        while self._paused:
            block, pieces = self._paused.pop()
            vars(block)["_pieces"] = pieces
        while self._keys:
            key = self._keys.pop()
            with _LOCK:
                entry = _GUARDS[key]
                entry[1] -= 1
                if not entry[1]:
                    del _GUARDS[key]
                    entry[0].remove()
