"""Rank candidates with a stock Gluon network: requests of different sizes run together."""

import time

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

import arguments
import gluon_dynbatch as gdb


def make_network(features):
    """Build an ordinary Gluon network: (n, features) -> (n, 1)."""
    net = nn.HybridSequential()
    net.add(
        nn.Dense(64, activation="relu", flatten=False, in_units=features),
        nn.LayerNorm(in_channels=64),
        nn.Dense(64, activation="relu", flatten=False, in_units=64),
        nn.Dense(1, flatten=False, in_units=64),
    )
    return net


def best(scores):
    """Return the row of the candidate with the highest score."""
    return int(scores.argmax(axis=0).asscalar())


def main(argv=None):
    """Answer the same requests one by one and together, and compare the answers."""
    args = arguments.read(__doc__, argv, requests=500)
    rng = np.random.RandomState(1)
    sizes = rng.randint(1, 30, args.requests)
    requests = [mx.nd.array(rng.normal(size=(size, 16))) for size in sizes]
    net = make_network(features=16)
    net.initialize(mx.init.Xavier())
    net.hybridize()

    def one_by_one():
        return [best(net(request)) for request in requests]

    def together():
        scores = gdb.map(net, requests, analysis_budget=args.analysis_budget)
        return [best(each) for each in scores]

    expected = one_by_one()
    gdb.convert(net)  # in place: parameters, names and files do not change
    assert together() == expected
    for answer in (one_by_one, together):
        started = time.perf_counter()
        answer()
        speed = len(requests) / (time.perf_counter() - started)
        print(f"{answer.__name__:11}{speed:6.0f} requests/s")
    with gdb.batching(args.analysis_budget) as batch:
        for request in requests:
            net(request)
    print(batch.report)
    print("all answers equal those of the loop")


if __name__ == "__main__":
    main()
