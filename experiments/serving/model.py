"""A model of the decoder's service: how its times follow from what a round costs.

A round of n requests takes ``round + n * request``, and each request that begins ``begin``.
"""

from typing import NamedTuple

import numpy as np

from .decoder import LENGTHS, arrivals

#: Limit on the requests of a round, and seconds of arrivals at each rate.
MOST, SECONDS, SEEDS = 64, 20, 3


class Costs(NamedTuple):
    """What a service spends, in seconds."""

    round: float
    request: float
    begin: float

    def alone(self, words):
        """Return the time of a request that is alone."""
        return self.begin + words * (self.round + self.request)


def simulate(costs, requests, joins):
    """Return the times of requests, which join at every round, or when none is under way."""
    times, under_way, now, number = [], [], 0.0, 0
    while number < len(requests) or under_way:
        if not under_way:
            now = max(now, requests[number].due)
        if joins or not under_way:
            before = number
            while (
                number < len(requests)
                and requests[number].due <= now
                and len(under_way) + number - before < MOST
            ):
                number += 1
            under_way += [[request.words, request.due] for request in requests[before:number]]
            now += costs.begin * (number - before)
        now += costs.round + costs.request * len(under_way)
        for each in under_way:
            each[0] -= 1
        times += [now - due for left, due in under_way if not left]
        under_way = [each for each in under_way if each[0]]
    return times


def p99_of(costs, rate, joins):
    """Return the 99th percentile of the times of a load, as the median of some loads."""
    loads = [simulate(costs, arrivals(rate, SECONDS, seed), joins) for seed in range(SEEDS)]
    return float(np.median([np.percentile(times, 99) for times in loads]))


def highest_rate(costs, limit, joins):
    """Return the highest rate at which the 99th percentile is at most a limit; 0 if none is."""
    low, high = 1.0, 1 / (np.mean(LENGTHS) * costs.request + costs.begin)
    if p99_of(costs, low, joins) > limit:
        return 0.0
    while high > 1.02 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if p99_of(costs, middle, joins) <= limit else (low, middle)
    return low


def tell_limits(costs, multiples, tell=print):
    """Tell the words/s of both ways at limits that are multiples of the longest request alone."""
    longest = costs.alone(LENGTHS[1])
    for multiple in multiples:
        rates = [highest_rate(costs, multiple * longest, joins) for joins in (True, False)]
        words = [rate * np.mean(LENGTHS) for rate in rates]
        tell(f"words/s with a p99 of {multiple * longest:.3f} s ({multiple} times the longest): "
             f"continuous {words[0]:,.0f}, to its end {words[1]:,.0f}")  # fmt: skip
