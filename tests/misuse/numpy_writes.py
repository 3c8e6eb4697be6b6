"""Writes to arrays of ``mx.np``, where those to arrays of ``mx.nd`` are written in another way."""

import functools

import mxnet as mx


def fill(target, value=9):
    target[() if target.ndim == 0 else slice(None)] = value


#: In place of `test_writes.ARRAYS`.
ARRAYS = {
    "out=": lambda x: (x, lambda: mx.np.add(x, 3, out=x)),
    "as numpy array": lambda x: (x, lambda: x.as_nd_ndarray().__iadd__(1)),
    "changed by an operator": lambda x: (
        x,
        lambda: mx.nd.reset_arrays(x.as_nd_ndarray(), num_arrays=1),
    ),
    "ellipsis": lambda x: (x, lambda: x.__setitem__(Ellipsis, 4)),
    "mask": lambda x: (x, lambda: x.__setitem__(x < 9, 4)),
    "shape": lambda x: (x, lambda: fill(x.reshape_view(-1))),
    "call reads a shape": lambda x: (
        x.reshape_view(4, 2).reshape_view(2, 4),
        lambda: fill(x),
    ),
    "old shape": lambda x: (x, functools.partial(fill, x.reshape_view(-1))),
    "old view of a view": lambda x: (
        x,
        functools.partial(fill, x.reshape_view(-1)[2:6].reshape_view(2, 2)),
    ),
    "old numpy array": lambda x: (x, functools.partial(fill, x.as_nd_ndarray())),
}  # fmt: skip

#: In place of `test_writes.SHARING`.
SHARING = {
    "out=": lambda y: [y, m := y.detach(), mx.np.add(m, 1, out=m)],
    "read, then out=": lambda y: [m := y.detach(), m * 2, mx.np.add(m, 1, out=m), m * 3],
    "out= itself": lambda y: [y, mx.np.multiply(y, y, out=y)],
    "copyto": lambda y: [y, mx.np.ones((3, 2)).copyto(y)],
    "by an operator": lambda y: [
        y, m := y.detach(), mx.nd.reset_arrays(m.as_nd_ndarray(), num_arrays=1),
    ],
    "shape of a detached": lambda y: [y, m := y.detach().reshape_view(-1), fill(m[1:3])],
    "flattened in place": lambda y: [y, m := y.reshape_view(3, 2), fill(m)],
    "other class": lambda y: [y, m := y.as_nd_ndarray(), fill(m)],
    "other class, detached": lambda y: [
        y.as_nd_ndarray(), m := y.detach().as_nd_ndarray(), fill(m),
    ],
    "other class, and back": lambda y: [y, m := y[1:].as_nd_ndarray().as_np_ndarray(), fill(m)],
    "element": lambda y: [y, m := y[1, 1], m.__setitem__((), 4)],
    "element of a detached": lambda y: [y, m := y.detach()[1, 1], m.__setitem__((), 4)],
    "mask": lambda y: [y, m := y.detach(), m.__setitem__(m > 0.1, 4)],
    "ellipsis": lambda y: [y, m := y.detach(), m.__setitem__(Ellipsis, 4)],
    "-= and /=": lambda y: [y, m := y.detach(), m.__isub__(1), m.__itruediv__(2)],
    "expanded": lambda y: [y, m := mx.np.expand_dims(y, 1), m * 2],
    "expanded, detached": lambda y: [y, m := y.detach()[None], m[0, 1:], fill(m)],
    "transposed": lambda y: [y, m := y.T, m * 2],
}  # fmt: skip
