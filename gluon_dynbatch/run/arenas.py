"""The arenas of a plan in memory, and the arrays that MXNet's operators read and write there."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.ndarray import NDArray

from ..native.recording import part
from ..plan.launch import Region, Rows
from ..plan.plan import Plan
from .buffers import view, write_pieces
from .pool import POOL, Pool


class Arenas:
    """The arenas of a plan in memory.

    They come from `POOL`, because the flush allocates them; temporary buffers come from `pool`.
    """

    def __init__(self, plan: Plan, pool: Pool = POOL):
        self.plan, self.pool = plan, pool
        self.arrays = [
            POOL.take((rows, arena.row_size), arena.dtype, arena.context)
            for arena, rows in zip(plan.arenas, plan.sizes)
        ]

    def region(self, region: Region) -> NDArray:
        """Return a view of the rows of `region`."""
        return part(self.arrays[region.arena], region.start, region.start + region.rows)

    def operand(self, operand: Any, dtype: str, context: mx.Context) -> NDArray:
        """Return an operand that MXNet's operators read from arenas."""
        if not isinstance(operand, Rows):
            shape = operand.rows, operand.row_size
            return view(self.arrays[operand.arena], operand.element, shape)
        array = self.pool.take((operand.rows, operand.row_size), dtype, context)
        pieces = self.plan.pieces[operand.first :][: operand.pieces]
        write_pieces(array, self.arrays, pieces, b"r")
        return array
