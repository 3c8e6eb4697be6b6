"""Which requests share flushes."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, Iterable, List, Optional

import mxnet as mx

from .. import errors
from ..samples.arguments import shapes_of
from .clients import Request

#: Of requests that begin together: as many flushes take about the time of a plan for all of them.
MOST_GROUPS = 4
#: Errors of a flush, raised in every request that waits for it: another one may be at fault.
FLUSH_ERRORS = (errors.LaunchError, errors.NotMergedError, errors.StaleArrayError)


class Cohort:
    """Requests that share flushes.

    All share one, until a flush fails.  Then each half of its requests begins again in a cohort of
    its own, until the request at fault is alone.
    """

    def __init__(self, again: Iterable[Request] = ()):
        #: Requests that are to begin.
        self.again = list(again)
        #: Fibers that wait, as `Fibers._parked`.
        self.parked: Deque[Any] = deque()
        #: Whether some of them may have got their first value since the last flush.
        self.has_ahead = False
        #: Why the last flush failed, to be raised in the only request.
        self.error: Optional[BaseException] = None
        #: Whether several requests have shared a flush, and not all have ended.
        self.shared = False


def in_groups(requests: List[Request]) -> List[List[Request]]:
    """Return requests in groups, each with arrays of equal shapes, or in one if these are many.

    What a group computes depends on its number of requests, and is soon known.  But each needs a
    flush, and the first values of all wait for them.
    """
    groups: Dict[Any, List[Request]] = {}
    for request in requests:
        groups.setdefault(shapes_of(request.sample), []).append(request)
    return list(groups.values()) if len(groups) <= MOST_GROUPS else [requests]


def is_of_a_flush(error: BaseException) -> bool:
    """Return whether an exception is an error for which another request may be at fault."""
    if isinstance(error, errors.DynBatchError):
        return isinstance(error, FLUSH_ERRORS)
    return isinstance(error, mx.MXNetError)
