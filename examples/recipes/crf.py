"""A tagger with a CRF (Huang et al. 2015, arXiv:1508.01991), for sentences of any length."""

import mxnet as mx
import numpy as np
from mxnet.gluon import Trainer, nn, rnn

import gluon_dynbatch as gdb


class Step(nn.HybridBlock):  # a cell: the sum of all paths to each tag, one word further
    def hybrid_forward(self, F, total, moves, scores):  # (1, tags), (tags, tags), (1, tags)
        paths = F.broadcast_add(F.broadcast_add(F.transpose(total), moves), scores)
        best = F.max(paths, axis=0, keepdims=True)
        return F.log(F.sum(F.exp(F.broadcast_sub(paths, best)), axis=0, keepdims=True)) + best


class Tagger(nn.Block):
    def __init__(self, words, tags, size):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.both = rnn.BidirectionalCell(*[rnn.LSTMCell(size, input_size=size) for _ in "lr"])
        self.emit = nn.Dense(tags, in_units=2 * size)
        self.moves = self.params.get("moves", shape=(tags, tags))
        self.step = Step()

    def scores(self, words):  # (length,) -> (length, tags)
        vectors = self.embedding(words)
        rows = [vectors[i : i + 1] for i in range(len(words))]
        return self.emit(mx.nd.concat(*self.both.unroll(len(rows), rows)[0], dim=0))

    def forward(self, words, tags):  # -> minus the log likelihood of the tags
        scores, moves, tags = self.scores(words), self.moves.data(), mx.nd.array(tags)
        gold = scores.pick(tags).sum() + mx.nd.take(moves, tags[:-1]).pick(tags[1:]).sum()
        total = scores[0:1]
        for i in range(1, len(words)):
            total = self.step(total, moves, scores[i : i + 1])
        return total.max() + (total - total.max()).exp().sum().log() - gold

    def best_tags(self, words):  # Viterbi, in NumPy: reads the scores of all words at once
        (best, *rows), moves = self.scores(words).asnumpy(), self.moves.data().asnumpy()
        found = [[tag] for tag in range(len(best))]  # the best path to each tag
        for row in rows:
            paths = best[:, None] + moves + row
            best, found = paths.max(0), [[*found[i], j] for j, i in enumerate(paths.argmax(0))]
        return found[best.argmax()]


rng = np.random.RandomState(1)
sentences = (rng.randint(0, 30, n) for n in rng.randint(2, 15, size=64))
samples = [(mx.nd.array(words), words % 3) for words in sentences]
net = gdb.convert(Tagger(words=30, tags=3, size=16))
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
for _ in range(10):
    with mx.autograd.record(), gdb.batching() as batch:
        losses = [net(words, tags) for words, tags in samples]
    mx.autograd.backward(losses)
    trainer.step(len(losses))
print(batch.report, gdb.map(net.best_tags, [words for words, _ in samples])[0], sep="\n")
