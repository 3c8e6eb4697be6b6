"""Requests that have ended in a round: their results as NumPy arrays, or what they raised."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, List, Optional, Tuple

import mxnet as mx

from . import errors
from .clients import Outbox, Request
from .native import recording

#: Errors of a flush, raised in every request that waits for it: another one may be at fault.
FLUSH_ERRORS = (errors.LaunchError, errors.NotMergedError, errors.StaleArrayError)
#: Requests that have ended, each with its result or exception.
Ended = List[Tuple[Request, Any]]


class Answers:
    """What the requests of a round have come to, until they are answered.

    `answer` takes requests that have ended; what is for streams is in `outbox`.
    """

    def __init__(self, answer: Callable[[Ended], None], outbox: Outbox):
        self._answer, self._outbox = answer, outbox
        #: Requests that returned, with their results, and those that failed.
        self.returned: Ended = []
        self.failed: List[Tuple[Request, BaseException]] = []
        #: Requests to begin again, as one of them may have made a flush fail.
        self.suspects: List[Request] = []
        #: Whether MXNet's engine may keep an error of an operator.
        self._engine_failed = False

    def fail(self, request: Request, error: BaseException, shared: bool) -> None:
        """Note that a request raised an exception.

        If it shares its flushes with others, one of these may be the cause.
        """
        if not _is_of_a_flush(error):
            self.failed.append((request, error))
            return
        self._engine_failed = True
        if shared:
            self.suspects.append(request)
        else:
            self.failed.append((request, error))

    def give(self, scope: Any, error: Optional[BaseException], shared: bool) -> None:
        """Answer requests that ended in this round; their values have been handed to the engine.

        Takes the exception of the flush if it failed, and whether requests have shared it.
        """
        returned, self.returned = self.returned, []
        pending: List[Tuple[Request, Any, List[Any]]] = []
        answers: Ended = []
        for request, result in returned:
            try:
                # All objects but lists, tuples and dictionaries are leaves.
                leaves, spec = recording.flatten(result, object)
            except Exception as nested:
                self.fail(request, nested, shared)
                continue
            if any(isinstance(leaf, mx.nd.NDArray) for leaf in leaves):
                pending.append((request, spec, leaves))
            else:
                answers.append((request, result))
            del result, leaves
        returned.clear()
        # Clients work on these while the engine computes.
        self.send(scope, answers)
        while pending:
            request, spec, leaves = pending.pop(0)
            try:
                answers.append((request, recording.unflatten(spec, with_numpy_arrays(leaves))))
            except Exception as failure:
                is_stale = isinstance(failure, errors.StaleArrayError)
                cause = error if is_stale and error is not None else failure
                self.fail(request, cause, shared)
        if self._engine_failed:
            self._engine_failed = False
            with contextlib.suppress(mx.MXNetError):
                # Otherwise the next wait would raise a pending error of the engine.
                scope.unrecorded(mx.nd.waitall)
        self.send(scope, answers)

    def send(self, scope: Any, answers: Ended) -> None:
        """Answer requests, those that failed as well; wake streams that have got values.

        Callbacks of clients are no part of the scope.
        """
        answers += self.failed
        self.failed.clear()
        if answers:
            self._answer(answers)
            answers.clear()
        scope.unrecorded(self._outbox.send)

    def halves(self) -> List[List[Request]]:
        """Take the requests that are to begin again, in two parts that share no flush."""
        suspects, self.suspects = self.suspects, []
        suspects = [request for request in suspects if not request.gone]
        half = (len(suspects) + 1) // 2
        return [part for part in (suspects[:half], suspects[half:]) if part]


def _is_of_a_flush(error: BaseException) -> bool:
    """Return whether an exception is an error for which another request may be at fault."""
    if isinstance(error, errors.DynBatchError):
        return isinstance(error, FLUSH_ERRORS)
    return isinstance(error, mx.MXNetError)


def with_numpy_arrays(leaves: List[Any]) -> List[Any]:
    """Replace MXNet arrays by NumPy arrays that own their memory."""
    return [x.asnumpy() if isinstance(x, mx.nd.NDArray) else x for x in leaves]
