"""One flush: plan the recorded calls, or find their plan in the cache, and run it."""

from __future__ import annotations

import time
import zlib
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np

from .auto import Account, Costs, costs_of, is_recorded
from .cache import SizedCache
from .debug import compare, run_alone
from .errors import NotMergedError, Where
from .lower.expand import expand, find_weights
from .lower.graph import check_graph
from .native.recording import in_graph, keep, untrack
from .options import Options
from .plan.check import check_plan, check_transposed
from .plan.make import Externals, make_plan
from .plan.plan import Plan
from .record.lazy import LazyNDArray
from .record.tape import Tape
from .record.types import TYPES
from .report import Alone, FlushReport
from .run.backward import GradientTape
from .run.chain import Chain, find_heads
from .run.dispatch import Dispatcher
from .run.execute import Execution
from .run.flight import FLIGHT
from .run.gradient import forget
from .run.keep import Kept, find_spots
from .run.prepare import Prepared
from .schedule import analyze, arrange, check_groups
from .trace.entry import Library
from .unmerged import find_unmerged


class Runtime:
    """State of the process that outlives scopes: traced calls, compiled segments, and plans."""

    def __init__(self) -> None:
        self.library = Library()
        self.dispatcher = Dispatcher()
        self.plans = SizedCache()
        #: Called for each scope, flush and launch, if set; see `observe.py`.
        self.observer: Any = None
        #: Visits per millisecond in the last analysis.
        self.rate: Optional[float] = None
        #: Number of calls of ``hybridize``, which may change the options that blocks ask for.
        self.hybridized = 0


class Fingerprint:
    """All that a plan depends on: a finished tape, and `options`.

    Its hash leaves most of it out: few minibatches are equal, and fewer make the same calls.
    """

    def __init__(self, tape: Tape, options: Tuple[Any, ...]):
        arrays = tape.sources, tape.offsets, tape.value_type, tape.external_values
        self._parts = options, tape.node_entry, *arrays
        self._hash = hash((options, zlib.crc32(tape.node_entry)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._parts == other._parts


class Planned(NamedTuple):
    """An entry of the plan cache: a plan, and what flushes with this plan share."""

    plan: Plan
    #: The code of both directions, with the key of its heads: at most one pair.
    prepared: List[Tuple[Any, Prepared]]
    #: Whether a backward pass may follow.
    recorded: bool
    #: The report without times, and with the numbers of calls instead of their lines.
    report: FlushReport
    costs: Costs

    @property
    def bytes(self) -> int:
        """Estimated size; the plan of the backward pass is about as large as the plan itself."""
        graph = self.plan.graph
        parts = (self.plan, self.plan.reads, graph, graph.dependencies)
        fields = [field for part in parts for field in part]
        return 2 * sum(field.nbytes for field in fields if isinstance(field, np.ndarray))


class Flush(NamedTuple):
    """Computes the calls of one tape."""

    runtime: Runtime
    options: Options
    recording: Tape
    account: Optional[Account]
    chain: Chain

    def run(self, waiting: int) -> Tuple[Plan, Optional[Plan], Kept, FlushReport]:
        """Plan and launch the recorded calls; all lazy arrays still referenced get their values.

        Takes the number of samples that wait for this flush.  Returns the plan, the plan of the
        backward pass (None without gradients), the arenas with the values, and the report.
        """
        recording = self.recording
        started = begun = time.perf_counter()
        if self.runtime.observer is not None:
            self.runtime.observer.settle(recording)
            begun = time.perf_counter()
        lazies = recording.held()
        planned, cached = self._find_plan(self.options.resolved())
        analysed = time.perf_counter()
        self._refuse_if_strict(planned.report.alone)
        key, prepared = self._prepare(planned, lazies)
        waited = FLIGHT.make_room()
        # Found before the launches run, which may replace lazy external arrays by real ones.
        routes = {} if prepared.heads is None else self.chain.routes(recording)
        execution, tape = self._execute(planned, prepared)
        # Kept only now that its backward code is complete.  Most plans are used with one set of
        # heads, so the code for just one is kept, to save memory.
        planned.prepared[:] = [(key, prepared)]
        plan, size = planned.plan, planned.report.arena_bytes
        kept = Kept(execution.arenas, execution.bases, planned.recorded, size)
        keep(lazies, kept, plan.graph.value_term, *plan[-2:], plan.regions)
        if tape is not None:
            self.chain.add(tape, kept, routes)
        finished = time.perf_counter()
        report = planned.report._replace(
            cached=cached,
            alone=self._with_lines(planned.report.alone),
            split=self._with_lines(planned.report.split),
            recording_ms=1e3 * (started - (recording.started or started)),
            analysis_ms=1e3 * (analysed - begun),
            dispatch_ms=1e3 * (finished - analysed - waited),
            queue_ms=1e3 * waited,
            waiting=waiting,
        )
        if self.account is not None:
            self.account.note(planned.costs, cached)
        return plan, None if tape is None else tape.plan, kept, report

    def _find_plan(self, settings: Options) -> Tuple[Planned, bool]:
        """Return the plan of the tape, and whether it comes from the cache."""
        recording = self.recording
        weights = find_weights(recording)
        options = settings[: Options._fields.index("strict")], self.runtime.dispatcher.native
        fingerprint = Fingerprint(recording, (*options, weights))
        plans = self.runtime.plans
        cached = plans.find(fingerprint)
        if cached is not None:
            return cached, True
        planned, is_final = self._make_plan(settings, weights)
        if is_final:
            plans.keep(fingerprint, planned, planned.bytes)
            untrack(planned)
        return planned, False

    def _make_plan(self, settings: Options, weights: Tuple[int, ...]) -> Tuple[Planned, bool]:
        """Return a new plan, and whether it is final and worth keeping."""
        recording, runtime = self.recording, self.runtime
        graph = expand(
            recording,
            settings.granularity,
            weights,
            lambda segment: not isinstance(runtime.dispatcher.kernels(segment), str),
        )
        if self.options.debug:
            check_graph(graph)
        analysis = analyze(
            graph.dependencies, settings.policy, settings.analysis_budget, runtime.rate
        )
        if analysis.milliseconds > 0 and analysis.visits:
            runtime.rate = analysis.visits / analysis.milliseconds
        groups = arrange(analysis.groups, graph.dependencies.rows, self.options.max_rows)
        if self.options.debug:
            check_groups(graph.dependencies, groups)
        outside = Externals(*TYPES.columns(recording.external_type), TYPES.kinds)
        kernels = tuple(map(runtime.dispatcher.kernels, graph.segments))
        plan = make_plan(graph, groups, outside, kernels)
        alone, split = find_unmerged(plan, list(recording.entries.values()), settings.granularity)
        report = FlushReport(
            nodes=len(recording.node_entry),
            units=graph.dependencies.size,
            widths=tuple(np.diff(plan.members.first).tolist()),
            granularity=settings.granularity,
            policy=settings.policy,
            budget=str(settings.analysis_budget),
            alone=alone,
            rows_gathered=plan.rows_gathered,
            arena_bytes=plan.arena_bytes,
            split=split,
        )
        costs = costs_of(recording, plan)
        planned = Planned(plan, [], is_recorded(recording), report, costs)
        # If not every unit was visited, another analysis may do better.
        return planned, analysis.visits >= graph.dependencies.size

    def _refuse_if_strict(self, alone: Tuple[Alone, ...]) -> None:
        if self.options.strict and alone:
            name, reason, calls, node = alone[0]
            raise NotMergedError(
                f"{calls} calls were not merged: {reason}",
                self._line_of(node),
                name,
                "open the scope with strict=False to run them one by one",
            )

    def _with_lines(self, unmerged: Tuple[Alone, ...]) -> Tuple[Alone, ...]:
        """Replace the numbers of calls by the lines that recorded them."""
        return tuple(calls._replace(where=self._line_of(calls.where)) for calls in unmerged)

    def _line_of(self, node: int) -> Where:
        return self.recording.places[node].where

    def _prepare(self, planned: Planned, lazies: List[LazyNDArray]) -> Tuple[Any, Prepared]:
        """Return the code of both directions for the arrays still referenced, after its key."""
        plan, key, heads = planned.plan, None, None
        if planned.recorded:
            spots = find_spots([lazy for lazy in lazies if lazy._detached_from is None])
            trained = [p.grad_req for segment in plan.graph.segments for p in segment.parameters]
            marks = in_graph(self.recording.externals)
            key = [column.tobytes() for column in spots], trained, marks
        for known_key, prepared in planned.prepared:
            if known_key == key:
                return key, prepared
        if key is not None:
            heads = find_heads(plan, spots, np.frombuffer(marks, dtype=bool))
        return key, Prepared(plan, heads)

    def _execute(
        self, planned: Planned, prepared: Prepared
    ) -> Tuple[Execution, Optional[GradientTape]]:
        plan, externals, runtime = planned.plan, self.recording.externals, self.runtime
        forget()
        tape = None if prepared.heads is None else GradientTape(plan, prepared, externals)
        watch = runtime.observer and runtime.observer.begin_flush(self.recording, plan.graph)
        if self.options.debug:
            check_plan(plan)
            if tape is not None:
                check_transposed(plan, tape.heads, tape.plan)
            alone = run_alone(self.recording, runtime.dispatcher)
        execution = Execution(
            plan, externals, runtime.dispatcher, self._line_of, prepared.forward, tape, watch
        )
        execution.run()
        FLIGHT.launched(execution.bases)
        if self.options.debug:
            compare(self.recording, alone, execution)
        return execution, tape
