"""DyNet: the binary Tree-LSTM, written for one tree and batched by DyNet."""

from __future__ import annotations

from typing import Any, Iterator, List

import dynet as dy
import numpy as np

from .child import Minibatch
from .dynet_common import DynetPeer, rows
from .task import Sample, Task


class Trees(DynetPeer):
    """Node by node; the states of all phrases of a minibatch are joined to be scored."""

    def __init__(self, task: Task) -> None:
        parameters = dict(task.parameters)
        # A matrix for each part saves to concatenate states.
        left, right = np.split(parameters.pop("join.gates.weight"), 2, axis=1)
        super().__init__(task._replace(parameters={**parameters, "left": left, "right": right}))

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        return sample["words"], list(zip(sample["left"], sample["right"])), sample["labels"]

    def loss(self, batch: Minibatch) -> dy.Expression:  # noqa: D102
        words = [word for sample in batch for word in sample[0]]
        leaves = self.inputs(words, self.p["leaf.gates.bias"], self.p["leaf.gates.weight"])
        states = [h for _, parts, _ in batch for h in self.states(parts, leaves)]
        labels = [label for sample in batch for label in sample[2]]
        weights = [1 / (len(s[2]) * len(batch)) for s in batch for _ in s[2]]
        scores = dy.affine_transform(
            [self.p["score.bias"], self.p["score.weight"], dy.concatenate_to_batch(states)]
        )
        losses = dy.pickneglogsoftmax_batch(scores, labels)
        return dy.sum_batches(dy.cmult(losses, dy.inputTensor(np.array([weights]), batched=True)))

    def states(self, parts: List[Any], leaves: Iterator[dy.Expression]) -> List[dy.Expression]:
        """States h of all phrases of a tree; takes the gates of its words from `leaves`."""
        p = self.p
        h: List[Any] = []
        c: List[Any] = []
        for left, right in parts:
            if left < 0:
                i, o, u = rows(next(leaves), 3)
                c.append(dy.cmult(dy.logistic(i), dy.tanh(u)))
            else:
                terms = [p["join.gates.bias"], p["left"], h[left], p["right"], h[right]]
                i, f_left, f_right, o, u = rows(dy.affine_transform(terms), 5)
                made = dy.cmult(dy.logistic(i), dy.tanh(u))
                kept = dy.cmult(dy.logistic(f_left), c[left])
                c.append(made + kept + dy.cmult(dy.logistic(f_right), c[right]))
            h.append(dy.cmult(dy.logistic(o), dy.tanh(c[-1])))
        return h
