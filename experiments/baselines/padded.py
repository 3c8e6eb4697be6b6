"""The tagger on padded minibatches of sentences of like length, with MXNet's fused LSTM layer.

What is usually done for sequences: minibatches are made of sentences of like length, padded to the
longest, and one launch reads all of them in both directions. It computes what the tagger computes
sentence by sentence, although the fused layer knows nothing of lengths on a CPU:

- Backwards, it reads the padding before the words. The vector of the padding has a dimension of
  its own that shuts the input gate, so that states stay zero until the first word comes. The
  gradient of the weights that do so is zero.
- What it says of the padding is masked in the loss.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.data import batchify
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from workloads.base import Sample, Workload
from workloads.sequences import Tagger

NDArray = mx.nd.NDArray
#: Added to the input gate at the padding; its sigmoid is zero in float32.
SHUT = -1000.0


class PaddedTagger(gluon.HybridBlock):
    """The model for a padded minibatch; starts from the parameters of a `Tagger`."""

    def __init__(self, tagger: Tagger) -> None:
        super().__init__()
        words, size = tagger.embedding.weight.shape
        tags, hidden = tagger.score.weight.shape[0], tagger.score.weight.shape[1] // 2
        #: Number of the padding, one after the last word's.
        self.padding = words
        with self.name_scope():
            self.embedding = nn.Embedding(words + 1, size + 1)
            self.lstm = rnn.LSTM(hidden, bidirectional=True, input_size=size + 1)
            self.score = nn.Dense(tags, in_units=2 * hidden, flatten=False)
        self.initialize()
        self._start_from(tagger)
        self.hybridize()

    def _start_from(self, tagger: Tagger) -> None:
        vectors = np.pad(tagger.embedding.weight.data().asnumpy(), ((0, 1), (0, 1)))
        vectors[-1, -1] = 1
        self.embedding.weight.set_data(mx.nd.array(vectors))
        self.embedding.weight.grad_req = "null"
        hidden = self.score.weight.shape[1] // 2
        gates = np.zeros((4 * hidden, 1), np.float32)
        gates[:hidden] = SHUT  # the input gate is the first of the four
        for side, cell in (("l0", tagger.forwards), ("r0", tagger.backwards)):
            for name in ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias"):
                array = getattr(cell, name).data()
                if name == "i2h_weight":
                    array = mx.nd.concat(array, mx.nd.array(gates), dim=1)
                getattr(self.lstm, f"{side}_{name}").set_data(array)
        self.score.weight.set_data(tagger.score.weight.data())
        self.score.bias.set_data(tagger.score.bias.data())

    def hybrid_forward(self, F: Any, words: Any) -> Any:
        """Score all tags for words, shape (N, T), padded with `padding`. Shape (T, N, tags)."""
        vectors = self.embedding(F.transpose(words))  # (T, N, embedding_size + 1)
        return self.score(self.lstm(vectors))


class MaskedLoss(gluon.HybridBlock):
    """Mean loss of the words of each sentence, shape (N,), whatever the padding says."""

    def hybrid_forward(self, F: Any, scores: Any, tags: Any, lengths: Any) -> Any:  # noqa: D102
        losses = -F.pick(F.log_softmax(scores), F.transpose(tags))  # (T, N)
        masked = F.SequenceMask(losses, lengths, use_sequence_length=True)
        return F.sum(masked, axis=0) / lengths


class PaddedBatching:
    """Trains the tagger on minibatches of its samples, with parameters of its own.

    Parameters
    ----------
    workload : Workload
        Its model is a `Tagger`, whose parameters are copied.
    """

    def __init__(self, workload: Workload) -> None:
        self.model = PaddedTagger(workload.model)
        self._loss = MaskedLoss()
        self._loss.hybridize()
        old = workload.trainer.optimizer
        optimizer = mx.optimizer.create("adagrad", learning_rate=old.learning_rate, wd=old.wd)
        self.trainer = gluon.Trainer(self.model.collect_params(), optimizer)
        self._rows = {
            id(sample): (sample.inputs[0].asnumpy(), sample.target.asnumpy(), sample.size)
            for sample in workload.samples
        }
        self._join = batchify.Tuple(
            batchify.Pad(pad_val=self.model.padding), batchify.Pad(pad_val=0),
            batchify.Stack(dtype="float32"),
        )  # fmt: skip

    def _joined(self, samples: Sequence[Sample]) -> List[NDArray]:
        joined = self._join([self._rows[id(sample)] for sample in samples])
        return [array.as_in_context(mx.cpu()) for array in joined]

    def score(self, samples: Sequence[Sample]) -> NDArray:
        """Give the scores of all tags for the words of some samples, shape (words, tags)."""
        words, _, lengths = self._joined(samples)
        places = np.concatenate(
            [np.arange(int(each)) * len(samples) + i for i, each in enumerate(lengths.asnumpy())]
        )
        scores = self.model(words).reshape((-3, 0))  # (T * N, tags)
        return scores.take(mx.nd.array(places, dtype="int32"))

    def differentiate(self, samples: Sequence[Sample], loss: Any = None) -> NDArray:
        """Compute the loss of some samples, shape (N,), and the gradients of all parameters."""
        words, tags, lengths = self._joined(samples)
        with autograd.record():
            losses = self._loss(self.model(words), tags, lengths)
        losses.backward()
        return losses
