"""The ways to run a test of MXNet: plain, and in scopes.

Each is a context manager; the test runs in it and does not know.
"""

import contextlib
import functools
from unittest import mock

import mxnet as mx
from mxnet.gluon import Block, HybridBlock

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.state import STATE

#: Functions of `mx.random` that draw an array of a given shape.
DRAWS = [name for name in mx.nd.random.__all__ if hasattr(mx.random, name) and name != "shuffle"]


class _Same(gdb.DynamicHybridBlock):
    def hybrid_forward(self, F, x):
        return F.identity(x)


def _can_be_lazy(array, out):
    """Return whether a new array may become lazy: other arrays are refused, also without a scope.

    Those that the caller gave, and those of threads without a scope, stay as they are.
    """
    dense = type(array) in (mx.nd.NDArray, LazyNDArray) and array.shape and 0 not in array.shape
    return dense and out is None and STATE.batch is not None


def _made_lazy(same, make):
    """Return a function that creates an array, so that in a scope the array is lazy."""

    @functools.wraps(make)
    def create(*args, **kwargs):
        array = make(*args, **kwargs)
        return same(array) if _can_be_lazy(array, kwargs.get("out")) else array

    return create


@contextlib.contextmanager
def lazy_arrays(**options):
    """Open a scope in which arrays are lazy that a test creates from values or draws."""
    same = _Same()
    same.hybridize()
    places = [(module, "array") for module in (mx.nd, mx.nd.utils, mx.test_utils)]
    places += [(module, name) for module in (mx.nd.random, mx.random) for name in DRAWS]
    with contextlib.ExitStack() as stack:
        for module, name in places:
            replacement = _made_lazy(same, getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, replacement))
        stack.enter_context(gdb.batching(**options))
        yield


@contextlib.contextmanager
def converted_blocks():
    """Convert blocks when they are initialized, hybridized or first called; arrays are lazy."""
    initialize, hybridize, call = Block.initialize, HybridBlock.hybridize, Block.__call__

    def convert(block):
        if not isinstance(block, gdb.DynamicHybridBlock):
            gdb.convert(block)
            return True
        return False

    @functools.wraps(initialize)
    def convert_and_initialize(block, *args, **kwargs):
        convert(block)
        return initialize(block, *args, **kwargs)

    @functools.wraps(hybridize)
    def convert_and_hybridize(block, *args, **kwargs):
        # The class of a block that was just converted has a method of its own.
        own = type(block).hybridize if convert(block) else hybridize
        return own(block, *args, **kwargs)

    @functools.wraps(call)
    def convert_and_call(block, *args, **kwargs):
        convert(block)
        return call(block, *args, **kwargs)

    with mock.patch.object(Block, "initialize", convert_and_initialize), mock.patch.object(
        HybridBlock, "hybridize", convert_and_hybridize
    ), mock.patch.object(Block, "__call__", convert_and_call), lazy_arrays():
        yield


#: By name: "plain" is the oracle.
WAYS = {
    "plain": contextlib.nullcontext,
    "scope": gdb.batching,
    "debug": functools.partial(lazy_arrays, debug=True),
    "lazy": functools.partial(lazy_arrays, granularity="operator"),
    "converted": converted_blocks,
}
