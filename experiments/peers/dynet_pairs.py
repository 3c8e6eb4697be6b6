"""DyNet: the relatedness model, written for one pair of sentences and batched by DyNet."""

from __future__ import annotations

import math
from typing import Any, List, Tuple

import numpy as np

from relatedness.trees import Tree

from .child import Minibatch
from .dynet_common import DynetPeer, dy, rows
from .task import Sample, Task

State = Tuple[dy.Expression, dy.Expression]


class Pairs(DynetPeer):
    """The Tree-LSTM node by node; roots of a minibatch are joined for the head."""

    def __init__(self, task: Task) -> None:
        # Only nodes with children need the forget gate's part.
        parameters = dict(task.parameters)
        for name in ("weight", "bias"):
            value = parameters.pop(f"encoder.cell.i2h_{name}")
            parts = np.split(value, [len(value) // 4])
            parameters[f"forget_{name}"], parameters[f"rest_{name}"] = parts
        super().__init__(task._replace(parameters=parameters))

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        trees = list(map(Tree.from_heads, sample["heads"]))
        entropy = sum(t * math.log(t) for t in sample["target"] if t)
        return sample["words"], trees, sample["target"], entropy

    def node(self, word: int, children: List[State]) -> State:
        """States of a word from those of its children."""
        p, x = self.p, self.vector(word)
        terms = [p["rest_bias"], p["rest_weight"], x]
        if children:
            h_sum = dy.esum([h for h, _ in children]) if len(children) > 1 else children[0][0]
            terms += [p["encoder.cell.h2h_weight"], h_sum]
        i, o, u = rows(dy.affine_transform(terms), 3)
        c = dy.cmult(dy.logistic(i), dy.tanh(u))
        if children:
            x_forget = dy.affine_transform([p["forget_bias"], p["forget_weight"], x])
            gates = [x_forget + p["encoder.cell.hf_weight"] * h for h, _ in children]
            c = dy.esum([c, *(dy.cmult(dy.logistic(g), k) for g, (_, k) in zip(gates, children))])
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def root(self, words: List[int], tree: Tree) -> dy.Expression:
        """State of a sentence."""
        states: List[Any] = [None] * len(words)
        for i in tree.order:
            states[i] = self.node(words[i], [states[k] for k in tree.children[i]])
        return states[tree.root][0]

    def scores(self, batch: Minibatch) -> dy.Expression:
        """Log-probabilities of the scores, shape (CLASSES,), batched."""
        p = self.p
        left, right = (
            dy.concatenate_to_batch([self.root(s[0][side], s[1][side]) for s in batch])
            for side in (0, 1)
        )
        hidden = dy.affine_transform(
            [p["similarity.hidden_bias"], p["similarity.angle_weight"], dy.cmult(left, right),
             p["similarity.distance_weight"], dy.abs(left - right)]
        )  # fmt: skip
        return dy.log_softmax(
            dy.affine_transform(
                [p["similarity.score_bias"], p["similarity.score_weight"], dy.logistic(hidden)]
            )
        )

    def loss(self, batch: Minibatch) -> dy.Expression:  # noqa: D102
        targets = np.array([sample[2] for sample in batch]).T
        products = dy.dot_product(dy.inputTensor(targets, batched=True), self.scores(batch))
        entropy = sum(sample[3] for sample in batch)
        return (dy.sum_batches(products) - entropy) * (-1 / len(batch))

    def predict(self, batch: Minibatch) -> np.ndarray:  # noqa: D102
        dy.renew_cg()
        found: np.ndarray = self.scores(batch).npvalue()
        return found.T
