"""Native convolutions equal those in NumPy, on every instruction set of this processor."""

from itertools import product

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn
from numpy.lib.stride_tricks import sliding_window_view

import gluon_dynbatch as gdb
from gluon_dynbatch.kernel.layout import OF_DATA, OF_KERNEL, Columns, Maps, Slot
from gluon_dynbatch.kernel.step import Convolved
from gluon_dynbatch.testing import check_against_loop
from tests.cells import attached, equal
from tests.depth import examples
from tests.kernel.native import launch

from .test_products import surrounded, within


@st.composite
def convolutions(draw):
    """Draw the sizes of a convolution of one or two groups, with any stride and padding."""

    def pair(least, most):
        return draw(st.tuples(st.integers(least, most), st.integers(least, most)))

    data, kernel, stride, dilate = pair(1, 19), pair(1, 4), pair(1, 3), pair(1, 2)
    reach = [(n - 1) * step for n, step in zip(kernel, dilate)]
    pad = tuple(draw(st.integers(0, most)) for most in reach)
    data = tuple(max(n, most + 1 - 2 * p) for n, most, p in zip(data, reach, pad))
    images, groups, channels, filters = (draw(st.integers(1, most)) for most in (2, 2, 5, 20))
    counts = images, groups, channels * groups, filters * groups
    return Maps.of_sizes(*counts, data, kernel, stride, dilate, pad)


def windows(maps, data):
    """Yield the index of each kernel element, the padded data, and the slices that it reads."""
    (top, left), space = maps.pad, [(0, 0)] * (data.ndim - 2)
    padded = np.pad(data, [*space, (top, top), (left, left)])
    for at in product(*map(range, maps.kernel)):
        window = (
            slice(i * d, i * d + s * (n - 1) + 1, s)
            for i, d, s, n in zip(at, maps.dilate, maps.stride, maps.result)
        )
        yield at, padded, (..., *window)


def expected(maps, data, kernel, bias, gradient):
    """Return the result, and the gradients of data, kernel and bias."""
    result = np.zeros_like(gradient) + bias.reshape(1, 1, *bias.shape, 1, 1)
    of_kernel, of_data = np.zeros((len(data), *kernel.shape), kernel.dtype), 0
    for (y, x), padded, window in windows(maps, data):
        w, spread = kernel[..., y, x], np.zeros_like(padded)
        result += np.einsum("rigchw,gfc->rigfhw", padded[window], w)
        of_kernel[..., y, x] = np.einsum("rigchw,rigfhw->rgfc", padded[window], gradient)
        spread[window] = np.einsum("rigfhw,gfc->rigchw", gradient, w)
        of_data = of_data + spread
    (top, left), (height, width) = maps.pad, maps.data
    of_data = of_data[..., top : top + height, left : left + width]
    return result, of_data, of_kernel, gradient.sum(axis=(1, 4, 5))


def run(maps, left, right, bias=None):
    """Run one step on rows within a margin, and check that the margin does not change."""
    dtype, shared = left.dtype, right.ndim == 1
    right = right if shared else within(right)[0]
    result, whole = within(np.full((len(left), maps.width), np.nan, dtype))
    slots = Slot("in", 0), Slot("in", 1), Slot("out", 0), Slot("in", 2)
    left_at, right_at, result_at, bias_at = map(Columns, slots)
    bias_at = None if bias is None else bias_at
    step = Convolved(left_at, right_at, result_at, bias_at, maps, dtype.name)
    launch([step], dict(zip(slots, (within(left)[0], right, result, bias))), len(left))
    assert surrounded(whole)
    return result


def flat(array):
    return array.reshape(len(array), int(np.prod(array.shape[1:])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@examples(40)
@given(convolutions(), st.integers(0, 3), st.booleans(), st.integers(0, 9))
@pytest.mark.usefixtures("instruction_set")
def test_results_and_gradients_equal_numpy(dtype, maps, rows, has_bias, seed):
    """Results and gradients are within the bound on their rounding errors."""
    rng, (_, images, groups, channels, filters, *_) = np.random.default_rng(seed), maps
    arrays = [
        rng.standard_normal(shape).astype(dtype)
        for shape in [
            (rows, images, groups, channels, *maps.data),
            (groups, filters, channels, *maps.kernel),
            (groups, filters),
            (rows, images, groups, filters, *maps.result),
        ]
    ]
    data, kernel, bias, gradient = arrays
    bias *= has_bias
    wide = np.float64 if dtype == "float32" else np.longdouble
    wanted = expected(maps, *(array.astype(wide) for array in arrays))
    magnitudes = expected(maps, *(np.abs(array).astype(wide) for array in arrays))
    both = run(maps._replace(of=OF_KERNEL), flat(gradient), flat(data))
    results = [
        run(maps, flat(data), kernel.ravel(), bias.ravel() if has_bias else None),
        run(maps._replace(of=OF_DATA), flat(gradient), kernel.ravel()),
        both[:, : kernel.size],
        both[:, kernel.size :],
    ]
    length = images * max(np.prod(maps.result), channels * filters * np.prod(maps.kernel)) + 1
    for got, exact, magnitude in zip(results, wanted, magnitudes):
        bound = 2 * length * np.finfo(dtype).eps * flat(magnitude)
        assert (np.abs(got - flat(exact)) <= bound).all()


#: The transforms of Lavin and Gray of data, kernels, and back, with no signs: with arrays that have
#: none, they add up all terms of a convolution by tiles of 2 x 2.
OF_TILE = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1]])
OF_TAPS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0, 0, 1]])
OF_SUMS = np.array([[1, 1, 1, 0], [0, 1, 1, 1]])


def transformed(maps, data):
    """Return the terms of transformed tiles of the data."""
    space = [(p, p + n % 2) for p, n in zip(maps.pad, maps.result)]
    padded = np.pad(np.abs(data), [(0, 0), (0, 0), *space])
    tiles = sliding_window_view(padded, (4, 4), (2, 3))[:, :, ::2, ::2]
    return np.einsum("ai,bj,rctuij->rctuab", OF_TILE, OF_TILE, tiles)


def terms_of_result(maps, data, kernel):
    """Return the terms of results."""
    kernel = np.einsum("ai,bj,fcij->fcab", OF_TAPS, OF_TAPS, np.abs(kernel))
    sums = np.einsum("rctuab,fcab->rftuab", transformed(maps, data), kernel)
    result = np.einsum("pa,qb,rftuab->rftpuq", OF_SUMS, OF_SUMS, sums)
    rows, filters, down, _, across, _ = result.shape
    height, width = maps.result
    return result.reshape(rows, filters, 2 * down, 2 * across)[..., :height, :width]


def terms_of_kernel(maps, data, gradient):
    """Return the terms of gradients of the kernel."""
    space = [(0, n % 2) for n in maps.result]
    padded = np.pad(np.abs(gradient), [(0, 0), (0, 0), *space])
    rows, filters, height, width = padded.shape
    tiles = padded.reshape(rows, filters, height // 2, 2, width // 2, 2)
    tiles = np.einsum("pa,qb,rftpuq->rftuab", OF_SUMS, OF_SUMS, tiles)
    sums = np.einsum("rctuab,rftuab->rfcab", transformed(maps, data), tiles)
    return np.einsum("ai,bj,rfcab->rfcij", OF_TAPS, OF_TAPS, sums)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@examples(20)
@given(
    st.tuples(st.integers(8, 20), st.integers(8, 20)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.integers(0, 3),
    st.integers(0, 9),
)
@pytest.mark.usefixtures("instruction_set")
def test_convolutions_by_tiles_are_within_their_bound(dtype, data, pad, rows, seed):
    """Terms are rounded once per map or tile in sums, and at most 12 times in transforms."""
    maps = Maps.of_sizes(1, 1, 19, 21, data, (3, 3), (1, 1), (1, 1), pad)
    rng, wide = np.random.default_rng(seed), np.float64 if dtype == "float32" else np.longdouble
    shapes = (rows, 19, *data), (21, 19, 3, 3), (21,), (rows, 21, *maps.result)
    x, w, bias, gradient = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    exactly = [
        array.astype(wide)
        for array in (x[:, None, None], w[None], bias[None], gradient[:, None, None])
    ]
    result, of_data, of_kernel, _ = expected(maps, *exactly)
    wide_x, wide_w, wide_gradient = (array.astype(wide) for array in (x, w, gradient))
    turned = maps._replace(data=maps.result, result=maps.data, pad=tuple(2 - p for p in pad))
    of_bias = np.abs(bias.astype(wide))[:, None, None]
    flipped = wide_w[:, :, ::-1, ::-1].swapaxes(0, 1)
    both = run(maps._replace(of=OF_KERNEL), flat(gradient), flat(x))
    for got, exact, length, terms in (
        (run(maps, flat(x), w.ravel(), bias.ravel()), result, 19,
         terms_of_result(maps, wide_x, wide_w) + of_bias),
        (run(maps._replace(of=OF_DATA), flat(gradient), w.ravel()), of_data, 21,
         terms_of_result(turned, wide_gradient, flipped)),
        (both[:, : w.size], of_kernel, np.prod(maps.result),
         terms_of_kernel(maps, wide_x, wide_gradient)),
    ):  # fmt: skip
        bound = (length + 12) * np.finfo(dtype).eps / 2 * flat(terms)
        assert (np.abs(got - flat(exact)) <= bound).all()


@pytest.mark.usefixtures("instruction_set")
def test_convolutions_of_zeros_are_zero():
    """A result is exactly zero if all that it depends on is, whatever is beside it."""
    maps = Maps.of_sizes(1, 1, 16, 16, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    for value in (1.1, np.inf):
        x = np.zeros((1, 16, 14, 14), np.float32)
        x[:, :, 5, 6] = value
        for of in (0, OF_DATA):
            got = run(maps._replace(of=of), flat(x), w.ravel()).reshape(16, 14, 14)
            got[:, 4:7, 5:8] = 0
            assert (got == 0).all()


@pytest.mark.parametrize("counts, size", [((2, 3), (4, 5)), ((16, 16), (14, 14))])
@pytest.mark.usefixtures("instruction_set")
def test_zero_gradients_ignore_infinite_data(counts, size):
    """If the gradient of the result is zero, the gradient of the kernel is zero too."""
    maps = Maps.of_sizes(1, 1, *counts, size, (3, 3), (1, 1), (1, 1), (0, 0))
    gradient = np.zeros((2, maps.width), np.float32)
    data = np.full((2, counts[0] * size[0] * size[1]), np.inf, np.float32)
    assert (run(maps._replace(of=OF_KERNEL), gradient, data) == 0).all()


def test_weights_in_the_memory_layout_of_onednn_are_read_in_the_usual_one():
    """MXNet's convolutions leave weights and their gradients in a blocked layout."""
    net = nn.Conv2D(16, 3, in_channels=16)
    net.initialize()
    net.hybridize()
    samples = [mx.nd.random.normal(shape=(1, 16, 8, 8)) for _ in range(3)]

    for _ in range(2):
        wanted = [net(x) for x in samples]
        equal(gdb.map(net, samples), wanted, 1e-4, 1e-4)
        check_against_loop(net, samples, net.collect_params(), (1e-4, 1e-4))


@pytest.mark.parametrize("layer, shape", [(nn.Conv1D, (1, 8, 8)), (nn.Conv2D, (1, 8, 8, 8))])
def test_gradients_in_the_memory_layout_of_onednn_are_written(layer, shape):
    """A loop that ran before has left the gradients of the data in a blocked layout, too."""
    net = layer(16, 3, in_channels=8)
    net.initialize()
    net.hybridize()
    samples = attached([mx.nd.random.normal(shape=shape) for _ in range(3)])

    def gradients(run):
        with autograd.record():
            results = run()
        autograd.backward(results)
        return [x.grad.asnumpy() for x in samples]

    wanted = gradients(lambda: [net(x) for x in samples])
    equal(gradients(lambda: gdb.map(net, samples)), wanted, 1e-4, 1e-4)
