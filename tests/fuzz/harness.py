"""What every generated program ends with: run it as a loop and in a scope, and compare."""

from contextlib import nullcontext
from math import prod
from typing import Any, Callable, Dict, List, NamedTuple

import mxnet as mx
import numpy as np
from gluon_dynbatch.native.recording import flatten
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import TOLERANCES
from tests.rules.interpreter import Array


class ExcusedError(Exception):
    """Loop and scope differ, but the loop is no standard to compare with."""


# What programs are written with


def draw(seed, kind, shape, bound=0, dtype="float32", grad_req="null"):
    """Return an array with values of a kind that some operator asks for."""
    made = Array(shape, kind, bound).draw(np.random.default_rng(seed), 0)
    if not kind.endswith("32"):
        made = made.astype(dtype)
        if grad_req != "null":
            made.attach_grad(grad_req)
    return made


def build(make, dtype, grad_req="write"):
    """Return an initialised network; `grad_req` is asked of all gradients that are wanted."""
    mx.random.seed(5)
    net = make()
    net.initialize(mx.init.Uniform(0.8))
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            parameter.grad_req = grad_req
    if dtype != "float32":
        net.cast(dtype)
    return net


def cut(F, made):
    """Let no gradient through what an operator without one has made."""
    several = isinstance(made, (list, mx.sym.Symbol))
    parts = [F.BlockGrad(part) for part in (made if several else [made])]
    return parts[0] if len(parts) == 1 else parts


def fit(F, x, shape):
    """Bring what an array holds into another shape; one that begins with 0 keeps the rows."""
    axis, size = int(shape[:1] == (0,)), prod(n for n in shape if n)
    x = F.tile(F.reshape(x, (0, -1)[1 - axis :]), (1, size)[1 - axis :])
    return F.reshape(F.slice_axis(x, axis=axis, begin=0, end=size), shape)


def walk(cell, rows, tree):
    """Run a cell bottom up over a tree whose leaves are numbers of rows."""
    at = 0 if isinstance(tree, list) else tree % len(rows)
    children = tree if isinstance(tree, list) else []
    return cell(rows[at : at + 1], [walk(cell, rows, child) for child in children])


def scan(cell, rows, state):
    """Run a cell over rows, each time with the state that it returned."""
    for i in range(len(rows)):
        state = cell(rows[i : i + 1], [state])
    return state


#: Arrays that got a gradient while the program ran, in the order in which they did.
LATE = []


def late(array):
    """Compare the gradient of an array as well, which the program is about to attach."""
    LATE.append(array)
    return array


class Setting(NamedTuple):
    #: ``"infer"``, ``"predict"`` (recorded, not training) or ``"train"``.
    mode: str
    #: What is asked of every gradient that is wanted at all.
    grad_req: str
    #: Options of the scope.
    options: Dict[str, Any]

    @property
    def start(self):
        """What gradients hold before, so that one that is to be added shows."""
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
        params = self.params.values()
        found = {p.name: p.data() for p in params if p.grad_req != "null"}
        found.update((f"array {i}", a) for i, a in enumerate(self.arrays) if a.grad is not None)
        return found


# How they are run


def entered(mode):
    """Return a context in which autograd does as `mode` says."""
    return nullcontext() if mode == "infer" else autograd.record(train_mode=mode == "train")


def loss_of(leaf):
    """Return a weighted sum of a result; it has a gradient even if the result has none."""
    weight = np.random.RandomState(leaf.size).uniform(0.5, 1.5, leaf.shape)
    anchor = mx.nd.zeros((1,), dtype=leaf.dtype)
    anchor.attach_grad()
    weighted = leaf * mx.nd.array(weight, dtype=leaf.dtype)
    return mx.nd.broadcast_add(weighted.reshape((-1,)).sum(), anchor)


def run(case, mode, scope=None, start=0):
    """Run the program once, as a loop or in a scope; return results and gradients by name."""
    variables = case.variables
    for array in variables.values():
        array.grad[:] = start
    LATE.clear()
    with entered(mode), nullcontext() if scope is None else scope:
        leaves = flatten([case.fn(sample) for sample in case.samples])[0]
        floats = [leaf for leaf in leaves if np.dtype(leaf.dtype).kind == "f"]
        losses = [loss_of(leaf) for leaf in floats if mode != "infer"]
    values = {f"result {i}": leaf.asnumpy() for i, leaf in enumerate(leaves)}
    if losses:
        autograd.backward(losses, train_mode=mode == "train")
        values.update(
            (f"the gradient of {n}", a.grad.asnumpy() - start) for n, a in variables.items()
        )
        values.update((f"what late array {i} got", a.grad.asnumpy()) for i, a in enumerate(LATE))
    return values


def difference(wanted, got, part=1):
    """Say what differs first by more than a part of the tolerance; nothing if nothing does."""
    if wanted.keys() != got.keys():
        return f"{sorted(wanted)} in the loop, {sorted(got)} in the scope"
    # What was computed in single precision does not get more exact by a cast to double.
    coarsest = max((TOLERANCES.get(a.dtype.name, (0, 0)) for a in wanted.values()), default=(0, 0))
    for name, a in wanted.items():
        b = got[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{name} is {a.dtype} {a.shape} in the loop, {b.dtype} {b.shape} in the scope"
        relative, absolute = coarsest if a.dtype.name in TOLERANCES else (0, 0)
        if not np.allclose(b, a, relative * part, absolute * part, equal_nan=True):
            return f"{name} is\n{a}\nin the loop and\n{b}\nin the scope"
    return ""


def shaky(case, mode, wanted):
    """Whether the loop moves by the tolerance if its inputs move by a few rounding errors."""
    params = [p.data() for p in case.params.values()]
    floats = [a for a in params + case.arrays if np.dtype(a.dtype).kind == "f"]
    kept, random = [a.asnumpy() for a in floats], np.random.RandomState(0)
    for _ in range(4):
        for array, values in zip(floats, kept):
            eps = 8 * np.finfo(values.dtype).eps
            array[:] = values * (1 + eps * random.uniform(-1, 1, values.shape))
        if difference(wanted, run(case, mode), 1 / 8):
            return True
    return False


def loops(make, setting):
    """Run both loops and no scope: MXNet itself cannot always add gradients up, or hybridize."""
    found = []
    for hybridized in (False, True):
        case = make(setting.grad_req)
        case.block.hybridize(hybridized)
        found.append(run(case, setting.mode, None, setting.start))
    return found


def compare(make, setting, *scopes):
    """Compare the loop with two scopes of the program's own options and some of others.

    Parameters
    ----------
    make : callable
        Returns the program anew, with what is asked of its gradients.

    Returns
    -------
    list of Batch
        The scopes, for further checks.

    Raises
    ------
    AssertionError
        A value or a gradient differs, or an external array was written to.
    ExcusedError
        The loop is no standard: MXNet's own hybridized loop differs from it as well, or it is so
        ill-conditioned that rounding decides.
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
            told = difference(wanted, run(case, mode, batches[-1], setting.start))
            assert not told, told
        except Exception as error:
            try:
                excused = any(difference(wanted, found) for found in loops(make, setting))
            except Exception:
                excused = True
            if excused or shaky(loop, mode, wanted):
                raise ExcusedError("MXNet's loops differ, or rounding decides") from error
            raise
    for number, (array, values) in enumerate(zip(case.arrays, before)):
        np.testing.assert_array_equal(array.asnumpy(), values, f"array {number} was written to")
    return batches
