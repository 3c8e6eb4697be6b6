"""Run a plan: fill the arenas, push native code, launch MXNet's operators."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Protocol

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError
from mxnet.ndarray import NDArray

from ..errors import LaunchError, Where
from ..modes import RECORDING
from ..native import executing, recording
from ..native.assembling import itemsize
from ..plan.launch import Fill, Launch, Whole
from ..record.lazy_base import Lazy
from .buffers import Arenas, bases_of, push, shaped, write_pieces
from .dispatch import Dispatcher
from .draws import draw_key
from .operators import OperatorTape
from .pool import allocate
from .prepare import Assembled
from .profiling import PROFILER

#: The context of native code.  One object for all calls: comparing two takes longer than the rest
#: of `Pool.take`.
CPU = mx.cpu()
#: The type of memory for data of any types.
MEMORY_TYPE = "float64"


class LaunchWatch(Protocol):
    """What surrounds each launch: a `profiling.Profiler` that runs, or an `observe.ScopeSite`."""

    def launch(self, run: Pass, number: int) -> ContextManager[None]:
        """Surround a launch; wait for its results at the end."""


class Pass:
    """One run of a plan, forward or backward."""

    #: The arrays of the bases of the program; forward, the arenas come first.
    bases: executing.Bases

    #: Appended to the names of blocks in profiler traces.
    suffix = ""
    #: Whether it runs forward, see `executing.Program.push`.
    forward = False
    #: Tells when all launches are done, if it runs forward and native code runs all of them.
    notice: Optional[executing.Notice] = None
    #: Whether the thread that pushes runs native code itself, if that is all of the program.
    here = False

    def __init__(self, arenas: Arenas, program: Assembled):
        self.plan, self.arenas, self._assembled = arenas.plan, arenas, program

    def array_at(self, kind: str, *key: Any) -> NDArray:
        """Return the array at a base in an arena or in memory of the program."""
        if kind == "arena":
            arena: NDArray = self.arenas.arrays[key[0]]
            return arena
        # Elements of several bytes, because their number is limited.
        size = -(-self._assembled.sizes[kind] // itemsize(MEMORY_TYPE))
        return self.arenas.pool.take((max(size, 1),), MEMORY_TYPE, CPU)

    def run_launches(self, watch: Optional[LaunchWatch] = None) -> None:
        """Push all launches to the engine, several at a time, so that other work gets a turn."""
        low, watches = 0, [] if watch is None else [watch]
        if PROFILER.running:
            watches.append(PROFILER)
        for end, number, by_operators, ends_push in self._assembled.items:
            if not (ends_push or watches):
                continue
            is_watched = watches and number is not None
            with self._watched(watches, number) if is_watched else nullcontext():
                if low < end:
                    self.push(low, end)
                if by_operators and number is not None:
                    self.launch(self.plan.launch(number))
            low = end

    @contextmanager
    def _watched(self, watches: List[LaunchWatch], number: Any) -> Iterator[None]:
        with ExitStack() as watched:
            for watch in watches:
                watched.enter_context(watch.launch(self, number))
            yield

    def wait(self, launch: Launch) -> None:
        """Wait for the results of a launch."""
        for region in launch.regions:
            self.arenas.region(region).wait_to_read()

    def push(self, low: int, high: int) -> None:
        """Push a stretch of the program to the engine; forward, the last one gives the notice."""
        if self.forward and high == self._assembled.native_end:
            self.notice = executing.Notice()
        code, bases, forward = self._assembled.program, self.bases, self.forward
        here = self.here and low == 0 and self.notice is not None
        push(code, bases, self.suffix, low, high, forward, self.notice, here)

    def launch(self, launch: Launch) -> None:
        """Run a launch of MXNet's operators."""
        raise NotImplementedError


class Execution(Pass):
    """One run of a plan forward; the parameters are those of `execute`."""

    forward = True

    def __init__(
        self,
        arenas: Arenas,
        program: Assembled,
        externals: List[NDArray],
        dispatcher: Dispatcher,
        where: Callable[[int], Where],
        tape: Optional[OperatorTape],
    ):
        super().__init__(arenas, program)
        self.externals = externals
        self._dispatcher, self._where, self._tape = dispatcher, where, tape
        #: The arrays at the program's own bases.
        self.arrays, placed = recording.arrays_of_bases(
            *(program.bases, program.owners, program.owned),
            *(arenas.arrays, externals, self.array_at),
        )
        copied = [externals[number] for number in program.externals]
        self.bases = bases_of(self.arrays + copied, program.uses, placed)

    def fill_devices(self) -> None:
        """Fill the arenas that the program cannot."""
        for fill in self._assembled.device_fills:
            sources = [self.external(number) for number in fill.externals.tolist()]
            pieces = fill.pieces(np.arange(len(sources)))
            write_pieces(self.arenas.region(fill.region), sources, pieces)

    def array_at(self, kind: str, *key: Any) -> NDArray:
        """Return the array at a base that is not a parameter, an arena or an external array."""
        identities = self._assembled.identities
        if kind == "identities" and identities is not None:
            return identities
        if kind == "key":
            return draw_key()
        if kind == "gathered":
            return self._gathered(self._assembled.gathered_fills[key[0]])
        return super().array_at(kind, *key)

    def _gathered(self, fill: Fill) -> NDArray:
        """Return the external arrays of a fill, side by side."""
        arena = self.plan.arenas[fill.region.arena]
        array = allocate((fill.region.rows * arena.row_size,), arena.dtype, CPU)
        columns = fill.externals, fill.counts, itemsize(arena.dtype), array
        if not recording.gather(self.externals, *columns):
            arrays = [self.externals[number] for number in fill.externals.tolist()]
            write_pieces(array, arrays, fill.pieces(np.arange(len(arrays))), b"a")
        return array

    def external(self, number: int) -> NDArray:
        """Return an external array for MXNet's operators, as one of ``mx.nd``.

        A kept one is copied out of its arena.  If a view of it is made first, the view ends the
        `Chain` of this flush.
        """
        array = self.externals[number]
        if isinstance(array, Lazy):
            array.real()
        else:
            array = self.externals[number] = recording.plain_array(array)
        return array

    def launch(self, launch: Launch) -> None:
        """Run a launch of MXNet's operators."""
        try:
            self._launch(launch)
        except LaunchError:
            raise  # there is no memory
        except MXNetError as error:
            raise self._failed(launch, error) from error

    def operands(self, launch: Launch) -> List[NDArray]:
        """Return the operands of a launch of MXNet's operators."""
        arrays = []
        for operand, port in zip(launch.operands, launch.segment.inputs):
            if isinstance(operand, Whole):
                array = self.external(operand.external)
            else:
                array = self.arenas.operand(operand, port.dtype, launch.segment.context)
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
        results = [self.arenas.region(r) for r in launch.regions]
        if self._tape is not None and launch.number in self._tape.launches:
            self._tape.record(launch, executable, operands, results)
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


def execute(
    arenas: Arenas,
    program: Assembled,
    externals: List[NDArray],
    dispatcher: Dispatcher,
    where: Callable[[int], Where],
    tape: Optional[OperatorTape] = None,
    watch: Optional[LaunchWatch] = None,
    here: bool = False,
) -> Execution:
    """Push all launches of a plan to the engine, without waiting for their results.

    `where` returns the user's line that recorded a node, `tape` records launches for the backward
    pass, and `watch` (an `observe.ScopeSite`) waits for the results of each launch before
    the next one.  With `here`, native code runs in this thread, unless MXNet's operators run some
    launches.
    """
    execution = Execution(arenas, program, externals, dispatcher, where, tape)
    execution.here = here
    execution.fill_devices()
    execution.run_launches(watch)
    if tape is not None:
        tape.update_statistics()
    return execution
