"""A hierarchy: words make sentences, sentences make a document, all of any length."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb


class Document(gluon.Block):
    def __init__(self, words, size):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.words = rnn.GRUCell(size, input_size=size)
        self.sentences = rnn.GRUCell(size, input_size=size)
        self.score = nn.Dense(2, in_units=size)

    def last(self, cell, rows):  # the last state of a recurrent cell
        states = cell.begin_state(batch_size=1)
        for row in rows:
            output, states = cell(row, states)
        return output

    def sentence(self, words):  # (length,) -> (1, size)
        vectors = self.embedding(words)
        return self.last(self.words, [vectors[i : i + 1] for i in range(len(words))])

    def forward(self, document):  # a list of sentences -> (1, 2)
        vectors = [self.sentence(words) for words in document]
        return self.score(self.last(self.sentences, vectors))


def document(rng):  # is word 0 anywhere in it?
    lengths = rng.randint(2, 12, size=rng.randint(1, 6))
    sentences = [rng.randint(0, 30, size=length) for length in lengths]
    label = any((words == 0).any() for words in sentences)
    return [mx.nd.array(words) for words in sentences], mx.nd.array([label])


samples = [document(np.random.RandomState(seed)) for seed in range(64)]
net, loss_fn = gdb.convert(Document(words=30, size=16)), gluon.loss.SoftmaxCrossEntropyLoss()
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
for _ in range(10):
    with autograd.record(), gdb.batching() as batch:
        losses = [loss_fn(net(sentences), label) for sentences, label in samples]
    autograd.backward(losses)
    trainer.step(len(losses))
print(batch.report)
