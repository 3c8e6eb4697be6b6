"""PyTorch by hand: the Tree-LSTM over levels of the whole minibatch."""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np
import torch
from torch.nn import functional

from baselines.levels import divide
from relatedness.trees import Tree

from .torch_common import PairsPeer, Tensor


class Pairs(PairsPeer):
    """Leaves at once, then level by level up to the roots."""

    flags = f"{PairsPeer.flags}; levels, index_select and index_add"

    def roots(self, words: Sequence[np.ndarray], trees: Sequence[Tree]) -> Tensor:  # noqa: D102
        p = self.p
        levels = divide(trees)
        starts = levels.starts
        inner, sizes = starts[-1], np.diff(starts).tolist()
        order = torch.from_numpy(np.concatenate(words)[levels.words])
        parents = torch.from_numpy(levels.parents)
        x = functional.linear(
            p["embedding.weight"][order], p["encoder.cell.i2h_weight"], p["encoder.cell.i2h_bias"]
        )
        hidden = x.shape[1] // 4
        x_inner, x_leaves = x.split([inner, len(x) - inner])
        x_forget, x_rest = x_inner.split([hidden, 3 * hidden], 1)
        h, c = self.leaves(x_leaves[:, hidden:])
        h_sum, c_sum = self.give(h, c, x_forget, parents[inner:], x.new_zeros(2, inner, hidden))
        columns = (each.split(sizes) for each in (x_forget, x_rest, h_sum, c_sum))
        below = zip(*columns, parents[:inner].split(sizes))
        above: Tuple[Tensor, ...] = ()
        for level, (forgets, rests, h_sums, c_sums, over) in reversed(list(enumerate(below))):
            if above:
                h_sums, c_sums = self.give(*above[:2], forgets, above[2], (h_sums, c_sums))
            gates = torch.addmm(rests, h_sums, p["encoder.cell.h2h_weight"].t())
            i, o, u = gates.chunk(3, 1)
            c = torch.addcmul(c_sums, i.sigmoid(), u.tanh())
            h = o.sigmoid() * c.tanh()
            above = (h, c, over - starts[level - 1]) if level else (h,)
        return above[0]

    def leaves(self, gates: Tensor) -> Tuple[Tensor, Tensor]:
        """States of nodes without children."""
        i, o, u = gates.chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def give(
        self, h: Tensor, c: Tensor, forgets: Tensor, parents: Tensor, sums: Sequence[Tensor]
    ) -> Tuple[Tensor, Tensor]:
        """Add states of children to the sums that their parents have of them."""
        weight = self.p["encoder.cell.hf_weight"]
        forget = torch.addmm(forgets.index_select(0, parents), h, weight.t()).sigmoid()
        h_sum, c_sum = sums
        return h_sum.index_add(0, parents, h), c_sum.index_add(0, parents, forget * c)
