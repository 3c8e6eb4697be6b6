"""What the peers that run on DyNet share: its settings, parameters and AdaGrad."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import dynet_config

# DyNet reads its settings when it is imported, so all others import it from here.
assert "dynet" not in sys.modules
dynet_config.set(autobatch=1, mem=1024, random_seed=1)

import dynet as dy  # noqa: E402

from .child import Minibatch, Peer  # noqa: E402
from .task import Task  # noqa: E402

#: What MXNet's AdaGrad adds to the history of gradients.
EPSILON = 1e-7


class DynetPeer(Peer):
    """A model of expressions, with parameters in ``self.p`` by name; a subclass has its loss."""

    flags = "--dynet-autobatch 1"

    def __init__(self, task: Task) -> None:
        self.version = f"DyNet {version('dyNET38')}"
        self.model = dy.ParameterCollection()
        self.first = {name: v for name, v in task.parameters.items() if name != "embedding.weight"}
        self.p = {name: self.model.parameters_from_numpy(v) for name, v in self.first.items()}
        self.words = self.model.lookup_parameters_from_numpy(task.parameters["embedding.weight"])
        self.model.set_weight_decay_lambda(task.learning_rate * task.weight_decay)
        self.trainer = dy.AdagradTrainer(self.model, learning_rate=task.learning_rate, eps=EPSILON)
        self.trainer.set_clip_threshold(0)
        super().__init__(task)

    def vector(self, word: int) -> dy.Expression:
        """Look a word up; vectors are not trained."""
        return dy.lookup(self.words, word, update=False)

    def loss(self, batch: Minibatch) -> dy.Expression:
        """Mean of the losses of a minibatch's samples."""
        raise NotImplementedError

    def step(self, batch: Minibatch) -> float:  # noqa: D102
        dy.renew_cg()
        loss = self.loss(batch)
        value: float = loss.value()
        loss.backward()
        self.trainer.update()
        return value

    def reset(self) -> None:  # noqa: D102
        dy.renew_cg()
        weight = next(iter(self.p.values()))
        # DyNet lets weights decay by a common factor that it keeps apart from them.
        factor = abs(weight.npvalue()).max() / abs(weight.as_array()).max()
        for name, value in self.first.items():
            self.p[name].set_value(value / factor)


def rows(x: dy.Expression, count: int) -> Any:
    """Cut a vector into parts of one size."""
    size = x.dim()[0][0] // count
    return [dy.pick_range(x, i * size, (i + 1) * size) for i in range(count)]
