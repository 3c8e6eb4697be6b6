"""Install replacements of functions while scopes record; `intercept.py` lists them."""

from __future__ import annotations

import operator
from collections import deque
from itertools import repeat
from typing import Any, Callable, Iterable, NamedTuple, Optional, Set, Tuple

#: Attribute of a replacement: the original function.
REPLACES = "_dynbatch_replaces"


def with_replacement(make: Callable[[Any], Any], original: Any) -> Tuple[Any, Any]:
    """Return a function and its replacement, which refers to it as `REPLACES`."""
    replacement = make(original)
    setattr(replacement, REPLACES, original)
    return original, replacement


class Replaced(NamedTuple):
    """A function of MXNet that is replaced."""

    owner: Any
    name: str
    why: str
    #: Makes the replacement of the original; None if another module does (`replace_for_good`).
    make: Optional[Callable[[Any], Any]] = None


class Hooks:
    """Installs replacements while at least one scope in the process records calls.

    There is no lock, because an interrupt could leave it locked.  The set of scopes decides which
    functions are installed, and `_install` sets all of them in one call of C, which an interrupt
    cannot divide.
    """

    def __init__(self, replaced: Iterable[Replaced]) -> None:
        self._scopes: Set[object] = set()
        self._owners, self._names, _, self._makers = zip(*replaced)
        #: Per function, the original and its replacement.
        self._functions: Tuple[Tuple[Any, Any], ...] = ()

    @property
    def used(self) -> bool:
        """Whether a scope was ever opened in this process."""
        return bool(self._functions)

    def acquire(self, scope: object) -> None:
        """Install the replacements for a scope unless they are in place."""
        self._scopes.add(scope)
        if not hasattr(getattr(self._owners[0], self._names[0]), REPLACES):
            # One call of C: all of these are originals, or all are another thread's replacements.
            functions = list(map(getattr, self._owners, self._names))
            originals = [getattr(function, REPLACES, function) for function in functions]
            if originals != [original for original, _ in self._functions]:
                self._functions = tuple(map(with_replacement, self._makers, originals))
            self._install()

    def release(self, scope: object) -> None:
        """Restore the originals when the last scope closes; may be called again."""
        self._scopes.discard(scope)
        if not self._scopes:
            self._install()

    def _install(self) -> None:
        """Install the replacements if a scope records, else the originals."""
        # The set is read within the call: another thread may change it before.
        wanted = map(operator.getitem, self._functions, map(bool, repeat(self._scopes)))
        deque(map(setattr, self._owners, self._names, wanted), maxlen=0)
