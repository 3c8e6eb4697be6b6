"""Run a plan: fill the arenas, fetch operands, launch segments."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import (
    _LIB,
    MXNetError,
    NDArrayHandle,
    OpHandle,
    c_str,
    c_str_array,
    check_call,
)
from mxnet.ndarray import NDArray

from ..errors import LaunchError
from ..modes import TRAINING
from ..native import executing, recording, resolving
from ..plan.plan import Arena, Fill, Launch, Plan, Region, Rows, Shared, Slice, Whole
from .assemble import SUMMED, Assembled, Base, Item, Stretch, is_native, itemsize
from .assemble_forward import Forward
from .dispatch import ONE_AT_A_TIME, Dispatcher
from .memory import GET_DATA, PUSH, Memory, address_of, allocate
from .profiling import PROFILER

#: Taking out this many arrays of one shape pays for splitting one array.
MANY = 8
#: Outputs of one split.
SPLIT = 512


class Buffers:
    """Arenas in memory, and how to read rows out of them.

    Parameters
    ----------
    arenas : sequence of Arena
        What each buffer holds.
    sizes : sequence of int
        Rows of each.
    """

    def __init__(self, arenas: Sequence[Arena], sizes: Sequence[int]):
        self.arrays = [
            allocate((rows, arena.row_size), arena.dtype, arena.context)
            for arena, rows in zip(arenas, sizes)
        ]
        self._row_sizes = [arena.row_size for arena in arenas]
        self._views: Dict[Tuple[int, int], NDArray] = {}

    def _view(self, arena: int, row_size: int) -> NDArray:
        """Return the arena with rows of another length; a last, incomplete row is left out."""
        array = self.arrays[arena]
        if row_size == self._row_sizes[arena]:
            return array
        found = self._views.get((arena, row_size))
        if found is None:
            rows = array.size // row_size
            found = array.reshape((-1,))._slice(0, rows * row_size).reshape((rows, row_size))
            self._views[arena, row_size] = found
        return found

    def region(self, region: Region) -> NDArray:
        """Return the rows of `region`, in place."""
        return part(self.arrays[region.arena], region.start, region.start + region.rows)

    def fill(self, fill: Fill, arrays: Union[Sequence[NDArray], Dict[int, NDArray]]) -> None:
        """Copy those of some arrays that a fill names side by side."""
        target, region = self.arrays[fill.region.arena], self.region(fill.region)
        if target.context.device_type == "cpu":
            size = itemsize(np.dtype(target.dtype).name)
            addresses, handles = recording.places(arrays, fill.externals, GET_DATA)
            at = address_of(target) + fill.region.start * target.shape[1] * size
            handle = target.handle.value
            check_call(executing.gather(PUSH, addresses, handles, fill.counts, size, at, handle))
        else:
            flat = (arrays[number].reshape((-1,)) for number in fill.externals)
            mx.nd.concat(*flat, dim=0, out=region.reshape((-1,)))

    def add_up(self, fill: Fill, pieces: List[List[Any]]) -> None:
        """Let what a fill names be sums of parts of arrays: those of each `Piece`."""
        starts = np.cumsum(fill.counts) - fill.counts
        target = self.arrays[fill.region.arena]
        flat = self.region(fill.region).reshape((-1,))
        kind = np.dtype(target.dtype).name
        if target.context.device_type != "cpu" or kind not in SUMMED:
            zero(flat)
            for start, own in zip(starts.tolist(), pieces):
                for piece in own:
                    to = start + piece.offset
                    source = piece.array.reshape((-1,))
                    source = part(source, piece.first, piece.first + piece.count)
                    add_to(part(flat, to, to + piece.count), source)
            return
        size = itemsize(kind)
        addresses, read = [0, address_of(flat)], {}
        records = [resolving.ZERO, 0, 0, 0, flat.size]
        for start, own in zip(starts.tolist(), pieces):
            for piece in own:
                to, source = start + piece.offset, piece.first * size
                records += [resolving.ADD, to, len(addresses), source, piece.count]
                addresses.append(address_of(piece.array))
                handle = piece.array.handle.value
                read[executing.memory_of(handle)] = handle
        head = [executing.ROWS, SUMMED.index(kind), size, len(records) // 5, 1, 0]
        code = np.array([*head, *records], dtype=np.int64)
        handle = target.handle.value
        read.pop(executing.memory_of(handle), None)
        words = (addresses, list(read.values()), [handle])
        check_call(
            executing.Program(code, [], 0).push(
                PUSH,
                0,
                len(code),
                *(np.array(numbers, dtype=np.uintp) for numbers in words),
                b"gluon_dynbatch fill",
            )
        )

    def elements(self, arena: int, element: int, shape: Tuple[int, ...]) -> NDArray:
        """Return elements from `element` on, in place, as an array of `shape`."""
        count = int(np.prod(shape))
        return part(self._view(arena, 1).reshape((-1,)), element, element + count).reshape(shape)

    def rows(self, arena: int, elements: np.ndarray, row_size: int) -> NDArray:
        """Return a copy of the rows of `row_size` elements that start at `elements`."""
        grain = int(np.gcd.reduce(np.append(elements, (row_size, self._row_sizes[arena]))))
        index = (elements[:, None] + np.arange(0, row_size, grain)).reshape(-1) // grain
        source = self._view(arena, grain)
        taken = mx.nd.take(source, upload(index.astype(np.int32), source.context))
        return taken.reshape((len(elements), row_size))

    def operand(self, operand: Union[Slice, Shared]) -> NDArray:
        """Return an operand that is read in place."""
        if isinstance(operand, Shared):
            return self.elements(operand.arena, operand.element, operand.shape)
        arena, element, rows, row_size = operand
        if element % row_size:
            return self.elements(arena, element, (rows, row_size))
        start = element // row_size
        return part(self._view(arena, row_size), start, start + rows)

    def together(self, operand: Rows, pieces: np.ndarray, target: NDArray) -> None:
        """Put the rows of an operand together by MXNet's operators."""
        flat = target.reshape((-1,))
        for what, start, arena, element, count in pieces.tolist():
            own = part(flat, start, start + count)
            if what == resolving.ZERO:
                zero(own)
            elif what == resolving.ADD:
                add_to(own, self.elements(arena, element, (count,)))
            else:
                self.elements(arena, element, (count,)).copyto(own)


def part(array: NDArray, start: int, stop: int) -> NDArray:
    """Return rows of an array in place: ``array[start:stop]`` without what makes that slow."""
    handle = NDArrayHandle()
    check_call(
        _LIB.MXNDArraySlice(
            array.handle, ctypes.c_uint32(start), ctypes.c_uint32(stop), ctypes.byref(handle)
        )
    )
    return NDArray(handle)


_ADD_N = OpHandle()
check_call(_LIB.NNGetOpHandle(c_str("add_n"), ctypes.byref(_ADD_N)))
_TWO = (ctypes.c_int(1), c_str_array(["num_args"]), c_str_array(["2"]))


def add_to(total: NDArray, array: NDArray) -> None:
    """Add in place: ``add_n(total, array, out=total)`` without what makes that slow."""
    outputs = ctypes.pointer(total.handle)
    check_call(
        _LIB.MXImperativeInvokeEx(
            _ADD_N,
            ctypes.c_int(2),
            (NDArrayHandle * 2)(total.handle, array.handle),
            ctypes.byref(ctypes.c_int(1)),
            ctypes.byref(outputs),
            *_TWO,
            ctypes.byref(ctypes.POINTER(ctypes.c_int)()),
        )
    )


def take_out(
    buffers: Buffers, arena: int, shape: Tuple[int, ...], starts: List[int]
) -> List[NDArray]:
    """Return copies of the arrays of one shape that start at some elements of an arena."""
    if len(starts) < MANY:
        return [buffers.elements(arena, start, shape).copy() for start in starts]
    unit = int(np.prod(shape))
    elements = np.array(starts, dtype=np.int64)
    rows = buffers.rows(arena, elements, unit).reshape((len(starts),) + shape)
    made: List[NDArray] = []
    for low in range(0, len(starts), SPLIT):
        part = rows[low : low + SPLIT]
        if len(part) == 1:
            made.append(part[0].copy())
        else:
            made += mx.nd.SliceChannel(part, num_outputs=len(part), axis=0, squeeze_axis=True)
    return made


def upload(index: np.ndarray, context: mx.Context) -> NDArray:
    """Return an index vector as an array, without waiting for the engine as ``nd.array`` does."""
    return mx.nd.from_numpy(index, zero_copy=True).as_in_context(context)


def zero(array: NDArray) -> None:
    """Fill `array` with zeros."""
    mx.nd._internal._zeros(shape=array.shape, ctx=array.context, dtype=array.dtype, out=array)


class Mode:
    """Sets autograd's mode for launches, and puts the user's back in the end."""

    def __init__(self) -> None:
        self._outer = (autograd.set_recording(False), autograd.is_training())
        self._training = self._outer[1]

    def train(self, training: bool) -> None:
        """Switch between train and predict mode."""
        if training != self._training:
            autograd.set_training(training)
            self._training = training

    def restore(self) -> None:
        """Go back to the mode in which the object was made."""
        autograd.set_recording(self._outer[0])
        autograd.set_training(self._outer[1])


class Execution:
    """One run of a plan.

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
        self.plan = plan
        self._where = where
        self.externals = externals
        self.buffers = Buffers(plan.arenas, plan.sizes)
        self._dispatcher = dispatcher
        self._tape = tape
        self._checks = checks
        self._parameters: Dict[Any, NDArray] = {}
        if assembled is None:
            assembled = Forward(plan, dispatcher.natives(plan), {}).assemble()
        self._memory = Memory(assembled, self._array)
        if tape is not None:
            tape.begin(self.buffers, self._memory)

    def run(self) -> None:
        """Run all launches; returns as soon as they are handed to the engine."""
        mode = Mode()
        try:
            for fill in self.plan.fills:
                self.buffers.fill(fill, self.externals)
            for item in self._memory.items(self._checks is not None or PROFILER.running):
                number = item.launch
                if number is not None and PROFILER.running:
                    launch = self.plan.launches[number]
                    name = self.plan.graph.name(int(launch.units[0]))
                    results = [self.buffers.region(region) for region in launch.regions]
                    with PROFILER.shown(name, len(launch.units), results):
                        self._run(item, mode)
                else:
                    self._run(item, mode)
                if self._checks is not None and number is not None:
                    self._checks.check(self, number)
        finally:
            mode.restore()

    def _run(self, item: Item, mode: Mode) -> None:
        if isinstance(item, Stretch):
            self._memory.push(item, "gluon_dynbatch")
            return
        launch = self.plan.launches[item.position]
        mode.train(bool(launch.segment.mode & TRAINING))
        try:
            self._launch(item.position, launch)
        except MXNetError as error:
            raise self._failed(launch, error) from error

    def _array(self, base: Base) -> NDArray:
        """Return the array that code knows by a number."""
        kind, *which = base
        if kind == "arena":
            return self.buffers.arrays[which[0]]
        if kind == "external":
            return self.externals[which[0]]
        if kind == "parameter":
            return self._parameter(*which)
        assert kind == "copied", base
        number, p = which
        operand = self.plan.launches[number].operands[p]
        segment = self.plan.launches[number].segment
        shape = operand.rows, operand.row_size
        return mx.nd.empty(shape, ctx=segment.context, dtype=segment.inputs[p].dtype)

    def operands(self, number: int, launch: Launch) -> List[NDArray]:
        """Return the operands of a launch of MXNet's operators."""
        arrays = []
        for p, (operand, port) in enumerate(zip(launch.operands, launch.segment.inputs)):
            if isinstance(operand, Whole):
                array = self.externals[operand.external]
            elif isinstance(operand, Rows):
                array = self._memory.array("copied", number, p)
                if not is_native(self.plan, operand, port.dtype, launch.segment.context):
                    pieces = self.plan.pieces[operand.first :][: operand.pieces]
                    self.buffers.together(operand, pieces, array)
            else:
                array = self.buffers.operand(operand)
            # Not in the symbol: MXNet's BatchNorm crashes backward if its statistics are computed.
            unbatched = launch.segment.layout == "unbatched" and array.shape != port.shape
            arrays.append(array.reshape(port.shape) if unbatched else array)
        return arrays

    def _launch(self, number: int, launch: Launch) -> None:
        segment = launch.segment
        executable = self._dispatcher.executable(segment)
        operands = self.operands(number, launch)
        results = [self.buffers.region(r) for r in launch.regions]
        if self._tape is not None and self._tape.wants(number):
            self._tape.run(number, executable, operands, results)
        else:
            arguments = [
                operands[i]
                if kind == "in"
                else self._parameter(segment.parameters[i], segment.context)
                for kind, i in executable.arguments
            ]
            with ONE_AT_A_TIME:
                executable.run(*arguments, out=results)
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
