"""Replacing functions while somebody needs it; `intercept.py` says which, and why."""

from __future__ import annotations

import operator
from collections import deque
from itertools import repeat
from typing import Any, Callable, Iterable, NamedTuple, Optional, Set, Tuple

#: Attribute of a replacement: what it stands for.
REPLACES = "_dynbatch_replaces"


def replaced_pair(make: Callable[[Any], Any], original: Any) -> Tuple[Any, Any]:
    """Return a function and its replacement, which tells what it stands for."""
    replacement = make(original)
    setattr(replacement, REPLACES, original)
    return original, replacement


class Replaced(NamedTuple):
    """A function of MXNet that is replaced."""

    owner: Any
    name: str
    why: str
    #: Makes the replacement, given the original; None if another module does (`replace_for_good`).
    make: Optional[Callable[[Any], Any]] = None


class Hooks:
    """Installs replacements while at least one scope in the process needs them.

    Without a lock, which an interrupt could leave locked: what decides is the set of scopes, and
    `_settle` brings MXNet in line with it, by one call of C that nothing comes between.

    Parameters
    ----------
    replaced : iterable of Replaced
        The functions.
    """

    def __init__(self, replaced: Iterable[Replaced]) -> None:
        self._scopes: Set[Any] = set()
        self._owners, self._names, _, self._makers = zip(*replaced)
        #: For each place the original and its replacement.
        self._functions: Tuple[Tuple[Any, Any], ...] = ()

    def acquire(self, scope: Any) -> None:
        """Install the replacements for a scope unless they are in place."""
        self._scopes.add(scope)
        if not hasattr(getattr(self._owners[0], self._names[0]), REPLACES):
            # At once: all are originals, or all the replacements of another thread.
            functions = list(map(getattr, self._owners, self._names))
            originals = [getattr(function, REPLACES, function) for function in functions]
            if originals != [original for original, _ in self._functions]:
                self._functions = tuple(map(replaced_pair, self._makers, originals))
            self._settle()

    def release(self, scope: Any) -> None:
        """Put the originals back when the last scope closes; may be called again."""
        self._scopes.discard(scope)
        if not self._scopes:
            self._settle()

    def _settle(self) -> None:
        """Install the replacements if there are scopes, else the originals."""
        wanted = map(operator.getitem, self._functions, map(bool, repeat(self._scopes)))
        deque(map(setattr, self._owners, self._names, wanted), maxlen=0)
