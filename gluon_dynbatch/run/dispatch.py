"""Compile segments: into kernels, or into one ``CachedOp`` that serves launches of any width."""

from __future__ import annotations

from typing import Any, FrozenSet, NamedTuple, Sequence, Tuple
from weakref import WeakKeyDictionary

from mxnet import autograd
from mxnet.ndarray import NDArray

from ..kernel.kernels import Kernels
from ..lower.segment import Segment
from ..modes import RECORDING, TRAINING
from ..trace.symbols import Compiled, compile_symbol, make_symbol

#: Operators that may fail depending on values.  MXNet reports such a failure once, to the first
#: reader of a result.
FAIL_ON_VALUES = frozenset(["Custom"]) | {
    f"_linalg_{name}" for name in ("gelqf", "gesvd", "inverse", "potrf", "potri", "syevd")
}


class Executable(NamedTuple):
    """A segment compiled for MXNet's operators."""

    run: Compiled
    #: Per argument of `run`: ("in", number of an input of the segment) or ("param", number of a
    #: parameter).
    arguments: Tuple[Tuple[str, int], ...]
    #: Arguments that `run` writes to, such as running means.
    mutated: FrozenSet[int]
    #: Whether an operator may fail depending on values.
    fallible: bool

    def launch(self, arguments: Sequence[NDArray], mode: int, **out: Any) -> Any:
        """Run the segment in a mode of autograd."""
        scope = autograd.record if mode & RECORDING else autograd.pause
        with scope(train_mode=bool(mode & TRAINING)), self.run.lock:
            return self.run(*arguments, **out)

    def go_backward(
        self, results: Sequence[NDArray], gradients: Sequence[NDArray], mode: int
    ) -> None:
        """Run the graph of recorded results backward, and retain it for another backward pass."""
        with self.run.lock:
            autograd.backward(results, gradients, True, train_mode=bool(mode & TRAINING))


class Dispatcher:
    """Compiles segments on first use, and counts how many."""

    def __init__(self) -> None:
        self.kernels = Kernels()
        self._compiled = 0
        self._executables: WeakKeyDictionary[Segment, Executable] = WeakKeyDictionary()

    @property
    def built(self) -> int:
        """Number of kernels and of ``CachedOp`` objects built so far."""
        return self.kernels.built + self._compiled

    def executable(self, segment: Segment) -> Executable:
        """Return the executable of `segment`."""
        executable = self._executables.get(segment)
        if executable is None:
            executable = self._executables[segment] = _compile(segment)
            self._compiled += 1
        return executable


def _compile(segment: Segment) -> Executable:
    symbol = make_symbol(segment.ops, segment.heads)
    names = symbol.list_inputs()
    inputs = {f"in{i}": ("in", i) for i in range(len(segment.inputs))}
    inputs.update((f"param{i}", ("param", i)) for i in range(len(segment.parameters)))
    arguments = tuple(inputs[name] for name in names)
    # MXNet records small graphs operator by operator (it inlines them).  Then a result that depends
    # on no variable would not be in a graph, and running it backward would fail.
    flags = [("inline_limit", 0)] if len(segment.heads) > 1 else []
    auxiliary = set(symbol.list_auxiliary_states())
    return Executable(
        compile_symbol(symbol, [kind == "in" for kind, _ in arguments], *flags),
        arguments,
        frozenset(i for i, name in enumerate(names) if name in auxiliary),
        any(op.op in FAIL_ON_VALUES for op in segment.ops),
    )
