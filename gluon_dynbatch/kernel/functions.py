"""Functions of one element (and its partners), by name, with their derivatives."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple


class Function(NamedTuple):
    """A function that pointwise programs know."""

    arguments: int
    #: ``derivative(result, *arguments)`` returns per argument what a gradient is multiplied with:
    #: a node, or a number; 0 where no gradient flows.
    derivative: Callable[..., Any]


FUNCTIONS: Dict[str, Function] = {}
