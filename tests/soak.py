"""Many requests of mixed lengths and ends, in one batcher: memory stays level.

``python -m tests.soak --requests 100000`` takes minutes, prints the memory of the process, and
fails if it grows.
"""

import argparse
import asyncio
import gc
import random
import resource
import sys

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb
from tests.cells import Attention, dense

#: Requests at a time, and the longest one in steps.
TASKS, LONGEST = 48, 40
#: How a request ends, with its share of all.
ENDS = {"result": 0.55, "stream": 0.3, "left": 0.05, "failed": 0.05, "cancelled": 0.05}


def decoder():
    """Return a generator function whose steps attend to a memory of any number of rows."""
    cell, attention = dense(4, 4, prefix="soak_", activation="tanh"), Attention()
    attention.hybridize()

    def decode(memory, steps, fails):
        h = memory[:1]
        for step in range(steps):
            h = cell(h + attention(h, memory))
            if fails and step == steps // 2:
                raise KeyError(step)
            yield int(h.argmax(axis=1).asscalar())

    return decode


async def request(batcher, rng):
    """Send a request, and check how it ends."""
    end = rng.choices(list(ENDS), list(ENDS.values()))[0]
    steps = 1 + min(int(rng.expovariate(1 / 5)), LONGEST - 1)
    memory = np.full((rng.randint(1, 12), 4), rng.random(), "float32")
    sample = memory, steps, end == "failed"
    if end in ("stream", "left"):
        count = 0
        async for _ in batcher.stream(sample):
            count += 1
            if end == "left":
                break
        assert count == (1 if end == "left" else steps)
    elif end == "cancelled":
        task = asyncio.ensure_future(batcher(sample))
        await asyncio.sleep(0.002 * rng.random())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    else:
        (result,) = await asyncio.gather(batcher(sample), return_exceptions=True)
        assert isinstance(result, KeyError) if end == "failed" else len(result) == steps


async def clients(batcher, requests, seed):
    """Send so many requests, from `TASKS` tasks."""
    rng, left = random.Random(seed), [requests]

    async def client():
        while left[0] > 0:
            left[0] -= 1
            await request(batcher, rng)

    await asyncio.gather(*(client() for _ in range(TASKS)))


def soak(requests, parts, measure, **options):
    """Return what `measure` returns after each part of the requests, and the statistics."""
    measured = []
    with gdb.RequestBatcher(decoder(), 32, 0.001, stream_buffer=4, **options) as batcher:
        for part in range(parts):
            asyncio.run(clients(batcher, requests // parts, part))
            measured.append(measure())
        stats = batcher.stats()
    assert stats.completed + stats.failed + stats.cancelled == requests // parts * parts
    return measured, stats


def resident():
    """Return the memory of this process, in MB."""
    gc.collect()
    mx.nd.waitall()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def main():
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    args = parser.parse_args()
    sizes, stats = soak(args.requests, 20, resident)
    print("MB:", *(f"{size:.0f}" for size in sizes))
    print(stats._replace(latencies_s=(), batch_sizes={}))
    growth = max(sizes[15:]) - max(sizes[5:10])
    print(f"growth from the second quarter to the last: {growth:.1f} MB")
    return growth > 10


if __name__ == "__main__":
    sys.exit(main())
