"""Rules at work in scopes: losses, fused layers, draws, small and empty arrays."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Tuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop

LEVELS = pytest.mark.parametrize("granularity", ["block", "operator", "graph"])


def normal(*shape: int) -> nd.NDArray:
    return nd.random.normal(shape=shape)


def watched(*arrays: nd.NDArray) -> Tuple[nd.NDArray, ...]:
    for array in arrays:
        array.attach_grad()
    return arrays


def classes_of(n: int) -> nd.NDArray:
    return nd.array(np.random.randint(0, 4, n))


def signs(*shape: int) -> nd.NDArray:
    return nd.array(np.random.choice([-1.0, 1.0], shape))


#: Per loss: its arguments, and the arrays of one sample with n rows.
LOSSES: Dict[str, Tuple[Dict[str, Any], Callable[[int], Tuple[nd.NDArray, ...]]]] = {
    "L1Loss": ({}, lambda n: (*watched(normal(n, 3)), normal(n, 3))),
    "L2Loss": ({}, lambda n: (*watched(normal(n, 3)), normal(n, 3))),
    "HuberLoss": ({}, lambda n: (*watched(normal(n, 3)), normal(n, 3))),
    "HingeLoss": ({}, lambda n: (*watched(normal(n, 3)), signs(n, 3))),
    "SquaredHingeLoss": ({}, lambda n: (*watched(normal(n, 3)), signs(n, 3))),
    "LogisticLoss": ({}, lambda n: (*watched(normal(n, 3)), signs(n, 3))),
    "SigmoidBinaryCrossEntropyLoss": (
        {},
        lambda n: (*watched(normal(n, 3)), (normal(n, 3) > 0)),
    ),
    "SoftmaxCrossEntropyLoss": ({}, lambda n: (*watched(normal(n, 4)), classes_of(n))),
    "KLDivLoss": ({"from_logits": False}, lambda n: (*watched(normal(n, 3)), normal(n, 3).abs())),
    "PoissonNLLLoss": ({}, lambda n: (*watched(normal(n, 3)), normal(n, 3).abs())),
    "TripletLoss": ({}, lambda n: watched(normal(n, 3), normal(n, 3), normal(n, 3))),
    "CosineEmbeddingLoss": ({}, lambda n: (*watched(normal(n, 3), normal(n, 3)), signs(n))),
    "CTCLoss": ({}, lambda n: (*watched(normal(n, 6, 5)), classes_of(2 * n).reshape((n, 2)))),
    "SDMLLoss": ({}, lambda n: watched(normal(n, 3), normal(n, 3))),
}
#: It reads the shape of its argument, so Gluon cannot hybridize it either.
UNTRACED = {"SDMLLoss"}
ALIASES = {"SigmoidBCELoss", "SoftmaxCELoss", "Loss"}


def test_every_loss_of_gluon_is_tried() -> None:
    found = {name for name, _ in inspect.getmembers(gluon.loss, inspect.isclass)}
    assert {name for name in found if name.endswith("Loss")} - ALIASES == set(LOSSES)


@LEVELS
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_loss(name: str, granularity: str) -> None:
    """Equal shapes share one launch; different numbers of rows equal the loop as well."""
    options, draw = LOSSES[name]
    loss = gdb.convert(getattr(gluon.loss, name)(**options))
    if name not in UNTRACED:
        loss.hybridize()

    def run(sample: Tuple[nd.NDArray, ...]) -> nd.NDArray:
        # A product is the sample's own; a variable would count as a weight.
        return loss(*(array if array.grad is None else array * 1 for array in sample))

    batch = check_against_loop(run, [draw(2) for _ in range(4)], granularity=granularity)
    assert not batch.report.alone
    if granularity == "block" and name not in UNTRACED:
        assert len(batch.plan.launches) == 1
    check_against_loop(run, [draw(n) for n in (1, 3, 2, 1)], granularity=granularity)


@LEVELS
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_fused_layers(kind: str, layout: str, granularity: str) -> None:
    """Sequences of one length share a launch."""
    net = gdb.convert(
        getattr(gluon.rnn, kind)(4, num_layers=2, bidirectional=True, layout=layout, input_size=3)
    )
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    shapes = [(n, 1, 3) if layout == "TNC" else (1, n, 3) for n in (4, 2, 4, 2, 4)]
    samples = [watched(normal(*shape))[0] for shape in shapes]
    parameters = list(net.collect_params().values())
    batch = check_against_loop(net, samples, parameters, granularity=granularity)
    assert not batch.report.alone
    if granularity == "block":
        assert len(batch.plan.launches) == 2


def test_a_fused_layer_uses_the_parameters_of_the_day() -> None:
    net = gdb.convert(gluon.rnn.LSTM(4, input_size=3))
    net.initialize()
    net.hybridize()
    samples = [normal(3, 1, 3) for _ in range(3)]
    for _ in range(2):
        results = gdb.map(net, samples)
        for x, result in zip(samples, results):
            np.testing.assert_allclose(result.asnumpy(), net(x).asnumpy(), 1e-5, 1e-6)
        for parameter in net.collect_params().values():
            parameter.set_data(parameter.data() * 3)


class Noise(gdb.DynamicHybridBlock):
    """Applies a random function to its argument."""

    def __init__(self, draw: Callable[[Any, Any], Any]):
        super().__init__()
        self.draw = draw

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.draw(F, x)


DRAWS: Dict[str, Callable[[Any, Any], Any]] = {
    "Dropout": lambda F, x: F.Dropout(x, p=0.5),
    "Dropout of ones": lambda F, x: F.Dropout(F.ones_like(x), p=0.5),
    "normal_like": lambda F, x: F.random.normal_like(x),
    "sample_uniform": lambda F, x: F.sample_uniform(x, x + 1),
    "normal of a shape": lambda F, x: x + F.random.normal(shape=(1, 32)),
}


@LEVELS
@pytest.mark.parametrize("name", sorted(DRAWS))
def test_equal_samples_draw_their_own(name: str, granularity: str) -> None:
    """The same array goes through the same call twice and more; no two results are one."""
    net = Noise(DRAWS[name])
    net.hybridize()
    x = nd.ones((1, 32))
    with autograd.train_mode(), gdb.batching(granularity=granularity) as batch:
        outputs = [net(x) for _ in range(6)]
    found = np.concatenate([out.asnumpy() for out in outputs])
    assert len(np.unique(found, axis=0)) == 6
    assert bool(batch.report.alone) == (name == "normal of a shape")


@LEVELS
def test_a_seed_repeats_the_draws(granularity: str) -> None:
    net = Noise(DRAWS["Dropout"])
    net.hybridize()
    found = []
    for _ in range(2):
        mx.random.seed(7)
        with autograd.train_mode(), gdb.batching(granularity=granularity, policy="depth"):
            outputs = [net(nd.ones((n, 32))) for n in (1, 2, 1)]
        found.append(np.concatenate([out.asnumpy() for out in outputs]))
    np.testing.assert_array_equal(*found)


@LEVELS
@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_single_elements(shape: Tuple[int, ...], granularity: str) -> None:
    """What other libraries call 0-d is one element here, also after a reduction."""

    double = Noise(lambda F, x: x * 2)
    double.hybridize()

    def run(x: nd.NDArray) -> nd.NDArray:
        x = double(x)
        whole = (x * 2).sum() + x.mean(axis=0).sum() + x.max()
        return nd.broadcast_add(nd.exp(x), whole.reshape((1,) * len(shape)))

    samples = [watched(normal(*shape))[0] for _ in range(4)]
    batch = check_against_loop(run, samples, granularity=granularity)
    assert not batch.report.alone and 0 < batch.report.launches < batch.report.nodes


@LEVELS
def test_empty_arrays(granularity: str) -> None:
    """Under NumPy's shapes an array may be empty: recording says so at the user's line."""
    double = Noise(lambda F, x: x * 2)
    double.hybridize()
    said = r"shape \(0, 3\) is empty\n  at: .*test_scopes.py"
    with mx.util.np_shape(), gdb.batching(granularity=granularity):
        full = double(nd.ones((2, 3)))
        with pytest.raises(gdb.ShapeError, match=said):
            double(nd.zeros((0, 3)))
    np.testing.assert_array_equal(full.asnumpy(), np.full((2, 3), 2))
