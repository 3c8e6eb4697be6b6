"""The matrix products of the relatedness model alone, which bound its speed."""

from __future__ import annotations

from typing import List, Sequence, Tuple

import mxnet as mx

from relatedness.data import CLASSES, Sample
from relatedness.model import RelatednessModel

#: Products in a training step for each one in inference: gradients of inputs and of weights.
TRAINING = 3


class BareProducts:
    """``FullyConnected`` on as many rows as a minibatch has, without anything in between.

    Parameters
    ----------
    model : RelatednessModel
        Gives the sizes; the operands are arrays of ones.
    samples : sequence of Sample
        Give the number of rows: every node is projected from its word, every node with children
        from their sum, every child for the forget gate of its parent, every pair in the head.
    """

    def __init__(self, model: RelatednessModel, samples: Sequence[Sample]) -> None:
        vector, hidden = model.embedding.weight.shape[1], model.encoder.cell.hf_weight.shape[0]
        similarity = model.similarity.angle_weight.shape[0]
        trees = [tree for sample in samples for tree in (sample.tree_a, sample.tree_b)]
        nodes = sum(len(tree.heads) for tree in trees)
        parents = sum(sum(map(bool, tree.children)) for tree in trees)
        products: List[Tuple[int, int, int]] = [  # rows, inputs, outputs
            (nodes, vector, 4 * hidden),
            (parents, hidden, 3 * hidden),
            (nodes - len(trees), hidden, hidden),
            (len(samples), hidden, similarity),
            (len(samples), hidden, similarity),
            (len(samples), similarity, CLASSES),
        ]
        self._operands = [
            (mx.nd.ones((rows, inputs)), mx.nd.ones((outputs, inputs)))
            for rows, inputs, outputs in products
            if rows
        ]

    def run(self) -> None:
        """Compute all products once; does not wait."""
        for rows, weight in self._operands:
            mx.nd.FullyConnected(rows, weight, no_bias=True, num_hidden=len(weight))
