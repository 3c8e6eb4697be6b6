"""DyNet: the binary Tree-LSTM, written for one tree and batched by DyNet."""

from __future__ import annotations

from typing import Any, List

import numpy as np

from .child import Minibatch
from .dynet_common import DynetPeer, dy, rows
from .task import Sample


class Trees(DynetPeer):
    """Node by node; the states of all phrases of a minibatch are joined to be scored."""

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        return sample["words"], list(zip(sample["left"], sample["right"])), sample["labels"]

    def loss(self, batch: Minibatch) -> dy.Expression:  # noqa: D102
        states = [h for words, parts, _ in batch for h in self.states(words, parts)]
        labels = [label for sample in batch for label in sample[2]]
        weights = [1 / (len(s[2]) * len(batch)) for s in batch for _ in s[2]]
        scores = dy.affine_transform(
            [self.p["score.bias"], self.p["score.weight"], dy.concatenate_to_batch(states)]
        )
        losses = dy.pickneglogsoftmax_batch(scores, labels)
        return dy.sum_batches(dy.cmult(losses, dy.inputTensor(np.array([weights]), batched=True)))

    def states(self, words: List[int], parts: List[Any]) -> List[dy.Expression]:
        """States h of all phrases of a tree."""
        p = self.p
        left_words = iter(words)
        h: List[Any] = []
        c: List[Any] = []
        for left, right in parts:
            if left < 0:
                x = self.vector(next(left_words))
                gates = dy.affine_transform([p["leaf.gates.bias"], p["leaf.gates.weight"], x])
                i, o, u = rows(gates, 3)
                c.append(dy.cmult(dy.logistic(i), dy.tanh(u)))
            else:
                x = dy.concatenate([h[left], h[right]])
                gates = dy.affine_transform([p["join.gates.bias"], p["join.gates.weight"], x])
                i, f_left, f_right, o, u = rows(gates, 5)
                made = dy.cmult(dy.logistic(i), dy.tanh(u))
                kept = [
                    dy.cmult(dy.logistic(f), c[k]) for f, k in ((f_left, left), (f_right, right))
                ]
                c.append(dy.esum([made, *kept]))
            h.append(dy.cmult(dy.logistic(o), dy.tanh(c[-1])))
        return h
