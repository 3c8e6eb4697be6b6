"""Layers, cells, encoders and language models of GluonNLP 0.10 on sentences of different lengths.

All are made with random values; nothing is downloaded.
"""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import WIDTH
from tests.common import arrays, check, prepared, ragged

nlp = pytest.importorskip("gluonnlp")

WORDS = 7
SENTENCES = (3, 5, 3, 2, 5)
SIZES = len(set(SENTENCES))
#: What transformers have in common.
SMALL = {"num_layers": 2, "units": WIDTH, "hidden_size": 6, "num_heads": 2, "dropout": 0.0}


def sentences():
    """Words by number, one sentence each."""
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


def convolutional(highway, output):
    return nlp.model.ConvolutionalEncoder(
        embed_size=WIDTH, num_filters=(3, 2), ngram_filter_sizes=(1, 2), output_size=output,
        num_highway=highway,
    )  # fmt: skip


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


def row(x):
    return (x.reshape((1, -1)),)


def length(x):
    return (mx.nd.array([len(x)]),)


def ends(x):
    return mx.nd.array([[0, len(x) - 1]])


def language_model(mode, dropout=0, weight_drop=0, **drops):
    drops = drops or {"drop_h": 0, "drop_i": 0, "drop_e": 0}
    return nlp.model.AWDRNN(
        mode, WORDS, WIDTH, 5, 2, True, dropout=dropout, weight_drop=weight_drop, **drops
    )


def columns():
    return [x.reshape((-1, 1, WIDTH)) for x in ragged(lengths=SENTENCES)]


def read(net, words):
    return net(words.reshape((-1, 1)), net.begin_state(batch_size=1, func=mx.nd.zeros))


#: Models that merge: how to make one, what it does with a sample, samples, and launches.
MODELS = {
    "Highway": (lambda: nlp.model.Highway(WIDTH, 2), called, ragged, 1),
    "PositionwiseFFN": (
        lambda: nlp.model.PositionwiseFFN(units=WIDTH, hidden_size=6), called, ragged, 1,
    ),
    # It reshapes words before it embeds their letters.
    "character encoder": (
        lambda: nlp.model.ELMoCharacterEncoder(4, [[1, 2], [2, 2]], WIDTH, 1, "relu", 6, 262),
        called, lambda: [mx.nd.array(np.arange(n * 6).reshape((1, n, 6)) % 200) for n in SENTENCES],
        SIZES,
    ),
    **{f"{name}, masked: {masked}": (
        make, lambda net, sample: net(*sample), partial(queries_and_keys, masked),
        # A weight that is normalised in the cell is not shared by launches of several sizes.
        3 if name == "MLP, normalised" else 1,
    ) for name, make in ATTENTION.items() for masked in (False, True)},
    "convolutions": (partial(convolutional, 1, 3), called, columns, SIZES),
    "convolutions, masked": (
        partial(convolutional, None, None), lambda net, x: net(x, mx.nd.ones((len(x), 1))),
        columns, None,
    ),
    "transformer": (partial(transformer, "multi_head"), called, vectors, 1),
    "transformer, length": (
        partial(transformer, "scaled_luong"),
        lambda net, x: net(x, None, mx.nd.array([x.shape[1]])), vectors, SIZES,
    ),
    "BERTEncoder": (
        partial(nlp.model.BERTEncoder, max_length=8, output_all_encodings=True, **SMALL),
        called, vectors, SIZES,
    ),
    "BERTClassifier": (
        classifier, lambda net, x: net(*row(x), mx.nd.zeros((1, len(x))), *length(x)), sentences,
        SIZES,
    ),
    **{f"AWDRNN {mode}": (partial(language_model, mode), read, sentences, SIZES)
       for mode in ("lstm", "gru", "rnn_tanh")},
    # Cells step by step.
    "BigRNN": (
        lambda: nlp.model.BigRNN(WORDS, WIDTH, 5, 2, WIDTH, embed_dropout=0.0, encode_dropout=0.0),
        read, sentences, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    make, call, samples, launches = MODELS[name]
    net, samples = prepared(make()), samples()
    call(net, samples[0])
    check(partial(call, net), samples, net, granularities=["graph"])
    merging = ("block", "operator")
    batch = check(partial(call, net), samples, net, launches=launches, granularities=merging)
    assert batch.report.launches < batch.report.nodes


def test_masked_words():
    """Their decoder asks for the size of the minibatch; the rest merges."""
    net = prepared(bert(token_type_vocab_size=2))

    def call(x):
        return net(*row(x), mx.nd.zeros((1, len(x))), *length(x), ends(x))

    call(sentences()[0])
    (alone,) = check(call, sentences(), net).report.alone
    assert alone.calls == len(SENTENCES) and alone.name == net.name
    assert "shape_array can't be merged" in alone.reason


def test_translation_with_a_transformer():
    """Encoder and decoder, plain blocks around cells."""
    made = nlp.model.transformer.get_transformer_encoder_decoder(
        max_src_length=8, max_tgt_length=8, **SMALL
    )
    vocabulary = nlp.Vocab(nlp.data.count_tokens(["a", "b", "c", "d"]))
    translate = nlp.model.translation.NMTModel(
        vocabulary, vocabulary, *made, embed_size=WIDTH, share_embed=True, tie_weights=True
    )
    net = prepared(translate)
    samples = [
        (mx.nd.array(np.arange(n) % WORDS), mx.nd.array(np.arange(m) % WORDS))
        for n, m in ((3, 2), (4, 3), (3, 2))
    ]

    def fn(sample):
        source, target = sample
        lengths = mx.nd.array([len(source)]), mx.nd.array([len(target)])
        return net(source.reshape((1, -1)), target.reshape((1, -1)), *lengths)[0]

    fn(samples[0])
    batch = check(fn, samples, net)
    assert batch.report.alone == [] and batch.report.launches < batch.report.nodes


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("mode", ["lstm", "lstmpc"])
def test_bidirectional_language_model(mode, masked):
    """Its loops are operators with a graph inside, which run one by one."""
    options = {"proj_size": WIDTH, "cell_clip": 3, "proj_clip": 3} if mode == "lstmpc" else {}
    net = prepared(nlp.model.BiLMEncoder(mode, 2, WIDTH, WIDTH, skip_connection=True, **options))

    def fn(x):
        states = net.begin_state(mx.nd.zeros, batch_size=1)
        return net(x.reshape((-1, 1, WIDTH)), states, mx.nd.ones((1, len(x))) if masked else None)

    batch = check(fn, ragged(), net)
    (alone,) = batch.report.alone
    loops = 2 * 2
    assert alone.name == net.name and alone.calls == loops * len(ragged())
    assert alone.reason.startswith("Operator _foreach can't be merged")


@pytest.mark.parametrize("converted", [True, False], ids=["converted", "stock"])
def test_dropped_weights(converted):
    """Every call draws a weight of its own, in the order of the calls: those of the loop."""
    net = nn.HybridSequential()
    net.add(nn.Dense(16), nn.Dense(3))
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
        same = [fn(sample) for sample in samples]
    assert batch.report.nodes == 6 and len({y.asnumpy().tobytes() for y in same}) == 1
    net(x)  # Stock Gluon draws once more while it builds its graph.
    check(fn, samples, net)
    with autograd.record(), gdb.batching(granularity="block", policy="depth") as batch:
        drawn = [fn(sample) for sample in samples]
    assert len({y.asnumpy().tobytes() for y in drawn}) == len(samples)
    assert batch.report.alone == [] and batch.report.launches < batch.report.nodes
