"""Score the relatedness of sentence pairs over HTTP: concurrent requests run together.

Start it with ``python examples/serve.py`` and ask it with

    curl localhost:8000/score -d '{"a": {"words": "a man sleeps", "heads": [2, 3, 0]},
                                   "b": {"words": "a lion is jumping", "heads": [2, 4, 4, 0]}}'

Heads are those of dependency trees, counted from 1, with 0 at the root. ``--checkpoint`` takes a
file that ``experiments/tree_lstm_relatedness.py train`` wrote; without it, a model is trained on
the built-in corpus, which takes seconds. ``/metrics`` returns figures for Prometheus.
"""

import argparse
import asyncio
import functools
import gc
import json
import logging
import math
import socket
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import uvicorn
from mxnet import gluon

import gluon_dynbatch as gdb

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from command import POSITIVE, SECONDS, Parser, UsageError, add_options, between, run_program  # noqa: E402
from relatedness.checkpoint import read_checkpoint  # noqa: E402
from relatedness.corpora import load_corpus  # noqa: E402
from relatedness.options import TASKS, restored  # noqa: E402
from relatedness.trees import Tree, TreeError  # noqa: E402
from workloads.pairs import RelatednessModel  # noqa: E402
from workloads.text import build_vocab, encode  # noqa: E402

LOGGER = logging.getLogger(__name__)
JSON = b"application/json"
ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def trained(epochs=2, size=25):
    """Train a model on the built-in corpus; return it with its vocabulary."""
    pairs = load_corpus(splits=("train",))["train"]
    vocab = build_vocab(pair.words for pair in pairs)
    samples, loss = encode(pairs, vocab), gluon.loss.KLDivLoss(from_logits=True)
    model = RelatednessModel(len(vocab), embedding_size=300, hidden_size=150)
    mx.random.seed(1)
    model.initialize(mx.init.Xavier())
    model.hybridize()
    trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05})
    for low in list(range(0, len(samples), size)) * epochs:
        batch = samples[low : low + size]
        with mx.autograd.record(), gdb.batching():
            losses = [loss(model(*sample.inputs), sample.target) for sample in batch]
        mx.autograd.backward(losses)
        trainer.step(len(batch))
    return model, vocab


def loaded(path):
    """Load a model and its vocabulary from a checkpoint."""
    parts = restored(read_checkpoint(path))
    if parts.task is not TASKS["relatedness"]:
        raise UsageError(f"{path}: a model of sentences, and this service is for pairs")
    parts.model.hybridize()
    return parts.model, parts.vocab


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


#: Bytes after the limit that are received before a body is refused.
DISCARDED = 2**28


class Refused(Exception):
    """A request that is answered by an error: status, text and additional headers."""


class Service:
    """The ASGI application; `batcher` runs a `scorer`."""

    def __init__(self, batcher, vocab, max_bytes, max_words):
        self.batcher, self.vocab = batcher, vocab
        self.max_bytes, self.max_words = max_bytes, max_words
        #: By path, the method and the handler, which returns the content and its type.
        self.routes = {
            "/score": ("POST", self.score),
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.metrics),
        }

    async def __call__(self, scope, receive, send):
        """Answer a request."""
        try:
            method, handler = self.routes.get(scope["path"], (None, None))
            if handler is None:
                raise Refused(404, "no such address")
            if scope["method"] != method:
                raise Refused(405, f"the method is {method}", (b"allow", method.encode()))
            status, more, (content_type, content) = 200, (), await handler(receive)
        except Exception as error:
            status, text, *more = refusal(error)
            content_type, content = JSON, ENCODE({"error": text})
        body = content.encode()
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *more]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def health(self, receive):
        """Answer while requests are accepted."""
        return JSON, ENCODE({"status": "ok"})

    async def metrics(self, receive):
        """Answer with figures for Prometheus."""
        return b"text/plain; charset=utf-8", metrics(self.batcher.stats())

    async def score(self, receive):
        """Answer with the score of a pair."""
        sample = self.parse(await self.body(receive))
        task, waiting = asyncio.current_task(), True
        # `receive` returns when the client disconnects or has received the answer.
        disconnected = asyncio.ensure_future(receive())
        disconnected.add_done_callback(lambda _: waiting and task.cancel())
        try:
            scores = await self.batcher(sample)
        except asyncio.CancelledError:
            if not disconnected.done():
                raise
            raise Refused(499, "the client has disconnected") from None
        finally:
            waiting = False
        # Plain Python, because NumPy is slower for so few numbers.
        score = sum(i * math.exp(p) for i, p in enumerate(scores[0].tolist(), 1))
        return JSON, ENCODE({"score": round(score, 5)})

    async def body(self, receive):
        """Return the body; refuse a long one.

        The rest of a long one is received but not kept: a client that still sends does not read the
        answer, and Uvicorn closes the connection after an early one.
        """
        body, size, more = b"", 0, True
        while more and size <= self.max_bytes + DISCARDED:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(499, "the body is not complete")
            size += len(message.get("body", b""))
            body = body + message.get("body", b"") if size <= self.max_bytes else b""
            more = message.get("more_body", False)
        if size > self.max_bytes:
            raise Refused(413, f"the body has more than {self.max_bytes} bytes")
        return body

    def parse(self, body):
        """Return the sample that a body describes."""
        try:
            pair = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None
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
            sample += [np.array(self.vocab[words], np.int32), tuple(heads)]
        return tuple(sample)


def refusal(error):
    """Return the arguments of `Refused` for any exception of a request."""
    if isinstance(error, Refused):
        return error.args
    if isinstance(error, TreeError):
        return 422, f"the heads are not a tree: {error}"
    if isinstance(error, gdb.QueueFullError):
        return 503, "too many requests are waiting", (b"retry-after", b"1")
    LOGGER.error("a request failed", exc_info=error)
    return 500, "the model failed"


def metrics(stats):
    """Format a batcher's statistics as text for Prometheus."""
    ends = ("completed", "failed", "cancelled", "rejected")
    lines = [f'requests_total{{end="{end}"}} {getattr(stats, end)}' for end in ends]
    lines += [f"requests_queued {stats.queued}", f"requests_running {stats.running}"]
    for share in (0.5, 0.9, 0.99):
        latency = stats.latency_percentile(100 * share)
        lines.append(f'request_seconds{{quantile="{share}"}} {latency}')
    lines.append(f"request_seconds_sum {stats.latency_s}")
    lines.append(f"request_seconds_count {stats.completed + stats.failed}")
    for size, count in sorted(stats.batch_sizes.items()):
        lines.append(f'minibatches_total{{size="{size}"}} {count}')
    lines.append(f"minibatch_seconds_total {stats.run_s}")
    lines.append(f"process_cpu_seconds_total {time.process_time()}")
    return "\n".join(lines) + "\n"


UVICORN = {"access_log": False, "proxy_headers": False, "lifespan": "off", "ws": "none"}


def check_address(host, port):
    """Raise an error unless the service can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen at --host {host} --port {port}: {reason}") from None


def serve(args):
    """Serve until interrupted."""
    check_address(args.host, args.port)
    model, vocab = loaded(args.checkpoint) if args.checkpoint else trained()
    batcher = gdb.RequestBatcher(
        scorer(model), args.max_batch_size, args.batch_wait_timeout_s, args.max_queue
    )
    service = Service(batcher, vocab, args.max_bytes, args.max_words)
    # The garbage collector need not scan what is loaded; no requests are answered while it runs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    with batcher:
        uvicorn.run(service, host=args.host, port=args.port, **UVICORN)


def host(text):
    """Check an address; an empty one would be any."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no address")
    return text


def main(argv=None):
    """Run the program."""
    parser = Parser(description=__doc__.splitlines()[0])
    add_options(
        parser,
        ("--checkpoint", Path, None, "FILE", "model to serve (default: train one)"),
        ("--host", host, "127.0.0.1", None, "address to listen at"),
        ("--port", between(int, 0, 65535), 8000, "N", "0: an unused one"),
        ("--max-batch-size", POSITIVE, 64, "N", "limit of a minibatch"),
        ("--batch-wait-timeout-s", SECONDS, 0.01, "S", "longest wait for a minibatch"),
        ("--max-queue", POSITIVE, 1024, "N", "limit of waiting requests"),
        ("--max-bytes", POSITIVE, 65536, "N", "limit of a request's body"),
        ("--max-words", POSITIVE, 200, "N", "limit of a sentence"),
    )
    args = parser.parse_args(argv)
    return run_program(lambda: serve(args))


if __name__ == "__main__":
    sys.exit(main())
