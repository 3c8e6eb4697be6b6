"""Helpers of generated programs; runs a program as a loop and in scopes, and compares them."""

import threading
from contextlib import nullcontext
from math import prod
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.native.recording import flatten
from gluon_dynbatch.testing import TOLERANCES
from tests.cells import module
from tests.common import filled_memory, semantics
from tests.rules.interpreter import Array, is_float


class ExcusedError(Exception):
    """Loop and scope differ, but the loop is no valid reference."""


# Helpers that programs call


def draw(seed, kind, shape, bound=0, dtype="float32", grad_req="null"):
    """Return an array with values of the kind that an operator needs."""
    array = Array(shape, kind, bound).draw(np.random.default_rng(seed), 0)
    if not kind.endswith("32"):
        array = array.astype(dtype)
        if grad_req != "null":
            array.attach_grad(grad_req if is_float(array) else "write")
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


class Names:
    """The names of several modules; an earlier one takes precedence."""

    def __init__(self, *modules, **names):
        self._modules = modules
        vars(self).update(names)

    def __getattr__(self, name):
        return next(getattr(module, name) for module in self._modules if hasattr(module, name))


#: ``F`` of functions of samples with ``mx.np``: what users call, or the operators behind it.
NUMPY = Names(mx.nd, np=Names(mx.np, mx.nd.np), npx=Names(mx.npx, mx.nd.npx))


def fill(array, values):
    """Write to all elements; an array of ``mx.np`` may have no axes."""
    array[() if array.ndim == 0 else slice(None)] = values


def cut(F, results):
    """Block the gradient of one or several results of an operator that has none."""
    symbol = isinstance(results, mx.sym.Symbol)
    several = len(results.list_outputs()) > 1 if symbol else isinstance(results, (list, tuple))
    parts = [_cut(F, part) for part in (results if several else [results])]
    return parts[0] if len(parts) == 1 else parts


def _cut(F, part):
    if not mx.util.is_np_array():
        return F.BlockGrad(part)
    return F.BlockGrad(part.as_nd_ndarray()).as_np_ndarray()


def fit(F, x, shape):
    """Repeat and cut elements to fill another shape; one that begins with 0 keeps the rows."""
    axis, size = int(shape[:1] == (0,)), prod(n for n in shape if n)
    if mx.util.is_np_array():
        x = F.np.tile(F.npx.reshape(x, (-2, -1)[1 - axis :]), (1, size)[1 - axis :])
        x = F.npx.slice(x, begin=(None, 0)[1 - axis :], end=(None, size)[1 - axis :])
        return F.npx.reshape(x, tuple(n or -2 for n in shape))
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


def settle(x):
    """Halve an array until its largest element is small: a loop that depends on values."""
    while abs(x.max().asnumpy().item()) > 0.5:
        x = x * 0.5
    return x


def slope(fn, x):
    """Return the gradient of a function of an array, by a backward pass of its own."""
    x = x.detach().copy()
    x.attach_grad()
    with autograd.record():
        y = fn(x)
    (gradient,) = autograd.grad([y], [x])  # of mx.nd, always
    return gradient.as_np_ndarray() if mx.util.is_np_array() else gradient


def in_turn(*blocks):
    """Return a block that calls others in turn."""
    block = nn.HybridSequential()
    block.add(*blocks)
    return block


def changed(block, **attributes):
    """Return a block that has been called, with other attributes."""
    block(module().ones((1, 3)))
    vars(block).update(attributes)
    return block


class Late(threading.local):
    """Arrays to which the running program attaches a gradient, by the order of samples."""

    def __init__(self):
        self.arrays = []


LATE = Late()
#: For programs, which are text.
Budget, nn, loss = gdb.Budget, mx.gluon.nn, mx.gluon.loss


def late(s, array):
    """Return an array to which a sample attaches a gradient; that is compared as well."""
    LATE.arrays.append((s["name"], array))
    return array


class Memory:
    """State of a program, which its samples read and change in their order."""

    def __init__(self, start):
        self.last, self.items, self.table, self.count = start, [start], {"h": start}, 0


def remember(net, width, dtype):
    """Give a network state, as it is before the first sample: on itself and on an object."""
    memory = Memory(module().zeros((1, width), dtype=dtype))
    vars(net).update(vars(Memory(memory.last)), memory=memory, width=width, dtype=dtype)
    return net


class Traced(gdb.DynamicHybridBlock):
    """A function of a sample as a block, which may be traced once per structure."""

    def __init__(self, fn, net, shared):
        super().__init__(prefix="traced_")
        self.net, self._fn, self._shared = net, fn, shared

    def forward(self, s):
        return self._fn(self.net, self._shared, s)


class Setting(NamedTuple):
    #: ``"infer"``, ``"predict"`` (recorded, not training) or ``"train"``.
    mode: str
    #: The request of all gradients, ``"write"`` or ``"add"``.
    grad_req: str = "write"
    #: Options of the scope.
    options: Dict[str, Any] = {}
    #: The device of all arrays: a type and a number.
    device: Sequence[Any] = ("cpu", 0)
    #: Backward passes: ``"once"``, ``"twice"``, or ``"each"`` loss by itself (which adds).
    backward: str = "once"
    #: ``"scope"``, ``"map"``; ``"nested"`` or ``"scopes"``: every second or each sample has a scope
    #: of its own; or ``"threads"``: scopes in several threads, and a plain loop.
    way: str = "scope"
    #: The front end, ``"nd"`` or ``"np"``.
    front: str = "nd"

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
    #: Blocks around `block` that are traced once per structure of their arguments.
    traced: Sequence[Any] = ()

    @property
    def params(self):
        return self.block.collect_params()

    @property
    def arrays(self):
        inputs = [{k: v for k, v in s.items() if not callable(v)} for s in self.samples]
        return flatten([inputs, self.shared])[0]

    @property
    def variables(self):
        """Arrays with a gradient, by name."""
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
    where = {"dtype": leaf.dtype, "ctx": leaf.ctx}
    if isinstance(leaf, mx.np.ndarray):
        leaf = leaf.reshape((-1,)).as_nd_ndarray()
    anchor = mx.nd.zeros((1,), **where)
    anchor.attach_grad()
    weighted = leaf * mx.nd.array(np.reshape(weight, leaf.shape), **where)
    return mx.nd.broadcast_add(weighted.reshape((-1,)).sum().reshape((1,)), anchor)


def front_of(leaf):
    return "mx.np result" if isinstance(leaf, mx.np.ndarray) else "result"


def differentiate(losses, setting, backward):
    train_mode = setting.mode == "train"
    if backward == "each":
        for loss in losses:
            loss.backward(retain_graph=True, train_mode=train_mode)
        return
    for last in [True] if backward == "once" else [False, True]:
        autograd.backward(losses, retain_graph=not last, train_mode=train_mode)


def run(case, setting, scope=None, reference=False):
    """Run a case as a loop or in a scope; return results and gradients by name.

    The reference overwrites gradients, in one backward pass.
    """
    with semantics(setting.front):
        return _run(case, setting, scope, reference)


def _results_of(case, setting, scope):
    """Run all samples; the way says whether some have a scope of their own."""
    if scope is not None and setting.way == "map":
        return scope.map(case.fn, case.samples)
    own = {"scopes": lambda number: True, "nested": lambda number: number % 2}
    has_own, results = own.get(setting.way, lambda number: False), []
    for number, sample in enumerate(case.samples):
        inner = scope is not None and has_own(number)
        with gdb.batching(**setting.options) if inner else nullcontext():
            results.append(case.fn(sample))
    return results


def _run(case, setting, scope, reference):
    start, backward = (0, "once") if reference else (setting.start, setting.backward)
    variables, mode = case.variables, setting.mode
    if mode != "infer":  # then another thread may compute gradients of the same parameters
        for array in variables.values():
            fill(array.grad, start * is_float(array))
    LATE.arrays.clear()
    outer = nullcontext() if scope is None or setting.way == "scopes" else scope
    with mx.Context(*setting.device), outer:
        if hasattr(case.block, "memory"):
            remember(case.block, case.block.width, case.block.dtype)
        with autograd_mode(mode):
            leaves = flatten(_results_of(case, setting, scope))[0]
            losses = [loss_of(leaf) for leaf in leaves if is_float(leaf) and mode != "infer"]
    values = {f"{front_of(leaf)} {i}": leaf.asnumpy() for i, leaf in enumerate(leaves)}
    if not losses:
        return values
    differentiate(losses, setting, backward)
    passes = 2 if start and backward == "twice" else 1
    for name, array in variables.items():
        grad = array.grad.asnumpy()
        added = (grad - grad.dtype.type(start)) / passes
        values[f"the gradient of {name}"] = added.astype(grad.dtype)
    if setting.backward != "each":
        arrays = sorted(LATE.arrays, key=lambda pair: pair[0])
        values.update((f"late array {i}", a.grad.asnumpy()) for i, (_, a) in enumerate(arrays))
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


def is_ill_conditioned(case, setting, wanted):
    """Whether a few rounding errors of its inputs change the loop's values noticeably."""
    params = [p.data() for p in case.params.values()]
    floats = [a for a in params + case.arrays if np.dtype(a.dtype).kind == "f"]
    originals, random = [a.asnumpy() for a in floats], np.random.RandomState(0)
    for _ in range(4):
        for array, values in zip(floats, originals):
            eps = 8 * np.finfo(values.dtype).eps
            fill(array, values * (1 + eps * random.uniform(-1, 1, values.shape)))
        if difference(wanted, run(case, setting, reference=True), 1 / 8):
            return True
    return False


def loops(make, setting):
    """Run the loop, imperative and hybridized, in which MXNet may get graphs or "add" wrong."""
    with semantics(setting.front):
        return _loops(make, setting)


def _loops(make, setting):
    values = []
    for hybridized in (False, True):
        case = make(setting.grad_req)
        case.block.hybridize(hybridized)
        with filled_memory():
            values.append(run(case, setting))
    if setting.way == "threads":
        together(make, setting, [None] * 3)
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
    with semantics(setting.front), mx.Context(*setting.device):
        return _compare(make, setting, scopes)


def _compare(make, setting, scopes):
    loop, case = make("write"), make(setting.grad_req)
    before = [array.asnumpy() for array in case.arrays]
    try:
        wanted = run(loop, setting, reference=True)
    except Exception as error:
        raise ExcusedError(f"the loop itself fails: {error}") from error
    case.block.hybridize()
    for block in case.traced:
        block.hybridize(trace_once=True)
    batches = []
    for options in (setting.options, setting.options, *scopes):
        batches.append(gdb.batching(**options))
        try:
            message = difference(wanted, run(case, setting, batches[-1]))
            assert not message, message
        except Exception as error:
            _excuse(error, make, setting, loop, wanted)
            raise
    if setting.way == "threads":
        try:
            together(make, setting, [setting.options, setting.options, None])
        except Exception as error:
            _excuse(error, make, setting, loop, wanted)
            raise
    after = [array.asnumpy() for array in case.arrays]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after)), "inputs differ"
    return batches


def _excuse(error, make, setting, loop, wanted):
    """Raise `ExcusedError` if the loop is no valid reference."""
    try:
        excused = any(difference(wanted, values) for values in loops(make, setting))
    except Exception:
        excused = True
    if excused or is_ill_conditioned(loop, setting, wanted):
        raise ExcusedError("MXNet's loops differ, or rounding decides") from error


def together(make, setting, scopes):
    """Run threads with one model at the same time, each with a scope of some options or None.

    Each has arrays of its own, and only the first one computes gradients: see docs/limits.md.
    """
    infer = setting._replace(mode="infer", way="scope")
    settings = [setting._replace(way="scope"), *[infer] * (len(scopes) - 1)]
    first = make("write")
    cases = [first, *(make("write", first.block) for _ in scopes[1:])]
    wanted = [run(case, setting, reference=True) for case, setting in zip(cases, settings)]
    first.block.hybridize()
    start, failures = threading.Barrier(len(scopes)), []

    def work(case, setting, options, values):
        try:
            start.wait()
            for _ in range(3):
                scope = None if options is None else gdb.batching(**options)
                message = difference(values, run(case, setting, scope, reference=True))
                assert not message, f"beside other threads, {message}"
        except Exception as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=args) for args in zip(cases, settings, scopes, wanted)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
