"""Run a plan: fill the arenas, push native code, launch MXNet's operators."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ContextManager, Dict, FrozenSet, List, MutableMapping, Optional, Tuple
from weakref import WeakKeyDictionary

import mxnet as mx
from mxnet import autograd
from mxnet.base import MXNetError, check_call
from mxnet.ndarray import NDArray

from ..errors import LaunchError
from ..lower.segment import Port
from ..modes import RECORDING
from ..plan.plan import Launch, Plan, Rows, Whole
from .assemble import Assembled, Base, Stretch, is_native
from .assemble_forward import Forward
from .buffers import Buffers, address_of, allocate, words
from .dispatch import Dispatcher
from .profiling import PROFILER

#: Arrays of parameters that have their memory.
_COMPUTED: MutableMapping[Any, Dict[mx.Context, NDArray]] = WeakKeyDictionary()


def wait_once(parameter: Any, array: NDArray) -> None:
    """Wait for the first values of an array of a parameter, when MXNet gives it memory."""
    known = _COMPUTED.setdefault(parameter, {})
    if known.get(array.context) is not array:
        array.wait_to_read()
        known[array.context] = array


class Pass:
    """One run of a plan, forward or backward.

    Parameters
    ----------
    plan : Plan
        What to run.
    assembled : Assembled
        Its native code.
    """

    #: What tells bases of this plan from those of the other one.
    prefix = ""
    #: What names of blocks are followed by in traces.
    suffix = ""
    #: Kinds of arrays that native code does not write to.
    read_only: FrozenSet[str] = frozenset()
    #: Kinds that MXNet may not have given memory yet: their addresses are asked for by the engine.
    late: FrozenSet[str] = frozenset()

    def __init__(self, plan: Plan, assembled: Assembled):
        self.plan, self._assembled = plan, assembled
        self.buffers = Buffers(plan.arenas, plan.sizes)
        #: What native code works on.
        self.arrays: Dict[Base, NDArray] = {}

    def find_arrays(self) -> None:
        """Find, or make, all that native code works on."""
        addresses: List[int] = []
        read: List[int] = []
        written: List[int] = []
        late: List[Tuple[int, int]] = []
        for number, base in enumerate(self._assembled.bases):
            array = self.array_at(base)
            known = array is not None and base[0] not in self.late
            addresses.append(address_of(array) if known else 0)
            if array is not None:
                self.arrays[base] = array
                handle = array.handle.value
                (read if base[0] in self.read_only else written).append(handle)
                if not known:
                    late.append((number, handle))
        self._given = words(addresses, read, written, late)

    def array_at(self, base: Base) -> Optional[NDArray]:
        """Return the array that code knows by a number; None if this pass does not use it."""
        kind, *which = base
        if not which:
            return allocate((max(self._assembled.sizes[kind], 1),), "uint8", mx.cpu())
        if kind == f"{self.prefix}arena":
            return self.buffers.arrays[which[0]]
        if kind == f"{self.prefix}rows":
            launch = self.plan.launches[which[0]]
            operand, port = launch.operands[which[1]], self.ports(launch)[which[1]]
            assert isinstance(operand, Rows)
            shape = operand.rows, operand.row_size
            return mx.nd.empty(shape, ctx=launch.segment.context, dtype=port.dtype)
        return None

    def ports(self, launch: Launch) -> Tuple[Port, ...]:
        """Return what the operands of a launch are."""
        return launch.segment.inputs

    def operand(self, position: int, k: int) -> NDArray:
        """Return an operand of a launch of MXNet's operators that is in an arena."""
        launch = self.plan.launches[position]
        operand = launch.operands[k]
        if not isinstance(operand, Rows):
            return self.buffers.operand(operand)  # type: ignore[arg-type]
        kind = self.ports(launch)[k].dtype, launch.segment.context
        return self.together(operand, *kind, f"{self.prefix}rows", position, k)

    def together(self, operand: Rows, dtype: str, context: mx.Context, *base: Any) -> NDArray:
        """Return rows that stand together at a base."""
        array = self.arrays[base]
        if not is_native(self.plan, operand, dtype, context):
            pieces = self.plan.pieces[operand.first :][: operand.pieces]
            self.buffers.together(operand, pieces, array)
        return array

    def run_launches(self, checks: Any = None) -> None:
        """Hand everything to the engine."""
        for item in self._assembled.in_order(checks is not None or PROFILER.running):
            with self._shown(item.launch):
                if isinstance(item, Stretch):
                    self.push(item)
                else:
                    self.launch(item.launch, self.plan.launches[item.launch])
            if checks is not None and item.launch is not None:
                checks.check(self, item.launch)

    def _shown(self, position: Optional[int]) -> ContextManager[None]:
        if position is None or not PROFILER.running:
            return nullcontext()
        launch = self.plan.launches[position]
        name = f"{self.plan.graph.name(int(launch.units[0]))}{self.suffix}"
        written = [self.buffers.region(region) for region in launch.regions]
        return PROFILER.shown(name, len(launch.units), written)

    def push(self, stretch: Stretch) -> None:
        """Hand some code to the engine."""
        name = f"gluon_dynbatch{self.suffix}".encode()
        program = self._assembled.program
        check_call(program.push(*self._given, name, stretch.low, stretch.high))

    def launch(self, position: int, launch: Launch) -> None:
        """Run a launch of MXNet's operators."""
        raise NotImplementedError


class Execution(Pass):
    """One run of a plan forward.

    Parameters
    ----------
    plan : Plan
        What to run.
    externals : list of NDArray
        The arrays from outside, by number.
    dispatcher : Dispatcher
        Compiles segments.
    where : callable
        Gives the user's line of a node.
    assembled : Assembled, optional
        The native code of the plan; made if it is not given.
    tape : GradientTape, optional
        Records launches for the backward pass.
    checks : Comparison, optional
        Looks at what each launch has made before the next one runs.
    """

    read_only = frozenset(["parameter", "external"])

    def __init__(
        self,
        plan: Plan,
        externals: List[NDArray],
        dispatcher: Dispatcher,
        where: Any,
        assembled: Optional[Assembled] = None,
        tape: Any = None,
        checks: Any = None,
    ):
        super().__init__(plan, assembled or Forward(plan, dispatcher.natives(plan), {}).assemble())
        self.externals = externals
        self._dispatcher, self._where = dispatcher, where
        self._tape, self._checks = tape, checks
        self._parameters: Dict[Any, NDArray] = {}
        self.find_arrays()
        if tape is not None:
            tape.begin(self.arrays)

    def run(self) -> None:
        """Run all launches; returns as soon as they are handed to the engine."""
        with autograd.pause():
            self.buffers.fill(self.plan, self._assembled.fills, self.externals, wait=True)
            self.run_launches(self._checks)

    def array_at(self, base: Base) -> Optional[NDArray]:
        """Return the array that code knows by a number."""
        kind, *which = base
        if kind == "external":
            self.externals[which[0]].wait_to_read()
            return self.externals[which[0]]
        if kind == "parameter":
            found = self._parameter(*which)
            wait_once(which[0], found)
            return found
        return super().array_at(base)

    def launch(self, position: int, launch: Launch) -> None:
        """Run a launch of MXNet's operators."""
        try:
            self._launch(position, launch)
        except MXNetError as error:
            raise self._failed(launch, error) from error

    def operands(self, position: int, launch: Launch) -> List[NDArray]:
        """Return the operands of a launch of MXNet's operators."""
        arrays = []
        for p, (operand, port) in enumerate(zip(launch.operands, launch.segment.inputs)):
            if isinstance(operand, Whole):
                array = self.externals[operand.external]
            else:
                array = self.operand(position, p)
            # Not in the symbol: MXNet's BatchNorm crashes backward if its statistics are computed.
            own = port.shared or launch.segment.layout == "unbatched"
            arrays.append(array.reshape(port.shape) if own and array.shape != port.shape else array)
        return arrays

    def _launch(self, number: int, launch: Launch) -> None:
        segment = launch.segment
        executable = self._dispatcher.executable(segment)
        operands = self.operands(number, launch)
        results = [self.buffers.region(r) for r in launch.regions]
        if self._tape is not None and self._tape.wants(number):
            self._tape.run(launch, executable, operands, results)
        else:
            arguments = [
                operands[i]
                if kind == "in"
                else self._parameter(segment.parameters[i], segment.context)
                for kind, i in executable.arguments
            ]
            executable.launch(arguments, segment.mode & ~RECORDING, out=results)
        if executable.fallible:
            results[0].wait_to_read()

    def _parameter(self, parameter: Any, context: mx.Context) -> NDArray:
        key = (id(parameter), context)
        found = self._parameters.get(key)
        if found is None:
            found = self._parameters[key] = parameter.data(context)
        return found

    def _failed(self, launch: Launch, error: MXNetError) -> LaunchError:
        units, first = self.plan.graph, int(launch.units[0])
        return LaunchError(
            f"a launch of {len(launch.units)} calls failed: {error}",
            self._where(int(units.node[first])),
            units.name(first),
            "open the scope with analysis_budget=0 to run the calls one by one",
        )
