"""Stream the words of a decoder over HTTP: requests join and leave at every step.

Start it with ``python examples/serve_decoder.py`` and ask it with

    curl -N localhost:8000/generate -d '{"words": "a young lion is leaping", "limit": 20}'

The decoder attends to the words of a sentence, and has learnt to write it backwards. Each word is a
server-sent event, sent as soon as it is known; with ``"stream": false``, all come in one answer.
``--checkpoint`` takes a file that ``--save`` wrote; without it, a model is trained on the built-in
corpus, which takes seconds. ``/metrics`` returns figures for Prometheus.
"""

import errno
import functools
import random
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import prometheus_client as prometheus
from mxnet import gluon

import gluon_dynbatch as gdb

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from command import POSITIVE, SECONDS  # noqa: E402
from http_service import (  # noqa: E402
    BUCKETS,
    ENCODE,
    EVENTS,
    JSON,
    Refused,
    Service,
    event,
    numbering,
)
from relatedness.checkpoint import write_checkpoint  # noqa: E402
from relatedness.corpora import load_corpus  # noqa: E402
from service_processes import read_model, run_service  # noqa: E402
from workloads.base import Sample, labelling  # noqa: E402
from workloads.seq2seq import Translator  # noqa: E402
from workloads.text import build_vocab, indices  # noqa: E402

#: The word that ends a sentence, and the task of checkpoints.
END, TASK = "</s>", "reversal"
#: The rows of a memory are padded to a multiple; and the score of a row that is not attended to.
BLOCK, NEVER = 16, -1e9
#: Words that a stream holds for its client.
BUFFER = 128


def trained(epochs=4, size=32):
    """Train a model on the sentences of the built-in corpus; return it with its vocabulary."""
    pairs = load_corpus(splits=("train",))["train"]
    sentences = [words for pair in pairs for words in (pair.tokens_a, pair.tokens_b)]
    model, vocab = untrained([*sentences, (END,)])
    samples = [reversal(vocab, words) for words in sentences]
    work = labelling("decoder", "reversal", "sentences", samples, model, trainer=trainer_of(model))
    minibatches = work.minibatches(size, seed=1)
    for _ in range(epochs * len(samples) // size):
        with mx.autograd.record(), gdb.batching():
            losses = [work.loss(sample) for sample in next(minibatches)]
        mx.autograd.backward(losses)
        work.trainer.step(size)
    return model, vocab


def untrained(sentences, **sizes):
    """Return a model with random parameters, and the vocabulary of some sentences."""
    vocab = build_vocab(sentences)
    random.seed(1)
    np.random.seed(1)
    mx.random.seed(1)
    model = gdb.convert(Translator(len(vocab), **sizes))
    model.initialize(mx.init.Xavier())
    model.hybridize()
    return model, vocab


def trainer_of(model):
    """Return the trainer of a model."""
    return gluon.Trainer(model.collect_params(), "fusedadagrad", {"learning_rate": 0.1})


def reversal(vocab, words):
    """Return a sample: a sentence, and what the decoder is fed and should answer."""
    target = vocab[[*words[::-1], END]]
    fed = indices([len(vocab), *target[:-1]])
    return Sample((indices(vocab[list(words)]), fed), indices(target))


class Step(gdb.DynamicHybridBlock):
    """A step of a `Translator` that feeds itself, as one cell, so that it is one recorded call."""

    def __init__(self, model):
        super().__init__()
        self.embedding, self.decoder = model.embedding, model.decoder
        self.layer, self.score = model.attention.layer, model.score

    def hybrid_forward(self, F, token, memory, padding, attentional, h, c):
        """Return the next token, the attentional state, and the state of the LSTM."""
        row = F.concat(self.embedding(token), attentional, dim=1)
        out, (h, c) = self.decoder(row, [h, c])
        weights = F.softmax(F.dot(out, memory, transpose_b=True) + padding)
        attentional = self.layer(F.concat(F.dot(weights, memory), out, dim=1))
        return self.score(attentional).argmax(axis=1), attentional, h, c


def padded(memory):
    """Return a memory of `BLOCK` rows or a multiple, and what to add to the scores of its rows.

    A plan depends on how many requests have which shapes: with few shapes, it is soon known.
    """
    count, size = memory.shape
    more = -count % BLOCK
    padding = np.zeros((1, count + more), np.float32)
    padding[:, count:] = NEVER
    if more:
        memory = mx.nd.concat(memory, mx.nd.zeros((more, size)), dim=0)
    # The product is computed once, and stays where the steps read it.
    return memory, mx.nd.array(padding) * 1


class Begin(gdb.DynamicHybridBlock):
    """What a `Translator` computes of a sentence before the first step."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, source):
        """Return the padded memory, the padding, and the first states of `Step`."""
        memory, (attentional, (h, c)) = self.model.encode(source)
        return (*padded(memory), attentional, h, c)


def decoder(model, vocab):
    """Return the function of one request: a generator of words."""
    begin, step, end, words = Begin(model), Step(model), vocab[END], vocab.idx_to_token
    first = mx.nd.array([len(vocab)])
    # What it records depends on the number of words only: it runs once for each.
    begin.hybridize(trace_once=True)
    step.hybridize()

    def decode(source, limit):
        memory, padding, attentional, h, c = begin(source)
        token = first
        for _ in range(limit):
            token, attentional, h, c = step(token, memory, padding, attentional, h, c)
            number = int(token.asscalar())  # waits here for a flush, together with other requests
            if number == end:
                break
            yield words[number]

    return decode


@functools.lru_cache(maxsize=2**16)
def event_of(word):
    """Format a word as a server-sent event."""
    return event({"word": word})


class DecoderService(Service):
    """Stream the words of a decoder over HTTP: requests join and leave at every step."""

    options = (
        ("--save", Path, None, "FILE", "write the trained model to this file"),
        ("--max-batch-size", POSITIVE, 64, "N", "most requests of a step"),
        ("--run-to-end", None, False, None, "let no request join those that are under way"),
        ("--max-words", POSITIVE, 50, "N", "most words of a sentence"),
        ("--max-limit", POSITIVE, 512, "N", "most words that a request may ask for"),
        ("--timeout-s", SECONDS, 60, "S", "longest time for a request"),
        ("--stream-interval-s", SECONDS, 0.01, "S", "shortest time between two deliveries"),
    )

    #: To send words takes about as long as to compute them.
    apart = True

    def __init__(self, args, parts, is_apart=False):
        self.numbers_of, self.timeout_s = numbering(parts[1]), args.timeout_s
        self.max_words, self.max_limit = args.max_words, args.max_limit
        batcher = None if is_apart else self.batcher_of(args, parts)
        super().__init__(batcher, (np.zeros(1, np.int32), 1), args.max_bytes)
        self.routes["/generate"] = ("POST", self.generate)
        figures = {"registry": self.figures.own, "buckets": BUCKETS}
        self.first = prometheus.Histogram("first_word_seconds", "Until the first word.", **figures)
        self.next = prometheus.Histogram("word_seconds", "Mean time between words.", **figures)

    @staticmethod
    def load(args):
        """Return a model and its vocabulary, from a checkpoint or trained."""
        if args.checkpoint is not None:
            checkpoint = read_model(args.checkpoint, TASK)
            with checkpoint.validation():
                sizes = checkpoint.state["settings"]["sizes"]
                model = gdb.convert(Translator(len(checkpoint.vocab), **sizes))
            checkpoint.check(model)
            model.initialize()
            checkpoint.restore(model)
            model.hybridize()
            return model, checkpoint.vocab
        if args.save is not None and args.save.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder, not a file to write", str(args.save))
        parts = trained()
        if args.save is not None:
            save(args.save, *parts)
        return parts

    @staticmethod
    def batcher_of(args, parts):
        """Return the batcher."""
        return gdb.RequestBatcher(
            decoder(*parts),
            args.max_batch_size,
            max_queue=args.max_queue,
            continuous=not args.run_to_end,
            stream_buffer=BUFFER,
            stream_interval_s=args.stream_interval_s,
        )

    @staticmethod
    def save(path, model, vocab):
        """Write a checkpoint."""
        save(path, model, vocab)

    async def generate(self, receive):
        """Answer with the words that the decoder writes."""
        sample, in_parts = self.parse(await self.body(receive))
        if in_parts:
            # It refuses here if too many wait.
            return EVENTS, self.events(self.batcher.stream(sample, timeout_s=self.timeout_s))
        with self.while_connected(receive):
            words = await self.batcher(sample, timeout_s=self.timeout_s)
        return JSON, ENCODE({"words": words})

    async def events(self, stream):
        """Yield an event per word, and one at the end."""
        began, first, count = time.perf_counter(), None, 0
        try:
            async for word in stream:
                first = first or time.perf_counter()
                # Those that have come while others were sent: they are one part.
                words = [word, *stream.available()]
                count += len(words)
                yield "".join(map(event_of, words))
            yield event({"count": count}, "end")
        finally:
            await stream.aclose()
            if first:
                self.first.observe(first - began)
            if count > 1:
                self.next.observe((time.perf_counter() - first) / (count - 1))

    def parse(self, asked):
        """Return the sample that the JSON of a body describes, and whether to send it in parts."""
        fields = asked if isinstance(asked, dict) else {}
        words, in_parts = fields.get("words"), fields.get("stream", True)
        limit = fields.get("limit", self.max_limit)
        if not isinstance(words, str):
            raise Refused(422, 'the body needs "words", a string')
        words = words.split()
        if not 1 <= len(words) <= self.max_words:
            raise Refused(422, f"there are {len(words)} words, not 1 to {self.max_words}")
        if type(limit) is not int or not 1 <= limit <= self.max_limit:
            raise Refused(422, f'"limit" is a whole number from 1 to {self.max_limit}')
        if type(in_parts) is not bool:
            raise Refused(422, '"stream" is true or false')
        # The batcher converts NumPy arrays to MXNet.
        return (self.numbers_of(words), limit), in_parts


def save(path, model, vocab):
    """Write a checkpoint."""
    embedding_size, hidden_size = model.embedding.weight.shape[1], model.score.weight.shape[1]
    sizes = {"embedding_size": embedding_size, "hidden_size": hidden_size}
    state = {"settings": {"task": TASK, "sizes": sizes}}
    write_checkpoint(path, model, trainer_of(model), vocab, state)


def main(argv=None):
    """Run the program."""
    return run_service(DecoderService, argv)


if __name__ == "__main__":
    sys.exit(main())
