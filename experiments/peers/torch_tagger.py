"""PyTorch: the tagger with nn.LSTM over a packed minibatch, in no particular order of lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from .child import Minibatch
from .task import Sample, Task
from .torch_common import Tensor, TorchPeer


class Tagger(TorchPeer):
    """Words are packed before they are looked up, so that nothing is done for padding."""

    flags = f"{TorchPeer.flags}; nn.LSTM, packed"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        gates, size = task.parameters["forwards.i2h_weight"].shape
        self.lstm = torch.nn.LSTM(size, gates // 4, bidirectional=True)
        for suffix, side in (("l0", "forwards"), ("l0_reverse", "backwards")):
            for kind in ("weight", "bias"):  # gates are in the order of Gluon's
                for theirs, ours in (("ih", "i2h"), ("hh", "h2h")):
                    own = self.p[f"{side}.{ours}_{kind}"]
                    setattr(self.lstm, f"{kind}_{theirs}_{suffix}", own)

    def prepare(self, sample: Sample) -> Any:  # noqa: D102
        return torch.tensor(sample["words"]), torch.tensor(sample["tags"])

    def loss(self, batch: Minibatch) -> Tensor:  # noqa: D102
        words, tags = zip(*batch)
        packed = pack_sequence(words, enforce_sorted=False)
        vectors = functional.embedding(packed.data, self.p["embedding.weight"])
        states, _ = self.lstm(PackedSequence(vectors, *packed[1:]))
        scores = functional.linear(states.data, self.p["score.weight"], self.p["score.bias"])
        losses = functional.cross_entropy(
            scores, pack_sequence(tags, enforce_sorted=False).data, reduction="none"
        )
        shares = [torch.full((len(each),), 1 / (len(each) * len(batch))) for each in tags]
        return losses @ pack_sequence(shares, enforce_sorted=False).data
