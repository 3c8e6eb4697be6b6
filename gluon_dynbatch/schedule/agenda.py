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

    a0 -> b1 -> b2 -> c3        by depth: {a0, a4}, {b1}, {c5}, {b2}, {c3}
    a4 -> c5                    by agenda: {a0, a4}, {b1}, {b2}, {c3, c5}

These two run in native code, which reads and updates their tables; any other is asked in Python.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gluon_dynbatch.native import PLANNING
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.depth import unit_depth
from gluon_dynbatch.schedule.frontier import Array, Frontier, Ints, successors
from gluon_dynbatch.schedule.heights import largest_heights


class Tables(NamedTuple):
    """What the native agenda has instead of a `Priority`; of each launched unit it is taken off.

    Attributes
    ----------
    depth, heights : numpy.ndarray of int32, shape (units,)
        What `unit_depth` and `signature_heights` return.
    starts : numpy.ndarray of int32, shape (signatures,)
        Where the heights of a signature begin in the tables by signature and height.
    scale : numpy.ndarray of float64, shape (1,)
        What the average depth is divided by to decide ties only; 0 if it alone decides.
    left, top : numpy.ndarray of int32, shape (signatures,)
        Units not launched yet, and the largest height of one.
    left_at, ready_at : numpy.ndarray of int32
        By signature and height: units not launched yet, and those ready.
    depth_left : numpy.ndarray of int64, shape (signatures,)
        Sum of the depths of the units not launched yet.
    """

    depth: Ints
    heights: Ints
    starts: Ints
    scale: Array
    left: Ints
    top: Ints
    left_at: Ints
    ready_at: Ints
    depth_left: Array


class Priority:
    """The choice of the next signature; the base class knows nothing and prefers small ids.

    `release` and `launch` tell what happens; `value` is asked for a signature after each of its
    changes while it has ready units.  The lowest value is launched, of equal ones the lowest id.
    """

    tables: Tables | None = None
    """For the native agenda; without, it is asked in Python."""

    def release(self, signature: int, units: Ints) -> None:
        """Take note that `units` of `signature` have become ready."""

    def launch(self, signature: int, units: Ints) -> None:
        """Take note that `units`, all ready ones of `signature`, have been launched."""

    def value(self, signature: int) -> float:
        """Say how urgent `signature` is; lower is sooner."""
        return 0.0


class AverageDepth(Priority):
    """The mean depth of the unlaunched units of a signature.

    Parameters
    ----------
    graph : Dependencies
        The graph that is going to be consumed.
    depth : numpy.ndarray of int32, shape (units,)
        What `unit_depth` returns for it.
    """

    def __init__(self, graph: Dependencies, depth: Ints) -> None:
        self.tables: Tables = _tables(graph, depth, np.zeros(graph.size, np.int32), 0.0)

    def launch(self, signature: int, units: Ints) -> None:
        """Leave `units` out of the mean from now on."""
        self.tables.left[signature] -= len(units)
        self.tables.depth_left[signature] -= self.tables.depth[units].sum()

    def value(self, signature: int) -> float:
        """Return the mean; `signature` has units left."""
        return float(self.tables.depth_left[signature] / self.tables.left[signature])


class TopFirst(AverageDepth):
    """How many of the units that start a longest path of their signature are not ready yet.

    Zero if the launch certainly brings the lower bound of the rest down by one.  Ties are decided
    by the average depth, made small against the steps of these shares.

    Parameters
    ----------
    graph : Dependencies
        The graph that is going to be consumed.
    depth, heights : numpy.ndarray of int32, shape (units,)
        What `unit_depth` and `signature_heights` return for it.
    """

    def __init__(self, graph: Dependencies, depth: Ints, heights: Ints) -> None:
        self.tables = _tables(graph, depth, heights, (float(depth.max(initial=0)) + 1) * 1e3)

    def release(self, signature: int, units: Ints) -> None:
        """Count `units` as ready."""
        np.add.at(self.tables.ready_at, self._places(signature, units), 1)

    def launch(self, signature: int, units: Ints) -> None:
        """Forget `units`, and lower the top if none of it is left."""
        super().launch(signature, units)
        tables, places = self.tables, self._places(signature, units)
        np.subtract.at(tables.left_at, places, 1)
        np.subtract.at(tables.ready_at, places, 1)
        while tables.top[signature] and not tables.left_at[self._top(signature)]:
            tables.top[signature] -= 1

    def value(self, signature: int) -> float:
        """Return the share of top units that are not ready, then their average depth."""
        tables, top = self.tables, self._top(signature)
        missing = 1.0 - tables.ready_at[top] / tables.left_at[top]
        return float(missing + super().value(signature) / tables.scale[0])

    def _places(self, signature: int, units: Ints) -> Array:
        """Return where units of `signature` are counted by height."""
        places: Array = self.tables.starts[signature] + self.tables.heights[units]
        return places

    def _top(self, signature: int) -> int:
        """Return where the units of the largest height are counted."""
        return int(self.tables.starts[signature] + self.tables.top[signature])


def _tables(graph: Dependencies, depth: Ints, heights: Ints, scale: float) -> Tables:
    """Fill in what is known before anything is ready."""
    left = np.bincount(graph.signature)
    top = largest_heights(graph, heights)
    starts = np.zeros(len(left) + 1, np.int64)
    np.cumsum(top + 1, out=starts[1:])
    places = starts[graph.signature] + heights
    left_at = np.bincount(places, minlength=int(starts[-1])).astype(np.int32)
    return Tables(
        depth,
        heights,
        starts[:-1].astype(np.int32),
        np.array([scale]),
        left.astype(np.int32),
        top.astype(np.int32),
        left_at,
        np.zeros_like(left_at),
        np.bincount(graph.signature, weights=depth).astype(np.int64),
    )


def agenda_cost(graph: Dependencies, launches: int) -> int:
    """Estimate the visits that `group_by_agenda` is worth if it makes so many launches."""
    signatures = int(graph.signature.max(initial=-1)) + 1
    return 3 * graph.size + len(graph.preds) + launches * (10 + signatures // 10)


def group_by_agenda(
    graph: Dependencies, score: Priority | None = None, limit: int | None = None
) -> Ints | None:
    """Launch all ready units of the signature with the lowest priority value until none is left.

    Parameters
    ----------
    graph : Dependencies
        What to group.
    score : Priority, optional
        The choice; `AverageDepth` by default.  It is used up by the call.
    limit : int, optional
        Give up as soon as it is certain that this many launches are not undercut.

    Returns
    -------
    numpy.ndarray of int32, shape (units,), or None
        Groups in the order of the launches; ``None`` if given up.
    """
    priority = AverageDepth(graph, unit_depth(graph)) if score is None else score
    most = graph.size + 1 if limit is None else limit
    if PLANNING is not None and priority.tables is not None:
        return _group_natively(graph, priority.tables, most)
    agenda = _Agenda(graph, priority)
    groups = np.empty(graph.size, np.int32)
    launches = 0
    while agenda.unfinished:
        # Every signature that still has units needs one more launch at least.
        if launches + agenda.unfinished >= most:
            return None
        groups[agenda.launch_next()] = launches
        launches += 1
    return groups


def _group_natively(graph: Dependencies, tables: Tables, limit: int) -> Ints | None:
    """Do what `_Agenda` does."""
    # One array holds for each unit how many others it waits for, and after its launch the group.
    groups = np.diff(graph.offsets).astype(np.int32)
    first_ready = np.full(len(tables.left), -1, np.int32)
    next_ready = np.empty(graph.size, np.int32)
    values = np.empty(len(tables.left))
    done = PLANNING.agenda(
        *successors(graph), graph.signature, *tables[:4], np.array([limit]), *tables[4:],
        first_ready, next_ready, values, groups,
    )  # fmt: skip
    return groups if done else None


class _Agenda:
    """The ready units of each signature, and what the priority says about them."""

    def __init__(self, graph: Dependencies, priority: Priority) -> None:
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
