"""Run a plan: fill the arenas, fetch operands, launch segments."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Sequence, Tuple

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

from ..errors import LaunchError, user_message
from ..modes import TRAINING
from ..plan.plan import (
    Arena,
    Fill,
    Gather,
    Launch,
    Mixed,
    Plan,
    Region,
    Scatter,
    Shared,
    Slice,
    Sum,
    Whole,
)
from .dispatch import ONE_AT_A_TIME, Dispatcher
from .profiling import PROFILER

#: Per copied operand, by position of its indices: the copy it is in, its first row there, and
#: whether it is all of it.
Copies = Dict[int, Tuple[NDArray, int, bool]]


class Buffers:
    """Arenas in memory, and how to read rows out of them.

    Parameters
    ----------
    arenas : sequence of Arena
        What each buffer holds.
    sizes : sequence of int
        Rows of each; row 0 is zero.
    """

    def __init__(self, arenas: Sequence[Arena], sizes: Sequence[int]):
        self.arrays = [allocate(arena, rows) for arena, rows in zip(arenas, sizes)]
        for array in self.arrays:
            zero(array._slice(0, 1))
        self._row_sizes = [arena.row_size for arena in arenas]
        self._views: Dict[Tuple[int, int], NDArray] = {}
        self._contexts = dict.fromkeys(a.context for a in arenas)
        self._indices: Dict[Any, NDArray] = {}

    def upload(self, indices: np.ndarray, spare: int = 0) -> None:
        """Bring all gather indices, int32, to where the arenas are."""
        if len(indices):
            indices = np.append(indices, np.zeros(spare, dtype=np.int32)) if spare else indices
            self._indices = {context: upload(indices, context) for context in self._contexts}

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

    def region(self, region: Region, spare: int = 0) -> NDArray:
        """Return the rows of `region`, and some behind it, in place."""
        return part(self.arrays[region.arena], region.start, region.start + region.rows + spare)

    def fill(self, fill: Fill, arrays: Sequence[NDArray]) -> None:
        """Copy those of some arrays that a fill names side by side."""
        region = self.region(fill.region)
        if region.shape[1:] != fill.trailing:
            region = region.reshape((-1,) + fill.trailing)
        mx.nd.concat(*(arrays[number] for number in fill.externals), dim=0, out=region)

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

    def fetch(self, wanted: Sequence[Any], spare: int = 0) -> List[NDArray]:
        """Return the rows that operands name; slices in place, the rest copied.

        Each has `spare` further rows, which hold anything.
        """
        copies = self._copy([gather for one in wanted for gather in _gathers(one)], spare)
        return [self._assemble(one, copies, spare) for one in wanted]

    def _copy(self, gathers: List[Gather], spare: int) -> Copies:
        """Copy rows, by position of their indices; rows of one arena in one go."""
        copies: Copies = {}
        low = 0
        while low < len(gathers):
            first = gathers[low]
            high, last = low + 1, first.first + first.indices
            while high < len(gathers) and gathers[high].follows(first, last):
                last += gathers[high].indices
                high += 1
            # Whatever stands behind is an index, of another operand maybe; `take` cuts it to size.
            last += spare * (first.row_size // first.grain)
            index = part(self._indices[self.arrays[first.arena].context], first.first, last)
            rows = mx.nd.take(self._view(first.arena, first.grain), index)
            if first.grain != first.row_size:
                rows = rows.reshape((-1, first.row_size))
            start = 0
            for gather in gathers[low:high]:
                whole = high == low + 1 and not spare
                copies[gather.first] = rows, start, whole
                start += gather.rows
            low = high
        return copies

    def _assemble(self, wanted: Any, copies: Copies, spare: int = 0) -> NDArray:
        if type(wanted) is Slice:
            arena, element, rows, row_size = wanted
            rows += spare
            if element % row_size:
                return self.elements(arena, element, (rows, row_size))
            start = element // row_size
            return part(self._view(arena, row_size), start, start + rows)
        if type(wanted) is Gather:
            copy, start, whole = copies[wanted.first]
            return copy if whole else part(copy, start, start + wanted.rows + spare)
        if type(wanted) is Sum:
            return self._sum(wanted, copies, spare)
        if type(wanted) is Mixed:
            parts = [self._assemble(p, copies) for p in wanted.parts]
            rows = parts[0] if len(parts) == 1 else mx.nd.concat(*parts, dim=0)
            index, last = self._indices[rows.context], wanted.first + wanted.rows + spare
            return mx.nd.take(rows, part(index, wanted.first, last))
        if type(wanted) is Scatter:
            return self._scatter(wanted, copies)
        assert type(wanted) is Shared, wanted
        return self.elements(wanted.arena, wanted.element, wanted.shape)

    def _scatter(self, wanted: Scatter, copies: Copies) -> NDArray:
        rows = self._assemble(wanted.source, copies)
        index = part(self._indices[rows.context], wanted.first, wanted.first + wanted.source.rows)
        shape = (wanted.rows, wanted.source.row_size)
        return mx.nd._internal._backward_gather_nd(rows, index.reshape((1, -1)), shape=shape)

    def _sum(self, wanted: Sum, copies: Copies, spare: int) -> NDArray:
        first, *others = wanted.levels
        total = self._assemble(first, copies, spare)
        if type(first) is Slice:
            total = total.copy()
        for level in others:
            whole = level.rows == first.rows and not spare
            add_to(total if whole else part(total, 0, level.rows), self._assemble(level, copies))
        return total


def _spare_indices(plan: Plan) -> int:
    """Return how many indices may be read behind the last."""
    wanted = [0]
    for launch in plan.launches:
        if launch.spare:
            gathers = [gather for operand in launch.operands for gather in _gathers(operand)]
            wanted += [launch.spare * gather.row_size // gather.grain for gather in gathers]
            wanted.append(launch.spare)
    return max(wanted)


def _gathers(wanted: Any) -> Sequence[Gather]:
    """Return the rows that are to be copied for an operand."""
    if type(wanted) is Gather:
        return (wanted,)
    if type(wanted) is Sum:
        return [gather for level in wanted.levels for gather in _gathers(level)]
    if type(wanted) is Mixed:
        return [gather for one in wanted.parts for gather in _gathers(one)]
    return _gathers(wanted.source) if type(wanted) is Scatter else ()


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


def allocate(arena: Arena, rows: int) -> NDArray:
    """Return memory for an arena, or say what needs how much."""
    try:
        return mx.nd.empty((rows, arena.row_size), ctx=arena.context, dtype=arena.dtype)
    except Exception as error:  # MXNet raises just this for arrays beyond 2^31 elements
        raise LaunchError(
            user_message(
                f"no memory for {rows} rows of {arena.row_size} {arena.dtype} on {arena.context}: "
                f"{error}",
                advice="record less in one scope, for instance smaller minibatches",
            )
        ) from error


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
        tape: Any = None,
        checks: Any = None,
    ):
        self.plan = plan
        self._where = where
        self.externals = externals
        self.buffers = Buffers(plan.arenas, plan.sizes)
        self.buffers.upload(plan.indices, _spare_indices(plan))
        self._dispatcher = dispatcher
        self._tape = tape
        self._checks = checks
        self._parameters: Dict[Any, NDArray] = {}

    def run(self) -> None:
        """Run all launches; returns as soon as they are handed to the engine."""
        mode = Mode()
        try:
            self._fill()
            for number, launch in enumerate(self.plan.launches):
                mode.train(bool(launch.segment.mode & TRAINING))
                try:
                    if PROFILER.running:
                        self._launch_shown(number, launch)
                    else:
                        self._launch(number, launch)
                except MXNetError as error:
                    raise self._failed(launch, error) from error
                if self._checks is not None:
                    self._checks.check(self, number)
        finally:
            mode.restore()

    def _fill(self) -> None:
        for fill in self.plan.fills:
            self.buffers.fill(fill, self.externals)

    def operands(self, launch: Launch) -> List[NDArray]:
        """Fetch the operands of a launch."""
        fetched = [operand for operand in launch.operands if type(operand) is not Whole]
        own = iter(self.buffers.fetch(fetched, launch.spare))
        arrays = [
            self.externals[o.external] if type(o) is Whole else next(own) for o in launch.operands
        ]
        if launch.segment.layout == "unbatched":
            # Not in the symbol: MXNet's BatchNorm crashes backward if its statistics are computed.
            for i, port in enumerate(launch.segment.inputs):
                if arrays[i].shape != port.shape:
                    arrays[i] = arrays[i].reshape(port.shape)
        return arrays

    def _launch(self, number: int, launch: Launch) -> None:
        segment = launch.segment
        executable = self._dispatcher.executable(segment)
        operands = self.operands(launch)
        results = [self.buffers.region(r, launch.spare) for r in launch.outputs]
        if self._tape is not None and self._tape.wants(number):
            self._tape.run(number, executable, operands, results)
        else:
            arguments = [
                operands[i] if kind == "in" else self._parameter(segment, i)
                for kind, i in executable.arguments
            ]
            with ONE_AT_A_TIME:
                executable.run(*arguments, out=results)
        if executable.fallible:
            results[0].wait_to_read()

    def _parameter(self, segment: Any, number: int) -> NDArray:
        key = (id(segment.parameters[number]), segment.context)
        found = self._parameters.get(key)
        if found is None:
            found = self._parameters[key] = segment.parameters[number].data(segment.context)
        return found

    def _launch_shown(self, number: int, launch: Launch) -> None:
        name = self.plan.graph.name(int(launch.units[0]))
        results = [self.buffers.region(r) for r in launch.outputs]
        with PROFILER.shown(name, len(launch.units), results):
            self._launch(number, launch)

    def _failed(self, launch: Launch, error: MXNetError) -> LaunchError:
        units, first = self.plan.graph, int(launch.units[0])
        return LaunchError(
            user_message(
                f"a launch of {len(launch.units)} calls failed: {error}",
                self._where(int(units.node[first])),
                units.name(first),
                "open the scope with analysis_budget=0 to run the calls one by one",
            )
        )
