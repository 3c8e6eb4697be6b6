"""Programs in the style of MXNet's book, with ``mx.np``, give values and gradients of the loop."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import npx
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.common import FIXED, semantics

pytestmark = pytest.mark.filterwarnings("ignore:.*has been renamed:DeprecationWarning")
mnp = mx.np
RNG = np.random.RandomState(0)


class TextCNN(gdb.DynamicHybridBlock):
    """Convolutions of several widths over a sentence, their maxima, and a decision."""

    def __init__(self):
        super().__init__()
        self.embedding, self.decide = nn.Embedding(9, 4), nn.Dense(2, in_units=6)
        self.convolutions = nn.HybridSequential()
        for width in (2, 3):
            self.convolutions.add(nn.Conv1D(3, width, in_channels=4, activation="relu"))

    def forward(self, words):
        """Map words, shape (length,), to scores, shape (1, 2)."""
        x = mnp.expand_dims(self.embedding(words).T, 0)
        found = [convolution(x).max(axis=2) for convolution in self.convolutions]
        return self.decide(mnp.concatenate(found, axis=1))


class Recommender(gdb.DynamicHybridBlock):
    """Neural collaborative filtering: scores of the items that a user has seen, of any number."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(5, 4), nn.Embedding(7, 4)
        self.layer = nn.Dense(3, activation="relu", in_units=8)
        self.score = nn.Dense(1, in_units=7)

    def forward(self, user, items):
        """Map a user, shape (1,), and items, shape (count,), to scores, shape (count, 1)."""
        p = mnp.broadcast_to(self.users(user), (len(items), 4))
        q = self.items(items)
        hidden = self.layer(mnp.concatenate([p, q], axis=1))
        return npx.sigmoid(self.score(mnp.concatenate([p * q, hidden], axis=1)))


class Forecast(gdb.DynamicHybridBlock):
    """A recurrent net that gives the likelihood of each next value of a series."""

    def __init__(self):
        super().__init__()
        self.step = nn.Dense(4, activation="tanh", in_units=5)
        self.mean, self.width = nn.Dense(1, in_units=4), nn.Dense(1, in_units=4)

    def forward(self, series):
        """Map a series, shape (length,), to its negative logarithmic likelihood, without axes."""
        h, total = mnp.zeros((1, 4)), 0.0
        for i in range(len(series) - 1):
            h = self.step(mnp.concatenate([series[i : i + 1].reshape(1, 1), h], axis=1))
            width = mnp.log1p(mnp.exp(self.width(h))) + 0.1
            error = (series[i + 1] - self.mean(h)) / width
            total = total + mnp.log(width) + 0.5 * mnp.square(error)
        return total.sum() / len(series)


class MaskedWords(gdb.DynamicHybridBlock):
    """Scores the words at some positions of a sentence."""

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 4), nn.Dense(4, in_units=4, flatten=False)
        self.decide = nn.Dense(9, in_units=4)

    def forward(self, words, positions):
        """Map words, shape (length,), and positions, shape (count,), to scores, (count, 9)."""
        x = self.embedding(words)
        weights = npx.softmax(mnp.dot(x, x.T) / 2)
        hidden = npx.leaky_relu(self.layer(mnp.dot(weights, x)), act_type="gelu")
        return self.decide(hidden[positions])


class Boxes(gdb.DynamicHybridBlock):
    """Moves boxes, and gives their overlap with true boxes, of any numbers."""

    def __init__(self):
        super().__init__()
        self.move = nn.Dense(4, in_units=4)

    def forward(self, boxes, truth):
        """Map boxes, shape (count, 4), and true ones, (others, 4), to overlaps, (count, 1)."""
        boxes = boxes + 0.1 * self.move(boxes)
        a, b = mnp.expand_dims(boxes, 1), mnp.expand_dims(truth, 0)
        low = mnp.maximum(a[:, :, :2], b[:, :, :2])
        high = mnp.minimum(a[:, :, 2:], b[:, :, 2:])
        sides = npx.relu(high - low)
        inner = sides.prod(axis=2)
        area = mnp.prod(boxes[:, 2:] - boxes[:, :2], axis=1).reshape(-1, 1)
        overlap = inner / (area + (truth[:, 2:] - truth[:, :2]).prod(axis=1) - inner)
        best = overlap.max(axis=1, keepdims=True)
        return mnp.where(best > 0.1, best, mnp.zeros_like(best))


class SkipGram(gdb.DynamicHybridBlock):
    """Scores the context of a word against noise words, of which some are padding."""

    def __init__(self):
        super().__init__()
        self.centers, self.contexts = nn.Embedding(9, 4), nn.Embedding(9, 4)

    def forward(self, center, words, labels, mask):
        """Map a word, (1, 1), and others, labels and a mask, (1, count), to a loss, (1,)."""
        scores = npx.batch_dot(self.centers(center), self.contexts(words).swapaxes(1, 2))
        scores = scores.reshape(labels.shape)
        noise = mnp.log1p(mnp.exp(scores))
        loss = mnp.where(labels > 0, noise - scores, noise) * mask
        return loss.sum(axis=1) / mask.sum(axis=1)


class NextWord(gdb.DynamicHybridBlock):
    """Predicts each next word by attention to the words before, and counts those it knows."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.project = nn.Dense(12, flatten=False, in_units=4)
        self.decide = nn.Dense(9, flatten=False, in_units=4)

    def forward(self, words):
        """Map words, (length,), to a loss without axes and the share of right words."""
        queries, keys, values = mnp.split(self.project(self.embedding(words)), 3, axis=-1)
        scores = mnp.dot(queries, keys.T)
        seen = mnp.tril(mnp.ones_like(scores)) > 0
        weights = npx.softmax(mnp.where(seen, scores, mnp.zeros_like(scores) - 1e9))
        scores = npx.log_softmax(self.decide(mnp.dot(weights, values)))[:-1]
        counted = words[1:] != 0
        loss = -(npx.pick(scores, words[1:]) * counted).sum()
        right = (scores.argmax(axis=1).astype("int32") == words[1:]) & counted
        return loss / (counted.sum() + 1), right.mean()


def integers(limit, *shape):
    return mnp.array(RNG.randint(0, limit, shape), dtype="int32")


def pairs(count):
    return integers(9, 1, 1), integers(9, 1, count), integers(2, 1, count), mnp.ones((1, count))


def boxes(count):
    corners = RNG.uniform(0, 1, (count, 2))
    sides = RNG.uniform(0.5, 1.5, (count, 2))
    return mnp.array(np.concatenate([corners, corners + sides], axis=1), dtype="float32")


#: Per program: its class, what makes a sample of a size, and the most launches for four sizes.
PROGRAMS = {
    "text": (TextCNN, lambda n: integers(9, n + 2), 8),
    "recommender": (Recommender, lambda n: (integers(5, 1), integers(7, n)), 10),
    "forecast": (Forecast, lambda n: mnp.array(RNG.randn(n + 1), dtype="float32"), 28),
    "masked words": (MaskedWords, lambda n: (integers(9, n + 2), integers(n, n)), 10),
    "boxes": (Boxes, lambda n: (boxes(n), boxes(n % 3 + 1)), 23),
    "skip-gram": (SkipGram, pairs, 12),
    "next word": (NextWord, lambda n: integers(9, n + 1), 29),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_book(name):
    make, sample, most = PROGRAMS[name]
    with semantics("np"):
        net = make()
        net.initialize(mx.init.Xavier())
        net.hybridize()
        samples = [sample(n) for n in (1, 3, 2, 4)]
        check_against_loop(net, samples)
        with gdb.batching(**FIXED) as batch:
            results = [net(*each) if isinstance(each, tuple) else net(each) for each in samples]
        mx.npx.waitall()
    assert len(results) == len(samples) and len(batch.report.flushes) == 1
    assert not batch.report.forced and not batch.report.alone
    assert batch.report.launches <= most
