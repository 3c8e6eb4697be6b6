"""The tagger on padded minibatches of sentences of like length, with MXNet's fused LSTM layer.

What is usually done for sequences: sentences are dealt into buckets by length, those of a
minibatch come from one bucket and are padded to the longest, and one launch reads all of them in
both directions. It computes what the tagger computes sentence by sentence, although the fused
layer knows nothing of lengths on a CPU:

- Backwards, it reads the padding before the words. The vector of the padding has a dimension of
  its own that shuts the input gate, so that states stay zero until the first word comes. The
  gradient of the weights that do so is zero.
- What it says of the padding is masked in the loss.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.data import ExpWidthBucket, FixedBucketSampler, batchify
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from workloads.base import Workload
from workloads.sequences import TaggedSample, Tagger

NDArray = mx.nd.NDArray
#: Added to the input gate at the padding; its sigmoid is zero in float32.
SHUT = -1000.0
BUCKETS = 20


class PaddedTagger(gluon.HybridBlock):
    """The model and its loss for a padded minibatch; starts from the parameters of a `Tagger`."""

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

    def hybrid_forward(self, F: Any, words: Any, tags: Any, lengths: Any) -> Any:
        """Mean loss of the words of each sentence.

        Parameters
        ----------
        words, tags
            Shape (N, T); words are padded with `padding`, tags with anything.
        lengths
            Shape (N,).

        Returns
        -------
        Shape (N,).
        """
        vectors = self.embedding(F.transpose(words))  # (T, N, embedding_size + 1)
        scores = F.log_softmax(self.score(self.lstm(vectors)))  # (T, N, tags)
        losses = -F.pick(scores, F.transpose(tags))  # (T, N)
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
        old = workload.trainer.optimizer
        optimizer = mx.optimizer.create("adagrad", learning_rate=old.learning_rate, wd=old.wd)
        self.trainer = gluon.Trainer(self.model.collect_params(), optimizer)
        self._rows = {
            id(sample): (sample.words.asnumpy(), sample.tags.asnumpy(), len(sample.words))
            for sample in workload.samples
        }
        self._join = batchify.Tuple(
            batchify.Pad(pad_val=self.model.padding), batchify.Pad(pad_val=0),
            batchify.Stack(dtype="float32"),
        )  # fmt: skip

    def differentiate(self, samples: Sequence[TaggedSample], loss: Any = None) -> NDArray:
        """Compute the loss of some samples, shape (N,), and the gradients of all parameters."""
        joined = self._join([self._rows[id(sample)] for sample in samples])
        words, tags, lengths = (array.as_in_context(mx.cpu()) for array in joined)
        with autograd.record():
            losses = self.model(words, tags, lengths)
        losses.backward()
        return losses


def bucketed(
    samples: Sequence[TaggedSample], batch_size: int, seed: int
) -> Iterator[List[TaggedSample]]:
    """Draw minibatches of samples of like length without end, epoch after epoch."""
    lengths = np.array([len(sample.words) for sample in samples])
    # Wider by a tenth from bucket to bucket: on WikiNER, 93 % of what is read is words.
    scheme = ExpWidthBucket(bucket_len_step=1.1)
    keys = np.unique(scheme(int(lengths.max()), int(lengths.min()), BUCKETS))
    used = keys[np.unique(keys.searchsorted(lengths))].tolist()
    sampler = FixedBucketSampler(
        lengths, batch_size, num_buckets=None, bucket_keys=used, shuffle=True
    )
    state = np.random.RandomState(seed)
    while True:
        np.random.seed(state.randint(2**31))  # the sampler knows only the global generator
        yield from [[samples[i] for i in batch] for batch in sampler]
