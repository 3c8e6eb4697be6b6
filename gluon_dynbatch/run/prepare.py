"""Prepare a plan to be run: assemble the programs of both directions.

A program is integers that native code runs, and the arrays that they refer to.  Launches without a
kernel run between stretches of native code.
"""

from __future__ import annotations

from array import array as Places
from itertools import compress, count
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from ..kernel.step import Kernel, Wanted
from ..native import assembling, executing, lowering, planning
from ..native.recording import untrack
from ..plan.launch import Fill, Launch
from ..plan.plan import Plan
from ..plan.transpose import Heads, Reach, find_reach, transpose
from ..record.types import in_host_memory
from .draws import array_of

#: An array that a program works on: its kind, then what identifies it among those of that kind.
Base = Tuple[Any, ...]


class Trained(NamedTuple):
    """The arrays that native code trains: columns, with one row per array."""

    #: The number of its gradient among the backward bases; and its own number, among external
    #: arrays or else among forward bases.
    gradients: Places[int]
    numbers: Places[int]
    #: A byte each: whether it is an external array, and whether its gradient is known to be dense.
    external: bytes
    dense: bytes


class Assembled(NamedTuple):
    """The program of one pass, and what is needed to run it."""

    program: executing.Program
    #: Per launch in order, and once more for the code after the last launch: where its code ends;
    #: its number or None; whether MXNet's operators run it after that code; and whether all code up
    #: to there is pushed to the engine at once.  The code that fills arenas comes first.
    items: Tuple[Tuple[int, Optional[int], bool, bool], ...]
    #: Where the code ends, if it writes all results; -1 if MXNet's operators write some.
    native_end: int
    #: Numbers of the external arrays that the program copies into arenas.
    externals: Tuple[int, ...]
    #: By number, fills whose external arrays are gathered for the program; and fills of arenas in
    #: memory of other devices, which the program leaves out.
    gathered_fills: Dict[int, Fill]
    device_fills: Tuple[Fill, ...]
    #: The program's own bases; those of `externals` follow.
    bases: Tuple[Base, ...]
    #: What has the parameters, see `assembling.Addressing`.
    owners: List[lowering.SegmentBrief]
    owned: Places[int]
    #: One letter per base: how it is accessed, see `recording.addresses_and_handles`.
    uses: bytes
    #: Bytes of each kind of memory, see `assembling.MEMORY`.
    sizes: Dict[str, int]
    #: What identifies the rows that draw random numbers; None if there are none.
    identities: Optional[NDArray]

    def gathers(self, kept: List[int]) -> bool:
        """Return whether arrays are gathered of which some are kept in arenas by now.

        The engine would copy them first, in operations of their own.
        """
        if not (kept and self.gathered_fills):
            return False
        known = set(kept)
        fills = self.gathered_fills.values()
        return not all(known.isdisjoint(fill.externals.tolist()) for fill in fills)


class Transposed(NamedTuple):
    """The plan of a backward pass."""

    #: The results at which gradients may arrive.
    heads: Heads
    plan: Plan
    #: The launches that MXNet's operators run backward, by number.
    recorded: Dict[int, Launch]


class BackwardProgram(NamedTuple):
    """The backward program, the arrays that it trains, and the other arrays with a gradient."""

    assembled: Assembled
    trained: Trained
    reach: Reach


class Prepared(NamedTuple):
    """The programs of a plan for certain heads; without heads, there is no backward pass."""

    forward: Assembled
    transposed: Optional[Transposed]
    backward: Optional[BackwardProgram]


class Draft(NamedTuple):
    """What runs a plan forward, and what the backward program is made from."""

    forward: Assembled
    transposed: Optional[Transposed]
    #: It knows where forward values are.
    assembler: assembling.Forward


class Latest:
    """The programs of a plan for the heads seen last.

    Most plans are used with one set of heads.  To save memory, no others are kept.
    """

    def __init__(self) -> None:
        self._latest: Optional[Tuple[Any, Prepared]] = None

    def find(self, key: Any) -> Optional[Prepared]:
        """Return the programs for the heads with this key, if these were seen last."""
        latest = self._latest
        return latest[1] if latest is not None and latest[0] == key else None

    def keep(self, key: Any, prepared: Prepared) -> None:
        """Keep programs under the key of their heads, instead of those kept before."""
        self._latest = key, prepared


def find_gathered(plan: Plan) -> FrozenSet[int]:
    """Return the regions of rows that launches do nothing but gather from tables."""
    gathering = [
        number
        for number, kernels in enumerate(plan.kernels)
        if not isinstance(kernels, str) and kernels.gathers
    ]
    if not gathering:
        return frozenset()
    is_gathering = np.zeros(len(plan.kernels), dtype=bool)
    is_gathering[gathering] = True
    return frozenset(plan.outputs.first[:-1][is_gathering[plan.segment]].tolist())


def prepare(
    plan: Plan,
    heads: Optional[Heads],
    unread: FrozenSet[int] = frozenset(),
    kept: FrozenSet[int] = frozenset(),
) -> Draft:
    """Transpose a plan for these heads, if there are any, and assemble its forward program.

    What is gathered for `unread` regions may be left out, if the program has no need of it.  `kept`
    external arrays are likely to be in arenas of earlier flushes, which the program reads.
    """
    transposed, native = None, {}
    if heads is not None:
        backward = transpose(plan, heads)
        native = _native(plan, backward, heads)
        others = [number for number in backward.order.tolist() if number not in native]
        recorded = {number: backward.launch(number) for number in others}
        transposed = Transposed(heads, backward, recorded)
    on_host = tuple(in_host_memory(arena.context) for arena in plan.arenas)
    assembler = assembling.Forward(plan, native, unread, on_host, kept)
    return Draft(assemble(assembler), transposed, assembler)


def complete(plan: Plan, draft: Draft) -> Prepared:
    """Assemble the backward program; the engine may already run the forward one."""
    transposed, backward = draft.transposed, None
    if transposed is not None:
        assembler = assembling.Backward(transposed.plan, draft.assembler)
        assembled = assemble(assembler)
        flags = bytes(assembler.external), bytes(assembler.dense)
        trained = Trained(assembler.gradients, assembler.arrays, *flags)
        reach = find_reach(plan, transposed.plan, transposed.heads)
        backward = BackwardProgram(assembled, trained, reach)
    prepared = Prepared(draft.forward, transposed, backward)
    untrack(prepared)
    return prepared


def assemble(assembler: assembling.Assembler) -> Assembled:
    """Assemble a plan into a program."""
    assembler.assemble()
    externals, on_devices = assembler.externals, assembler.device_fills
    fills = assembler.plan.fills if on_devices or assembler.gathered_fills else ()
    identities = assembler.identities
    by_operators = any(item[2] for item in assembler.items)
    return Assembled(
        program=assembler.program(),
        items=tuple(assembler.items),
        native_end=-1 if by_operators or on_devices else assembler.items[-1][0],
        externals=tuple(externals),
        gathered_fills={number: fills[number] for number in assembler.gathered_fills},
        device_fills=tuple([fills[number] for number in on_devices]),
        bases=tuple(assembler.bases),
        owners=assembler.owners,
        owned=assembler.owned,
        uses=bytes(assembler.uses) + b"a" * len(externals),
        sizes=assembler.sizes,
        identities=array_of(identities) if identities else None,
    )


def _native(plan: Plan, backward: Plan, heads: Heads) -> Dict[int, Tuple[Kernel, ...]]:
    """Return the backward kernel of each part of the launches that have one, by number."""
    native: Dict[int, Tuple[Kernel, ...]] = {}
    part0, segment = plan.members.part0, plan.members.segment.tolist()
    trained, kernels_of = lowering.trained_in(plan.graph.briefs), plan.kernels
    #: Most launches of equal cells compute the same gradients.
    found: Dict[Tuple[Any, bytes, bytes, bytes], Tuple[Kernel, ...]] = {}
    numbers = (backward.order, part0[backward.order], part0[backward.order + 1])
    marks = planning.gradients_wanted(
        *(plan.inputs, plan.outputs, plan.operands, backward.operands, backward.regions),
        *(heads.in_graph, backward.order),
    )
    columns = zip(*[column.tolist() for column in numbers], marks)
    for number, first, stop, (results, inputs) in columns:
        kernels = kernels_of[segment[first]],
        if stop > first + 1:
            kernels = tuple([kernels_of[k] for k in segment[first:stop]])
        key = kernels, trained[segment[first]], results, inputs
        parts_backward = found.get(key)
        if parts_backward is None:
            wanted = Wanted(*(tuple(compress(count(), side)) for side in (results, inputs, key[1])))
            parts_backward = tuple([k.backward(wanted) for k in kernels if not isinstance(k, str)])
            found[key] = parts_backward
        if parts_backward:
            native[number] = parts_backward
    return native
