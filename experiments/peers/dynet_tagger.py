"""DyNet: the BiLSTM tagger, its cell in basic operations or as DyNet's own node."""

from __future__ import annotations

from typing import Any, List

import numpy as np

from .child import Minibatch
from .dynet_common import DynetPeer, dy, rows
from .task import Sample, Task

SIDES = ("forwards", "backwards")


class Tagger(DynetPeer):
    """Word by word; the states of all words of a minibatch are joined to be scored."""

    # MXNet's cell has two biases, DyNet's one, which a step of AdaGrad moves half as far.
    same_steps = 1

    def __init__(self, task: Task) -> None:
        self.task = task
        parameters = dict(task.parameters)
        for side in SIDES:
            parameters[f"{side}.bias"] = parameters.pop(f"{side}.i2h_bias") + parameters.pop(
                f"{side}.h2h_bias"
            )
        super().__init__(task._replace(parameters=parameters))

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        return sample["words"], sample["tags"]

    def read(self, side: str, vectors: List[dy.Expression]) -> List[dy.Expression]:
        """States h of the words of a sentence, in the order they are read."""
        p = self.p
        weights = [p[f"{side}.{name}"] for name in ("bias", "i2h_weight", "h2h_weight")]
        states: List[dy.Expression] = []
        c = None
        for x in vectors:
            terms = [*weights[:2], x, weights[2], states[-1]] if states else [*weights[:2], x]
            i, f, u, o = rows(dy.affine_transform(terms), 4)
            made = dy.cmult(dy.logistic(i), dy.tanh(u))
            c = made if c is None else made + dy.cmult(dy.logistic(f), c)
            states.append(dy.cmult(dy.logistic(o), dy.tanh(c)))
        return states

    def loss(self, batch: Minibatch) -> dy.Expression:  # noqa: D102
        states: List[dy.Expression] = []
        for words, _ in batch:
            vectors = [self.vector(word) for word in words]
            ahead = self.read("forwards", vectors)
            back = self.read("backwards", vectors[::-1])
            states += [dy.concatenate([a, b]) for a, b in zip(ahead, back[::-1])]
        tags = [tag for sample in batch for tag in sample[1]]
        weights = [1 / (len(s[1]) * len(batch)) for s in batch for _ in s[1]]
        scores = dy.affine_transform(
            [self.p["score.bias"], self.p["score.weight"], dy.concatenate_to_batch(states)]
        )
        losses = dy.pickneglogsoftmax_batch(scores, tags)
        return dy.sum_batches(dy.cmult(losses, dy.inputTensor(np.array([weights]), batched=True)))


class NodeTagger(Tagger):
    """The same with ``CompactVanillaLSTMBuilder``, whose step is three operations of DyNet's."""

    flags = f"{Tagger.flags}, CompactVanillaLSTMBuilder"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        gates, size = self.first["forwards.i2h_weight"].shape
        self.builders = {
            side: dy.CompactVanillaLSTMBuilder(1, size, gates // 4, self.model) for side in SIDES
        }
        for side, builder in self.builders.items():
            (own,) = builder.get_parameters()
            for name, parameter in zip(("i2h_weight", "h2h_weight", "bias"), own):
                self._take(f"{side}.{name}", parameter)

    def _take(self, name: str, parameter: Any) -> None:
        """Give a parameter of the builder its first value: gates as i, f, o, u, and f gets 1."""
        i, f, u, o = np.split(self.first[name], 4)
        self.first[name] = np.concatenate([i, f - 1 if f.ndim == 1 else f, o, u])
        parameter.set_value(self.first[name])
        self.p[name] = parameter

    def read(self, side: str, vectors: List[dy.Expression]) -> List[dy.Expression]:  # noqa: D102
        found: List[dy.Expression] = self.builders[side].initial_state().transduce(vectors)
        return found
