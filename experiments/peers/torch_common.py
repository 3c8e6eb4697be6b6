"""What the peers on PyTorch share: parameters, AdaGrad, the head for pairs of sentences."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import torch
from torch.nn import functional

from relatedness.trees import Tree

from .child import Minibatch, Peer
from .task import Sample, Task

#: What MXNet's AdaGrad adds to the history of gradients.
EPSILON = 1e-7
Tensor = torch.Tensor


class TorchPeer(Peer):
    """A model of plain tensors, in ``self.p`` by name; a subclass computes its loss."""

    flags = "1 thread, fused Adagrad"

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self.version = f"PyTorch {torch.__version__}"
        self.p = {
            name: torch.nn.Parameter(torch.tensor(value), name != "embedding.weight")
            for name, value in task.parameters.items()
        }
        self.trained = [p for p in self.p.values() if p.requires_grad]
        self.first = [p.detach().clone() for p in self.trained]
        # MXNet's formula: what is added to the history stands under the root.
        self.optimizer = torch.optim.Adagrad(
            self.trained, task.learning_rate, initial_accumulator_value=EPSILON, eps=0, fused=True
        )
        self.kept = 1 - task.learning_rate * task.weight_decay
        super().__init__(task)

    def loss(self, batch: Minibatch) -> Tensor:
        """Mean of the losses of a minibatch's samples."""
        raise NotImplementedError

    def step(self, batch: Minibatch) -> float:  # noqa: D102
        loss = self.loss(batch)
        loss.backward()
        with torch.no_grad():
            torch._foreach_mul_(self.trained, self.kept)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    @torch.no_grad()
    def reset(self) -> None:  # noqa: D102
        for p, first in zip(self.trained, self.first):
            p.copy_(first)


class PairsPeer(TorchPeer):
    """The relatedness model; a subclass computes the states of roots, left ones before right ones.

    Words of a prepared sample are arrays, trees are `Tree`s.
    """

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        words = [np.array(side) for side in sample["words"]]
        return words, list(map(Tree.from_heads, sample["heads"])), sample["target"]

    def roots(self, words: Sequence[np.ndarray], trees: Sequence[Tree]) -> Tensor:
        """States of the roots of some trees, shape (trees, H)."""
        raise NotImplementedError

    def scores(self, batch: Minibatch) -> Tensor:
        """Log-probabilities of the scores, shape (N, CLASSES)."""
        words = [sample[0][side] for side in (0, 1) for sample in batch]
        trees = [sample[1][side] for side in (0, 1) for sample in batch]
        return self.head(*self.roots(words, trees).chunk(2))

    def head(self, left: Tensor, right: Tensor) -> Tensor:
        """Compare roots, shape (N, H) each."""
        p, linear = self.p, functional.linear
        hidden = linear(
            left * right, p["similarity.angle_weight"], p["similarity.hidden_bias"]
        ) + linear((left - right).abs(), p["similarity.distance_weight"])
        scores = linear(hidden.sigmoid(), p["similarity.score_weight"], p["similarity.score_bias"])
        return scores.log_softmax(1)

    def loss(self, batch: Minibatch) -> Tensor:  # noqa: D102
        targets = torch.tensor([sample[2] for sample in batch])
        return functional.kl_div(self.scores(batch), targets, reduction="batchmean")

    @torch.inference_mode()
    def predict(self, batch: Minibatch) -> np.ndarray:  # noqa: D102
        return self.scores(batch).numpy()
