"""Run a plan: fill the arenas, push native code, launch MXNet's operators."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ContextManager, List, Optional

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import LaunchError
from ..modes import RECORDING
from ..native import executing
from ..native.assembling import itemsize
from ..native.recording import part
from ..plan.plan import Launch, Plan, Region, Rows, Whole
from ..record.lazy import LazyNDArray
from .assemble import Assembled
from .buffers import bases_of, push, shaped, view, write_pieces
from .dispatch import Dispatcher
from .pool import POOL
from .profiling import PROFILER

#: The context of native code.  One object for all calls: comparing two takes longer than the rest
#: of `Pool.take`.
CPU = mx.cpu()
#: The type of memory for data of any types.
MEMORY_TYPE = "float64"


class Pass:
    """One run of a plan, forward or backward."""

    #: The native code of the plan, and the arrays of its bases; forward, the arenas come first.
    _assembled: Assembled
    bases: executing.Bases

    #: Appended to the names of blocks in profiler traces.
    suffix = ""
    #: Allocates temporary buffers.  Arenas always come from `POOL`, as the flush allocates them.
    pool = POOL

    def __init__(self, plan: Plan):
        self.plan = plan
        #: The buffers of the plan's arenas.
        self.arenas = [
            POOL.take((rows, arena.row_size), arena.dtype, arena.context)
            for arena, rows in zip(plan.arenas, plan.sizes)
        ]

    def array_at(self, kind: str, *key: Any) -> NDArray:
        """Return the array at a base in an arena or in memory of the program."""
        if kind == "arena":
            return self.arenas[key[0]]
        # Elements of several bytes, because their number is limited.
        size = -(-self._assembled.sizes[kind] // itemsize(MEMORY_TYPE))
        return self.pool.take((max(size, 1),), MEMORY_TYPE, CPU)

    def region(self, region: Region) -> NDArray:
        """Return a view of the rows of `region`."""
        return part(self.arenas[region.arena], region.start, region.start + region.rows)

    def operand(self, operand: Any, dtype: str, context: mx.Context) -> NDArray:
        """Return an operand that MXNet's operators read from arenas."""
        if not isinstance(operand, Rows):
            return view(self.arenas[operand.arena], operand.element, operand[2:])
        array = self.pool.take((operand.rows, operand.row_size), dtype, context)
        pieces = self.plan.pieces[operand.first :][: operand.pieces]
        write_pieces(array, self.arenas, pieces, b"r")
        return array

    def run_launches(self, watch: Any = None) -> None:
        """Push all launches to the engine, several at a time, so that other work gets a turn."""
        low, one_by_one = 0, watch is not None or PROFILER.running
        for end, number, by_operators, ends_push in self._assembled.items:
            if not (ends_push or one_by_one):
                continue
            stop = self._assembled.fill_length + end
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
        results = [self.region(region) for region in launch.regions]
        return PROFILER.shown(name, len(launch.units), results)

    def push(self, low: int, high: int) -> None:
        """Push a stretch of the program to the engine."""
        push(self._assembled.program, self.bases, self.suffix, low, high)

    def launch(self, launch: Launch) -> None:
        """Run a launch of MXNet's operators."""
        raise NotImplementedError


class Execution(Pass):
    """One run of a plan forward.

    `where` returns the user's line that recorded a node, `tape` records launches for the backward
    pass, and `watch` (an `explain.Site`) waits for the results of each launch before the next one.
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
        """Push all launches to the engine, without waiting for their results."""
        arrays = [
            _data(*base[1:]) if base[0] == "parameter" else self.array_at(*base)
            for base in self._assembled.bases
        ]
        copied = [self.externals[number] for number in self._assembled.externals]
        self.bases = bases_of(arrays + copied, self._assembled.uses)
        for fill in self._assembled.device_fills:
            sources = [self._external(number) for number in fill.externals.tolist()]
            pieces = fill.pieces(np.arange(len(sources)))
            write_pieces(self.region(fill.region), sources, pieces)
        self.run_launches(self._watch)
        if self._tape is not None:
            self._tape.finish(arrays)

    def array_at(self, kind: str, *key: Any) -> NDArray:
        """Return the array at a base that is not a parameter."""
        return self.externals[key[0]] if kind == "external" else super().array_at(kind, *key)

    def _external(self, number: int) -> NDArray:
        """Return an external array for MXNet's operators; a kept one is copied out of its arena.

        If a view of a kept array is made first, the view ends the `Chain` of this flush.
        """
        array = self.externals[number]
        if type(array) is LazyNDArray:
            array.real()
        return array

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
                array = self._external(operand.external)
            else:
                array = self.operand(operand, port.dtype, launch.segment.context)
            # Reshape here and not in the symbol: there, MXNet's BatchNorm would get statistics that
            # an operator computes, and crash backward.
            if port.shared or launch.segment.layout == "unbatched":
                array = shaped(array, port.shape)
            arrays.append(array)
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
        graph, unit = self.plan.graph, int(launch.units[0])
        return LaunchError(
            f"a launch of {len(launch.units)} calls failed: {error}",
            self._where(int(graph.node[unit])),
            graph.name(unit),
            "open the scope with analysis_budget=0 to run the calls one by one",
        )


def _data(parameter: Parameter, context: mx.Context) -> NDArray:
    """Return the array of a parameter on a device, faster than ``data`` if it has only one."""
    copies = parameter._data
    return copies[0] if copies is not None and len(copies) == 1 else parameter.data(context)
