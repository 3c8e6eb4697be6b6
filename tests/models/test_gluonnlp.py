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
from tests.common import ALL, arrays, check, prepared, ragged

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


def multi_head():
    base = nlp.model.DotProductAttentionCell(scaled=True)
    return nlp.model.MultiHeadAttentionCell(base, WIDTH, WIDTH, WIDTH, num_heads=2)


ATTENTION = {
    "dot": lambda: nlp.model.DotProductAttentionCell(scaled=True),
    "dot, normalised": lambda: nlp.model.DotProductAttentionCell(
        units=WIDTH, scaled=False, normalized=True
    ),
    "Luong": lambda: nlp.model.DotProductAttentionCell(units=WIDTH, luong_style=True),
    "MLP": lambda: nlp.model.MLPAttentionCell(units=3),
    "MLP, normalised": lambda: nlp.model.MLPAttentionCell(units=3, normalized=True),
    "multi-head": multi_head,
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


def bert(kind=None, **options):
    encoder = nlp.model.BERTEncoder(max_length=8, **SMALL)
    kind = kind or nlp.model.BERTModel
    return kind(encoder, vocab_size=WORDS, units=WIDTH, embed_size=WIDTH, **options)


def classifier():
    body = bert(token_type_vocab_size=2, use_decoder=False, use_classifier=False)
    return nlp.model.BERTClassifier(body, num_classes=2, dropout=0.0)


def row(x):
    return (x.reshape((1, -1)),)


def length(x):
    return (mx.nd.array([len(x)]),)


def ends(x):
    return mx.nd.array([[0, len(x) - 1]])


NOTHING = {"dropout": 0, "weight_drop": 0, "drop_h": 0, "drop_i": 0, "drop_e": 0}
LANGUAGE_MODELS = {
    "AWDRNN": lambda mode: nlp.model.AWDRNN(mode, WORDS, WIDTH, 5, 2, True, **NOTHING),
    "StandardRNN": lambda mode: nlp.model.StandardRNN(mode, WORDS, WIDTH, WIDTH, 2, 0.0, True),
    "train.StandardRNN": lambda mode: nlp.model.train.StandardRNN(
        mode, WORDS, WIDTH, WIDTH, 2, dropout=0.0
    ),
}


def read(net, words):
    return net(words.reshape((-1, 1)), net.begin_state(batch_size=1, func=mx.nd.zeros))


#: Models that merge: how to make one, what it does with a sample, samples, and launches.
MODELS = {
    "Highway": (lambda: nlp.model.Highway(WIDTH, 2), called, ragged, 1),
    "L2Normalization": (lambda: nlp.model.L2Normalization(), called, ragged, 1),
    "GELU": (lambda: nlp.model.GELU(), called, ragged, 1),
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
    **{f"convolutions, {highway} {output}": (
        partial(convolutional, highway, output), called,
        lambda: [x.reshape((-1, 1, WIDTH)) for x in ragged(lengths=SENTENCES)], SIZES,
    ) for highway in (None, 1) for output in (None, 3)},
    **{attention: (partial(transformer, attention), called, vectors, 1)
       for attention in ("multi_head", "scaled_dot", "scaled_luong")},
    **{f"{attention}, length": (
        partial(transformer, attention),
        lambda net, x: net(x, None, mx.nd.array([x.shape[1]])), vectors, SIZES,
    ) for attention in ("multi_head", "scaled_dot", "scaled_luong")},
    **{f"BERTEncoder, all: {every}": (
        partial(nlp.model.BERTEncoder, max_length=8, output_all_encodings=every, **SMALL),
        called, vectors, SIZES,
    ) for every in (False, True)},
    "BERTClassifier": (
        classifier, lambda net, x: net(*row(x), mx.nd.zeros((1, len(x))), *length(x)), sentences,
        SIZES,
    ),
    "DistilBERTModel": (
        lambda: bert(nlp.model.DistilBERTModel), lambda net, x: net(*row(x), *length(x)), sentences,
        SIZES,
    ),
    **{f"{name} {mode}": (partial(make, mode), read, sentences, SIZES)
       for name, make in LANGUAGE_MODELS.items() for mode in ("lstm", "gru", "rnn_tanh")},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    make, call, samples, launches = MODELS[name]
    net, samples = prepared(make()), samples()
    call(net, samples[0])
    check(partial(call, net), samples, net, launches=launches)


def test_convolutions_of_masked_words():
    encoder = prepared(convolutional(None, None))
    samples = [x.reshape((-1, 1, WIDTH)) for x in ragged(lengths=SENTENCES)]
    check(lambda x: encoder(x, mx.nd.ones((len(x), 1))), samples, encoder)


#: Models whose decoder of masked words asks for the size of the minibatch; the rest merges.
MASKED_WORDS = {
    "BERTModel": (
        lambda: bert(token_type_vocab_size=2),
        lambda net, x: net(*row(x), mx.nd.zeros((1, len(x))), *length(x), ends(x)),
    ),
    "RoBERTaModel": (
        lambda: bert(nlp.model.RoBERTaModel, use_decoder=True),
        lambda net, x: net(*row(x), *length(x), ends(x)),
    ),
}


@pytest.mark.parametrize("name", MASKED_WORDS)
def test_masked_words(name):
    make, call = MASKED_WORDS[name]
    net = prepared(make())
    call(net, sentences()[0])
    (alone,) = check(partial(call, net), sentences(), net).report.alone
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


@ALL
def test_dropping_of_a_language_model(granularity):
    """Nothing is dropped in prediction; in training every sentence draws."""
    rates = {"dropout": 0.4, "weight_drop": 0.5, "drop_h": 0.2, "drop_i": 0.5, "drop_e": 0.1}
    net = prepared(nlp.model.AWDRNN("lstm", WORDS, WIDTH, 5, 2, True, **rates))
    wanted = [read(net, x)[0].asnumpy() for x in sentences()]
    with gdb.batching(granularity=granularity) as batch:
        got = [read(net, x)[0] for x in sentences()]
    assert batch.report.launches < batch.report.nodes
    for a, b in zip(wanted, got):
        np.testing.assert_allclose(b.asnumpy(), a, 1e-4, 1e-5)
    same = [sentences()[0]] * 6
    with autograd.record(), gdb.batching(granularity=granularity):
        got = [read(net, x)[0] for x in same]
    autograd.backward(got)
    assert len({y.asnumpy().tobytes() for y in got}) == len(same)


def test_big_language_model():
    """Cells step by step with projection and clipping."""
    net = prepared(
        nlp.model.BigRNN(WORDS, WIDTH, 5, 2, WIDTH, embed_dropout=0.0, encode_dropout=0.0)
    )
    read(net, sentences()[0])
    batch = check(partial(read, net), sentences(), net)
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


class Decoder(gdb.DynamicHybridBlock):
    """A step of a language model, as the samplers of GluonNLP call it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.cell = gdb.convert(mx.gluon.rnn.GRUCell(WIDTH, input_size=WIDTH))
            self.scores = nn.Dense(WORDS, in_units=WIDTH)

    def hybrid_forward(self, F, words, state):
        made, (state,) = self.cell(self.embedding(words), [state])
        return self.scores(made), state


def test_a_beam_search():
    """Several sentences at once; each step reads values, and the results are the loop's."""
    net = prepared(Decoder(), scale=2)
    sampler = nlp.model.BeamSearchSampler(
        beam_size=3, decoder=lambda words, state: net(words.astype("float32"), state), eos_id=0,
        scorer=nlp.model.BeamSearchScorer(alpha=0.5), max_length=4,
    )  # fmt: skip
    starts = [x.reshape((1, WIDTH)) for x in ragged(lengths=[1] * 4)]

    def decode():
        return [sampler(mx.nd.array([1 + k]), x) for k, x in enumerate(starts)]

    wanted = decode()
    with gdb.batching() as batch:
        got = decode()
    for one, other in zip(wanted, got):
        for a, b in zip(one, other):
            np.testing.assert_allclose(b.asnumpy(), a.asnumpy(), 1e-4, 1e-5)
    assert batch.report.nodes > 0
