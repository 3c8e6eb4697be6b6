"""Models of text on padded minibatches, with masks: the usual method for sequences.

A minibatch has samples of similar length, padded to the longest, so that a launch computes a layer,
or a step, for all of them. MXNet's fused layers read whole sentences where a model has no feedback
between its steps. The loss masks the padding.

Arrays of words and losses have shape (T, N): time first, as MXNet's fused layers want it.
"""

import mxnet as mx
import numpy as np
from gluonnlp.data import batchify
from mxnet import autograd, gluon

from workloads.front import ND, NP, converted, front

#: Added to the scores of padding before softmax.
MASKED = -1e9


def masked_loss(F, scores, tags, lengths):
    """Compute the mean loss of the words of each sentence, shape (N,), without the padding."""
    F = front(F)
    losses = -F.pick(F.log_softmax(scores), tags)  # (T, N)
    masked = F.SequenceMask(losses, lengths, use_sequence_length=True)
    return F.sum(masked, axis=0) / lengths


class PaddedBatching:
    """Runs the model of a workload on padded minibatches, with its parameters.

    A subclass has `scores`, which maps padded arrays, shape (T, N), and their lengths, shape (N,)
    each, to scores of all classes, shape (T, N, classes). The arrays are `inputs` of each sample.
    """

    by_length, interfaces = True, (ND, NP)

    def __init__(self, workload):
        self.model, self._interface = workload.model, workload.interface
        self._loss = gluon.nn.HybridLambda(masked_loss)
        self._loss.hybridize()
        self._rows = {
            id(sample): [*self.inputs(sample), sample.target.asnumpy()]
            for sample in workload.samples
        }

    def inputs(self, sample):
        """Return the vectors of a sample that are padded."""
        return [array.asnumpy() for array in sample.inputs]

    def scores(self, *arrays):
        """Compute scores, shape (T, N, classes), from padded arrays and lengths."""
        raise NotImplementedError

    def predicted(self, lengths, *arrays):
        """Compute scores for inference; `lengths` are those of the targets."""
        return self.scores(*arrays)

    def score(self, samples):
        """Compute the scores of all words of some samples, shape (words, classes)."""
        _, lengths, arrays = self._padded(samples)
        scores = self.predicted(lengths, *arrays)
        counts = lengths.asnumpy().astype(int)
        rows = np.concatenate([np.arange(n) * len(samples) + i for i, n in enumerate(counts)])
        F = front()
        return F.take(flat(scores), F.array(rows, dtype="int32"))

    def differentiate(self, samples):
        """Compute the loss of some samples, shape (N,), and the gradients of all parameters."""
        targets, lengths, arrays = self._padded(samples)
        with autograd.record():
            losses = self._loss(self.scores(*arrays), targets, lengths)
        losses.backward()
        return losses

    def _padded(self, samples):
        """Return the targets of a minibatch, their lengths, and its inputs with lengths."""
        columns = list(zip(*(self._rows[id(sample)] for sample in samples)))
        pad, arrays = batchify.Pad(pad_val=0, ret_length=True), []
        for column in columns:
            array, lengths = (each.as_in_context(mx.cpu()) for each in pad(column))
            arrays += converted((array.T, lengths.astype("float32")), self._interface)
        *arrays, targets, lengths = arrays
        return targets, lengths, arrays


def flat(array):
    """Join the first two axes of an array of three."""
    return array.reshape((-1, array.shape[2]))


def read(cell, vectors):
    """Run a cell of Gluon's over all words; return its states, shape (T, N, hidden_size)."""
    F = front()
    parameters = (cell.i2h_weight, cell.h2h_weight, cell.i2h_bias, cell.h2h_bias)
    packed = F.concat(*(each.data().reshape(-1) for each in parameters), dim=0)
    size, mode = cell.h2h_weight.shape[1], cell._alias()
    start = F.zeros((1, vectors.shape[1], size))
    states = [start] * (2 if mode == "lstm" else 1)
    return F.RNN(vectors, packed, *states, state_size=size, num_layers=1, mode=mode)


class PaddedTagger(PaddedBatching):
    """The BiLSTM tagger.

    For the backward direction, words are reversed before padding, so that the padding follows the
    words. Scores are reversed back instead of states, because they are smaller.
    """

    def inputs(self, sample):  # noqa: D102
        words = sample.inputs[0].asnumpy()
        return [words, words[::-1]]

    def scores(self, words, lengths, reversed_words, _):  # noqa: D102
        F, model = front(), self.model
        ahead = read(model.forwards, model.embedding(words))
        back = read(model.backwards, model.embedding(reversed_words))
        weight, bias = model.score.weight.data(), model.score.bias.data()
        left, right = F.split(weight, num_outputs=2, axis=1)
        options = {"num_hidden": len(bias), "flatten": False}
        scores = F.FullyConnected(back, right, no_bias=True, **options)
        scores = F.SequenceReverse(scores, lengths, use_sequence_length=True)
        return F.FullyConnected(ahead, left, bias, **options) + scores


class PaddedLanguageModel(PaddedBatching):
    """The language models."""

    def scores(self, fed, _):  # noqa: D102
        return self.model.score(read(self.model.cell, self.model.embedding(fed)))


def attend(F, queries, keys, values, mask):
    """Attend with queries, (N, Q, size), to keys and values, (N, K, size).

    The mask, (N, 1, K), is added to the scores.
    """
    F = front(F)
    scores = F.broadcast_add(F.batch_dot(queries, keys, transpose_b=True), mask)
    return F.batch_dot(F.softmax(scores), values)


def masks(lengths, longest):
    """Return what is added to scores of words, shape (N, 1, longest): much less for padding."""
    F = front()
    beyond = F.broadcast_greater_equal(
        F.array(np.arange(longest)).reshape((1, 1, -1)), lengths.reshape((-1, 1, 1))
    )
    return beyond.astype("float32") * MASKED


class PaddedTranslator(PaddedBatching):
    """The encoder, step by step because its last states are needed, and decoder with attention."""

    def __init__(self, workload):
        super().__init__(workload)
        self._attend = gluon.nn.HybridLambda(attend)
        self._attend.hybridize()

    def scores(self, source, lengths, fed, _):  # noqa: D102
        F, model = front(), self.model
        step, state = self._encode(source, lengths), None
        attentional = []
        for rows in self._steps(model.embedding(fed)):
            state = step(rows, state)
            attentional.append(state[0])
        scores = model.score(F.concat(*attentional, dim=0))
        return scores.reshape((len(attentional), -1, scores.shape[1]))

    def predicted(self, lengths, source, source_lengths, fed, _):
        """Feed the decoder its own best tokens, without reading them."""
        F, model = front(), self.model
        step, state, tokens, scores = self._encode(source, source_lengths), None, fed[0], []
        for _ in range(len(fed)):
            state = step(model.embedding(tokens), state)
            scores.append(model.score(state[0]))
            tokens = scores[-1].argmax(axis=1)
        classes = scores[0].shape[1]
        return F.concat(*scores, dim=0).reshape((len(fed), -1, classes))

    def _steps(self, array):
        """Cut an array into steps, shape (N, size) each."""
        parts = front().split(array, num_outputs=len(array), axis=0)
        parts = parts if isinstance(parts, (list, tuple)) else [parts]
        return [part.reshape(part.shape[1:]) for part in parts]

    def _encode(self, source, lengths):
        """Read the source; return the step of the decoder, which maps rows and a state to one."""
        F, model = front(), self.model
        states = model.encoder.begin_state(func=_zeros, batch_size=len(lengths))
        outputs, cells = [], []
        for rows in self._steps(model.embedding(source)):
            output, states = model.encoder(rows, states)
            outputs.append(output)
            cells.append(states[1])
        joined = F.concat(*outputs, dim=0)  # (S * N, hidden_size), time first
        count = len(lengths)
        ends = F.array(np.arange(count)) + (lengths - 1) * count
        last = [F.take(each, ends) for each in (joined, F.concat(*cells, dim=0))]
        memory = joined.reshape((len(outputs), count, -1)).transpose((1, 0, 2))  # (N, S, size)
        mask = masks(lengths, len(outputs))

        def step(rows, state):
            attentional, states = state or (last[0], last)
            h, states = model.decoder(F.concat(rows, attentional, dim=1), states)
            query = h.reshape((count, 1, -1))
            read_ = self._attend(query, memory, memory, mask).reshape((count, -1))
            return model.attention.layer(F.concat(read_, h, dim=1)), states

        return step


def _zeros(shape, **_):
    return front().zeros(shape)


class PaddedTransformer(PaddedBatching):
    """The transformer tagger."""

    def __init__(self, workload):
        super().__init__(workload)
        self._attend = gluon.nn.HybridLambda(attend)
        self._attend.hybridize()

    def scores(self, words, lengths):  # noqa: D102
        F, model = front(), self.model
        count, mask = len(lengths), masks(lengths, len(words))
        places = model.positions.data()[: len(words)]
        x = F.broadcast_add(model.embedding(words.T) * model.scale, F.expand_dims(places, axis=0))
        for layer in model.layers:
            heads = layer.attention.heads
            # (N, T, 3 * size) to (N * heads, T, size / heads) each
            queries, keys, values = (
                part.reshape((count, len(words), heads, -1))
                .transpose((0, 2, 1, 3))
                .reshape((count * heads, len(words), -1))
                for part in F.split(layer.attention.project(x), num_outputs=3, axis=2)
            )
            each = F.repeat(mask, heads, axis=0)
            queries = queries / np.sqrt(queries.shape[2])
            attended = self._attend(queries, keys, values, each)
            attended = attended.reshape((count, heads, len(words), -1)).transpose((0, 2, 1, 3))
            x = layer.transform(x, layer.attention.join(attended.reshape(x.shape)))
        return model.score(x).transpose((1, 0, 2))


class PaddedExample(PaddedBatching):
    """The models of examples, which have a padded form, of one row of scores for each sample."""

    def scores(self, *arrays):  # noqa: D102
        scores = self.model.padded(*(x.T if x.ndim > 1 else x for x in arrays))
        return scores.reshape((1, *scores.shape))


#: By workload.
FORMS = {
    "tagger": PaddedTagger,
    "gru-lm": PaddedLanguageModel,
    "lstm-lm": PaddedLanguageModel,
    "seq2seq": PaddedTranslator,
    "transformer": PaddedTransformer,
    "inference": PaddedExample,
    "sentiment": PaddedExample,
}
