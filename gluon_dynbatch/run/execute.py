"""Run a plan: fill the arenas, push native code, launch MXNet's operators."""

from __future__ import annotations

from contextlib import nullcontext
from typing import (
    Any,
    ContextManager,
    Dict,
    List,
    MutableMapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import MXNetError, check_call
from mxnet.ndarray import NDArray

from ..errors import LaunchError
from ..modes import RECORDING
from ..native import recording, resolving
from ..plan.plan import Launch, Plan, Rows, Whole
from .assemble import Assembled, is_native
from .buffers import GET_DATA, WAIT, Buffers, address_of, allocate, put_together, words
from .dispatch import Dispatcher
from .profiling import PROFILER

#: Arrays that native code only reads, and those that MXNet may not have given memory yet, whose
#: addresses the engine asks for; by kind of base.
READ = frozenset(["parameter", "external"])
LATE = frozenset(["gradient", "external gradient"])

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

    #: What names of blocks are followed by in traces.
    suffix = ""

    def __init__(self, plan: Plan, assembled: Assembled):
        self.plan, self._assembled = plan, assembled
        self.buffers = Buffers(plan.arenas, plan.sizes)
        #: Arrays of the forward pass, which come first, those that are not read as None.
        self._before: Sequence[Optional[NDArray]] = ()

    def find_arrays(self) -> None:
        """Find, or make, all that native code works on."""
        self.arrays = {base: self.array_at(*base) for base in self._assembled.bases}
        addresses = [0 if array is None else address_of(array) for array in self._before]
        read = [array.handle.value for array in self._before if array is not None]
        written: List[int] = []
        late: List[Tuple[int, int]] = []
        for (kind, *_), array in self.arrays.items():
            handle = array.handle.value
            if kind in LATE:
                late.append((len(addresses), handle))
            addresses.append(0 if kind in LATE else address_of(array))
            (read if kind in READ else written).append(handle)
        self._given = words(addresses, read, written, late)

    def array_at(self, kind: str, *which: Any) -> NDArray:
        """Return an array that native code works on."""
        if kind == "arena":
            return self.buffers.arrays[which[0]]
        if kind == "rows":
            (operand, dtype, context) = which
            return mx.nd.empty((operand.rows, operand.row_size), ctx=context, dtype=dtype)
        return allocate((max(self._assembled.sizes[kind], 1),), "uint8", mx.cpu())

    def operand(self, operand: Any, dtype: str, context: mx.Context) -> NDArray:
        """Return an operand of a launch of MXNet's operators that is in arenas."""
        if not isinstance(operand, Rows):
            return self.buffers.operand(operand)
        array = self.arrays["rows", operand, dtype, context]
        pieces = self.plan.pieces[operand.first :][: operand.pieces]
        if not is_native(context, dtype, pieces[:, 0]):
            flat = self.buffers.flat
            put_together(array, [(w, at, flat(a), *rest) for w, at, a, *rest in pieces.tolist()])
        return array

    def fill(self, arrays: Union[Sequence[NDArray], Dict[int, NDArray]], wait: bool) -> None:
        """Copy those of some arrays that fills name side by side.

        Arrays that are not waited for must not be in a layout of oneDNN's own once they are
        computed.
        """
        externals = self._assembled.externals
        if externals:
            addresses, read = recording.places(arrays, externals, GET_DATA, WAIT if wait else 0)
            bases = [*self._given[0], *addresses]
            late = [] if wait else list(enumerate(read, len(self._given[0])))
            written = [array.handle.value for array in self.buffers.arrays]
            self.push(0, self._assembled.items[0].stop, words(bases, read, written, late))
        for fill in self.plan.fills:
            region = self.buffers.region(fill.region)
            if region.context.device_type != "cpu":
                starts = (np.cumsum(fill.counts) - fill.counts).tolist()
                given = zip(starts, fill.externals, fill.counts.tolist())
                copy = resolving.COPY
                put_together(region, [(copy, at, arrays[n], 0, count) for at, n, count in given])

    def run_launches(self, checks: Any = None) -> None:
        """Hand everything to the engine, at one go where nothing asks for single launches."""
        (low, *_), *items = self._assembled.items
        one_by_one = checks is not None or PROFILER.running
        for item in items:
            if not (one_by_one or item.by_operators or item is items[-1]):
                continue
            with self._shown(item.launch):
                if low < item.stop:
                    self.push(low, item.stop, self._given)
                if item.by_operators:
                    self.launch(item.launch, self.plan.launches[item.launch])
            low = item.stop
            if checks is not None and item.launch is not None:
                checks.check(self, item.launch)

    def _shown(self, position: Optional[int]) -> ContextManager[None]:
        if position is None or not PROFILER.running:
            return nullcontext()
        launch = self.plan.launches[position]
        name = f"{self.plan.graph.name(int(launch.units[0]))}{self.suffix}"
        written = [self.buffers.region(region) for region in launch.regions]
        return PROFILER.shown(name, len(launch.units), written)

    def push(self, low: int, high: int, given: List[np.ndarray]) -> None:
        """Hand some code to the engine."""
        name = f"gluon_dynbatch{self.suffix}".encode()
        check_call(self._assembled.program.push(*given, name, low, high))

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
    assembled : Assembled
        The native code of the plan.
    tape : GradientTape, optional
        Records launches for the backward pass.
    checks : Comparison, optional
        Looks at what each launch has made before the next one runs.
    """

    def __init__(
        self,
        plan: Plan,
        externals: List[NDArray],
        dispatcher: Dispatcher,
        where: Any,
        assembled: Assembled,
        tape: Any = None,
        checks: Any = None,
    ):
        super().__init__(plan, assembled)
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
            self.fill(self.externals, wait=True)
            self.run_launches(self._checks)

    def array_at(self, kind: str, *which: Any) -> NDArray:
        """Return an array that native code works on."""
        if kind == "external":
            self.externals[which[0]].wait_to_read()
            return self.externals[which[0]]
        if kind == "parameter":
            found = self._parameter(*which)
            wait_once(which[0], found)
            return found
        return super().array_at(kind, *which)

    def launch(self, position: int, launch: Launch) -> None:
        """Run a launch of MXNet's operators."""
        try:
            self._launch(position, launch)
        except MXNetError as error:
            raise self._failed(launch, error) from error

    def operands(self, launch: Launch) -> List[NDArray]:
        """Return the operands of a launch of MXNet's operators."""
        arrays = []
        for operand, port in zip(launch.operands, launch.segment.inputs):
            if isinstance(operand, Whole):
                array = self.externals[operand.external]
            else:
                array = self.operand(operand, port.dtype, launch.segment.context)
            # Not in the symbol: MXNet's BatchNorm crashes backward if its statistics are computed.
            own = port.shared or launch.segment.layout == "unbatched"
            arrays.append(array.reshape(port.shape) if own and array.shape != port.shape else array)
        return arrays

    def _launch(self, number: int, launch: Launch) -> None:
        segment = launch.segment
        executable = self._dispatcher.executable(segment)
        operands = self.operands(launch)
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
