"""Run a plan: fill the arenas, push native code, launch MXNet's operators."""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from typing import Any, ContextManager, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError, check_call
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import LaunchError
from ..modes import RECORDING
from ..native.recording import part
from ..plan.plan import Launch, Plan, Region, Rows, Whole
from .assemble import Assembled
from .buffers import bases_of, put_together
from .dispatch import Dispatcher
from .pool import POOL
from .profiling import PROFILER

#: Where native code works; one object, as comparing two takes longer than all else of `take`.
CPU = mx.cpu()


class Pass:
    """One run of a plan, forward or backward.

    Parameters
    ----------
    plan : Plan
        What to run.
    """

    #: Its native code.
    _assembled: Assembled

    #: What names of blocks are followed by in traces.
    suffix = ""
    #: Where buffers come from, but for arenas, which are taken when the flush is.
    pool = POOL

    def __init__(self, plan: Plan):
        self.plan = plan
        #: The arenas in memory.
        self.arenas = [
            POOL.take((rows, arena.row_size), arena.dtype, arena.context)
            for arena, rows in zip(plan.arenas, plan.sizes)
        ]

    def find_arrays(
        self, before: Sequence[Optional[NDArray]] = (), outside: Sequence[NDArray] = ()
    ) -> List[NDArray]:
        """Find, or make, all that native code works on.

        Parameters
        ----------
        before : sequence of NDArray or None
            Arrays of the forward pass, those that are not read as None.
        outside : sequence of NDArray
            What is copied into arenas.
        """
        arrays = self.arrays()
        uses = b"".join([b"-" if array is None else b"r" for array in before])
        uses += self._assembled.uses + b"a" * len(outside)
        #: Forward, arenas first.
        self.given = bases_of([*before, *arrays, *outside], uses)
        return arrays

    def arrays(self) -> List[NDArray]:
        """Return what is at each base."""
        return [self.array_at(*base) for base in self._assembled.bases]

    def array_at(self, kind: str, *which: Any) -> NDArray:
        """Return an array that native code works on."""
        if kind == "arena":
            return self.arenas[which[0]]
        return self.pool.take((max(self._assembled.sizes[kind], 1),), "uint8", CPU)

    def region(self, region: Region) -> NDArray:
        """Return the rows of `region`, in place."""
        return part(self.arenas[region.arena], region.start, region.start + region.rows)

    def elements(self, arena: int, element: int, shape: Tuple[int, ...]) -> NDArray:
        """Return elements from `element` on, in place, as an array of `shape`."""
        flat = self.arenas[arena].reshape((-1,))
        return part(flat, element, element + prod(shape)).reshape(shape)

    def operand(self, operand: Any, dtype: str, context: mx.Context) -> NDArray:
        """Return an operand of a launch of MXNet's operators that is in arenas."""
        if not isinstance(operand, Rows):
            return self.elements(*operand[:2], operand[2:])
        array = self.pool.take((operand.rows, operand.row_size), dtype, context)
        pieces = self.plan.pieces[operand.first :][: operand.pieces]
        put_together(array, self.arenas, pieces, b"r")
        return array

    def run_launches(self, watch: Any = None) -> None:
        """Hand everything to the engine, some launches at a time: others' work gets in between."""
        low, looked_at = 0, watch is not None or PROFILER.running
        for end, number, by_operators, ends_piece in self._assembled.items:
            if not (ends_piece or looked_at):
                continue
            stop = self._assembled.first + end
            with self._shown(number):
                if low < stop:
                    self.push(low, stop)
                if by_operators:
                    self.launch(self.plan.launch(number))
            low = stop
            if watch is not None and number is not None:
                watch.launched(self, number)

    def _shown(self, number: Optional[int]) -> ContextManager[None]:
        if number is None or not PROFILER.running:
            return nullcontext()
        launch = self.plan.launch(number)
        name = f"{self.plan.graph.name(int(launch.units[0]))}{self.suffix}"
        written = [self.region(region) for region in launch.regions]
        return PROFILER.shown(name, len(launch.units), written)

    def push(self, low: int, high: int) -> None:
        """Hand some code to the engine."""
        name = f"gluon_dynbatch{self.suffix}".encode()
        check_call(self._assembled.program.push(self.given, name, low, high))

    def launch(self, launch: Launch) -> None:
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
    watch : explain.Site, optional
        Waits for what each launch makes before the next one runs.
    """

    def __init__(
        self,
        plan: Plan,
        externals: List[NDArray],
        dispatcher: Dispatcher,
        where: Any,
        assembled: Assembled,
        tape: Any = None,
        watch: Any = None,
    ):
        super().__init__(plan)
        self._assembled = assembled
        self.externals = externals
        self._dispatcher, self._where = dispatcher, where
        self._tape, self._watch = tape, watch

    def run(self) -> None:
        """Run all launches; returns as soon as they are handed to the engine."""
        arrays = self.find_arrays((), [self.externals[n] for n in self._assembled.externals])
        for fill in self._assembled.elsewhere:
            given = [self.externals[number] for number in fill.externals.tolist()]
            pieces = fill.pieces(np.arange(len(given)))
            put_together(self.region(fill.region), given, pieces)
        if self._tape is not None:
            self._tape.begin(arrays)
        self.run_launches(self._watch)

    def arrays(self) -> List[NDArray]:
        """Return what is at each base."""
        return [
            _data(*base[1:]) if base[0] == "parameter" else self.array_at(*base)
            for base in self._assembled.bases
        ]

    def array_at(self, kind: str, *which: Any) -> NDArray:
        """Return an array that native code works on, unless it is a parameter."""
        return self.externals[which[0]] if kind == "external" else super().array_at(kind, *which)

    def launch(self, launch: Launch) -> None:
        """Run a launch of MXNet's operators."""
        try:
            self._launch(launch)
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

    def _launch(self, launch: Launch) -> None:
        segment = launch.segment
        executable = self._dispatcher.executable(segment)
        operands = self.operands(launch)
        results = [self.region(r) for r in launch.regions]
        if self._tape is not None and launch.number in self._tape.recorded:
            self._tape.run(launch, executable, operands, results)
        else:
            arguments = [
                operands[i] if kind == "in" else segment.parameters[i].data(segment.context)
                for kind, i in executable.arguments
            ]
            executable.launch(arguments, segment.mode & ~RECORDING, out=results)
        if executable.fallible:
            results[0].wait_to_read()

    def _failed(self, launch: Launch, error: MXNetError) -> LaunchError:
        units, first = self.plan.graph, int(launch.units[0])
        return LaunchError(
            f"a launch of {len(launch.units)} calls failed: {error}",
            self._where(int(units.node[first])),
            units.name(first),
            "open the scope with analysis_budget=0 to run the calls one by one",
        )


def _data(parameter: Parameter, context: mx.Context) -> NDArray:
    """Return the array that a parameter has on a device."""
    own = parameter._data
    # As `data` does, which takes two calls more.
    return own[0] if own is not None and len(own) == 1 else parameter.data(context)
