"""Run GluonNLP's BERT on sentence pairs of different lengths: batched, and padded."""

import math
import time

import gluonnlp as nlp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import arguments
import gluon_dynbatch as gdb

WORDS, LONGEST = 1000, 64


def make_net(layers, units):
    """Make a classifier of pairs: a small BERT with random weights."""
    heads = math.gcd(units, max(units // 32, 1))
    sizes = {"units": units, "hidden_size": 4 * units, "num_heads": heads}
    encoder = nlp.model.BERTEncoder(num_layers=layers, max_length=LONGEST, dropout=0.0, **sizes)
    parts = {"use_classifier": False, "use_decoder": False}
    bert = nlp.model.BERTModel(encoder, WORDS, 2, units, units, **parts)
    net = gdb.convert(nlp.model.BERTClassifier(bert, num_classes=2, dropout=0.0))
    net.initialize(mx.init.Normal(0.05))
    net.hybridize(static_alloc=True)
    return net


def make_pairs(count, rng):
    """Draw words and segments of pairs with the lengths of SICK, 22 +- 7."""
    lengths = np.clip(6 + rng.lognormal(2.7, 0.41, count), 9, LONGEST).astype(int)
    return [np.stack([rng.randint(0, WORDS, n), np.arange(n) > n // 2]) for n in lengths]


def padded(pairs, multiple=1):
    """Pad pairs to a multiple of a length and stack them; return words, segments, lengths."""
    lengths = [pair.shape[1] for pair in pairs]
    longest = min(-(-max(lengths) // multiple) * multiple, LONGEST)
    rows = [np.pad(p, ((0, 0), (0, longest - p.shape[1]))) for p in pairs]
    return [*map(mx.nd.array, np.stack(rows, axis=1)), mx.nd.array(lengths)]


def main(argv=None):
    """Time both ways on the same minibatches, and compare scores and gradients."""
    args = arguments.read(__doc__, argv, layers=4, units=128, pairs=64, rounds=8, multiple=8)
    rng, net = np.random.RandomState(0), make_net(args.layers, args.units)
    parameters = [p for p in net.collect_params().values() if p.grad_req != "null"]
    loss_fn, seconds = gluon.loss.SoftmaxCrossEntropyLoss(), {}

    def ragged(*samples):
        with gdb.batching(args.analysis_budget):
            return mx.nd.concat(*[net(*sample) for sample in samples], dim=0)

    for training in [False, True] * args.rounds:
        pairs, results = make_pairs(args.pairs, rng), []
        samples = [padded([pair], args.multiple) for pair in pairs]
        for way, run, data in ("ragged", ragged, samples), ("padded", net, padded(pairs)):
            start = time.process_time()
            with autograd.record() if training else autograd.predict_mode():
                scores = run(*data)
                loss = loss_fn(scores, mx.nd.ones(len(pairs))).mean()
            if training:
                loss.backward()
            mx.nd.waitall()
            seconds.setdefault((training, way), []).append(time.process_time() - start)
            results.append([scores.asnumpy(), *(p.grad().asnumpy() for p in parameters)])
        for actual, expected in zip(*results):
            np.testing.assert_allclose(actual, expected, 1e-3, 1e-4)
    for (training, way), times in seconds.items():
        kind = "training " if training else "inference"
        print(f"{kind}  {way}  {np.median(times):.3f} s of processor time a minibatch")
    gdb.testing.check_against_loop(lambda sample: net(*sample), samples[:4], parameters)
    print("values and gradients of both ways are equal, and equal those of the loop")


if __name__ == "__main__":
    main()
