"""A load test of ``examples/serve.py``: many clients, some misbehave, every answer is checked.

``python experiments/serve_load.py`` starts the service with and without batching. For each, it
prints requests per second, latencies, and the bar for the 99th percentile.
"""

import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import mxnet as mx
import numpy as np
import uvloop

from command import POSITIVE, SECONDS, Parser, add_options, between, run_program
from relatedness.checkpoint import write_checkpoint
from relatedness.options import TASKS, assemble
from tree_lstm_relatedness import read_arguments

SERVICE = Path(__file__).parents[1] / "examples" / "serve.py"
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


def request_of(body):
    """Wrap a body in an HTTP request."""
    return b"POST /score HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


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


@contextlib.contextmanager
def service(checkpoint, *options):
    """Start the service on a free port; yield the port."""
    command = [sys.executable, "-W", "ignore", str(SERVICE), "--port", "0"]
    command += ["--checkpoint", str(checkpoint), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            log = ""
            while not (address := re.search(r"http://127\.0\.0\.1:(\d+)\D", log)):
                line = process.stderr.readline()
                log += line
                if not line:
                    raise RuntimeError(f"the service did not start: {log}")
            yield int(address.group(1))
        finally:
            process.terminate()
            process.communicate(timeout=60)


async def receive(reader):
    """Read an answer; return its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    body = await (reader.readexactly(int(length.group(1))) if length else reader.read())
    return int(head[9:12]), body


async def send(port, request, answered=True):
    """Send a request on a new connection; return status and body, or disconnect at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        if answered:
            return await receive(reader)
        await writer.drain()
        return await asyncio.sleep(random.uniform(0, 0.01))
    finally:
        writer.close()


async def ask(port, answers, end, latencies):
    """Send one request after the other on a connection, as fast as they are answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < end:
        sent, (request, score) = time.monotonic(), random.choice(answers)
        writer.write(request)
        status, body = await receive(reader)
        latencies.append(time.monotonic() - sent)
        assert status == 200 and abs(json.loads(body)["score"] - score) < 1e-4, (body, score)
    writer.close()


async def misbehave(port, answers, end, counts):
    """Send invalid requests, disconnect before answers, and send garbage, in turn."""
    while not counts["vanished"] or time.monotonic() < end:
        for body, expected in INVALID:
            status, answer = await send(port, request_of(body))
            assert status == expected and json.loads(answer)["error"], (body[:50], status, answer)
            counts["refused"] += 1
        for request, _ in random.sample(answers, 5):
            await send(port, request, answered=False)
            counts["vanished"] += 1
        garbage = random.getrandbits(4000).to_bytes(500, "big") + b"\r\n\r\n"
        assert (await send(port, garbage))[0] == 400
        await asyncio.sleep(0.05)


def read_metrics(port):
    """Read the service's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.split() for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def load(port, scores, seconds, clients, rude):
    """Put load on a service; return figures by name, times in seconds."""
    latencies = []
    counts, before = {"refused": 0, "vanished": 0}, read_metrics(port)
    answers = [(request_of(body), score) for body, score in scores]

    async def run_clients():
        end = time.monotonic() + seconds
        polite = [ask(port, answers, end, latencies) for _ in range(clients)]
        await asyncio.gather(*polite, *[misbehave(port, answers, end, counts) for _ in range(rude)])

    busy = time.process_time()
    uvloop.run(run_clients())  # cheap clients, because the service runs on the same processors
    busy, after = time.process_time() - busy, read_metrics(port)
    increase = {name: value - before.get(name, 0) for name, value in after.items()}
    minibatches = sum(increase[name] for name in increase if name.startswith("minibatches_total"))
    answered = len(latencies)
    return {
        "per second": answered / seconds,
        "p50": np.percentile(latencies, 50),
        "p99": np.percentile(latencies, 99),
        "minibatch": increase["minibatch_seconds_total"] / minibatches,
        "of a request, service": increase["process_cpu_seconds_total"] / answered,
        "clients": busy / answered,
        "requests a minibatch": increase["request_seconds_count"] / minibatches,
        "answered": answered,
        **counts,
        "cancelled": after['requests_total{end="cancelled"}'],
    }


def measure(args):
    """Print the figures of both."""
    speeds = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model"
        scores = prepare(checkpoint)
        for size in (64, 1):
            wait = ("--batch-wait-timeout-s", str(args.batch_wait_timeout_s))
            with service(checkpoint, "--max-batch-size", str(size), *wait) as port:
                load(port, scores, args.warmup, args.clients, 0)
                figures = load(port, scores, args.seconds, args.clients, args.rude)
            bar = args.batch_wait_timeout_s + 3 * figures["minibatch"]
            print(f"minibatches of at most {size}; the bar for p99 is {bar:.3f} s")
            print("  " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
            speeds.append(figures["per second"])
    print(f"batching: {speeds[0] / speeds[1]:.2f} times as many requests per second")


def main(argv=None):
    """Measure with and without batching."""
    parser = Parser(description=__doc__)
    add_options(
        parser,
        ("--clients", between(int, 1, 1000), 64, "N", "clients that send valid requests"),
        ("--rude", between(int, 0, 1000), 2, "N", "clients that misbehave at the same time"),
        ("--seconds", POSITIVE, 60, "S", "length of a measurement"),
        ("--warmup", POSITIVE, 10, "S", "length of the load before it"),
        ("--batch-wait-timeout-s", SECONDS, 0.01, "S", "longest wait for a minibatch"),
    )
    args = parser.parse_args(argv)
    return run_program(lambda: measure(args))


if __name__ == "__main__":
    sys.exit(main())
