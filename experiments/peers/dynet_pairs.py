"""DyNet: the relatedness model, written for one pair of sentences and batched by DyNet."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Iterator, List, Tuple

import dynet as dy
import numpy as np

from relatedness.trees import Tree

from .child import Minibatch
from .dynet_common import DynetPeer
from .task import Sample

State = Tuple[dy.Expression, dy.Expression]


class Pairs(DynetPeer):
    """The Tree-LSTM node by node; roots of a minibatch are joined for the head."""

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        trees = list(map(Tree.from_heads, sample["heads"]))
        entropy = sum(t * math.log(t) for t in sample["target"] if t)
        return sample["words"], trees, sample["target"], entropy

    def node(self, x: dy.Expression, children: List[State]) -> State:
        """States of a word from its gates, shape (4H,), and the states of its children."""
        p, size = self.p, x.dim()[0][0] // 4
        rest = dy.pick_range(x, size, 4 * size)
        if children:
            h_sum = dy.esum([h for h, _ in children])
            rest = dy.affine_transform([rest, p["encoder.cell.h2h_weight"], h_sum])
        both = dy.logistic(dy.pick_range(rest, 0, 2 * size))
        update = dy.tanh(dy.pick_range(rest, 2 * size, 3 * size))
        kept = [dy.cmult(dy.pick_range(both, 0, size), update)]
        if children:
            x_forget = dy.pick_range(x, 0, size)
            for h, c in children:
                gate = dy.affine_transform([x_forget, p["encoder.cell.hf_weight"], h])
                kept.append(dy.cmult(dy.logistic(gate), c))
        c = dy.esum(kept)
        return dy.cmult(dy.pick_range(both, size, 2 * size), dy.tanh(c)), c

    def root(self, tree: Tree, inputs: Iterator[dy.Expression]) -> dy.Expression:
        """State of a sentence; takes the gates of its words from `inputs`."""
        x = list(islice(inputs, len(tree.heads)))
        states: List[Any] = [None] * len(x)
        for i in tree.order:
            states[i] = self.node(x[i], [states[k] for k in tree.children[i]])
        return states[tree.root][0]

    def scores(self, batch: Minibatch) -> dy.Expression:
        """Log-probabilities of the scores, shape (CLASSES,), batched."""
        p = self.p
        words = [word for side in (0, 1) for s in batch for word in s[0][side]]
        x = self.inputs(words, p["encoder.cell.i2h_bias"], p["encoder.cell.i2h_weight"])
        left, right = (
            dy.concatenate_to_batch([self.root(s[1][side], x) for s in batch]) for side in (0, 1)
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
