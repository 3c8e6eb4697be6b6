"""Which units become ready when others are launched: the one step that all policies repeat.

The step is vectorised over the units of a launch.  A launch of a handful of units would pay more
for starting a dozen NumPy calls than for the work, so those go through memory views of the same
arrays; this keeps graphs that are deep and narrow linear with a small constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gluon_dynbatch.native import PLANNING
from gluon_dynbatch.schedule.dependencies import Dependencies

Ints = NDArray[np.int32]
Array = NDArray[Any]

NARROW = 8
"""Up to this many units, a loop over them is quicker than NumPy."""


def successors(graph: Dependencies) -> tuple[Array, Ints]:
    """Turn the predecessor lists of `graph` around.

    Returns
    -------
    offsets : numpy.ndarray of int64, shape (units + 1,)
        The units ``succs[offsets[u]:offsets[u + 1]]`` depend on unit ``u``.
    succs : numpy.ndarray of int32, shape (edges,)
        Successors in ascending order, repeated as often as they name the unit.
    """
    units = graph.size
    offsets = np.zeros(units + 1, np.int64)
    if PLANNING is not None:
        succs = np.empty(len(graph.preds), np.int32)
        PLANNING.successors(graph.offsets, graph.preds, offsets, succs)
        return offsets, succs
    owners = np.repeat(np.arange(units, dtype=np.int32), np.diff(graph.offsets))
    # Recording order nearly sorts the predecessors, and a stable sort makes use of that.
    succs = owners[np.argsort(graph.preds, kind="stable")]
    np.cumsum(np.bincount(graph.preds, minlength=units), out=offsets[1:])
    return offsets, succs


def reverse(graph: Dependencies) -> Dependencies:
    """Turn every dependency of `graph` around.

    Unit ``u`` becomes unit ``size - 1 - u``, which keeps the numbering topological.  A grouping of
    the result, read backwards, is a grouping of `graph`; `unreverse` reads it so.
    """
    offsets, succs = successors(graph)
    return Dependencies(
        signature=np.ascontiguousarray(graph.signature[::-1]),
        offsets=np.ascontiguousarray(offsets[-1] - offsets[::-1]),
        preds=np.ascontiguousarray(graph.size - 1 - succs[::-1]).astype(np.int32, copy=False),
        rows=np.ascontiguousarray(graph.rows[::-1]),
    )


def unreverse(groups: Ints) -> Ints:
    """Turn a grouping of ``reverse(graph)`` into the grouping of ``graph`` that it stands for."""
    return np.ascontiguousarray(groups.max(initial=-1) - groups[::-1])


def spans(starts: Array, lengths: Array) -> Array:
    """Concatenate ``arange(start, start + length)`` over all pairs."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Array = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return places


class Frontier:
    """The units whose predecessors have all been launched, as launches go on.

    Parameters
    ----------
    graph : Dependencies
        The dependencies; not changed.
    """

    def __init__(self, graph: Dependencies) -> None:
        self._offsets, self._succs = successors(graph)
        self._fan_out = np.diff(self._offsets)
        self._waiting = np.diff(graph.offsets).astype(np.int32)
        self.sources = np.flatnonzero(self._waiting == 0).astype(np.int32)
        self._views = self._offsets.data, self._succs.data, self._waiting.data

    def launch(self, units: Ints) -> Ints:
        """Launch `units`, which must be ready, and return those that this made ready.

        Parameters
        ----------
        units : numpy.ndarray of int32, shape (launched,)
            Ready units, each named once.

        Returns
        -------
        numpy.ndarray of int32, shape (released,)
            In ascending order if there are many.
        """
        if len(units) <= NARROW:
            return self._launch_few(units)
        lengths = self._fan_out[units]
        reached: Ints = self._succs[spans(self._offsets[units], lengths)]
        if not len(reached):
            return reached
        reached.sort()
        first = np.empty(len(reached), bool)
        first[0] = True
        np.not_equal(reached[1:], reached[:-1], out=first[1:])
        bounds = np.append(np.flatnonzero(first), len(reached))
        unique = reached[bounds[:-1]]
        left = self._waiting[unique] - (bounds[1:] - bounds[:-1])
        self._waiting[unique] = left
        released: Ints = unique[left == 0]
        return released

    def _launch_few(self, units: Ints) -> Ints:
        """Do the same by a loop over `units`."""
        offsets, succs, waiting = self._views
        released = []
        for unit in units.tolist():
            for edge in range(offsets[unit], offsets[unit + 1]):
                successor = succs[edge]
                left = waiting[successor] - 1
                waiting[successor] = left
                if not left:
                    released.append(successor)
        return np.array(released, np.int32)
