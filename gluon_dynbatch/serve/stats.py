"""What a batcher tells of its requests."""

from __future__ import annotations

import math
from typing import Dict, NamedTuple, Tuple


class BatcherStats(NamedTuple):
    """Counts and times of a `RequestBatcher` since it was created.

    Attributes
    ----------
    queued, running, blocked : int
        Requests in the queue, requests that are under way, and those of them that wait for the
        clients of their streams.
    completed, failed, cancelled, timed_out : int
        Requests that ended with a result, with an exception, because their client went away, or
        because of their ``timeout_s``.
    rejected : int
        Requests that were refused because the queue was full.
    run_s : float
        Total run time of all rounds, in seconds.  In a round, requests run until they have ended
        or wait for a value, and these values are computed.
    latency_s : float
        Total time from submission to result of all requests, in seconds.
    latencies_s : tuple of float
        Latencies of the last 1,024 requests, in seconds.
    batch_sizes : dict of int to int
        Number of rounds for each number of requests.
    flushes, plan_hits : int
        Number of flushes, and of those whose plan was known.
    values : int
        Number of values of all streams.
    """

    queued: int
    running: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    run_s: float
    latency_s: float
    latencies_s: Tuple[float, ...]
    batch_sizes: Dict[int, int]
    blocked: int = 0
    timed_out: int = 0
    flushes: int = 0
    plan_hits: int = 0
    values: int = 0

    def latency_percentile(self, percent: float) -> float:
        """Return a percentile of the last latencies, in seconds; NaN if there are none.

        Parameters
        ----------
        percent : float
            From 0 to 100.
        """
        ranked = sorted(self.latencies_s)
        return ranked[max(math.ceil(percent / 100 * len(ranked)), 1) - 1] if ranked else math.nan
