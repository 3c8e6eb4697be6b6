"""Score the relatedness of sentence pairs over HTTP: concurrent requests run together.

Start it with ``python examples/serve.py`` and ask it with

    curl localhost:8000/score -d '{"a": {"words": "a man sleeps", "heads": [2, 3, 0]},
                                   "b": {"words": "a lion is jumping", "heads": [2, 4, 4, 0]}}'

Heads are those of dependency trees, counted from 1, with 0 at the root. ``--checkpoint`` takes a
file that ``experiments/tree_lstm_relatedness.py train`` wrote; without it, a model is trained on
the built-in corpus, which takes seconds. ``/metrics`` returns figures for Prometheus.
"""

import functools
import math
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import gluon

import gluon_dynbatch as gdb

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from command import POSITIVE, SECONDS  # noqa: E402
from http_service import (  # noqa: E402
    JSON,
    Refused,
    Service,
    numbering,
)
from relatedness.corpora import load_corpus  # noqa: E402
from relatedness.options import restored  # noqa: E402
from relatedness.trees import Tree, TreeError  # noqa: E402
from service_processes import read_model, run_service  # noqa: E402
from workloads.pairs import RelatednessModel  # noqa: E402
from workloads.text import build_vocab, encode  # noqa: E402


def trained(epochs=2, size=25):
    """Train a model on the built-in corpus; return it with its vocabulary."""
    pairs = load_corpus(splits=("train",))["train"]
    vocab = build_vocab(pair.words for pair in pairs)
    samples, loss = encode(pairs, vocab), gluon.loss.KLDivLoss(from_logits=True)
    model = RelatednessModel(len(vocab), embedding_size=300, hidden_size=150)
    mx.random.seed(1)
    model.initialize(mx.init.Xavier())
    model.hybridize()
    # With a larger step, the result depends on the order of sums.
    trainer = gluon.Trainer(model.collect_params(), "fusedadagrad", {"learning_rate": 0.02})
    for low in list(range(0, len(samples), size)) * epochs:
        batch = samples[low : low + size]
        with mx.autograd.record(), gdb.batching():
            losses = [loss(model(*sample.inputs), sample.target) for sample in batch]
        mx.autograd.backward(losses)
        trainer.step(len(batch))
    return model, vocab


def scorer(model):
    """Return the function of one sample that the batcher runs."""
    # Trees recur: `forward` runs once for each.
    model.hybridize(trace_once=True)

    @functools.lru_cache(maxsize=4096)
    def tree(heads):
        return Tree.from_heads([head - 1 for head in heads])

    def score(words_a, heads_a, words_b, heads_b):
        return model(words_a, tree(heads_a), words_b, tree(heads_b))

    return score


class ScoreService(Service):
    """Score the relatedness of sentence pairs over HTTP: concurrent requests run together."""

    options = (
        ("--max-batch-size", POSITIVE, 64, "N", "most requests of a minibatch"),
        ("--batch-wait-timeout-s", SECONDS, 0.01, "S", "longest wait for more requests"),
        ("--max-words", POSITIVE, 200, "N", "most words of a sentence"),
    )

    def __init__(self, args, parts):
        model, vocab = parts
        self.numbers_of = numbering(vocab)
        self.max_words = args.max_words
        batcher = gdb.RequestBatcher(
            scorer(model), args.max_batch_size, args.batch_wait_timeout_s, args.max_queue
        )
        word = np.zeros(1, np.int32)
        super().__init__(batcher, (word, (0,), word, (0,)), args.max_bytes)
        self.routes["/score"] = ("POST", self.score)

    @staticmethod
    def load(args):
        """Return a model and its vocabulary, from a checkpoint or trained."""
        if args.checkpoint is None:
            return trained()
        parts = restored(read_model(args.checkpoint, "relatedness"))
        parts.model.hybridize()
        return parts.model, parts.vocab

    async def score(self, receive):
        """Answer with the score of a pair."""
        try:
            sample = self.parse(await self.body(receive))
            with self.while_connected(receive):
                scores = await self.batcher(sample)
        except TreeError as error:
            raise Refused(422, f"the heads are not a tree: {error}") from None
        # Plain Python, because NumPy is slower for so few numbers.
        score = sum(i * math.exp(p) for i, p in enumerate(scores[0].tolist(), 1))
        if not math.isfinite(score):
            raise ValueError("the score is no number")
        return JSON, f'{{"score":{round(score, 5)}}}'  # `json` would take ten times as long

    def parse(self, pair):
        """Return the sample that the JSON of a body describes."""
        sample = []
        for side in "ab":
            sentence = pair.get(side) if isinstance(pair, dict) else None
            fields = sentence if isinstance(sentence, dict) else {}
            words, heads = fields.get("words"), fields.get("heads")
            if not isinstance(words, str) or not isinstance(heads, list):
                raise Refused(422, f'{side} needs "words", a string, and "heads", a list')
            words = words.split()
            if not 1 <= len(words) <= self.max_words:
                raise Refused(422, f"{side} has {len(words)} words, not 1 to {self.max_words}")
            if len(heads) != len(words) or not set(map(type, heads)) <= {int}:
                raise Refused(422, f"{side} needs one whole number per word as heads")
            # The batcher converts NumPy arrays to MXNet, all of a minibatch at once.
            sample += [self.numbers_of(words), tuple(heads)]
        return tuple(sample)


def main(argv=None):
    """Run the program."""
    return run_service(ScoreService, argv)


if __name__ == "__main__":
    sys.exit(main())
