"""Score the relatedness of sentence pairs over HTTP: requests that come at once run as a minibatch.

Start it with ``python examples/serve.py`` and ask it with

    curl localhost:8000/score -d '{"a": {"words": "a man sleeps", "heads": [2, 3, 0]},
                                   "b": {"words": "a lion is jumping", "heads": [2, 4, 4, 0]}}'

Heads are those of dependency trees, counted from 1, with 0 at the root.  Without ``--checkpoint``
(a file that experiments/tree_lstm_relatedness.py wrote), a model is first trained for some seconds
on the built-in corpus of experiments/.  ``/health`` says whether requests are taken, ``/metrics``
has figures for Prometheus.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

import gluon_dynbatch as gdb

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from relatedness.assembly import assemble  # noqa: E402
from relatedness.checkpoint import CheckpointError, read_checkpoint  # noqa: E402
from relatedness.data import build_vocab  # noqa: E402
from relatedness.trees import CLASSES, Tree, TreeError  # noqa: E402
from workloads.pairs import embedded, embedded_pairs  # noqa: E402
from workloads.runner import Runner  # noqa: E402

SCORES = np.arange(1, CLASSES + 1)


def trained(epochs=2, size=25):
    """Train a model on the built-in corpus; return it with its vocabulary."""
    mx.random.seed(1)
    workload = embedded()
    runner = Runner(workload)
    minibatches = workload.minibatches(size, seed=1)
    for _ in range(epochs * len(workload.samples) // size):
        runner.step(next(minibatches))
    return workload.model, build_vocab(embedded_pairs())


def loaded(path):
    """Read a model with its vocabulary."""
    parts = assemble(argparse.Namespace(ctx=[mx.cpu()]), {}, read_checkpoint(path))
    parts.model.hybridize()
    return parts.model, parts.vocab


def scorer(model):
    """Return a function that scores one pair."""

    def score(words_a, tree_a, words_b, tree_b):
        # Cheaper than `mx.nd.array`
        words = mx.nd.from_numpy(np.array(words_a + words_b, np.int32))
        return model(words[: len(words_a)], tree_a, words[len(words_a) :], tree_b)

    return score


class Service:
    """The endpoints around a batcher."""

    def __init__(self, batcher, vocab, max_bytes, max_words):
        self.batcher, self.vocab = batcher, vocab
        self.max_bytes, self.max_words = max_bytes, max_words

    def app(self):
        """Return the ASGI application, which closes the batcher at its end."""

        @contextlib.asynccontextmanager
        async def lifespan(app):
            with self.batcher:
                yield

        routes = [
            Route("/score", self.score, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        handlers = {HTTPException: told, TreeError: unfit, gdb.QueueFullError: busy}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)

    async def score(self, request):
        """Answer with the score of one pair."""
        sample = self.parse(await self.read(request))
        result = await self.batcher(sample)
        return JSONResponse({"score": round(float(np.exp(result.asnumpy()[0]) @ SCORES), 5)})

    async def read(self, request):
        """Return the body, unless it is too long."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_bytes:
                raise HTTPException(413, f"the body has more than {self.max_bytes} bytes")
        return body

    def parse(self, body):
        """Return the sample that the body describes, or raise what is wrong with it."""
        try:
            pair = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from None
        sample = []
        for side in "ab":
            sentence = pair.get(side) if isinstance(pair, dict) else None
            words = sentence.get("words") if isinstance(sentence, dict) else None
            heads = sentence.get("heads") if isinstance(sentence, dict) else None
            if not isinstance(words, str) or not isinstance(heads, list):
                raise HTTPException(422, f'{side} needs "words", a text, and "heads", a list')
            words = words.split()
            if not 0 < len(words) <= self.max_words:
                raise HTTPException(422, f"{side} has {len(words)} words, not 1 to {self.max_words}")
            if len(heads) != len(words) or not all(type(head) is int for head in heads):
                raise HTTPException(422, f"{side} needs a whole number as head of each word")
            sample += [self.vocab[words], Tree.from_heads([head - 1 for head in heads])]
        return tuple(sample)

    async def health(self, request):
        """Answer that requests are taken."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, request):
        """Answer with figures in the text format of Prometheus."""
        stats = self.batcher.stats()
        return PlainTextResponse("\n".join(prometheus(stats)) + "\n")


def prometheus(stats):
    """Yield the lines of a batcher's statistics."""
    yield "# TYPE requests_total counter"
    for end in ("completed", "failed", "cancelled", "rejected"):
        yield f'requests_total{{end="{end}"}} {getattr(stats, end)}'
    for name in ("queued", "running"):
        yield f"# TYPE requests_{name} gauge"
        yield f"requests_{name} {getattr(stats, name)}"
    yield "# TYPE request_seconds summary"
    for percent in (50, 90, 99):
        yield f'request_seconds{{quantile="{percent / 100}"}} {stats.latency_percentile(percent)}'
    yield f"request_seconds_sum {stats.latency_s}"
    yield f"request_seconds_count {stats.completed + stats.failed}"
    yield "# TYPE minibatch_seconds summary"
    yield f"minibatch_seconds_sum {stats.run_s}"
    yield f"minibatch_seconds_count {sum(stats.batch_sizes.values())}"
    yield "# TYPE minibatch_size histogram"
    for most in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, "+Inf"):
        count = sum(n for size, n in stats.batch_sizes.items() if size <= float(most))
        yield f'minibatch_size_bucket{{le="{most}"}} {count}'


async def told(request, error):
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def unfit(request, error):
    return JSONResponse({"error": f"the heads are no tree: {error}"}, 422)


async def busy(request, error):
    return JSONResponse({"error": "too many requests wait"}, 503, {"Retry-After": "1"})


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--max-batch-size", type=int, default=64)
    parser.add_argument("--batch-wait-timeout-s", type=float, default=0.005)
    parser.add_argument("--max-queue", type=int, default=1024)
    parser.add_argument("--max-bytes", type=int, default=65536)
    parser.add_argument("--max-words", type=int, default=200)
    parser.add_argument("--si", type=float, default=0.005)
    args = parser.parse_args(argv)
    model, vocab = loaded(args.checkpoint) if args.checkpoint else trained()
    import sys
    sys.setswitchinterval(args.si)
    batcher = gdb.RequestBatcher(
        scorer(model),
        max_batch_size=args.max_batch_size,
        batch_wait_timeout_s=args.batch_wait_timeout_s,
        max_queue=args.max_queue,
    )
    service = Service(batcher, vocab, args.max_bytes, args.max_words)
    uvicorn.run(service.app(), host=args.host, port=args.port, log_level="info", access_log=False)
    print(batcher.stats()._replace(latencies_s=()))


if __name__ == "__main__":
    main()
