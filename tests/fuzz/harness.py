"""Helpers of generated programs; runs a program as a loop and in scopes, and compares them."""

from contextlib import nullcontext
from math import prod
from typing import Any, Callable, Dict, List, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.native.recording import flatten
from gluon_dynbatch.testing import TOLERANCES
from tests.rules.interpreter import Array


class ExcusedError(Exception):
    """Loop and scope differ, but the loop is no valid reference."""


# Helpers that programs call


def draw(seed, kind, shape, bound=0, dtype="float32", grad_req="null"):
    """Return an array with values of the kind that an operator needs."""
    array = Array(shape, kind, bound).draw(np.random.default_rng(seed), 0)
    if not kind.endswith("32"):
        array = array.astype(dtype)
        if grad_req != "null":
            array.attach_grad(grad_req)
    return array


def build(make, dtype, grad_req="write"):
    """Return an initialised network; `grad_req` replaces that of all trainable parameters."""
    mx.random.seed(5)
    net = make()
    net.initialize(mx.init.Uniform(0.8))
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            parameter.grad_req = grad_req
    if dtype != "float32":
        net.cast(dtype)
    return net


def cut(F, results):
    """Block the gradient of one or several results of an operator that has none."""
    several = isinstance(results, (list, mx.sym.Symbol))
    parts = [F.BlockGrad(part) for part in (results if several else [results])]
    return parts[0] if len(parts) == 1 else parts


def fit(F, x, shape):
    """Repeat and cut elements to fill another shape; one that begins with 0 keeps the rows."""
    axis, size = int(shape[:1] == (0,)), prod(n for n in shape if n)
    x = F.tile(F.reshape(x, (0, -1)[1 - axis :]), (1, size)[1 - axis :])
    return F.reshape(F.slice_axis(x, axis=axis, begin=0, end=size), shape)


def walk(cell, rows, tree):
    """Run a cell bottom up over a tree whose leaves are row numbers; inner nodes read row 0."""
    row = 0 if isinstance(tree, list) else tree % len(rows)
    children = tree if isinstance(tree, list) else []
    return cell(rows[row : row + 1], [walk(cell, rows, child) for child in children])


def scan(cell, rows, state):
    """Run a cell over rows, with the previous result as its state."""
    for i in range(len(rows)):
        state = cell(rows[i : i + 1], [state])
    return state


#: Arrays to which the running program attaches a gradient, in that order.
LATE = []


def late(array):
    """Return an array to which the program attaches a gradient; that is compared as well."""
    LATE.append(array)
    return array


class Setting(NamedTuple):
    #: ``"infer"``, ``"predict"`` (recorded, not training) or ``"train"``.
    mode: str
    #: The request of all gradients, ``"write"`` or ``"add"``.
    grad_req: str
    #: Options of the scope.
    options: Dict[str, Any]

    @property
    def start(self):
        """The initial content of gradients; not zero for ``"add"``, so that overwriting shows."""
        return 0.25 if self.grad_req == "add" else 0


class Case(NamedTuple):
    """A program: `fn` of every sample, over the cells of `block` and arrays that samples share."""

    fn: Callable[[Any], Any]
    samples: List[Any]
    shared: List[mx.nd.NDArray]
    block: Any

    @property
    def params(self):
        return self.block.collect_params()

    @property
    def arrays(self):
        inputs = [{k: v for k, v in s.items() if not callable(v)} for s in self.samples]
        return flatten([inputs, self.shared])[0]

    @property
    def variables(self):
        named = [(p.name, p.data()) for p in self.params.values() if p.grad_req != "null"]
        named += [(f"array {i}", a) for i, a in enumerate(self.arrays) if a.grad is not None]
        return dict(named)


# Runs and comparisons


def autograd_mode(mode):
    """Return a context manager for the mode of a `Setting`."""
    return nullcontext() if mode == "infer" else autograd.record(train_mode=mode == "train")


def loss_of(leaf):
    """Return a weighted sum of a result, recorded even if the result is not."""
    weight = np.random.RandomState(leaf.size).uniform(0.5, 1.5, leaf.shape)
    anchor = mx.nd.zeros((1,), dtype=leaf.dtype)
    anchor.attach_grad()
    weighted = leaf * mx.nd.array(weight, dtype=leaf.dtype)
    return mx.nd.broadcast_add(weighted.reshape((-1,)).sum(), anchor)


def run(case, mode, scope=None, start=0):
    """Run a case as a loop or in a scope; return results and gradients by name."""
    variables = case.variables
    for array in variables.values():
        array.grad[:] = start
    LATE.clear()
    with autograd_mode(mode), nullcontext() if scope is None else scope:
        leaves = flatten([case.fn(sample) for sample in case.samples])[0]
        floats = [leaf for leaf in leaves if np.dtype(leaf.dtype).kind == "f"]
        losses = [loss_of(leaf) for leaf in floats if mode != "infer"]
    values = {f"result {i}": leaf.asnumpy() for i, leaf in enumerate(leaves)}
    if losses:
        autograd.backward(losses, train_mode=mode == "train")
        grads = [(name, a.grad.asnumpy() - start) for name, a in variables.items()]
        grads += [(f"late array {i}", a.grad.asnumpy()) for i, a in enumerate(LATE)]
        values.update((f"the gradient of {name}", grad) for name, grad in grads)
    return values


def difference(wanted, got, part=1):
    """Describe the first difference beyond a part of the tolerance; "" if there is none."""
    if wanted.keys() != got.keys():
        return f"{sorted(wanted)} in the loop, {sorted(got)} in the scope"
    # Values computed in single precision and cast to double have errors of single precision.
    coarsest = max((TOLERANCES.get(a.dtype.name, (0, 0)) for a in wanted.values()), default=(0, 0))
    for name, a in wanted.items():
        b = got[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{name} is {a.dtype} {a.shape} in the loop, {b.dtype} {b.shape} in the scope"
        relative, absolute = coarsest if a.dtype.name in TOLERANCES else (0, 0)
        if not np.allclose(b, a, relative * part, absolute * part, equal_nan=True):
            return f"{name} is\n{a}\nin the loop and\n{b}\nin the scope"
    return ""


def is_ill_conditioned(case, mode, wanted):
    """Whether a few rounding errors of its inputs change the loop's values noticeably."""
    params = [p.data() for p in case.params.values()]
    floats = [a for a in params + case.arrays if np.dtype(a.dtype).kind == "f"]
    originals, random = [a.asnumpy() for a in floats], np.random.RandomState(0)
    for _ in range(4):
        for array, values in zip(floats, originals):
            eps = 8 * np.finfo(values.dtype).eps
            array[:] = values * (1 + eps * random.uniform(-1, 1, values.shape))
        if difference(wanted, run(case, mode), 1 / 8):
            return True
    return False


def loops(make, setting):
    """Run the loop, imperative and hybridized, in which MXNet may get graphs or "add" wrong."""
    values = []
    for hybridized in (False, True):
        case = make(setting.grad_req)
        case.block.hybridize(hybridized)
        values.append(run(case, setting.mode, None, setting.start))
    return values


def compare(make, setting, *scopes):
    """Compare the loop with two scopes of the program's options and one of each of `scopes`.

    Parameters
    ----------
    make : callable
        Returns a new `Case` of the program whose gradients have a given ``grad_req``.

    Returns
    -------
    list of Batch
        The scopes, for further checks.

    Raises
    ------
    AssertionError
        A value or a gradient differs, or an input was written to.
    ExcusedError
        The loop is no valid reference: MXNet's own loops differ from it, or it is ill-conditioned.
    """
    loop, case, mode = make("write"), make(setting.grad_req), setting.mode
    before = [array.asnumpy() for array in case.arrays]
    try:
        wanted = run(loop, mode)
    except Exception as error:
        raise ExcusedError(f"the loop itself fails: {error}") from error
    case.block.hybridize()
    batches = []
    for options in (setting.options, setting.options, *scopes):
        batches.append(gdb.batching(**options))
        try:
            message = difference(wanted, run(case, mode, batches[-1], setting.start))
            assert not message, message
        except Exception as error:
            try:
                excused = any(difference(wanted, values) for values in loops(make, setting))
            except Exception:
                excused = True
            if excused or is_ill_conditioned(loop, mode, wanted):
                raise ExcusedError("MXNet's loops differ, or rounding decides") from error
            raise
    for number, (array, values) in enumerate(zip(case.arrays, before)):
        np.testing.assert_array_equal(array.asnumpy(), values, f"array {number} was written to")
    return batches
