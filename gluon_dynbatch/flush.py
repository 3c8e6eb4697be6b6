"""One flush: choose a setting, plan, run, and hand the values out."""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from .auto import Account, Costs, costs_of, is_recorded
from .cache import PlanCache
from .debug import compare, run_alone
from .errors import NotMergedError, Where
from .kernel.kernels import SegmentKernels
from .lower.expand import expand, find_weights
from .lower.graph import check_graph
from .lower.segment import Segment
from .native.recording import in_graph, keep, untrack
from .options import Options
from .plan.check import check_plan, check_transposed
from .plan.make import Outside, make_plan
from .plan.plan import Plan
from .record.lazy import LazyNDArray
from .record.tape import Tape
from .record.types import TYPES
from .report import Alone, FlushReport
from .run.backward import GradientTape
from .run.chain import Chain, find_heads
from .run.dispatch import Dispatcher
from .run.execute import Execution
from .run.gradient import forget
from .run.keep import Kept, find_spots
from .run.prepare import Prepared
from .schedule import analyze, arrange, check_groups
from .trace.entry import Library
from .unmerged import find_unmerged


class Runtime:
    """What a process learns and keeps: traced calls, segments, plans, and what things cost."""

    def __init__(self) -> None:
        self.library = Library()
        self.dispatcher = Dispatcher()
        self.plans = PlanCache()
        #: Is told what scopes do, and of each launch as it runs; see `explain.py`.
        self.observer: Any = None
        #: Visits per millisecond of the last analysis.
        self.rate: Optional[float] = None
        #: Counts calls of ``hybridize``, which may change what blocks ask of scopes.
        self.hybridized = 0


class Planned(NamedTuple):
    """A plan, and what was made from it for the heads seen so far."""

    plan: Plan
    #: Per segment what runs it natively, None if MXNet's operators do.
    kernels: Dict[Segment, Optional[SegmentKernels]]
    #: Heads and what is trained, with the code of both directions: the last ones only.
    prepared: List[Tuple[Any, Prepared]]
    #: Whether a backward pass may follow.
    recorded: bool
    #: What is reported of all flushes with this plan, with the number of a call for its line.
    report: FlushReport
    costs: Costs
    #: Whether the budget sufficed to look at every unit; else the next time may do better.
    analysed: bool

    @property
    def bytes(self) -> int:
        """About what the plan takes in memory, with one for the backward pass of the same size."""
        graph = self.plan.graph
        parts = (self.plan, self.plan.reads, graph, graph.dependencies)
        held = [array for part in parts for array in part]
        return 2 * sum(array.nbytes for array in held if isinstance(array, np.ndarray))


class Flush:
    """Computes one recording."""

    def __init__(
        self,
        runtime: Runtime,
        options: Options,
        recording: Tape,
        account: Optional[Account],
        chain: Chain,
    ):
        self._runtime, self._options, self._recording = runtime, options, recording
        self._account, self._chain = account, chain

    def run(self, waiting: int) -> Tuple[Plan, Optional[Plan], Kept, FlushReport]:
        """Do everything; afterwards all lazy arrays that are still held are computed.

        Parameters
        ----------
        waiting : int
            Samples that wait for it.

        Returns
        -------
        tuple
            Its plan, and that of its backward pass if gradients may be asked for; the arenas, where
            arrays stay; what happened.
        """
        recording = self._recording
        started = time.perf_counter()
        lazies = recording.held()
        planned, cached = self._planned(self._options.settled())
        analysed = time.perf_counter()
        self._refuse_if_strict(planned.report.alone)
        key, prepared = self._prepared(planned, lazies)
        # What stands for a kept array may become real as launches run.
        routes = {} if prepared.heads is None else self._chain.routes(recording)
        execution, tape = self._execute(planned, prepared)
        # Only what is whole is kept.  One set of heads per plan is the rule; others must not fill
        # memory.
        planned.prepared[:] = [(key, prepared)]
        plan, size = planned.plan, planned.report.arena_bytes
        kept = Kept(execution.arenas, execution.given, planned.recorded, size)
        keep(lazies, kept, plan.graph.value_term, plan.arena_of, plan.element_of)
        if tape is not None:
            self._chain.add(tape, kept, routes)
        finished = time.perf_counter()
        report = planned.report._replace(
            cached=cached,
            alone=self._told(planned.report.alone),
            split=self._told(planned.report.split),
            recording_ms=1e3 * (started - (recording.started or started)),
            analysis_ms=1e3 * (analysed - started),
            dispatch_ms=1e3 * (finished - analysed),
            waiting=waiting,
        )
        if self._account is not None:
            self._account.note(planned.costs, cached)
        return plan, None if tape is None else tape.plan, kept, report

    def _planned(self, choice: Options) -> Tuple[Planned, bool]:
        recording = self._recording
        weights = find_weights(recording)
        fingerprint = (
            *choice[: Options._fields.index("strict")],
            self._runtime.dispatcher.native,
            bytes(recording.node_entry),
            bytes(recording.sources),
            bytes(recording.offsets),
            bytes(recording.value_type),
            bytes(recording.external_values),
            weights,
        )
        plans = self._runtime.plans
        known = plans.find(fingerprint)
        planned = known or self._make_plan(choice, weights)
        if known is None and planned.analysed:
            plans.keep(fingerprint, planned, planned.bytes)
            untrack(planned)
        return planned, known is not None

    def _make_plan(self, choice: Options, weights: Tuple[int, ...]) -> Planned:
        recording, runtime = self._recording, self._runtime
        graph = expand(
            *(recording, choice.granularity, weights),
            lambda segment: runtime.dispatcher.kernels(segment) is not None,
        )
        if self._options.debug:
            check_graph(graph)
        analysis = analyze(graph.dependencies, choice.policy, choice.analysis_budget, runtime.rate)
        if analysis.milliseconds > 0 and analysis.visits:
            runtime.rate = analysis.visits / analysis.milliseconds
        groups = arrange(analysis.groups, graph.dependencies.rows, self._options.max_rows)
        if self._options.debug:
            check_groups(graph.dependencies, groups)
        outside = Outside(*TYPES.columns(recording.external_type), TYPES.kinds)
        plan = make_plan(graph, groups, outside)
        analysed = analysis.visits >= graph.dependencies.size
        kernels = runtime.dispatcher.natives(plan)
        alone, split = find_unmerged(plan, list(recording.entries.values()), choice.granularity)
        report = FlushReport(
            nodes=len(recording.node_entry),
            units=graph.dependencies.size,
            widths=tuple(np.diff(plan.members.first).tolist()),
            granularity=choice.granularity,
            policy=choice.policy,
            budget=str(choice.analysis_budget),
            cached=False,
            alone=alone,
            rows_gathered=plan.rows_gathered,
            arena_bytes=plan.arena_bytes,
            **dict.fromkeys(("recording_ms", "analysis_ms", "dispatch_ms"), 0.0),
            split=split,
        )
        costs = costs_of(recording, plan, kernels)
        return Planned(plan, kernels, [], is_recorded(recording), report, costs, analysed)

    def _refuse_if_strict(self, alone: Tuple[Alone, ...]) -> None:
        if self._options.strict and alone:
            name, reason, calls, node = alone[0]
            raise NotMergedError(
                f"{calls} calls were not merged: {reason}",
                self._where(node),
                name,
                "open the scope with strict=False to run them one by one",
            )

    def _told(self, found: Tuple[Alone, ...]) -> Tuple[Alone, ...]:
        return tuple(one._replace(where=self._where(one.where)) for one in found)

    def _where(self, node: int) -> Where:
        """Return the line that recorded a node."""
        return self._recording.wheres[node].where

    def _prepared(self, planned: Planned, lazies: List[LazyNDArray]) -> Tuple[Any, Prepared]:
        """Return what names the arrays held, and the plan made ready for their gradients."""
        plan, key, heads = planned.plan, None, None
        if planned.recorded:
            spots = find_spots([lazy for lazy in lazies if lazy._uncut is None])
            trained = [p.grad_req for segment in plan.graph.segments for p in segment.parameters]
            marks = in_graph(self._recording.externals)
            key = [column.tobytes() for column in spots], trained, marks
        known = next((made for own, made in planned.prepared if own == key), None)
        if known is None:
            if key is not None:
                marks = np.frombuffer(marks, dtype=bool)
                heads = find_heads(plan, spots, marks)
            known = Prepared(plan, heads, planned.kernels)
        return key, known

    def _execute(
        self, planned: Planned, known: Prepared
    ) -> Tuple[Execution, Optional[GradientTape]]:
        plan, externals = planned.plan, self._recording.externals
        forget()
        tape = None if known.heads is None else GradientTape(plan, known, externals)
        runtime = self._runtime
        watch = runtime.observer and runtime.observer.flushes(self._recording, plan.graph)
        if self._options.debug:
            check_plan(plan)
            if tape is not None:
                check_transposed(plan, tape.heads, tape.plan)
            alone = run_alone(self._recording, runtime.dispatcher)
        execution = Execution(
            plan,
            externals,
            runtime.dispatcher,
            self._where,
            known.forward,
            tape,
            watch,
        )
        execution.run()
        if self._options.debug:
            compare(self._recording, alone, execution)
        if tape is not None:
            tape.finish()
        return execution, tape
