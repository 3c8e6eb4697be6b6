"""Train on sentences with GluonNLP's vocabulary, embedding and batchify, without padding."""

import gluonnlp as nlp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import arguments
import gluon_dynbatch as gdb

GOOD, BAD, OTHER = ("good", "fine"), ("bad", "poor"), ("the", "film", "plot", "is", "and")


def make_sentence(rng):
    """Draw a sentence of 3 to 9 words; "not" negates the word after it."""
    words, negated, liked = [*rng.choice(OTHER, rng.randint(2, 8))], rng.randint(2), rng.randint(2)
    position = rng.randint(len(words) + 1)
    words[position:position] = ["not"] * negated + [rng.choice(GOOD if liked != negated else BAD)]
    return words, liked


class Reader(gluon.Block):
    """Scores two classes for one sentence, given as word numbers: (length,) -> (1, 2)."""

    def __init__(self, vocab, hidden):
        super().__init__()
        words, size = vocab.embedding.idx_to_vec.shape
        self.embedding = nn.Embedding(words, size)
        self.cell = rnn.GRUCell(hidden, input_size=size)
        self.score = nn.Dense(2, in_units=hidden)

    def forward(self, words):  # noqa: D102
        vectors = self.embedding(words)
        states = self.cell.begin_state(batch_size=1)
        for n in range(len(words)):
            output, states = self.cell(vectors[n : n + 1], states)
        return self.score(output)


def main(argv=None):
    """Train for some epochs, then compare values and gradients with those of the loop."""
    args = arguments.read(__doc__, argv, epochs=15)
    rng = np.random.RandomState(0)
    sentences = [make_sentence(rng) for _ in range(256)]
    vocab = nlp.Vocab(nlp.data.count_tokens([word for words, _ in sentences for word in words]))
    # Random vectors instead of nlp.embedding.create("glove"), which needs a download.
    vectors = mx.nd.array(rng.normal(size=(len(vocab), 16)))
    embedding = nlp.embedding.TokenEmbedding
    vocab.set_embedding(embedding(idx_to_token=vocab.idx_to_token, idx_to_vec=vectors))
    # List keeps the lengths of sentences; Pad would make them equal.
    together = nlp.data.batchify.Tuple(nlp.data.batchify.List(), nlp.data.batchify.Stack())
    samples = [(mx.nd.array(vocab[words]), liked) for words, liked in sentences]
    loader = gluon.data.DataLoader(samples, 64, shuffle=True, batchify_fn=together)
    net, loss_fn = gdb.convert(Reader(vocab, 16)), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.embedding.weight.set_data(vocab.embedding.idx_to_vec)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for epoch in range(args.epochs):
        right = 0
        for ragged, labels in loader:
            with autograd.record(), gdb.batching(args.analysis_budget):
                scores = mx.nd.concat(*[net(words) for words in ragged], dim=0)
                loss = loss_fn(scores, labels.as_in_context(mx.cpu()))  # from shared memory
            loss.backward()
            trainer.step(len(ragged))
            right += (scores.asnumpy().argmax(axis=1) == labels.asnumpy()).sum()
        print(f"epoch {epoch}: {right / len(samples):.0%} right")
    gdb.testing.check_against_loop(net, ragged[:16], net.collect_params().values())
    print("values and gradients equal those of the loop")


if __name__ == "__main__":
    main()
