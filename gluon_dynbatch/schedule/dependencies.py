"""What was recorded, and what the analyzer sees of it: flat arrays whose positions are the ids."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: An array of integers or booleans.
Array = NDArray[Any]


class Dependencies(NamedTuple):
    """The dependency graph of one flush at one granularity.

    A *unit* is what is placed into a launch as a whole: a recorded call (granularity ``block``), a
    segment of one (``operator``) or everything one sample did (``graph``).  Units are numbered in a
    topological order, so a predecessor has a smaller number than its successors.

    Attributes
    ----------
    signature : numpy.ndarray of int32, shape (units,)
        Two units may share a launch if and only if their signature ids are equal and neither
        depends on the other.
    offsets : numpy.ndarray of int64, shape (units + 1,)
        Unit ``u`` depends on the units ``preds[offsets[u]:offsets[u + 1]]``.
    preds : numpy.ndarray of int32, shape (edges,)
        Predecessors; one unit may be named several times.
    rows : numpy.ndarray of int64, shape (units,)
        Rows that the unit adds to its launch, for ``max_rows``.
    """

    signature: Array
    offsets: Array
    preds: Array
    rows: Array

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.signature)


def check_graph(graph: Dependencies) -> None:
    """Raise ``AssertionError`` if `graph` is no topologically numbered DAG."""
    units = graph.size
    assert graph.offsets.shape == (units + 1,) and graph.rows.shape == (units,)
    assert graph.offsets[0] == 0 and graph.offsets[-1] == len(graph.preds)
    assert (np.diff(graph.offsets) >= 0).all()
    owners = np.repeat(np.arange(units), np.diff(graph.offsets))
    assert (graph.preds >= 0).all() and (graph.preds < owners).all(), "not topological"
    assert (graph.rows >= 0).all()


def ragged_range(counts: Array) -> Array:
    """Return 0..n-1 for each n of `counts`, one after another."""
    starts = np.cumsum(counts) - counts
    steps: Array = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    return steps
