"""Writes to arrays that pending calls read, and to memory that several arrays share.

A call uses the values at the time of the call; all arrays that share memory see a write.
"""

import contextlib
import copy
import ctypes
import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.base import _LIB
from mxnet.ndarray.ndarray import NDArray, _new_alloc_handle

import gluon_dynbatch as gdb
from gluon_dynbatch.run.buffers import bases_of
from tests.cells import array, cell, dense, equal, module
from tests.common import FIXED, SCOPES, same_as_loop, semantics
from tests.depth import rotate

from . import numpy_writes
from .numpy_writes import fill

#: Tests that run with arrays of `mx.nd`, and again with those of `mx.np`.
BOTH = pytest.mark.usefixtures("front")


def numpy_of(capsule):
    """Return a NumPy view of a DLPack capsule, through which another library would write."""
    shared = mx.nd.from_dlpack(capsule)
    KEPT.append(shared)
    address = ctypes.c_void_p()
    mx.base.check_call(_LIB.MXNDArrayGetData(shared.handle, ctypes.byref(address)))
    words = (ctypes.c_float * shared.size).from_address(address.value)
    return np.frombuffer(words, dtype=np.float32)


#: Arrays that own the memory of NumPy views.
KEPT = []


def test_arrays_without_memory_are_distinguished():
    """Before its initializer has run, a parameter has no address by which to compare it."""
    first, second = (NDArray(_new_alloc_handle((3,), mx.cpu(), True)) for _ in range(2))
    ones = mx.nd.ones((4, 2))
    arrays = [first, second, first, ones, ones[1:], ones.reshape((-1,))]
    for uses, written, read in ((b"RRRrrr", 0, 3), (b"WRRrrw", 2, 1), (b"rrrrrr", 0, 3)):
        bases = bases_of(arrays, uses)
        assert (len(bases.written), len(bases.read)) == (written, read)


def load_parameters(net, tmp_path):
    path = str(tmp_path / "net.params")
    net.save_parameters(path)
    net.weight.data()[:] *= 3
    return array(1, 4), lambda: net.load_parameters(path)


def gradient(name):
    """Read a gradient; every access to ``x.grad`` returns a new array of the same memory."""

    def make(net, _):
        x = net.weight.data()
        x.grad[:] = 1
        with autograd.record():
            loss = (x * x).sum()
        writes = {
            "written": lambda: fill(x.grad),
            "backward": loss.backward,
            "autograd.backward": lambda: autograd.backward([loss]),
            "zero_grad": net.collect_params().zero_grad,
        }
        return x.grad, writes[name]

    return make


def trainer_step(optimizer):
    def make(net, _):
        trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.5})
        with autograd.record():
            loss = net(array(1, 4)).sum()
        loss.backward()
        return array(1, 4, seed=1), lambda: trainer.step(1)

    return make


def store(name):
    """Write to an array by a method of a ``KVStore``."""

    def make(net, _):
        kvstore, x, ones = mx.kv.create("local"), array(1, 4), mx.nd.ones((1, 4))
        if name != "broadcast":
            kvstore.init(3, ones)
        more = () if name == "pull" else (ones,)
        return x, lambda: getattr(kvstore, name)(3, *more, out=x)

    return make


#: Functions of an array that return the argument of a call, and a function that writes to it.
ARRAYS = {
    "itself": lambda x: (x, lambda: fill(x)),
    "+=": lambda x: (x, lambda: x.__iadd__(1)),
    "element": lambda x: (x, lambda: x.__setitem__((0, 1), 9)),
    "out=": lambda x: (x, lambda: mx.nd.random.uniform(5, 6, x.shape, out=x)),
    "copyto": lambda x: (x, lambda: module().ones(x.shape).copyto(x)),
    "as numpy array": lambda x: (x, lambda: x.as_np_ndarray().__iadd__(1)),
    "changed by an operator": lambda x: (x, lambda: mx.nd.reset_arrays(x, num_arrays=1)),
    "another state": lambda x: (x, lambda: x.__setstate__(array(2, 4, seed=1).__getstate__())),
    "rows": lambda x: (x, lambda: fill(x[0:1])),
    "shape": lambda x: (x, lambda: fill(x.reshape((-1,)))),
    "detached": lambda x: (x, lambda: fill(x.detach())),
    "call reads rows": lambda x: (x[0:1], lambda: fill(x)),
    "call reads a shape": lambda x: (x.reshape((4, 2)).reshape((2, 4)), lambda: fill(x)),
    "call reads a detached array": lambda x: (x.detach(), lambda: fill(x)),
    "two views": lambda x: (x[0:1], lambda: fill(x[0:2])),
    # Through arrays that exist before the call.
    "old rows": lambda x: (x, functools.partial(fill, x[0:1])),
    "old row": lambda x: (x, functools.partial(fill, x[0])),
    "old shape": lambda x: (x, functools.partial(fill, x.reshape((-1,)))),
    "old view of a view": lambda x: (
        x, functools.partial(fill, x.reshape((-1,))[2:6].reshape((2, 2))),
    ),
    "old detached": lambda x: (x, functools.partial(fill, x.detach())),
    "old numpy array": lambda x: (x, functools.partial(fill, x.as_np_ndarray())),
}  # fmt: skip

#: Functions of a network that return a function that writes to its parameters.
PARAMETERS = {
    "set_data": lambda net: lambda: net.weight.set_data(module().ones((3, 4))),
    "[:] =": lambda net: lambda: fill(net.weight.data()),
    "+=": lambda net: lambda: net.weight.data().__iadd__(1),
    "bias": lambda net: lambda: fill(net.bias.data()),
    "view": lambda net: lambda: fill(net.weight.data()[1:2]),
    "view from before the call": lambda net: functools.partial(fill, net.weight.data()[1:2]),
    "list_data": lambda net: lambda: fill(net.weight.list_data()[0]),
    "initialize": lambda net: lambda: net.initialize(mx.init.One(), force_reinit=True),
    "lent": lambda net: lambda: fill(numpy_of(mx.nd.to_dlpack_for_write(net.weight.data()))),
}

OPTIMIZERS = (
    "adadelta adagrad adam adamax dcasgd ftml ftrl fusedadagrad fusedadam lamb lars nadam nag "
    "rmsprop sgd sgld signum"
)
WRITES = {
    **{name: lambda net, _, make=make: make(array(2, 4)) for name, make in ARRAYS.items()},
    **{
        f"parameter {name}": lambda net, _, make=make: (array(1, 4), make(net))
        for name, make in PARAMETERS.items()
    },
    "parameters loaded": load_parameters,
    **{f"gradient {n}": gradient(n) for n in ("written", "backward", "autograd.backward")},
    "gradient zero_grad": gradient("zero_grad"),
    **{optimizer: trainer_step(optimizer) for optimizer in OPTIMIZERS.split()},
    **{f"store {name}": store(name) for name in ("pull", "pushpull", "broadcast")},
}


#: Those of arrays of `mx.np`; MXNet itself refuses the others.
REFUSED = ("store", "lent", "loaded")
NUMPY_WRITES = {
    **{name: make for name, make in WRITES.items() if not any(word in name for word in REFUSED)},
    **{
        name: lambda net, _, make=make: make(array(2, 4))
        for name, make in numpy_writes.ARRAYS.items()
    },
}
EITHER = [("nd", name) for name in WRITES] + [("np", name) for name in NUMPY_WRITES]


@pytest.mark.filterwarnings("ignore:.*(np.bool|as_in_context):DeprecationWarning")
@pytest.mark.parametrize("own, name", EITHER)
def test_calls_before_a_write_use_the_old_values_and_later_ones_the_new(tmp_path, own, name):
    """A call before the write uses the old values, the same call afterwards the new ones."""
    make = (NUMPY_WRITES if own == "np" else WRITES)[name]
    with semantics(own):
        check_write(make, tmp_path)


def check_write(make, tmp_path):
    def program():
        net = dense()
        argument, write = make(net, tmp_path)
        before, same = net(argument), net(argument)
        write()
        after = net(argument)
        return lambda: [before, same, after, argument, *(p.data() for p in (net.weight, net.bias))]

    before, _, after, *_ = same_as_loop(program)
    assert not np.allclose(before.asnumpy(), after.asnumpy()), "the write changed nothing"


def test_backward_uses_the_parameters_at_the_time_of_the_calls(net):
    """A write between forward and backward pass does not change the gradient."""
    x = array(1, 4)
    x.attach_grad()
    slope = 2 * net(x).asnumpy() @ net.weight.data().asnumpy()
    with autograd.record(), gdb.batching(**FIXED):
        losses = [(net(x) ** 2).sum() for _ in range(2)]
    fill(net.weight.data(), 5)
    autograd.backward(losses)
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * slope, 1e-4)


def test_writes_cost_at_most_one_flush_and_none_if_no_call_reads_the_array(net):
    """A gradient of the whole array does not concern its views."""
    whole, unused = array(4, 4), dense()
    with autograd.record(), gdb.batching(**FIXED) as batch:
        rows = [whole[i : i + 1] for i in range(4)]
        for x in rows:
            x.attach_grad()
        outputs = [net(x) for x in rows]
        whole.attach_grad()
        unused.weight.grad_req = "add"
        unused.cast("float64")
        unused.initialize(force_reinit=True)
        unread = array(2, 4)
        unread[:] = 0
        unread[0:1] += 2
        mx.nd.to_dlpack_for_write(array(1, 2))
        mx.nd.to_dlpack_for_read(rows[0])
        assert all(y.pending for y in outputs)
    assert batch.report.launches == 1 and not batch.report.forced
    with gdb.batching(**FIXED) as batch:
        outputs = [net(x) for x in rows]
        for x in rows:
            x[:] = 0
    assert len(batch.report.flushes) == 1


#: Functions of a pending array that return all arrays that exist afterwards; the pending array is
#: freed unless it is one of them.
SHARING = {
    "detached": lambda y: [y, m := y.detach(), fill(m)],
    "array of a detached": lambda y: [y, y.detach(), fill(y)],
    "detached twice": lambda y: [y, m := y.detach().detach(), fill(m)],
    "view of a detached": lambda y: [y, m := y.detach()[1:], fill(m)],
    "row of a detached": lambda y: [y, m := y.detach()[1], fill(m)],
    "detached view": lambda y: [y, m := y[1:].detach(), fill(m)],
    "shape of a detached": lambda y: [y, m := y.detach().reshape((-1,)), fill(m[1:3])],
    "only a detached": lambda y: [m := y.detach(), fill(m)],
    "two detached": lambda y: [m := y.detach(), y.detach(), fill(m)],
    "detached and a view": lambda y: [m := y.detach(), y[0:1], fill(m)],
    "parts of detached": lambda y: [m := y[0:1].detach(), y[0:2].detach(), fill(m)],
    "views": lambda y: [m := y[0:2], y[1], y[1:3], fill(m)],
    "views apart": lambda y: [m := y[0:1], y[1:3], fill(m)],
    "read, then written": lambda y: [m := y.detach(), m * 2, m + 1, fill(m), m * 3],
    "+=": lambda y: [y, m := y.detach(), m.__iadd__(1)], "+= itself": lambda y: [y, y.__iadd__(y)],
    "out=": lambda y: [y, m := y.detach(), mx.nd.ones((3, 2), out=m)],
    "read, then out=": lambda y: [m := y.detach(), m * 2, mx.nd.ones((3, 2), out=m), m * 3],
    "out= itself": lambda y: [y, mx.nd.elemwise_mul(y, y, out=y)],
    "copyto": lambda y: [y, mx.nd.ones((3, 2)).copyto(y)],
    "by an operator": lambda y: [y, m := y.detach(), mx.nd.reset_arrays(m, num_arrays=1)],
    "rows set to a list": lambda y: [y, y.__setitem__(slice(1, 3), [[1, 2]])],
    "row set to another": lambda y: [y, y.__setitem__(1, y[0])],
    "column set": lambda y: [y, y.__setitem__((slice(None), 0), 3)],
    "chosen rows set": lambda y: [y, y.__setitem__([0, 2], 3)],
    "after a flush, read": lambda y: [y, y.asnumpy(), y * 2, m := y[0:1], fill(m), y * 2],
    "one row set": lambda y: [y, y.__setitem__(0, 5)], "numpy row": lambda y: [y, y[np.int64(1)]],
    "axes": lambda y: [y[0:1, 1], y[:, 0], y],
    "after a flush": lambda y: [y, y.asnumpy(), m := y.detach(), fill(m)],
    "computed when detached": lambda y: [y, m := y.detach(), m.asnumpy(), fill(m)],
    "copy": lambda y: [y, m := y.copy(), fill(m)],
    "flattened": lambda y: [y, m := y.flatten(), fill(m)],
    "flattened in place": lambda y: [y, m := y.flatten(inplace=True), fill(m)],
    "row of flattened": lambda y: [y, f := y.flatten(), m := f[1], m * 2, fill(f), f[0:2]],
    "expanded": lambda y: [y, m := y.expand_dims(1), y.expand_dims(1), fill(m)],
    "expanded, detached": lambda y: [y, e := y.expand_dims(0), m := e.detach(), e[0, 1:], fill(m)],
    "squeezed": lambda y: [y, m := y.reshape((1, 3, 2)).squeeze(0), fill(m)],
    "squeezed, views only": lambda y: [(s := y[0:1].squeeze(0))[0:1], m := s[0:2], fill(m), s + 1],
}  # fmt: skip


CUTS = (
    slice(None), slice(0, 1), slice(1, 3), slice(0, 3, 2), slice(2, 3, 2), slice(None, None, -1), 1,
)  # fmt: skip


@BOTH
def test_basic_indices_share_memory_as_without_a_scope():
    square = cell(lambda F, x: x * x)
    keys = [(a, b) for a in CUTS for b in CUTS] + [(a,) for a in CUTS]

    def program():
        results = [square(array(3, 3, seed=i)) for i in range(len(keys))]
        parts = [y[key] for y, key in zip(results, keys)]
        doubled = [part * 2 for part in parts]
        for i, part in enumerate(parts):
            fill(part, i)
        return lambda: [*results, *parts, *doubled]

    same_as_loop(program)


#: Where the pending array comes from: a call, or a creation operator, whose equal results are one
#: value in a scope until one of them is written to or shares memory.
SOURCES = ["predicting", "recording", "computed", "constant", "constant, after the scope"]


#: Those of arrays of `mx.np`: where they are written in another way, and more.
NUMPY_SHARING = {**SHARING, **numpy_writes.SHARING}
EITHER_SHARING = [("nd", name) for name in SHARING] + [("np", name) for name in NUMPY_SHARING]


@pytest.mark.filterwarnings("ignore:.*(np.bool|as_in_context):DeprecationWarning")
@pytest.mark.parametrize("case, source", rotate(EITHER_SHARING, SOURCES))
def test_all_arrays_that_share_memory_see_a_write(case, source):
    """Copies and equal arrays do not. What `mx.nd` and `mx.np` share meets two sources."""
    own, name = case
    with semantics(own):
        check_sharing((NUMPY_SHARING if own == "np" else SHARING)[name], source)


def check_sharing(share, source):
    square = cell(lambda F, x: x * x)

    def shared(y):
        try:
            results = share(y.pop())
        except mx.MXNetError as error:
            # MXNet refuses to write to arrays that a gradient may need.
            assert "in a computational graph" in str(error)
            return []
        return [result for result in results if isinstance(result, mx.nd.NDArray)]

    def program():
        x, ones = array(3, 2), module().ones((3, 2))
        x.attach_grad()
        x.grad[:] = 5
        before = square(ones)
        with autograd.record() if source == "recording" else contextlib.nullcontext():
            y = [module().ones((3, 2)) if "constant" in source else square(x)]
            if source == "computed":
                y[0].asnumpy()
            results = [] if "after" in source else shared(y)
        after = square(ones)
        return lambda: [*results, *(shared(y) if y else []), ones, before, after, x.grad]

    same_as_loop(program)


@BOTH
def test_operands_of_detached_results_get_no_gradient():
    """Their gradient buffers are not written, not even with zeros."""
    square, scale = cell(lambda F, x: x * x), cell(lambda F, x, w: F.broadcast_mul(x, w))
    if mx.util.is_np_array():
        scale = cell(lambda F, x, w: x * w)

    def program():
        x, w, trained = array(3, 2), array(1, 2), array(3, 2)
        for variable in (x, w, trained):
            variable.attach_grad()
            variable.grad[:] = 5
        with autograd.record():
            z = scale(square(x).detach(), w)
            # One launch computes both; only one of them passes on a gradient.
            y = square(trained)
            both = scale(y, w) + scale(y.detach(), w)
            m = both.detach()
            m.attach_grad()
            total = (m * m).sum()

        def end():
            autograd.backward([z, both, total])
            return [z, both, x.grad, w.grad, trained.grad, m.grad]

        return end

    wanted = same_as_loop(program, SCOPES)
    equal([wanted[2]], [module().ones((3, 2)) * 5])


def test_numpy_memory_may_be_freed_when_the_scope_ends():
    """The engine reads it later, as it is still busy."""
    net = cell(lambda F, x, z: x * 2 + z)
    slow = mx.nd.ones((1200, 1200))
    for _ in range(3):
        slow = mx.nd.dot(slow, slow) / 1200
    late = slow[:1, :1000]
    with gdb.batching(**FIXED):
        lent = [mx.nd.from_numpy(np.full((1, 1000), i, np.float32)) for i in range(8)]
        results = [net(x, late) for x in lent]
    del lent
    reused = [np.full((1, 1000), -1, np.float32) for _ in range(64)]
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.asnumpy(), np.full((1, 1000), 2 * i + 1), 1e-4)
    del reused


class Counting(mx.operator.CustomOp):
    """Doubles numbers, and counts its calls in its auxiliary state, in any mode."""

    def forward(self, is_train, req, in_data, out_data, aux):
        aux[0][:] += 1
        self.assign(out_data[0], req[0], in_data[0] * 2)


@mx.operator.register("dynbatch_test_counting")
class CountingProp(mx.operator.CustomOpProp):
    def list_auxiliary_states(self):
        return ["count"]

    def infer_shape(self, in_shape):
        return in_shape, in_shape, [(1, 4)]

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Counting()


@pytest.mark.parametrize("in_cell", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("mode", [autograd.predict_mode, autograd.train_mode])
def test_a_custom_operator_writes_its_auxiliary_state(mode, lazy, in_cell):
    net, custom = dense(3, 4), functools.partial(mx.nd.Custom, op_type="dynbatch_test_counting")
    if in_cell:
        custom = cell(lambda F, x, a: F.Custom(F.tanh(x), a, op_type="dynbatch_test_counting"))

    def program():
        read = []
        with mode():
            count = net(array(1, 4))[:, :1] * mx.nd.zeros((1, 4)) if lazy else mx.nd.zeros((1, 4))
            for x in (array(1, 4), array(1, 4, seed=1)):
                read += [net(count), custom(mx.nd.tanh(x), count)]
        return lambda: [*read, net(count), count]

    assert same_as_loop(program)[-1].asnumpy().tolist() == [[2] * 4]


def test_an_array_gets_the_pickled_state_of_another():
    """Calls that were recorded before read the old values."""
    state = array(2, 2).__getstate__()

    def program():
        results = []
        for x in (mx.nd.zeros((2,)), array(2, 3) * 1, mx.nd.zeros((2,)) + 1):
            results.append(x + 1)
            x.__setstate__(copy.deepcopy(state))
            results += [x, x * 2]
        return results

    wanted = program()
    for options in SCOPES:
        with gdb.batching(**options):
            got = program()
        assert [y.shape for y in got] == [y.shape for y in wanted]
        equal(got, wanted)


#: Writes to an array (4, 3), a part of it, a row of the part, and the whole as a vector.
WRITES_TO_PARTS = [
    lambda z, part, row, flat: part.__setitem__(slice(None), 5),
    lambda z, part, row, flat: z.__setitem__(1, 7),
    lambda z, part, row, flat: row.__setitem__(slice(None), 8),
    lambda z, part, row, flat: flat.__setitem__(4, -1),
    lambda z, part, row, flat: part.__iadd__(3),
]


@BOTH
@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_parts_of_a_new_array_share_its_memory(name):
    other, numpy = array(2, 3), mx.util.is_np_array()

    def join(*parts):
        return mx.np.concatenate(parts, axis=0) if numpy else mx.nd.concat(*parts, dim=0)

    def reshaped(z, shape):
        return z.reshape_view(shape) if numpy else z.reshape(shape)

    def program(writes):
        z = getattr(module(), name)((4, 3))
        part, flat = z[1:3], reshaped(z, (12,))
        row, same = part[0], reshaped(flat[3:9], (2, 3))
        results = [other * part, same + other]
        for write in writes:
            write(z, part, row, flat)
        results += [part * 2, row + 1, same + other, part[1:2], z.copy()[1], part.detach() + other]
        results += [join(row, z[3]), part[:, 1], z[:, 1:2] + 1, z, flat]
        return results

    for count in range(len(WRITES_TO_PARTS) + 1):
        for writes in (WRITES_TO_PARTS[:count], WRITES_TO_PARTS[count:]):
            wanted = program(writes)
            for options in (FIXED, {**FIXED, "debug": True}):
                with gdb.batching(**options):
                    got = program(writes)
                equal(got, wanted)
