"""Stock Gluon and GluonNLP blocks in a scope, and DynamicHybridBlock as a HybridBlock."""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.batch import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests.test_launches import inputs, widths

WIDTH = 4
LENGTHS = (1, 3, 2, 5, 3)


def ready(block, convert=True, scale=0.6):
    mx.random.seed(5)
    if convert:
        gdb.convert(block)
    block.initialize(mx.init.Uniform(scale))
    block.hybridize()
    return block


def check(fn, samples, block, **options):
    """Compare with the loop at every granularity; return the last scope."""
    params = list(block.collect_params().values())
    for granularity in GRANULARITIES:
        batch = check_against_loop(
            fn, samples, params, granularity=granularity, analysis_budget=None, **options
        )
    return batch


def ragged(width=WIDTH, lengths=LENGTHS):
    """Sequences of different lengths, (steps, width) each, with gradients."""
    random = np.random.RandomState(2)
    made = [mx.nd.array(random.uniform(-1, 1, (n, width))) for n in lengths]
    for x in made:
        x.attach_grad()
    return made


SEQUENTIAL = {
    "dense": lambda: [nn.Dense(3, in_units=WIDTH)],
    "two dense": lambda: [
        nn.Dense(5, in_units=WIDTH, activation="relu"),
        nn.Dense(2, in_units=5, flatten=False),
    ],
    "activations": lambda: [
        nn.Activation("softrelu"),
        nn.LeakyReLU(0.1),
        nn.ELU(),
        nn.SELU(),
        nn.GELU(),
        nn.Swish(),
    ],
    "prelu": lambda: [nn.PReLU()],
    "layer norm": lambda: [nn.LayerNorm(in_channels=WIDTH), nn.Dense(2, in_units=WIDTH)],
    "lambda": lambda: [nn.HybridLambda("tanh"), nn.HybridLambda(lambda F, x: F.square(x) + 1)],
    "flatten": lambda: [nn.Flatten(), nn.Dense(2, in_units=WIDTH)],
    "deferred shapes": lambda: [nn.Dense(5), nn.LayerNorm(), nn.Dense(2)],
}


@pytest.mark.parametrize("converted", [True, False], ids=["converted", "stock"])
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential(name, converted):
    """A sequence of layers is one call, one row or many; stock blocks are recorded as well."""
    net = nn.HybridSequential()
    net.add(*SEQUENTIAL[name]())
    ready(net, converted)
    net(mx.nd.ones((2, WIDTH)))
    batch = check(net, ragged(), net)
    assert batch.report.launches == 1 and batch.report.alone == []


def test_dense_keeps_or_flattens_axes():
    for flatten, units in ((True, 6), (False, 2)):
        net = ready(nn.Dense(3, in_units=units, flatten=flatten))
        samples = [mx.nd.random.uniform(shape=(n, 3, 2)) for n in (1, 4, 2)]
        assert check(net, samples, net).report.launches == 1


def test_embedding():
    net = ready(nn.Embedding(9, WIDTH))
    samples = [
        mx.nd.array(np.arange(n) % 9, dtype=dtype)
        for dtype in ("int32", "float32")
        for n in LENGTHS
    ]
    batch = check(net, samples, net)
    assert batch.report.launches == 2, "one launch for each dtype of indices"


CELLS = {
    "rnn": lambda: rnn.RNNCell(WIDTH, input_size=WIDTH),
    "lstm": lambda: rnn.LSTMCell(WIDTH, input_size=WIDTH),
    "gru": lambda: rnn.GRUCell(WIDTH, input_size=WIDTH),
    "two layers": lambda: stacked(
        rnn.LSTMCell(WIDTH, input_size=WIDTH), rnn.GRUCell(WIDTH, input_size=WIDTH)
    ),
    "residual": lambda: rnn.ResidualCell(rnn.GRUCell(WIDTH, input_size=WIDTH)),
    "zoneout": lambda: rnn.ZoneoutCell(rnn.RNNCell(WIDTH, input_size=WIDTH), 0.0, 0.0),
}


def stacked(*parts):
    cell = rnn.HybridSequentialRNNCell()
    for part in parts:
        cell.add(part)
    return cell


@pytest.mark.parametrize("name", CELLS)
def test_recurrent_cells_step_by_step(name):
    """Ragged sequences, states from begin_state inside the scope."""
    cell = ready(CELLS[name]())

    def fn(x):
        cell.reset()
        states = cell.begin_state(batch_size=1, func=mx.nd.zeros)
        outputs = []
        for i in range(len(x)):
            out, states = cell(x[i : i + 1], states)
            outputs.append(out)
        return mx.nd.concat(*outputs, dim=0), states

    batch = check(fn, ragged(), cell)
    assert batch.report.alone == []


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_unroll(name):
    cell = ready(CELLS[name]())

    def fn(x):
        outputs, states = cell.unroll(
            len(x), x.reshape((1, -1, WIDTH)), layout="NTC", merge_outputs=True
        )
        return outputs, states

    batch = check(fn, ragged(), cell)
    assert batch.report.alone == []
    steps = max(LENGTHS)
    with gdb.batching(granularity="block", policy="depth") as batch:
        results = [fn(x) for x in ragged()]
    assert sum(1 for w in widths(batch) if w > 1) >= steps - 1
    assert len(results) == len(LENGTHS)


def test_bidirectional_cell():
    left, right = rnn.LSTMCell(WIDTH, input_size=WIDTH), rnn.LSTMCell(WIDTH, input_size=WIDTH)
    cell = ready(rnn.BidirectionalCell(left, right))

    def fn(x):
        return cell.unroll(len(x), x.reshape((1, -1, WIDTH)), layout="NTC", merge_outputs=True)[0]

    check(fn, ragged(), cell)


LOSSES = {
    "L2": (gluon.loss.L2Loss(), "like"),
    "L1": (gluon.loss.L1Loss(), "like"),
    "Huber": (gluon.loss.HuberLoss(), "like"),
    "SigmoidBCE": (gluon.loss.SigmoidBCELoss(), "binary"),
    "SoftmaxCE": (gluon.loss.SoftmaxCELoss(), "class"),
    "SoftmaxCE, dense labels": (gluon.loss.SoftmaxCELoss(sparse_label=False), "binary"),
    "KLDiv": (gluon.loss.KLDivLoss(from_logits=False), "distribution"),
    "Hinge": (gluon.loss.HingeLoss(), "sign"),
    "Logistic": (gluon.loss.LogisticLoss(), "sign"),
    "CosineEmbedding": (gluon.loss.CosineEmbeddingLoss(), "pair"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    loss, kind = LOSSES[name]
    gdb.convert(loss)
    loss.hybridize()
    net = ready(nn.Dense(3, in_units=WIDTH))
    random = np.random.RandomState(4)
    labels = {
        "like": lambda: random.uniform(-1, 1, (1, 3)),
        "binary": lambda: random.randint(0, 2, (1, 3)),
        "class": lambda: random.randint(0, 3, (1,)),
        "distribution": lambda: np.array([[0.2, 0.5, 0.3]]),
        "sign": lambda: random.choice([-1, 1], (1, 3)),
        "pair": lambda: random.choice([-1, 1], (1,)),
    }
    samples = [(x, mx.nd.array(labels[kind]())) for x in inputs(5)]

    def fn(sample):
        x, label = sample
        made = net(x)
        return loss(made, net(x * 2), label) if kind == "pair" else loss(made, label)

    batch = check(fn, samples, net)
    assert batch.report.alone == [] and batch.report.launches < len(samples)


def test_dropout_in_prediction_is_the_identity():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=WIDTH), nn.Dropout(0.9), nn.Dense(2, in_units=3))
    ready(net)
    wanted = [net(x).asnumpy() for x in inputs(4)]
    with gdb.batching() as batch:
        outputs = [net(x) for x in inputs(4)]
    assert batch.report.launches == 1
    np.testing.assert_allclose(
        np.concatenate([y.asnumpy() for y in outputs]), np.concatenate(wanted), 1e-5
    )


def batch_norm():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=WIDTH, flatten=False), nn.BatchNorm(in_channels=3))
    return ready(net)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_batch_norm_in_prediction_merges(granularity):
    net = batch_norm()
    net[1].running_mean.set_data(mx.nd.array([0.1, -0.2, 0.3]))
    xs = [x.detach() for x in ragged()]
    wanted = [net(x).asnumpy() for x in xs]
    with gdb.batching(granularity=granularity) as batch:
        outputs = [net(x) for x in xs]
    assert batch.report.alone == [] and batch.report.launches == 1
    for a, b in zip(wanted, outputs):
        np.testing.assert_allclose(b.asnumpy(), a, 1e-4, 1e-5)


def train_batch_norm(scope):
    """Go backward once; return the network, the results and the scope."""
    net = batch_norm()
    xs = [x.detach() for x in ragged(lengths=(2, 3, 2, 4))]
    with autograd.record(), scope as batch:
        outputs = [net(x) for x in xs]
    autograd.backward(outputs, [y * 2 for y in outputs])
    return net, outputs, batch


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_batch_norm_in_training_runs_alone_and_right(granularity):
    """Its statistics are those of one sample's rows."""
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity, analysis_budget=None)):
        net, outputs, batch = train_batch_norm(scope)
        gradients = [net[0].weight.grad(), net[1].gamma.grad(), net[1].beta.grad()]
        found.append([x.asnumpy() for x in outputs + gradients])
    for wanted, got in zip(*found):
        np.testing.assert_allclose(got, wanted, 1e-3, 1e-4)
    assert sum(one.calls for one in batch.report.alone) == 4
    assert all("BatchNorm" in one.reason for one in batch.report.alone)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_running_statistics_move_once_per_sample(granularity):
    """Once for each, in whatever order the samples are launched."""
    net, _, _ = train_batch_norm(gdb.batching(granularity=granularity, analysis_budget=None))
    mx.nd.waitall()
    moved = net[1].running_mean.data().asnumpy()
    means = [net[0](x.detach()).mean(axis=0).asnumpy() for x in ragged(lengths=(2, 3, 2, 4))]
    ends = []
    for order in itertools.permutations(means):
        value = np.zeros(3)
        for mean in order:
            value = 0.9 * value + 0.1 * mean
        ends.append(np.allclose(moved, value, 1e-3, 1e-5))
    assert any(ends)


def test_running_statistics_are_there_after_backward():
    """Who reads them, or predicts, finds them moved, as in the loop."""
    net, *_ = train_batch_norm(gdb.batching())
    first = net[1].running_mean.data().asnumpy()
    mx.nd.waitall()
    np.testing.assert_array_equal(first, net[1].running_mean.data().asnumpy())
    assert np.abs(first).max() > 0


def test_small_convolutional_net():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(3, 3, in_channels=2, activation="relu"),
        nn.MaxPool2D(2),
        nn.Conv2D(4, 2, in_channels=3),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
        nn.Dense(2, in_units=4),
    )
    ready(net)
    samples = [mx.nd.random.uniform(-1, 1, (n, 2, 8, 8)) for n in (1, 2, 1)]
    samples += [mx.nd.random.uniform(-1, 1, (1, 2, 10, 8))]
    for x in samples:
        x.attach_grad()
    batch = check(net, samples, net)
    assert batch.report.alone == [] and batch.report.launches <= 4, (
        "images of one size run together"
    )


def test_gluonnlp_highway_and_convolutional_encoder():
    nlp = pytest.importorskip("gluonnlp")
    highway = ready(nlp.model.Highway(WIDTH, 2))
    assert check(highway, ragged(), highway).report.alone == []
    encoder = ready(
        nlp.model.ConvolutionalEncoder(
            embed_size=WIDTH,
            num_filters=(3, 2),
            ngram_filter_sizes=(1, 2),
            output_size=None,
            num_highway=None,
        )
    )
    samples = [x.reshape((-1, 1, WIDTH)) for x in ragged(lengths=(3, 5, 3, 4))]

    def fn(x):
        return encoder(x, mx.nd.ones((len(x), 1)))

    check(fn, samples, encoder)


@pytest.mark.parametrize("kind", ["dot", "mlp"])
def test_gluonnlp_attention_cells(kind):
    nlp = pytest.importorskip("gluonnlp")
    cells = {
        "dot": lambda: nlp.model.DotProductAttentionCell(scaled=True),
        "mlp": lambda: nlp.model.MLPAttentionCell(units=3),
    }
    cell = ready(cells[kind]())
    samples = []
    for memory in ragged(lengths=(2, 4, 2)):
        query = mx.nd.random.uniform(-1, 1, (1, 1, WIDTH))
        query.attach_grad()
        samples.append((query, memory.reshape((1, -1, WIDTH))))
    cell(*samples[0])
    check(lambda s: cell(*s)[0], samples, cell)


# convert() -------------------------------------------------------------------------------------


class Plain(nn.Block):
    """A block with Python control flow over hybrid children."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.cell = rnn.GRUCell(WIDTH, input_size=WIDTH)
            self.out = nn.Dense(2, in_units=WIDTH)

    def forward(self, x):
        states = self.cell.begin_state(batch_size=1)
        for i in range(len(x)):
            out, states = self.cell(x[i : i + 1], states)
        return self.out(out)


def test_convert_keeps_everything_but_the_class():
    net = Plain(prefix="plain_")
    names = list(net.collect_params())
    kind = type(net)
    assert gdb.convert(net) is net and type(net) is kind, "a plain Block stays what it is"
    assert isinstance(net.cell, rnn.GRUCell) and isinstance(net.cell, gdb.DynamicHybridBlock)
    assert isinstance(net.out, nn.Dense) and type(net.out).__name__ == "Dense"
    assert list(net.collect_params()) == names
    once = type(net.out)
    assert type(gdb.convert(net).out) is once, "converting twice changes nothing"
    assert type(gdb.convert(nn.Dense(3))) is once
    ready(net)
    check(net, ragged(), net)


@pytest.mark.parametrize("wrong", [None, 3, nn.Dense, mx.nd.ones(2)])
def test_convert_takes_blocks_only(wrong):
    with pytest.raises(TypeError, match="convert takes a Gluon block"):
        gdb.convert(wrong)


# As a HybridBlock ------------------------------------------------------------------------------


class Many(gdb.DynamicHybridBlock):
    """Takes lists of any length, dictionaries, numbers and None; returns a nest."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=WIDTH)

    def hybrid_forward(self, F, x, others=(), factor=1, named=None):
        total = self.dense(x) * factor
        for other in others:
            total = total + self.dense(other)
        if named is not None:
            total = total - self.dense(named["last"])
        return {"total": total, "count": len(others)}, [x * 2, (total.sum(), None)]


STRUCTURES = [
    (),
    ([],),
    ([0],),
    ([0, 1],),
    ([0, 1, 2], 2),
    ([0], 2.5),
    ([], -1, {"last": 0}),
    ((0, 1), 1, {"last": 1}),
]


def fill(structure, arrays):
    """Put arrays in the places that numbers in lists and dictionaries name."""
    made = []
    for item in structure:
        if isinstance(item, (list, tuple)):
            item = type(item)(arrays[i] for i in item)
        elif isinstance(item, dict):
            item = {key: arrays[i] for key, i in item.items()}
        made.append(item)
    return made


def test_several_structures_of_arguments_outside_a_scope():
    """Stock Gluon keeps one cached graph; here there is one for each structure."""
    net = ready(Many(), convert=False)
    xs = inputs(4)
    for structure in STRUCTURES + STRUCTURES[::-1]:
        args = fill(structure, xs[1:])
        net.hybridize(False)
        wanted, (double, (total, nothing)) = net(xs[0], *args)
        net.hybridize()
        for _ in range(2):
            got, (twice, (summed, none)) = net(xs[0], *args)
            np.testing.assert_allclose(
                got["total"].asnumpy(), wanted["total"].asnumpy(), 1e-5, 1e-6
            )
            np.testing.assert_allclose(summed.asnumpy(), total.asnumpy(), 1e-5, 1e-6)
            np.testing.assert_array_equal(twice.asnumpy(), double.asnumpy())
            assert got["count"] == wanted["count"] and none is nothing is None


def test_several_structures_of_arguments_in_a_scope():
    net = ready(Many(), convert=False)
    xs = inputs(4)
    for x in xs:
        x.attach_grad()
    samples = [(xs[0], *fill(structure, xs[1:])) for structure in STRUCTURES * 2]
    check(lambda sample: net(*sample), samples, net)


class Named(gdb.DynamicHybridBlock):
    def hybrid_forward(self, F, named):
        return named["a"] + named["b"]


@pytest.mark.parametrize("active", [True, False])
def test_arrays_in_a_dictionary_only(active):
    """Stock Gluon looks for arrays in lists and tuples alone."""
    net = Named()
    net.initialize()
    net.hybridize(active)
    x, y = inputs(2)
    wanted = (x + y).asnumpy()
    np.testing.assert_array_equal(net({"a": x, "b": y}).asnumpy(), wanted)
    with gdb.batching():
        got = net({"a": x, "b": y})
    np.testing.assert_array_equal(got.asnumpy(), wanted)


def small():
    net = nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    return ready(net)


def test_parameters_go_to_a_file_and_back(tmp_path):
    net, x = small(), inputs(1)[0]
    with gdb.batching():
        wanted = net(x)
    net.save_parameters(str(tmp_path / "net.params"))
    stock = nn.HybridSequential(prefix="other_")
    with stock.name_scope():
        stock.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    stock.load_parameters(str(tmp_path / "net.params"))
    np.testing.assert_allclose(stock(x).asnumpy(), wanted.asnumpy(), 1e-5)
    stock.collect_params().setattr("grad_req", "null")
    stock[0].weight.set_data(stock[0].weight.data() * 2)
    stock.save_parameters(str(tmp_path / "other.params"))
    net.load_parameters(str(tmp_path / "other.params"))
    with gdb.batching():
        got = net(x)
    np.testing.assert_allclose(got.asnumpy(), stock(x).asnumpy(), 1e-5)
    assert np.abs(got.asnumpy() - wanted.asnumpy()).max() > 1e-3


@pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")
def test_export_and_import(tmp_path):
    """A dynamic cell exports as any HybridBlock, and what is imported can be batched again."""
    net, x = small(), inputs(1)[0]
    wanted = net(x).asnumpy()
    net.export(str(tmp_path / "net"), epoch=3)
    files = str(tmp_path / "net-symbol.json"), str(tmp_path / "net-0003.params")
    assert mx.sym.load(files[0]).list_inputs()[0] == "data", "the name that stock Gluon gives"
    loaded = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    np.testing.assert_allclose(loaded(x).asnumpy(), wanted, 1e-5)
    loaded.hybridize()
    check(loaded, inputs(4), loaded)


def test_collect_params_selects_and_shares():
    net = small()
    assert list(net.collect_params(".*weight")) == ["small_dense0_weight", "small_dense1_weight"]
    twin = nn.HybridSequential(prefix="small_", params=net.collect_params())
    with twin.name_scope():
        twin.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    gdb.convert(twin).hybridize()
    assert twin[0].weight is net[0].weight
    check(lambda x: [net(x), twin(x)], inputs(3), net)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_cast(granularity):
    net, xs = small(), inputs(3)
    check_against_loop(net, xs, net.collect_params().values(), granularity=granularity)
    net.cast("float64")
    xs = [x.astype("float64") for x in xs]
    batch = check_against_loop(net, xs, net.collect_params().values(), granularity=granularity)
    assert {arena.dtype for arena in batch.plan.arenas} == {"float64"}
    net.cast("float32")
    check_against_loop(net, inputs(3), net.collect_params().values(), granularity=granularity)


def test_changes_of_a_block_after_its_first_call_are_seen():
    """New values, new layers and another grad_req, each after a scope has compiled the block."""
    net, xs = small(), inputs(3)
    check(net, xs, net)
    net[0].weight.set_data(net[0].weight.data() * 3)
    check(net, xs, net)
    net[1].collect_params().setattr("grad_req", "null")
    check(net, xs, net)
    net.add(gdb.convert(nn.Dense(7, in_units=2)))
    net[2].initialize()
    net.hybridize()
    batch = check(net, xs, net)
    assert batch.report.launches == 1 and net(xs[0]).shape == (1, 7)


def test_hooks_are_called_for_every_sample():
    """A block with hooks is entered, not recorded as a whole; what is inside still merges."""
    net = small()
    seen = []
    handle = net.register_forward_hook(
        lambda block, args, out: seen.append((block, args[0].shape, out.shape))
    )
    pre = net.register_forward_pre_hook(lambda block, args: seen.append(block))
    with gdb.batching(granularity="block", policy="depth") as batch:
        outputs = [net(x) for x in inputs(3)]
    assert len(seen) == 6 and seen[1] == (net, (1, WIDTH), (1, 2))
    assert batch.report.launches <= 2 and len(outputs) == 3
    handle.detach()
    pre.detach()
    with gdb.batching():
        outputs = [net(x) for x in inputs(3)]
    assert len(seen) == 6


def test_hook_of_a_child():
    class Outer(gdb.DynamicHybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = small()

        def forward(self, x):
            return self.inner(x) * 2

    net = Outer()
    net.hybridize()
    seen = []
    net.inner.register_forward_hook(lambda block, args, out: seen.append(out))
    check(net, inputs(2), net)
    assert len(seen) == 4 * len(GRANULARITIES)


def test_a_copy_of_a_block_is_a_block_of_its_own():
    """After a first call outside of a scope, MXNet's own CachedOp cannot be copied."""
    net, xs = small(), inputs(3)
    with gdb.batching():
        wanted = net(xs[0])
    other = copy.deepcopy(net)
    other[0].weight.set_data(other[0].weight.data() * 0)
    with gdb.batching():
        got = [net(xs[0]), other(xs[0])]
    np.testing.assert_allclose(got[0].asnumpy(), wanted.asnumpy(), 1e-5)
    np.testing.assert_allclose(got[1].asnumpy(), other(xs[0]).asnumpy(), 1e-5)
    assert np.abs(got[0].asnumpy() - got[1].asnumpy()).max() > 1e-4


def test_repr_and_apply_work_as_ever():
    net, stock = small(), nn.HybridSequential(prefix="small_")
    with stock.name_scope():
        stock.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    assert repr(net) == repr(stock)
    names = {True: [], False: []}
    net.apply(lambda block: names[True].append(block.name))
    stock.apply(lambda block: names[False].append(block.name))
    assert names[True] == names[False] and len(names[True]) == 4


def test_symbols_go_through_a_dynamic_block():
    net = small()
    made = net(mx.sym.var("x"))
    assert made.list_arguments()[0] == "x" and len(made.list_arguments()) == 5
    _, shapes, _ = made.infer_shape(x=(3, WIDTH))
    assert shapes == [(3, 2)]


def test_a_dynamic_block_around_stock_children():
    """Only the outermost block is ours; children are hybridized stock layers."""

    class Outer(gdb.DynamicHybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.embedding = nn.Embedding(6, WIDTH)
                self.cell = rnn.GRUCell(WIDTH, input_size=WIDTH)
                self.out = nn.Dense(2, in_units=WIDTH)

        def forward(self, words):
            rows = self.embedding(words)
            states = self.cell.begin_state(batch_size=1)
            for i in range(len(rows)):
                out, states = self.cell(rows[i : i + 1], states)
            return self.out(out)

    net = ready(Outer(), convert=False)
    samples = [mx.nd.array(np.arange(n) % 6) for n in LENGTHS]
    batch = check(net, samples, net)
    assert batch.report.alone == [] and batch.report.launches < batch.report.nodes
