"""Grouping by agenda: again and again, launch all ready units of one signature.

The graph is consumed from its sources.  Whatever signature is chosen, all of its ready units are
launched together, for leaving some behind cannot save a launch.  The policies differ only in the
choice, a `Priority`:

* `AverageDepth` is DyNet's (Neubig, Goldberg, Dyer 2017, arXiv:1705.07860, section 3.2): the
  signature whose unlaunched units lie least deep on average, as the others are likely to become
  wider yet.
* `TopFirst` follows the idea of ED-Batch (Chen et al. 2023, arXiv:2302.03851): a launch is no
  waste if it is as wide as that signature's dependencies allow.  Here that is measured with the
  lower bound of `bound.py`: the launch makes the bound of what is left smaller by one if and only
  if every unit that starts a longest path of its signature is ready.
* `FixedOrder` takes one number per signature, for experiments and search.

    a0 -> b1 -> b2 -> c3        by depth: {a0, a4}, {b1}, {c5}, {b2}, {c3}
    a4 -> c5                    by agenda: {a0, a4}, {b1}, {b2}, {c3, c5}
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from gluon_dynbatch.analysis.depth import unit_depth
from gluon_dynbatch.analysis.frontier import Array, Frontier, Ints
from gluon_dynbatch.graph import UnitGraph


class Priority:
    """The choice of the next signature; the base class knows nothing and prefers small ids.

    `release` and `launch` tell what happens; `value` is asked for a signature after each of its
    changes while it has ready units.  The lowest value is launched, of equal ones the lowest id.
    """

    def release(self, signature: int, units: Ints) -> None:
        """Take note that `units` of `signature` have become ready."""

    def launch(self, signature: int, units: Ints) -> None:
        """Take note that `units`, all ready ones of `signature`, have been launched."""

    def value(self, signature: int) -> float:
        """Say how urgent `signature` is; lower is sooner."""
        return 0.0


class FixedOrder(Priority):
    """One number per signature that never changes.

    Parameters
    ----------
    values : numpy.ndarray of float, shape (signatures,)
        Lower is sooner.
    """

    def __init__(self, values: Array) -> None:
        self._values = values

    def value(self, signature: int) -> float:
        """Return the number given for `signature`."""
        return float(self._values[signature])


class AverageDepth(Priority):
    """The mean depth of the unlaunched units of a signature.

    Parameters
    ----------
    graph : UnitGraph
        The graph that is going to be consumed.
    depth : numpy.ndarray of int32, shape (units,)
        What `unit_depth` returns for it.
    """

    def __init__(self, graph: UnitGraph, depth: Ints) -> None:
        self._depth = depth
        self._left = np.bincount(graph.signature).tolist()
        self._sum = np.bincount(graph.signature, weights=depth).tolist()

    def launch(self, signature: int, units: Ints) -> None:
        """Leave `units` out of the mean from now on."""
        self._left[signature] -= len(units)
        self._sum[signature] -= float(self._depth[units].sum())

    def value(self, signature: int) -> float:
        """Return the mean; `signature` has units left."""
        return float(self._sum[signature] / self._left[signature])


class TopFirst(Priority):
    """How many of the units that start a longest path of their signature are not ready yet.

    Zero if the launch certainly brings the lower bound of the rest down by one.  Ties are decided
    by another priority, whose values are made small against the steps of this one.

    Parameters
    ----------
    graph : UnitGraph
        The graph that is going to be consumed.
    heights : numpy.ndarray of int32, shape (units,)
        What `signature_heights` returns for it.
    tie : Priority
        Decides between equal shares.
    scale : float
        Larger than any value of `tie`.
    """

    def __init__(self, graph: UnitGraph, heights: Ints, tie: Priority, scale: float) -> None:
        self._heights = heights
        self._tie = tie
        self._scale = scale * 1e3
        top = np.zeros(int(graph.signature.max(initial=-1)) + 1, np.int64)
        order = np.argsort(heights, kind="stable")
        top[graph.signature[order]] = heights[order]
        self._top = top.tolist()
        starts = np.zeros(len(top) + 1, np.int64)
        np.cumsum(top + 1, out=starts[1:])
        self._starts = starts.tolist()
        # Two tables, indexed by signature and height: units not launched yet, and those ready.
        keys = starts[graph.signature] + heights
        self._left = np.bincount(keys, minlength=int(starts[-1]))
        self._ready = np.zeros(int(starts[-1]), np.int64)

    def release(self, signature: int, units: Ints) -> None:
        """Count `units` as ready."""
        start, end = self._starts[signature], self._starts[signature + 1]
        self._ready[start:end] += np.bincount(self._heights[units], minlength=end - start)
        self._tie.release(signature, units)

    def launch(self, signature: int, units: Ints) -> None:
        """Forget `units`, and lower the top if none of it is left."""
        start, end = self._starts[signature], self._starts[signature + 1]
        self._left[start:end] -= self._ready[start:end]
        self._ready[start:end] = 0
        top = self._top[signature]
        while top and not self._left[start + top]:
            top -= 1
        self._top[signature] = top
        self._tie.launch(signature, units)

    def value(self, signature: int) -> float:
        """Return the share of top units that are not ready, then the value of the tie-breaker."""
        place = self._starts[signature] + self._top[signature]
        missing = 1.0 - self._ready[place] / self._left[place]
        return float(missing + self._tie.value(signature) / self._scale)


class Noisy(Priority):
    """Another priority with a random number added every time that it is asked.

    Parameters
    ----------
    base : Priority
        What to disturb.
    rng : numpy.random.Generator
        Draws the numbers, so a seed repeats the choices.
    size : float
        The numbers are uniform from zero to this.
    """

    def __init__(self, base: Priority, rng: np.random.Generator, size: float) -> None:
        self._base = base
        self._rng = rng
        self._size = size

    def release(self, signature: int, units: Ints) -> None:
        """Pass it on."""
        self._base.release(signature, units)

    def launch(self, signature: int, units: Ints) -> None:
        """Pass it on."""
        self._base.launch(signature, units)

    def value(self, signature: int) -> float:
        """Return the disturbed value."""
        return self._base.value(signature) + self._size * self._rng.random()


def group_by_agenda(
    graph: UnitGraph,
    score: Priority | None = None,
    limit: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Ints | None:
    """Launch all ready units of the signature with the lowest priority value until none is left.

    Parameters
    ----------
    graph : UnitGraph
        What to group.
    score : Priority, optional
        The choice; `AverageDepth` by default.  It is used up by the call.
    limit : int, optional
        Give up as soon as it is certain that this many launches are not undercut.
    stop : callable, optional
        Asked before each launch whether to give up.

    Returns
    -------
    numpy.ndarray of int32, shape (units,), or None
        Groups in the order of the launches; ``None`` if given up.
    """
    priority = AverageDepth(graph, unit_depth(graph)) if score is None else score
    agenda = _Agenda(graph, priority)
    groups = np.empty(graph.size, np.int32)
    launches = 0
    while agenda.unfinished:
        # Every signature that still has units needs one more launch at least.
        if limit is not None and launches + agenda.unfinished >= limit:
            return None
        if stop is not None and stop():
            return None
        groups[agenda.launch_next()] = launches
        launches += 1
    return groups


class _Agenda:
    """The ready units of each signature, and what the priority says about them."""

    def __init__(self, graph: UnitGraph, priority: Priority) -> None:
        self._signature = graph.signature
        self._frontier = Frontier(graph)
        self._priority = priority
        self._left = np.bincount(graph.signature).tolist()
        self._ready: dict[int, list[Ints]] = {}
        self._values = np.full(len(self._left), np.inf)
        self.unfinished = sum(1 for left in self._left if left)
        self._add(self._frontier.sources)

    def launch_next(self) -> Ints:
        """Choose a signature, launch its ready units and return them."""
        signature = int(self._values.argmin())
        waiting = self._ready.pop(signature)
        units = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        self._values[signature] = np.inf
        self._left[signature] -= len(units)
        self.unfinished -= not self._left[signature]
        self._priority.launch(signature, units)
        self._add(self._frontier.launch(units))
        return units

    def _add(self, units: Ints) -> None:
        """Sort newly ready units into the agenda."""
        if not len(units):
            return
        signatures = self._signature[units]
        if len(units) > 1:
            order = np.argsort(signatures, kind="stable")
            units, signatures = units[order], signatures[order]
            cuts = (np.flatnonzero(signatures[1:] != signatures[:-1]) + 1).tolist()
        else:
            cuts = []
        for start, end in zip([0] + cuts, cuts + [len(units)]):
            signature, part = int(signatures[start]), units[start:end]
            self._ready.setdefault(signature, []).append(part)
            self._priority.release(signature, part)
            self._values[signature] = self._priority.value(signature)
