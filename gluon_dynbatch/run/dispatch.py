"""Compile segments: into kernels, or into one ``CachedOp`` that serves launches of any width."""

from __future__ import annotations

from itertools import compress
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Sequence, Tuple
from weakref import WeakKeyDictionary

from mxnet import autograd
from mxnet.ndarray import NDArray

from .. import rules
from ..kernel.kernels import Kernels
from ..lower.segment import Port, Segment
from ..modes import RECORDING, TRAINING
from ..native.recording import in_graph
from ..rules.site import Ref
from ..trace.symbols import VARIABLE, Compiled, SymbolBuilder, compile_symbol, make_symbol

#: Operators that pass the gradient of their result on unchanged, perhaps in another shape.
PASS_GRADIENTS = frozenset(
    ["elemwise_add", "_grad_add", "add_n", "Reshape", "Flatten", "expand_dims"]
)

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
    ) -> bool:
        """Run the graph of recorded results backward, and retain it for another backward pass.

        MXNet has no graph of a result that depends on no variable: it is left out, and so is an
        array that is only read for its shape.  Returns whether there was anything to run.
        """
        pairs = [*compress(zip(results, gradients), in_graph(list(results)))]
        if pairs:
            heads, given = zip(*pairs)
            with self.run.lock:
                autograd.backward(heads, given, True, train_mode=bool(mode & TRAINING))
        return bool(pairs)


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


class _Graph:
    """The operators of a segment, with those that a ``CachedOp`` needs around them.

    Arenas have rows with one axis.  MXNet adds to some gradients as if it wrote them, does not
    write others, and does not compute some results unless the first one is read.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment, self._builder = segment, SymbolBuilder("launch_")
        #: Variables, by their positions, that each row of the launch has for itself.
        self._per_row: Dict[int, Port] = {}
        #: Values of the graph that cannot be read directly, to copies of them.
        self._copies: Dict[Ref, Ref] = {}
        #: Positions in the segment, to those in the graph.
        self._places: List[int] = []
        for op in segment.ops:
            if op.op == VARIABLE:
                self._places.append(self._variable(op.name))
            else:
                inputs = map(self._value, op.inputs)
                position, _ = self._add(op.op, inputs, op.attrs, op.extra)
                # MXNet's errors and profiler show the name.
                self._builder.ops[position] = self._builder.ops[position]._replace(name=op.name)
                self._places.append(position)
        heads = zip(segment.heads, segment.outputs)
        self.heads = tuple(self._head(self._value(ref), port) for ref, port in heads)
        self.ops = tuple(self._builder.ops)

    def _value(self, ref: Ref) -> Ref:
        """Return the value of the graph that is a value of the segment."""
        return self._places[ref[0]], ref[1]

    def _is_flat(self, port: Port) -> bool:
        """Return whether the array of a port has two axes, as the rows of an arena have."""
        return not self._segment.is_single and len(port.shape) == 1

    def _variable(self, name: str) -> int:
        value = self._builder.variable(name)
        if name.startswith("in"):
            port = self._segment.inputs[int(name[len("in") :])]
            if not port.shared:
                self._per_row[value[0]] = port
                # Shared arrays, and those of unbatched segments, come in their own shapes.
                if self._segment.layout != "unbatched" and not self._is_flat(port):
                    value = self._add("Reshape", [value], {"shape": str((-1, *port.shape))})
        return value[0]

    def _add(self, op: str, inputs: Iterable[Ref], *attrs: Mapping[str, Any]) -> Ref:
        inputs = [self._addable(op, self._readable(ref)) for ref in inputs]
        return self._builder.add(op, inputs, *attrs)

    def _head(self, value: Ref, port: Port) -> Ref:
        ref = self._readable(value)
        if not self._is_flat(port):
            # Results are written into an arena, whose rows have one axis.
            ref = self._add("Reshape", [ref], {"shape": str((-1, port.row_size))})
        return self._add("_copy", [ref]) if self._passes_gradient(ref) else ref

    def _passes_gradient(self, ref: Ref) -> bool:
        """Return whether the gradient of a variable is the gradient of `ref`, unchanged.

        MXNet then uses the array of the head gradient as the variable's gradient, and does not
        write into the buffer for the latter.
        """
        stack = [ref[0]]
        while stack:
            op = self._builder.ops[stack.pop()]
            if op.op == VARIABLE:
                return True
            if op.op in PASS_GRADIENTS:
                stack.extend(position for position, _ in op.inputs)
        return False

    def _addable(self, op: str, ref: Ref) -> Ref:
        """Return `ref`, or a copy of it if it is shared and `op` cannot add to its gradient."""
        if self._builder.ops[ref[0]].op != VARIABLE or ref[0] in self._per_row:
            return ref
        if op == "_copy" or rules.of(op).adds_to_gradients or rules.of(op).writes:
            return ref
        if ref not in self._copies:
            self._copies[ref] = self._add("_copy", [ref])
        return self._copies[ref]

    def _readable(self, ref: Ref) -> Ref:
        """Return `ref`, or a copy that also reads the first result if MXNet needs that."""
        position, out = ref
        if not out or not rules.of(self._builder.ops[position].op).reads_first_result:
            return ref
        if ref not in self._copies:
            zeros = self._builder.add("_mul_scalar", [(position, 0)], {"scalar": "0"})
            self._copies[ref] = self._builder.add("elemwise_add", [ref, zeros])
        return self._copies[ref]


def _compile(segment: Segment) -> Executable:
    graph = _Graph(segment)
    symbol = make_symbol(graph.ops, graph.heads)
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
