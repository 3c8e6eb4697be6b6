"""One flush: plan the recorded calls, or find their plan in the cache, and run it."""

from __future__ import annotations

import time
import zlib
from array import array as Places
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Protocol, Tuple, Union, cast

import numpy as np

from .auto import Account, Costs, costs_of, is_recorded
from .cache import SizedCache
from .debug import compare, run_alone
from .errors import NotMergedError
from .lower.expand import expand, find_weights
from .lower.graph import Graph, check_graph
from .native import lowering, planning
from .native.recording import Shelf, in_graph, keep, places_of, regions_held, untrack
from .options import Options
from .plan.check import check_plan, check_transposed
from .plan.make import Externals, make_plan
from .plan.plan import Plan
from .plan.transpose import Heads, recorded_segments
from .record.lazy_base import Lazy
from .record.state import ThreadScope
from .record.tape import Tape
from .record.types import TYPES
from .report.advice import remedy
from .report.findings import Finding
from .report.summary import FlushReport
from .run.backward import BackwardPass
from .run.buffers import Arenas
from .run.chain import Chain
from .run.dispatch import Dispatcher
from .run.engine import FLIGHT
from .run.execute import Execution, LaunchWatch, execute
from .run.gradient import forget
from .run.keep import Kept
from .run.operators import OperatorTape
from .run.prepare import Draft, Latest, Prepared, complete, find_gathered, prepare
from .schedule import analyze, arrange, check_groups
from .trace.entry import Entry, Library
from .unmerged import Unplaced, at_lines, find_unmerged

#: Bytes that plans may take at first; and at most, if minibatches repeat in turns.
PLAN_BYTES, MOST_PLAN_BYTES = 64 << 20, 512 << 20


#: Bytes of the arenas of a flush that the thread which waits for it may run itself.
SMALL_BYTES = 1 << 20

#: Bytes of a plan besides its arrays, without and with a backward pass.
OBJECT_BYTES = 16 << 10, 32 << 10


class ScopeWatch(Protocol):
    """What is told of each scope, flush and launch; see `explain/observe.py`."""

    def opened(self, scope: ThreadScope) -> None:
        """Note a scope that is about to be opened."""

    def time_makers(self) -> None:
        """Wrap functions of MXNet that make arrays."""

    def close(self) -> None:
        """Put them back."""

    def settle(self, tape: Tape) -> None:
        """Do what comes before the flush of a tape."""

    def begin_flush(self, tape: Tape, graph: Graph) -> LaunchWatch:
        """Return what is told of the launches of a flush."""


class Runtime:
    """State of the process that outlives scopes: traced calls, compiled segments, and plans."""

    def __init__(self) -> None:
        self.library = Library()
        self.dispatcher = Dispatcher()
        self.plans: SizedCache[Planned] = SizedCache(PLAN_BYTES, MOST_PLAN_BYTES)
        #: Called for each scope, flush and launch, if set; see `explain/observe.py`.
        self.observer: Optional[ScopeWatch] = None
        #: Visits per millisecond in the last analysis.
        self.rate: Optional[float] = None
        #: Number of calls of ``hybridize``, which may change the options that blocks ask for.
        self.hybridized = 0


class Fingerprint:
    """All that a plan depends on: a finished tape, and `options`.

    Its hash leaves most of it out: few minibatches are equal, and fewer make the same calls.
    """

    #: The hash depends on one of so many operands.
    SAMPLED = 16

    def __init__(self, tape: Tape, options: Tuple[Any, ...]):
        arrays = tape.sources, tape.offsets, tape.value_type, tape.external_values
        self._parts = options, tape.node_entry, *arrays
        sources = zlib.crc32(tape.sources[:: self.SAMPLED])
        self._hash = hash((options, zlib.crc32(tape.node_entry), sources))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._parts == other._parts


class Planned(NamedTuple):
    """An entry of the plan cache: a plan, and what flushes with this plan share."""

    plan: Plan
    programs: Latest
    #: Whether a backward pass may follow.
    recorded: bool
    #: Fields of the report, and the findings, which lack their lines.
    report: Dict[str, Any]
    unmerged: Tuple[Unplaced, ...]
    costs: Costs
    #: The regions of rows that are gathered from tables.
    gathered: FrozenSet[int]
    #: Bytes of an element, per arena; of all arenas; and arenas of earlier flushes.
    itemsizes: List[int]
    arena_bytes: int
    shelf: Shelf

    def unread(self, lazies: List[Lazy]) -> FrozenSet[int]:
        """Return the regions of gathered rows in which there are no lazy arrays."""
        if not self.gathered:
            return self.gathered
        plan = self.plan
        return self.gathered - regions_held(lazies, plan.graph.value_term, plan.region_of)

    @property
    def bytes(self) -> int:
        """Estimated size of arrays, programs and other objects."""
        graph = self.plan.graph
        parts = (self.plan, self.plan.reads, self.plan.members, graph, graph.dependencies)
        fields = [field for part in parts for field in part]
        arrays = sum(field.nbytes for field in fields if isinstance(field, np.ndarray))
        return OBJECT_BYTES[self.recorded] + 5 * arrays // 4


def flush(
    runtime: Runtime,
    options: Options,
    tape: Tape,
    account: Optional[Account],
    chain: Chain,
    waiting: int,
    awaited: bool,
) -> Tuple[Plan, Optional[Plan], Kept, FlushReport]:
    """Compute the calls of a tape; all lazy arrays still referenced get their values.

    Takes the number of samples that wait for this flush, and whether the calling thread waits for
    the values.  Returns the plan, the plan of the
    backward pass (None without gradients), the arenas with the values, and the report.
    """
    started = begun = time.perf_counter()
    if runtime.observer is not None:
        runtime.observer.settle(tape)
        begun = time.perf_counter()
    lazies = tape.held()
    planned, cached = find_plan(runtime, options, tape)
    analysed = time.perf_counter()
    found = at_lines(planned.unmerged, tape.place)
    if options.strict:
        _refuse_unmerged(found)
    backward, kept, waited = _run(runtime, options, tape, planned, lazies, chain, awaited)
    finished = time.perf_counter()
    report = FlushReport(
        **planned.report,
        cached=cached,
        findings=found,
        recording_ms=1e3 * (started - (tape.started or started)),
        analysis_ms=1e3 * (analysed - begun),
        dispatch_ms=1e3 * (finished - analysed - waited),
        queue_ms=1e3 * waited,
        waiting=waiting,
    )
    if account is not None:
        account.note(planned.costs, cached)
    return planned.plan, None if backward is None else backward.plan, kept, report


def find_plan(runtime: Runtime, options: Options, tape: Tape) -> Tuple[Planned, bool]:
    """Return the plan of a tape, and whether it comes from the cache."""
    weights, settings = find_weights(tape), options.resolved()
    chosen = settings.analysis_budget, settings.granularity, settings.policy, settings.max_rows
    fingerprint = Fingerprint(tape, (*chosen, runtime.dispatcher.kernels.native, weights))
    cached = runtime.plans.find(fingerprint)
    if cached is not None:
        return cached, True
    planned, is_final = _plan(runtime, settings, tape, weights)
    if is_final:
        runtime.plans.keep(fingerprint, planned, planned.bytes)
        untrack(planned)
    return planned, False


def _plan(
    runtime: Runtime, settings: Options, tape: Tape, weights: Tuple[int, ...]
) -> Tuple[Planned, bool]:
    """Return a new plan, and whether it is final and worth keeping."""
    kernels_of = runtime.dispatcher.kernels
    graph = expand(
        *(tape, settings.granularity, weights),
        lambda segment: not isinstance(kernels_of(segment), str),
    )
    if settings.debug:
        check_graph(graph)
    analysis = analyze(graph.dependencies, settings.policy, settings.analysis_budget, runtime.rate)
    if analysis.milliseconds > 0 and analysis.visits:
        runtime.rate = analysis.visits / analysis.milliseconds
    groups = arrange(analysis.groups, graph.dependencies.rows, settings.max_rows)
    if settings.debug:
        check_groups(graph.dependencies, groups)
    outside = Externals(*TYPES.columns(tape.external_type), TYPES.kinds)
    plan = make_plan(graph, groups, outside, kernels_of.of(graph.segments))
    entries = cast("Dict[int, Entry]", tape.entries)
    unmerged = find_unmerged(plan, list(entries.values()), settings.granularity)
    report = dict(
        nodes=len(tape.node_entry),
        units=graph.dependencies.size,
        widths=tuple(np.diff(plan.members.first).tolist()),
        granularity=settings.granularity,
        policy=settings.policy,
        budget=str(settings.analysis_budget),
        rows_gathered=plan.rows_gathered,
        arena_bytes=plan.arena_bytes,
    )
    costs = costs_of(tape, plan)
    planned = Planned(
        plan=plan,
        programs=Latest(),
        recorded=is_recorded(tape),
        report=report,
        unmerged=unmerged,
        costs=costs,
        gathered=find_gathered(plan),
        itemsizes=[np.dtype(arena.dtype).itemsize for arena in plan.arenas],
        arena_bytes=plan.arena_bytes,
        shelf=Shelf(plan.arena_bytes),
    )
    # If not every unit was visited, another analysis may do better.
    return planned, analysis.visits >= graph.dependencies.size


def _refuse_unmerged(found: Tuple[Finding, ...]) -> None:
    for first in found:
        if first.kind == "chain":  # the program needs these one after another
            continue
        what, instead, so = "were not merged", remedy(first.reason), "one by one"
        if first.kind == "split":
            what, instead, so = "merged only in several launches", first.advice, "so"
        raise NotMergedError(
            f"{first.calls} calls {what}: {first.reason}",
            first.where,
            first.name,
            f"{instead}; or open the scope with strict=False to run them {so}",
        )


def _run(
    runtime: Runtime,
    options: Options,
    tape: Tape,
    planned: Planned,
    lazies: List[Lazy],
    chain: Chain,
    awaited: bool,
) -> Tuple[Optional[BackwardPass], Kept, float]:
    """Prepare, execute and complete a plan; the arenas become the owners of the lazy arrays.

    Returns the backward pass (None without gradients), the arenas, and the seconds for which this
    waited for earlier flushes.
    """
    plan, held = planned.plan, _find_held(tape, lazies) if planned.recorded else None
    # Checks compare all values.
    unread = frozenset() if options.debug else planned.unread(lazies)
    key = held and held.key(plan), unread
    known = planned.programs.find(key)
    if known is not None and known.forward.gathers(tape.kept):
        known = None
    programs = known or prepare(plan, held and held.heads(plan), unread, frozenset(tape.kept))
    waited = 0.0 if chain.open else FLIGHT.make_room()
    # For a new plan, this thread has more to do while the engine runs it.
    is_small = planned.arena_bytes <= SMALL_BYTES
    here = awaited and is_small and known is not None and FLIGHT.is_over
    # Found before the launches run, which may replace lazy external arrays by real ones.
    routes = {} if programs.transposed is None else chain.routes(tape)
    forget()
    operators = None if programs.transposed is None else OperatorTape(programs.transposed)
    execution = _execute(runtime, options, tape, planned, programs, operators, here)
    notice = execution.notice
    # What this thread has run is done, like all before it.
    is_done = here and notice is not None and notice.given
    if not is_done or operators is not None:
        FLIGHT.launched(execution.bases, notice, chain.open)
    if isinstance(programs, Draft):
        programs = complete(plan, programs)
        planned.programs.keep(key, programs)
    backward = None if operators is None else BackwardPass(programs, execution, operators)
    arenas, size = execution.arenas.arrays, planned.arena_bytes
    connected = None if backward is None else chain
    memory = arenas, execution.bases.handles, execution.bases.addresses, planned.itemsizes
    kept = Kept(memory, planned.shelf, notice, is_done, planned.recorded, size, connected)
    keep(lazies, kept, plan.graph.value_term, plan.region_of, plan.element_of, plan.regions)
    if backward is not None:
        chain.add(backward, kept, routes)
    return backward, kept, waited


class Held(NamedTuple):
    """What the programs of a recorded flush depend on besides its plan."""

    #: Where the arrays are that are still referenced, see `recording.places_of`.
    places: Places[int]
    #: Per external array a byte: whether it is in MXNet's graph.
    in_graph: bytes

    def key(self, plan: Plan) -> Any:
        """Return a key for the programs of a plan."""
        return self.places.tobytes(), lowering.trained_in(plan.graph.briefs), self.in_graph

    def heads(self, plan: Plan) -> Optional[Heads]:
        """Return the results of a plan at which gradients may arrive; None if there are none."""
        term, offset, size, kind = planning.find_heads(
            *(self.places, TYPES.sizes, TYPES.kind_numbers, plan.graph),
            *(recorded_segments(plan.graph), plan.region_of, plan.element_of, plan.regions),
        )
        in_graph = np.frombuffer(self.in_graph, dtype=bool)
        return Heads(term, offset, size, kind, in_graph) if term.size else None


def _find_held(tape: Tape, lazies: List[Lazy]) -> Held:
    places = places_of([lazy for lazy in lazies if lazy._detached_from is None])
    return Held(places, in_graph(tape.externals))


def _execute(
    runtime: Runtime,
    options: Options,
    tape: Tape,
    planned: Planned,
    programs: Union[Prepared, Draft],
    operators: Optional[OperatorTape],
    here: bool,
) -> Execution:
    """Push the launches of a plan to the engine, with the checks of ``debug=True``."""
    plan, observer = planned.plan, runtime.observer
    watch = None if observer is None else observer.begin_flush(tape, plan.graph)
    if options.debug:
        check_plan(plan)
        if programs.transposed is not None:
            check_transposed(plan, programs.transposed.heads, programs.transposed.plan)
        alone = run_alone(tape, runtime.dispatcher)
    execution = execute(
        *(Arenas(plan, shelf=planned.shelf), programs.forward, tape.externals, runtime.dispatcher),
        *(lambda node: tape.place(node).where, operators, watch, here),
    )
    if options.debug:
        compare(tape, alone, execution, lambda: run_alone(tape, runtime.dispatcher, rounded=True))
    return execution
