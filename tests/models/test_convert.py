"""convert(), and DynamicHybridBlock as a HybridBlock."""

import contextlib
import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import WIDTH, Apply, attached, cell, equal, inputs, ready
from tests.common import check, prepared, ragged, same, several


def test_convert_keeps_everything_but_the_class():
    net = several(
        nn.Sequential, nn.LayerNorm(in_channels=4), nn.Dense(2, in_units=4), nn.Lambda("tanh")
    )
    names = list(net.collect_params())
    assert gdb.convert(net) is net and type(net) is nn.Sequential, "a plain Block is unchanged"
    assert isinstance(net[0], nn.LayerNorm) and isinstance(net[0], gdb.DynamicHybridBlock)
    assert isinstance(net[1], nn.Dense) and type(net[1]).__name__ == "Dense"
    assert list(net.collect_params()) == names
    converted = type(net[1])
    assert type(gdb.convert(net)[1]) is converted, "converting twice changes nothing"
    assert type(gdb.convert(nn.Dense(3))) is converted
    prepared(net)
    check(net, ragged(), net)


def nested_cell():
    """Return a cell of lists, dictionaries, numbers and None, with nested results."""
    dense = nn.Dense(3, in_units=WIDTH)

    def run(F, x, terms=(), factor=1, named=None):
        total = dense(x) * factor
        for term in terms:
            total = total + dense(term)
        if named is not None:
            total = total - dense(named["last"])
        return {"total": total, "count": len(terms)}, [x * 2, (total.sum(), None)]

    return ready(cell(run, dense))


def test_a_block_takes_several_structures_of_arguments():
    """A block has one graph for each structure; stock Gluon has only one."""
    net = nested_cell()
    x, a, b, c = attached(inputs(4))
    samples = [
        (x,), (x, []), (x, [a]), (x, [a, b]), (x, [a, b, c], 2), (x, [a], 2.5),
        (x, [], -1, {"last": a}), (x, (a, b), 1, {"last": b}),
    ]  # fmt: skip
    for sample in samples + samples[::-1]:
        net.hybridize(False)
        wanted = net(*sample)
        net.hybridize()
        same(net(*sample), wanted)
        same(net(*sample), wanted)
    check(lambda sample: net(*sample), samples * 2, net)


@pytest.mark.parametrize("active", [True, False])
def test_a_block_takes_arrays_in_a_dictionary_only(active):
    """Stock Gluon finds arrays in lists and tuples only."""
    net = Apply(lambda F, named: named["a"] + named["b"])
    net.hybridize(active)
    x, y = inputs(2)
    for scope in (contextlib.nullcontext(), gdb.batching()):
        with scope:
            got = net({"a": x, "b": y})
        equal([got], [x + y])


def stock():
    net = nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    return net


def batched(net, x):
    with gdb.batching():
        return net(x)


def test_a_layer_that_is_added_later_is_used():
    net, xs = prepared(stock()), inputs(3)
    check(net, xs, net)
    net.add(prepared(nn.Dense(7, in_units=2)))
    net.hybridize()
    check(net, xs, net, launches=1)
    assert batched(net, xs[0]).shape == (1, 7)


def test_a_copy_of_a_block_is_independent():
    """The block has no call outside of a scope before, as MXNet cannot copy a CachedOp."""
    net, (x,) = prepared(stock()), inputs(1)
    wanted = batched(net, x)
    copied = copy.deepcopy(net)
    copied[0].weight.set_data(copied[0].weight.data() * 0)
    got = [batched(net, x), batched(copied, x)]
    equal(got, [wanted, copied(x)])
    assert np.abs((got[0] - got[1]).asnumpy()).max() > 1e-4
    double = cell(lambda F, x: 2 * x)
    equal([batched(double, x)], [2 * x])
    triple = copy.copy(double)
    triple._fn = lambda F, x: 3 * x
    equal([batched(triple, x)], [3 * x])


def test_repr_apply_and_symbols_are_those_of_gluon():
    net, plain = prepared(stock()), stock()
    assert repr(net) == repr(plain)
    names = [], []
    net.apply(lambda block: names[0].append(block.name))
    plain.apply(lambda block: names[1].append(block.name))
    assert names[0] == names[1] and len(names[0]) == 4
    symbol = net(mx.sym.var("x"))
    assert symbol.list_arguments() == plain(mx.sym.var("x")).list_arguments()
    assert symbol.infer_shape(x=(3, WIDTH))[1] == [(3, 2)]


class Cell(nn.HybridBlock):
    """Features and a layer on top, as pretrained networks have them."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.features, self.output = stock(), nn.Dense(3, in_units=2)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


class Dynamic(Cell):
    def forward(self, x):
        return self.output(self.features(x))


class Plain(nn.Block):
    def __init__(self):
        super().__init__()
        self.features, self.output = stock(), nn.Dense(3, in_units=2)

    def forward(self, x):
        return self.output(self.features(x))


class Special(nn.Dense):
    def hybrid_forward(self, F, *args, **kwargs):
        return 2 * super().hybrid_forward(F, *args, **kwargs)


def child_of(net, layer):
    net.register_child(layer, "output")
    object.__setattr__(net, "output", layer)


def child_in_dictionary(net, layer):
    net._children["output"] = layer
    object.__setattr__(net, "output", layer)
    net.hybridize()  # Gluon does not notice it either


def layer_of_features(net, layer):
    net.features._children["1"] = layer
    net.output = nn.Dense(2, in_units=4)
    net.output.initialize()
    net.hybridize()


def features(net, layer):
    net.features = several(nn.HybridSequential, nn.Dense(5, in_units=WIDTH), layer)
    net.output = nn.Dense(2, in_units=4)
    net.features[0].initialize()
    net.output.initialize()


#: How a layer of four units takes the place of another.
WAYS = {
    "attribute": lambda net, layer: setattr(net, "output", layer),
    "register_child": child_of,
    "_children": child_in_dictionary,
    "layer of a sequence": layer_of_features,
    "sequence": features,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Cell, Dynamic, Plain])
def test_a_layer_takes_the_place_of_another(kind, way):
    """The usual step of fine-tuning: a new output layer, converted or not, hybridized or not."""
    for convert, hybridize, layer in (
        (False, True, nn.Dense), (True, True, Special), (False, False, Special),
    ):  # fmt: skip
        net = prepared(kind())
        net.hybridize(hybridize)
        check(net, inputs(2), net, granularities=["operator"])
        new = layer(4, in_units=5 if "sequence" in way else 2)
        new.initialize()
        WAYS[way](net, gdb.convert(new) if convert else new)
        check(net, inputs(2), net, granularities=["operator"])


def test_a_layer_of_another_class_is_refused_as_in_gluon():
    net = gdb.convert(Cell())
    for wrong in (nn.Conv2D(3, 3), 3, None):
        with pytest.raises(TypeError, match="Changing attribute type"):
            net.output = wrong
    net.output = gdb.convert(nn.Dense(4))
    net.output = nn.Dense(5)


def test_a_class_with_a_metaclass_is_converted():
    class Meta(type):
        def __instancecheck__(cls, instance):
            return getattr(instance, "units", None) == 3 or super().__instancecheck__(instance)

    class Odd(nn.HybridBlock, metaclass=Meta):
        def hybrid_forward(self, F, x):
            return x * 2

    net = gdb.convert(Odd())
    assert isinstance(net, Odd) and isinstance(type(net), Meta)
    assert isinstance(net, gdb.DynamicHybridBlock)
