"""Load on ``examples/serve.py``: many clients, some misbehave, every answer is checked.

A closed loop: a client asks again when it is answered.
"""

import asyncio
import json
import random
import time

import mxnet as mx
import numpy as np

from relatedness.checkpoint import write_checkpoint
from relatedness.options import TASKS, assemble
from tree_lstm_relatedness import read_arguments

from .client import quiet, read_metrics, receive, request_of, send

#: Where a pair is scored.
PATH = "/score"
#: Invalid bodies with the status of the answer. The heads of the last one are not a tree.
INVALID = (
    (b"{", 400),
    (b"[" * 50_000, 400),
    (b"[]", 422),
    (b'{"a": {"words": "lion", "heads": [1.5]}}', 422),
    (b" " * 100_000, 413),
    (b'{"a": {"words": "a b", "heads": [2, 1]}, "b": {"words": "a", "heads": [0]}}', 422),
)


def body_of(pair):
    """Encode a pair as the service takes it."""
    sides = (("a", pair.tokens_a, pair.tree_a), ("b", pair.tokens_b, pair.tree_b))
    content = {
        side: {"words": " ".join(tokens), "heads": [head + 1 for head in tree.heads]}
        for side, tokens, tree in sides
    }
    return json.dumps(content).encode()


def prepare(path, options=()):
    """Write a checkpoint of a random model; return bodies of requests with the loop's scores."""
    args = read_arguments(["train", *options])
    pairs = TASKS[args.task].read(args, ("test",))["test"]
    parts = assemble(args, {"test": pairs})
    for parameter in parts.model.collect_params().values():
        parameter.set_data(mx.nd.random.normal(0, 0.5, parameter.shape))
    state = {"settings": parts.settings}
    trainer = mx.gluon.Trainer(parts.model.collect_params(), "sgd")
    write_checkpoint(path, parts.model, trainer, parts.vocab, state)
    parts.model.hybridize()
    outputs = [parts.model(*sample.inputs) for sample in parts.data(args, pairs).samples]
    scores = parts.task.answers(mx.nd.concat(*outputs, dim=0).asnumpy())
    return list(zip(map(body_of, pairs), scores))


async def ask(port, answers, end, latencies):
    """Send one request after the other on a connection, as fast as they are answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = None
    while sent is None or time.monotonic() < end:
        sent, (request, score) = time.monotonic(), random.choice(answers)
        writer.write(request)
        status, body = await receive(reader)
        latencies.append(time.monotonic() - sent)
        assert status == 200 and abs(json.loads(body)["score"] - score) < 1e-4, (body, score)
    writer.close()


async def vanish(port, request):
    """Send a request on a new connection, and disconnect at once."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        await asyncio.sleep(random.uniform(0, 0.01))
    finally:
        writer.close()


async def misbehave(port, answers, end, counts):
    """Send invalid requests, disconnect before answers, and send garbage, in turn."""
    while not counts["vanished"] or time.monotonic() < end:
        for body, expected in INVALID:
            status, answer = await send(port, request_of(PATH, body))
            assert status == expected and json.loads(answer)["error"], (body[:50], status, answer)
            counts["refused"] += 1
        for request, _ in random.sample(answers, 5):
            await vanish(port, request)
            counts["vanished"] += 1
        garbage = random.getrandbits(4000).to_bytes(500, "big") + b"\r\n\r\n"
        assert (await send(port, garbage))[0] == 400
        await asyncio.sleep(0.05)


def load(port, scores, seconds, clients, rude):
    """Put load on a service; return figures by name, times in seconds."""
    latencies = []
    counts, before = {"refused": 0, "vanished": 0}, read_metrics(port)
    answers = [(request_of(PATH, body), score) for body, score in scores]

    async def run_clients():
        end = time.monotonic() + seconds
        polite = [ask(port, answers, end, latencies) for _ in range(clients)]
        await asyncio.gather(*polite, *[misbehave(port, answers, end, counts) for _ in range(rude)])

    busy = time.process_time()
    quiet(run_clients())
    busy, after = time.process_time() - busy, read_metrics(port)
    increase = {name: value - before.get(name, 0) for name, value in after.items()}
    minibatches = sum(increase[name] for name in increase if name.startswith("minibatches_total"))
    ran = sum(increase[f'requests_total{{end="{end}"}}'] for end in ("completed", "failed"))
    answered = len(latencies)
    return {
        "per second": answered / seconds,
        "p50": np.percentile(latencies, 50),
        "p99": np.percentile(latencies, 99),
        "minibatch": increase["minibatch_seconds_total"] / minibatches,
        "of a request, service": increase["process_cpu_seconds_total"] / answered,
        "clients": busy / answered,
        "requests a minibatch": ran / minibatches,
        "answered": answered,
        **counts,
        "cancelled": after['requests_total{end="cancelled"}'],
    }
