"""The tagger on padded minibatches of sentences of similar length, with MXNet's fused LSTM.

This is the usual method for sequences: a minibatch has sentences of similar length, padded to the
longest, and one launch reads all of them in each direction. For the backward direction, words are
reversed before padding, so that the padding follows the words; the loss masks the padding. Scores
are reversed back instead of states, because they are smaller.
"""

import mxnet as mx
import numpy as np
from gluonnlp.data import batchify
from mxnet import autograd, gluon


def masked_loss(F, scores, tags, lengths):
    """Compute the mean loss of the words of each sentence, shape (N,), without the padding."""
    losses = -F.pick(F.log_softmax(scores), F.transpose(tags))  # (T, N)
    masked = F.SequenceMask(losses, lengths, use_sequence_length=True)
    return F.sum(masked, axis=0) / lengths


class PaddedBatching:
    """Runs the tagger of a workload on minibatches with its parameters."""

    def __init__(self, workload):
        self._model = workload.model
        self._loss = gluon.nn.HybridLambda(masked_loss)
        self._loss.hybridize()
        self._rows = {}
        for sample in workload.samples:
            words = sample.inputs[0].asnumpy()
            self._rows[id(sample)] = words, words[::-1], sample.target.asnumpy(), sample.size
        pad = batchify.Pad(pad_val=0)
        self._join = batchify.Tuple(pad, pad, pad, batchify.Stack(dtype="float32"))

    def score(self, samples):
        """Compute the scores of all tags for the words of some samples, shape (words, tags)."""
        scores, _, lengths = self._scored(samples)
        counts = lengths.asnumpy().astype(int)
        rows = np.concatenate([np.arange(n) * len(samples) + i for i, n in enumerate(counts)])
        return scores.reshape((-3, 0)).take(mx.nd.array(rows, dtype="int32"))

    def differentiate(self, samples):
        """Compute the loss of some samples, shape (N,), and the gradients of all parameters."""
        with autograd.record():
            losses = self._loss(*self._scored(samples))
        losses.backward()
        return losses

    def _scored(self, samples):
        """Return scores, shape (T, N, tags), tags, shape (N, T), and lengths of a minibatch."""
        model = self._model
        joined = self._join([self._rows[id(sample)] for sample in samples])
        words, reversed_words, tags, lengths = (each.as_in_context(mx.cpu()) for each in joined)
        ahead = _read(model.forwards, model.embedding(words.T))
        back = _read(model.backwards, model.embedding(reversed_words.T))
        weight, bias = model.score.weight.data(), model.score.bias.data()
        left, right = mx.nd.split(weight, num_outputs=2, axis=1)
        options = {"num_hidden": len(bias), "flatten": False}
        scores = mx.nd.FullyConnected(back, right, no_bias=True, **options)
        scores = mx.nd.SequenceReverse(scores, lengths, use_sequence_length=True)
        return mx.nd.FullyConnected(ahead, left, bias, **options) + scores, tags, lengths


def _read(cell, vectors):
    """Run a cell over all words; return its states, shape (T, N, hidden_size)."""
    parameters = (cell.i2h_weight, cell.h2h_weight, cell.i2h_bias, cell.h2h_bias)
    packed = mx.nd.concat(*(each.data().reshape(-1) for each in parameters), dim=0)
    size = cell.h2h_weight.shape[1]
    start = mx.nd.zeros((1, vectors.shape[1], size))
    return mx.nd.RNN(vectors, packed, start, start, state_size=size, num_layers=1, mode="lstm")
