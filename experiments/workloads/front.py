"""Both interfaces of MXNet for one model: what ``mx.nd`` has, of ``mx.np`` and ``mx.npx``, too.

A model that calls ``front().concat`` in Python, or ``front(F).concat`` in ``hybrid_forward``, works
with arrays of `mx.nd`, and under NumPy's semantics with those of `mx.np`. So does a block of
Gluon's that in MXNet 1.9.1 calls only functions of ``mx.nd``: see `LSTMCell`.
"""

import operator
from contextlib import ExitStack, contextmanager

import mxnet as mx
from mxnet import gluon
from mxnet.util import is_np_array

#: The interfaces by name.
ND, NP = "nd", "np"
#: Functions that `mx.np` and `mx.npx` have under the same names, with the same arguments.
SAME = {
    "np": "abs exp expand_dims log ones_like repeat sqrt swapaxes tanh transpose where zeros",
    "npx": "batch_dot log_softmax pick relu sigmoid softmax",
}

#: Functions that operators of Python stand for.
OPERATORS = {
    "elemwise_add": operator.add,
    "elemwise_sub": operator.sub,
    "elemwise_mul": operator.mul,
    "broadcast_add": operator.add,
    "broadcast_greater_equal": operator.ge,
}


@contextmanager
def semantics(interface):
    """Switch NumPy's semantics on for "np", and off for "nd", in the body."""
    on = interface == NP
    # MXNet refuses arrays of `mx.np` without NumPy's shapes.
    switches = [mx.util.np_shape, mx.util.np_array][:: 1 if on else -1]
    with ExitStack() as stack:
        for switch in switches:
            stack.enter_context(switch(on))
        yield


class NumPyFunctions:
    """Functions of ``F.np`` and ``F.npx``, by the names that ``F`` has for them.

    They take a name, as symbols do, and ignore it.
    """

    def __init__(self, F):
        self._np, self._npx = F.np, F.npx
        for module, names in SAME.items():
            for name in names.split():
                setattr(self, name, _unnamed(getattr(getattr(F, module), name)))
        for name, function in OPERATORS.items():
            setattr(self, name, _unnamed(function))

    def concat(self, *arrays, dim=1):  # noqa: D102
        return self._np.concatenate(arrays, axis=dim)

    def split(self, array, num_outputs, axis=1, name=None):  # noqa: D102
        return self._np.split(array, num_outputs, axis=axis)

    SliceChannel = split

    def split_v2(self, array, indices_or_sections, axis=0):  # noqa: D102
        return self._np.split(array, indices_or_sections, axis=axis)

    def add_n(self, *arrays):  # noqa: D102
        return sum(arrays)

    def dot(self, lhs, rhs, transpose_b=False):  # noqa: D102
        return self._np.dot(lhs, rhs.T if transpose_b else rhs)

    def FullyConnected(self, data, weight, bias=None, name=None, **attrs):  # noqa: D102, N802
        arrays = (data, weight) if bias is None else (data, weight, bias)
        return self._npx.fully_connected(*arrays, **attrs)

    def Activation(self, data, act_type, name=None):  # noqa: D102, N802
        return self._npx.activation(data, act_type=act_type)

    def Dropout(self, data, p):  # noqa: D102, N802
        return self._npx.dropout(data, p=p)

    def sum(self, data, axis, exclude=False):  # noqa: D102
        if exclude:  # all axes but the first
            assert axis == 0
            data, axis = self._npx.batch_flatten(data), 1
        return self._np.sum(data, axis=axis)

    def RNN(self, *arrays, **attrs):  # noqa: D102, N802
        return self._npx.rnn(*arrays, **attrs)

    def SequenceMask(self, *arrays, **attrs):  # noqa: D102, N802
        return self._npx.sequence_mask(*arrays, **attrs)

    def SequenceReverse(self, *arrays, **attrs):  # noqa: D102, N802
        # There is none in `mx.npx`.
        return mx.nd.SequenceReverse(*converted(arrays, ND), **attrs).as_np_ndarray()

    def softsign(self, data, name=None):  # noqa: D102
        return data / (1 + self._np.abs(data))

    def take(self, array, indices, axis=0):  # noqa: D102
        return self._np.take(array, indices, axis=axis, mode="clip")

    def array(self, values, dtype="float32"):  # noqa: D102
        return mx.np.array(values, dtype=dtype)


def _unnamed(function):
    return lambda *arrays, name=None, **attrs: function(*arrays, **attrs)


_NUMPY = {F: NumPyFunctions(F) for F in (mx.nd, mx.sym)}


def front(F=mx.nd):
    """Return functions by the names of ``mx.nd``, of the interface in use."""
    return _NUMPY[F] if is_np_array() else F


def converted(value, interface):
    """Convert arrays in nested tuples and lists to those of an interface, which share memory.

    What has no arrays is returned as it is.
    """
    if isinstance(value, mx.nd.NDArray):
        return value.as_np_ndarray() if interface == NP else value.as_nd_ndarray()
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        parts = [converted(each, interface) for each in value]
        same = all(part is each for part, each in zip(parts, value))
        return value if same else type(value)(parts)
    return value


class _Either:
    """A mixin that makes a block of Gluon's one of both interfaces."""

    def hybrid_forward(self, F, *inputs, **parameters):
        """Compute with functions of the interface in use."""
        return super().hybrid_forward(front(F), *inputs, **parameters)


class KLDivLoss(_Either, gluon.loss.KLDivLoss):
    """Gluon's loss of that name."""


class _Cell(_Either):
    def read(self, rows):
        """Return the outputs of all steps from zero, and the last states."""
        start = self.begin_state(func=_zeros, batch_size=1)
        return self.unroll(len(rows), rows, begin_state=start)


def _zeros(shape, **_):
    return front().zeros(shape=shape)


class LSTMCell(_Cell, gluon.rnn.LSTMCell):
    """Gluon's LSTM cell."""


class GRUCell(_Cell, gluon.rnn.GRUCell):
    """Gluon's GRU cell."""
