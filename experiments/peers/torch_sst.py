"""PyTorch by hand: the binary Tree-LSTM over levels of the whole minibatch."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch
from torch.nn import functional

from baselines.levels import steps_up

from .child import Minibatch
from .task import Sample
from .torch_common import Tensor, TorchPeer


class Plan(NamedTuple):
    """Nodes of a minibatch: inner ones by distance from their root, then leaves by the same.

    Attributes
    ----------
    order : np.ndarray
        The number of each in the order of the trees, where nodes come after those below them.
    inner, leaves : list of int
        How many there are at each distance.
    parts : list of np.ndarray
        For each distance, left and right child of each inner node, one after the other, as numbers
        among the inner nodes at the next distance and then the leaves there. Shape (2 * inner,).
    """

    order: np.ndarray
    inner: List[int]
    leaves: List[int]
    parts: List[np.ndarray]


def plan(parents: np.ndarray, left: np.ndarray, right: np.ndarray) -> Plan:
    """Plan a minibatch; roots have -1 as parent, leaves as children. Shape (nodes,), each."""
    depths = steps_up(parents, np.arange(len(parents)))
    is_leaf = left < 0
    order = np.lexsort((depths, is_leaf))
    count = depths.max() + 1
    inner = np.bincount(depths[~is_leaf], minlength=count)
    leaves = np.bincount(depths[is_leaf], minlength=count)
    # Inner nodes at their distance come first there, then leaves.
    starts = np.concatenate([np.cumsum(inner) - inner, np.cumsum(leaves) - leaves + inner.sum()])
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    number -= starts[depths + count * is_leaf]
    number += np.where(is_leaf, inner[depths], 0)
    nodes = order[: inner.sum()]
    pairs = number[np.stack([left[nodes], right[nodes]], 1)]
    parts = [each.reshape(-1) for each in np.split(pairs, np.cumsum(inner)[:-1])]
    return Plan(order, inner.tolist(), leaves.tolist(), parts)


class Trees(TorchPeer):
    """Leaves at once, then level by level up to the roots."""

    flags = f"{TorchPeer.flags}; levels, index_select"

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        left, right, labels = (np.array(sample[n]) for n in ("left", "right", "labels"))
        words = np.full(len(left), -1)
        words[left < 0] = sample["words"]
        parents = np.full(len(left), -1)
        for side in (left, right):
            parents[side[side >= 0]] = np.flatnonzero(side >= 0)
        return words, parents, left, right, labels

    def loss(self, batch: Minibatch) -> Tensor:  # noqa: D102
        sizes = np.array([len(sample[0]) for sample in batch])
        words, *nodes, labels = map(np.concatenate, zip(*batch))
        offsets = np.repeat(np.cumsum(sizes) - sizes, sizes)
        order, inner, leaves, parts = plan(*(np.where(n < 0, -1, n + offsets) for n in nodes))
        h = self.states(words[order[sum(inner) :]], inner, leaves, parts)
        scores = functional.linear(h, self.p["score.weight"], self.p["score.bias"])
        losses = functional.cross_entropy(scores, torch.from_numpy(labels[order]), reduction="none")
        weights = np.repeat(1 / (sizes * len(sizes)), sizes).astype(np.float32)
        return losses @ torch.from_numpy(weights[order])

    def states(
        self, words: np.ndarray, inner: List[int], leaves: List[int], parts: List[np.ndarray]
    ) -> Tensor:
        """States h of all nodes in the order of the plan."""
        p = self.p
        vectors = p["embedding.weight"][torch.from_numpy(words)]
        i, o, u = functional.linear(vectors, p["leaf.gates.weight"], p["leaf.gates.bias"]).chunk(
            3, 1
        )
        c = i.sigmoid() * u.tanh()
        h = o.sigmoid() * c.tanh()
        ends = list(zip(h.split(leaves), c.split(leaves)))
        states = [ends[-1]]  # the deepest nodes are leaves
        done = [h]
        for level in range(len(inner) - 2, -1, -1):
            h, c = self.join(states, torch.from_numpy(parts[level]))
            done.append(h)
            states = [(h, c), ends[level]]
        return torch.cat(done[::-1])

    def join(self, states: Sequence[Tuple[Tensor, Tensor]], parts: Tensor) -> Tuple[Tensor, Tensor]:
        """States of inner nodes from those of their parts, by numbers among all these states."""
        h, c = (torch.cat(each).index_select(0, parts) for each in zip(*states))
        pairs = len(parts) // 2
        gates = functional.linear(
            h.view(pairs, -1), self.p["join.gates.weight"], self.p["join.gates.bias"]
        )
        i, forgets, o, u = gates.split([n * h.shape[1] for n in (1, 2, 1, 1)], 1)
        kept = (forgets.sigmoid() * c.view(pairs, -1)).view(pairs, 2, -1).sum(1)
        c = torch.addcmul(kept, i.sigmoid(), u.tanh())
        return o.sigmoid() * c.tanh(), c
