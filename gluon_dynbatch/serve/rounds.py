"""Requests as fibers that join and leave at every flush.

In a *round*, each request under way runs until it waits for a value, and one flush computes what
they wait for.  Page 0019 of `docs/design` describes the design.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import types
from collections import deque
from typing import Any, Callable, Deque, Iterator, List, Optional, Set, Tuple

import greenlet
import mxnet as mx

from ..handle import Batch
from ..record.intercept import HOOKS
from ..record.recorder import ENDED_SCOPE
from ..samples.arguments import with_mxnet_arrays
from ..samples.fibers import Fibers
from ..samples.turns import wait_for
from .answers import Answers, Office, without_mxnet_arrays
from .clients import Mailbox, Outbox, Request
from .cohorts import Cohort, in_groups, is_of_a_flush

#: The calls that a fiber has made since a flush, and will probably make again.
CALLS = operator.attrgetter("calls")
#: Rounds after which a scope is closed, and the requests under way go on in a new one: a scope
#: keeps reports, constants, and the arenas of values that are held.
MOST_ROUNDS = 1024


class Rounds(Fibers):
    """The requests under way, as fibers of one scope after another."""

    def __init__(
        self,
        batch: Batch,
        program: Any,
        apply: Callable[[Any], Any],
        most: int,
        outbox: Outbox,
        office: Office,
    ):
        super().__init__(ENDED_SCOPE, program)
        self._scope: Any = ENDED_SCOPE
        self._batch, self._apply = batch, apply
        self._most, self._outbox, self._office = most, outbox, office
        self._common = Cohort()
        self._cohorts = [self._common]
        #: Requests that begin in this round, with their arguments.
        self._beginning: Deque[Tuple[Request, Any]] = deque()
        #: What requests yield, return and raise.
        self._answers = Answers(office, outbox, self.send, self._fail)
        #: Whether MXNet's engine may keep an error of an operator.
        self._engine_failed = False
        #: Requests to begin again in other cohorts.
        self._suspects: List[Request] = []
        #: Fibers that wait until their clients take values.
        self._blocked: Set[Any] = set()
        #: Whether streams wait for their clients.
        self.bounded = True
        #: Number of rounds in the open scope.
        self._rounds = 0
        self._flushes = self._plan_hits = 0
        #: Number of flushes of the open scope that have been counted.
        self._counted = 0

    @property
    def under_way(self) -> int:
        """Number of requests that have begun and not ended."""
        return sum([len(cohort.parked) + len(cohort.again) for cohort in self._cohorts])

    @property
    def blocked(self) -> int:
        """Number of requests that wait for their clients."""
        return sum([not self._has_room(fiber.awaits) for fiber in self._blocked])

    @property
    def room(self) -> int:
        """Number of requests that may begin in the next round."""
        return max(self._most - (self.under_way - self.blocked), 0)

    @property
    def idle(self) -> bool:
        """Whether no request under way can go on."""
        for cohort in self._cohorts:
            if cohort.again or any(map(self._can_go_on, cohort.parked)):
                return False
        return True

    def advance(self) -> None:
        """Run a round, in which some requests begin."""
        if self._scope is ENDED_SCOPE:
            HOOKS.acquire(self)
            try:
                self._batch.__enter__()
            except Exception as error:  # a wrong option in the environment
                self._refuse(error)
                return
            self._scope = self._batch.scope
            self.notes = self._scope.recorder
        self._rounds += 1
        for cohort in list(self._cohorts):
            self._advance(cohort)
        if len(self._cohorts) > 1:
            self._cohorts[1:] = [each for each in self._cohorts[1:] if each.parked or each.again]
        self._settle()

    def rest(self) -> None:
        """Undo what is kept between requests, as none has been under way for a while."""
        if self._scope is not ENDED_SCOPE:
            self._close_scope()
        super().rest()
        HOOKS.release(self)

    def leave_out(self, requests: Set[Request]) -> None:
        """End requests: they take part in no later round."""
        for cohort in self._cohorts:
            cohort.again = [request for request in cohort.again if request not in requests]
            self._end_fibers(cohort, lambda fiber: fiber.request in requests)
        self._settle()

    def send(self, everything: bool = False) -> None:
        """Send what is in the outbox; callbacks of clients are no part of the scope."""
        if self._outbox.find_due(everything):
            self._scope.unrecorded(self._outbox.send)

    def take(self) -> Any:
        """Return the next request that begins, with its argument."""
        return self._beginning.popleft() if self._beginning else self

    def run_sample(self, sample: Tuple[Request, Any]) -> None:
        """Run a request in the current fiber."""
        request, argument = sample
        fiber: Any = greenlet.getcurrent()
        fiber.request, fiber.ahead = request, False
        del fiber
        try:
            result = self._apply(argument)
            if isinstance(result, types.GeneratorType):
                result = self._run_generator(request, result)
            elif isinstance(request.client, Mailbox):
                self._pour(request.client, iter((result,)))
                result = None
            if not greenlet.getcurrent().ending:
                self._answers.returned.append((request, result))
        except BaseException as error:
            if not greenlet.getcurrent().ending:
                # Without the frame here, which would hold the sample.
                trace = error.__traceback__
                self._fail(request, error.with_traceback(trace and trace.tb_next))
        finally:
            greenlet.getcurrent().request = None

    def may_resume(self, fiber: Any) -> bool:
        """Return whether the client of a fiber took values, or whether it is its turn."""
        if not isinstance(fiber.awaits, Mailbox):
            return super().may_resume(fiber)
        if not self._has_room(fiber.awaits):
            return False
        self._blocked.discard(fiber)
        return True

    def flush(self) -> Optional[BaseException]:
        """Compute what requests wait for, and results; return the exception if this fails."""
        try:
            error = super().flush()
            if error is None and self._answers.returned:
                self._scope.flush()
        except BaseException as other:  # such as an exit in a custom operator
            return other
        return error

    def _settle(self) -> None:
        """Close the scope if it is old, or if "auto" is to decide again when requests come."""
        if self._scope is ENDED_SCOPE:
            return
        if self._rounds >= MOST_ROUNDS or self._batch.decides and not self.under_way:
            self._close_scope()

    def _advance(self, cohort: Cohort) -> None:
        """Run the requests of a cohort until each waits, flush, and answer those that ended."""
        self._cohort = cohort
        report = self._scope.report
        waited_ms, self._counted = report.waiting_ms, len(report.flushes)
        self._resume_all(cohort)
        waiting = self.waiting()
        # Before others join: what each of the two flushes computes is more often known than it
        # would be for all together.
        error = self._flush(cohort)
        requests, cohort.again = cohort.again, []
        if cohort is self._common and error is None and self._office.look():
            requests += self._office.begin(self.room)
        self._count(min(waiting, self._most) + len(requests))
        # Clients work on these while others begin.  The first values of streams that begin do not
        # wait behind them.
        if not any(isinstance(request.client, Mailbox) for request in requests):
            self._answers.send_known()
        parked = len(self._parked)
        # While others wait.  If nobody does, requests that begin wait only for each other.
        for group in in_groups(requests) if parked else [requests]:
            if error is None and group:
                error = self._begin(cohort, group)
            else:
                cohort.again += group
        if self._parked or (report.at_once and report.waiting_ms > waited_ms):
            self._batch.decides = False  # calls that run at once cannot wait for others
        if error is not None:
            self._after_failure(cohort, error)
        elif requests and self._rounds < MOST_ROUNDS:  # a scope that closes has no calls pending
            self._resume_firsts(len(self._parked) - parked)
        if requests:
            self._count(0)
        self._answers.send_computed(error)
        self._await_engine()
        self._split_suspects()
        if not cohort.parked:
            cohort.shared = False

    def _count(self, requests: int) -> None:
        """Tell how many requests take part in this round, and what has been computed so far."""
        flushes = self._scope.report.flushes
        for flush in flushes[self._counted :]:
            self._flushes += 1
            self._plan_hits += flush.cached
        self._counted = len(flushes)
        self._office.ran(requests, self._flushes, self._plan_hits, self._outbox.values)

    def _resume_all(self, cohort: Cohort) -> None:
        """Resume the requests of a cohort that have waited, as many as may take part in a round."""
        error, cohort.error = cohort.error, None
        parked, ahead = cohort.parked, []
        if cohort.has_ahead:
            # Those that have got their first value since the last flush wait for the next one.
            cohort.has_ahead = False
            ahead = [fiber for fiber in parked if fiber.ahead]
            parked = deque([fiber for fiber in parked if not fiber.ahead])
        most = self._most - len(ahead)
        self._parked = cohort.parked = self._in_order(parked, most)
        # With an error, all: it is raised in those that waited for the flush.
        self.resume_parked(error, most if error is None else None)
        for fiber in ahead:
            fiber.ahead = False
        self._parked.extend(ahead)

    def _resume_firsts(self, count: int) -> None:
        """Resume the last `count` fibers if they are streams: their first values do not wait."""
        parked = self._parked
        for fiber in [parked.pop() for _ in range(count)][::-1]:
            client = fiber.request.client
            if isinstance(client, Mailbox) and not client.delivered and fiber.awaits is None:
                fiber.ahead = self.resume(fiber) and fiber.awaits is None
                self._cohort.has_ahead = True
            else:
                parked.append(fiber)

    def _in_order(self, parked: Deque[Any], most: int) -> Deque[Any]:
        """Return parked fibers in the order in which they are resumed.

        Those that waited longest come first, as many as may take part in a round.  Among them,
        equal calls come one after another, so a plan depends on how many make which calls, and not
        on the order in which requests have begun.
        """
        if len(parked) <= most:
            return deque(sorted(parked, key=CALLS))
        chosen = list(itertools.islice(filter(self._can_go_on, parked), most))
        first = set(chosen)
        return deque(sorted(chosen, key=CALLS) + [each for each in parked if each not in first])

    def _flush(self, cohort: Cohort) -> Optional[BaseException]:
        """Compute what requests of a cohort wait for; return the exception if this fails."""
        cohort.shared |= len(cohort.parked) + len(self._answers.returned) > 1
        return self.flush()

    def _begin(self, cohort: Cohort, requests: List[Request]) -> Optional[BaseException]:
        """Begin requests with a flush; return the exception if this fails."""
        self._scope.unrecorded(lambda: self._convert(requests))
        # No fiber starts in vain.
        self.start(len(self._parked) + len(self._beginning))
        return self._flush(cohort)

    def _convert(self, requests: List[Request]) -> None:
        """Convert the samples of requests, together; they begin next."""
        try:
            arguments = with_mxnet_arrays([request.sample for request in requests])
        except Exception as error:
            if len(requests) == 1:
                self._answers.failed.append((requests[0], error))
                return
            for request in requests:
                self._convert([request])
            return
        self._beginning.extend(zip(requests, arguments))

    def _refuse(self, error: Exception) -> None:
        """Answer all requests with an exception, as no scope can be opened."""
        requests = self._office.begin(self.room)
        for cohort in self._cohorts:
            requests += [*cohort.again, *(fiber.request for fiber in cohort.parked)]
            cohort.again = []
            self._end_fibers(cohort, lambda fiber: True)
        self._cohorts[1:] = []
        self._answers.failed += [(request, error) for request in requests]
        self._answers.send_known()
        self._settle()

    def _after_failure(self, cohort: Cohort, error: BaseException) -> None:
        """Let all requests of a cohort whose flush failed begin again, unless there is only one."""
        if not cohort.shared:
            cohort.error = error
            return
        self._suspects += [fiber.request for fiber in cohort.parked]
        self._end_fibers(cohort, lambda fiber: True)

    def _fail(self, request: Request, error: BaseException) -> None:
        """Note that a request raised an exception, of which another one may be the cause."""
        if not is_of_a_flush(error):
            self._answers.failed.append((request, error))
            return
        self._engine_failed = True
        if self._cohort.shared:
            self._suspects.append(request)
        else:
            self._answers.failed.append((request, error))

    def _await_engine(self) -> None:
        """Take an error that MXNet's engine may keep: the next wait would raise it."""
        if self._engine_failed:
            self._engine_failed = False
            with contextlib.suppress(mx.MXNetError):
                self._scope.unrecorded(mx.nd.waitall)

    def _split_suspects(self) -> None:
        if not self._suspects:
            return
        suspects, self._suspects = self._suspects, []
        suspects = [request for request in suspects if not request.gone]
        half = (len(suspects) + 1) // 2
        self._cohorts += [Cohort(part) for part in (suspects[:half], suspects[half:]) if part]

    def _end_fibers(self, cohort: Cohort, chosen: Callable[[Any], bool]) -> None:
        """End the chosen fibers: their ``finally`` clauses run, and they get no more values."""
        self._cohort, self._parked = cohort, cohort.parked
        for _ in range(len(cohort.parked)):
            fiber = cohort.parked.popleft()
            if not chosen(fiber):
                cohort.parked.append(fiber)
                continue
            self._blocked.discard(fiber)
            fiber.ending = True
            self.resume(fiber, greenlet.GreenletExit())

    def _run_generator(self, request: Request, generator: Any) -> Any:
        """Put what a generator yields into the stream of its request, or else into a list."""
        if not isinstance(request.client, Mailbox):
            return list(generator)
        try:
            self._pour(request.client, generator)
        finally:
            generator.close()
        return None

    def _pour(self, mailbox: Mailbox, values: Iterator[Any]) -> None:
        """Put values into a stream, and wait for room whenever it is full."""
        for _ in itertools.islice(values, mailbox.delivered):
            pass  # it has got these before its request began again
        while self._outbox.pour(mailbox, values, without_mxnet_arrays):
            while not self._has_room(mailbox):
                mailbox.blocked = True  # from here on, the client tells if it makes room
                self._blocked.add(greenlet.getcurrent())
                wait_for(mailbox)
            mailbox.blocked = False

    def _can_go_on(self, fiber: Any) -> bool:
        if isinstance(fiber.awaits, Mailbox):
            return self._has_room(fiber.awaits)
        return fiber.awaits is None or fiber.view is self.views[0]

    def _has_room(self, mailbox: Mailbox) -> bool:
        return not self.bounded or mailbox.has_room()

    def _close_scope(self) -> None:
        """Close the scope: values that requests still hold become plain arrays."""
        self._scope, self._rounds, self.notes = ENDED_SCOPE, 0, None
        # Only calls of requests that have been ended are pending, those in ``finally`` clauses.
        with contextlib.suppress(Exception):
            self._batch.__exit__(None, None, None)
