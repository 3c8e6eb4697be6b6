"""Layers, cells, encoders and language models of GluonNLP 0.10 on sentences of different lengths.

All have random parameters; nothing is downloaded.
"""

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import WIDTH
from tests.common import arrays, check, prepared, ragged, several

nlp = pytest.importorskip("gluonnlp")

WORDS = 7
SENTENCES = (3, 5, 3, 2, 5)
SIZES = len(set(SENTENCES))
#: Options of all transformers.
SMALL = {"num_layers": 2, "units": WIDTH, "hidden_size": 6, "num_heads": 2, "dropout": 0.0}


def sentences():
    """Return arrays of word numbers, one per sentence."""
    random = np.random.RandomState(3)
    return [mx.nd.array(random.randint(0, WORDS, n)) for n in SENTENCES]


def vectors():
    return arrays(*[(1, n, WIDTH) for n in SENTENCES])


def called(net, x):
    return net(x)


ATTENTION = {
    "dot, normalised": lambda: nlp.model.DotProductAttentionCell(
        units=WIDTH, scaled=False, normalized=True
    ),
    "Luong": lambda: nlp.model.DotProductAttentionCell(units=WIDTH, luong_style=True),
    "MLP, normalised": lambda: nlp.model.MLPAttentionCell(units=3, normalized=True),
    "multi-head": lambda: nlp.model.MultiHeadAttentionCell(
        nlp.model.DotProductAttentionCell(scaled=True), WIDTH, WIDTH, WIDTH, num_heads=2
    ),
}


def queries_and_keys(masked):
    samples = []
    for queries, keys in ((1, 3), (2, 4), (1, 3), (1, 2)):
        mask = mx.nd.array(np.tril(np.ones((1, queries, keys)))) if masked else None
        samples.append((*arrays((1, queries, WIDTH), *[(1, keys, WIDTH)] * 2), mask))
    return samples


def transformer(attention):
    return nlp.model.TransformerEncoder(
        attention_cell=attention, max_length=8, output_attention=True, **SMALL
    )


def bert(**options):
    encoder = nlp.model.BERTEncoder(max_length=8, **SMALL)
    return nlp.model.BERTModel(encoder, vocab_size=WORDS, units=WIDTH, embed_size=WIDTH, **options)


def classifier():
    body = bert(token_type_vocab_size=2, use_decoder=False, use_classifier=False)
    return nlp.model.BERTClassifier(body, num_classes=2, dropout=0.0)


def call_bert(net, x, *more):
    return net(x.reshape((1, -1)), mx.nd.zeros((1, len(x))), mx.nd.array([len(x)]), *more)


def language_model():
    drops = dict.fromkeys(("dropout", "weight_drop", "drop_h", "drop_i", "drop_e"), 0)
    return nlp.model.AWDRNN("lstm", WORDS, WIDTH, 5, 2, True, **drops)


def read(net, words):
    return net(words.reshape((-1, 1)), net.begin_state(batch_size=1, func=mx.nd.zeros))


#: By name of a model that merges: its constructor, a call, samples, and the number of launches.
MODELS = {
    "character encoder": (
        lambda: nlp.model.ELMoCharacterEncoder(4, [[1, 2], [2, 2]], WIDTH, 1, "relu", 6, 262),
        called, lambda: [mx.nd.array(np.arange(n * 6).reshape((1, n, 6)) % 200) for n in SENTENCES],
        1,
    ),
    **{f"{name}, masked: {masked}": (
        make, lambda net, sample: net(*sample), partial(queries_and_keys, masked),
        # The weight that the cell computes takes a launch of its own.
        2 if name == "MLP, normalised" else 1,
    ) for name, make in ATTENTION.items() for masked in (False, True)},
    "transformer": (partial(transformer, "multi_head"), called, vectors, 1),
    "transformer, length": (
        partial(transformer, "scaled_luong"),
        lambda net, x: net(x, None, mx.nd.array([x.shape[1]])), vectors, SIZES,
    ),
    # Weights that each layer joins are computed once.
    "BERTClassifier": (classifier, call_bert, sentences, SIZES + 1),
    "AWDRNN": (language_model, read, sentences, SIZES),
    "BigRNN": (
        lambda: nlp.model.BigRNN(WORDS, WIDTH, 5, 2, WIDTH, embed_dropout=0.0, encode_dropout=0.0),
        read, sentences, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_equal_the_loop_and_merge(name):
    make, call, samples, launches = MODELS[name]
    net, samples = prepared(make()), samples()
    call(net, samples[0])
    check(partial(call, net), samples, net, granularities=["graph"])
    merging = ("block", "operator")
    batch = check(partial(call, net), samples, net, launches=launches, granularities=merging)
    assert batch.report.launches < batch.report.nodes


#: By name of a model that merges in part: its constructor, a call, samples, the number of calls
#: per sample that run alone, and the reason.
ALONE = {
    # The decoder reads the size of the minibatch.
    "masked words": (
        partial(bert, token_type_vocab_size=2),
        lambda net, x: call_bert(net, x, mx.nd.array([[0, len(x) - 1]])), sentences,
        1, "Operator shape_array can't be merged",
    ),
    # The loops of two layers in two directions are operators that contain graphs.
    "language model of both directions": (
        lambda: nlp.model.BiLMEncoder("lstm", 2, WIDTH, WIDTH, skip_connection=True),
        lambda net, x: net(x.reshape((-1, 1, WIDTH)), net.begin_state(mx.nd.zeros, batch_size=1)),
        ragged, 4, "Operator contrib.foreach can't be merged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_models_that_merge_in_part_equal_the_loop(name):
    make, call, samples, calls, reason = ALONE[name]
    net, samples = prepared(make()), samples()
    call(net, samples[0])
    (alone,) = check(partial(call, net), samples, net).report.alone
    assert alone.name == net.name and alone.calls == calls * len(samples)
    assert reason in alone.reason


@pytest.mark.parametrize("converted", [True, False], ids=["converted", "stock"])
def test_weight_dropout_equals_the_loop(converted):
    """Every call draws its own mask, in the order of the loop."""
    net = several(nn.HybridSequential, nn.Dense(16), nn.Dense(3))
    nlp.model.apply_weight_drop(net[1], "weight", 0.5)
    prepared(net, converted)
    (x,) = arrays((1, WIDTH))
    samples = [(number, x) for number in range(6)]

    def fn(sample):
        number, x = sample
        if number == 0:
            mx.random.seed(3)
        return net(x)

    with gdb.batching() as batch:
        predictions = [fn(sample) for sample in samples]
    assert batch.report.nodes == 6 and len({y.asnumpy().tobytes() for y in predictions}) == 1
    net(x)  # as stock Gluon draws once more while it builds its graph
    check(fn, samples, net)
    with autograd.record(), gdb.batching(granularity="block", policy="depth") as batch:
        dropped = [fn(sample) for sample in samples]
    assert len({y.asnumpy().tobytes() for y in dropped}) == len(samples)
    assert batch.report.alone == [] and batch.report.launches < batch.report.nodes
