"""What every generated program ends with: run it as a loop and in a scope, and compare.

A printed program contains this file and what it needs of the tests, so that it runs wherever
`gluon_dynbatch` is installed.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.record.structure import Flattener
from tests.rules.interpreter import Array

FLATTENER = Flattener(mx.nd.NDArray)
TOLERANCES = {"float16": (2e-2, 2e-2), "float32": (1e-4, 1e-5), "float64": (1e-8, 1e-9)}
#: Gradients hold this before a backward pass, so that "add" shows.
START = 0.25


class ExcusedError(Exception):
    """Loop and scope differ, but the loop is no standard to compare with."""


def draw(
    seed: int,
    kind: str,
    shape: Tuple[int, ...],
    bound: int = 0,
    dtype: str = "float32",
    grad_req: str = "null",
) -> mx.nd.NDArray:
    """Return an array with values of a kind that some operator asks for."""
    made = Array(shape, kind, bound).draw(np.random.default_rng(seed), 0)
    if not kind.endswith("32"):
        made = made.astype(dtype)
    if grad_req != "null" and not kind.endswith("32"):
        made.attach_grad(grad_req)
    return made


def build(make: Callable[[], Any], dtype: str, grad_req: str = "write") -> Any:
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


def cut(F: Any, made: Any) -> Any:
    """Let no gradient through what an operator without one has made."""
    several = isinstance(made, (list, mx.sym.Symbol))
    parts = [F.BlockGrad(part) for part in (made if several else [made])]
    return parts[0] if len(parts) == 1 else parts


def walk(cell: Any, rows: Any, tree: Any) -> Any:
    """Run a cell bottom up over a tree whose leaves are numbers of rows."""
    at = 0 if isinstance(tree, list) else tree % len(rows)
    children = tree if isinstance(tree, list) else []
    return cell(rows[at : at + 1], [walk(cell, rows, child) for child in children])


def scan(cell: Any, rows: Any, state: Any) -> Any:
    """Run a cell over rows, each time with the state that it returned."""
    for i in range(len(rows)):
        state = cell(rows[i : i + 1], [state])
    return state


#: Arrays that got a gradient while the program ran, in the order in which they did.
LATE: List[mx.nd.NDArray] = []


def late(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Compare the gradient of an array as well, which the program is about to attach."""
    LATE.append(array)
    return array


class Setting(NamedTuple):
    #: ``"infer"``, ``"predict"`` (recorded, not training) or ``"train"``.
    mode: str
    #: How results become losses, and whether that happens inside the scope.
    form: str
    inside: bool
    #: What is asked of every gradient that is wanted at all.
    grad_req: str
    #: Options of the scope.
    options: Dict[str, Any]


class Case(NamedTuple):
    """A program: `fn` of every sample, over the cells of `net` and arrays that samples share."""

    fn: Callable[[Any], Any]
    samples: List[Any]
    shared: List[mx.nd.NDArray]
    net: Any
    setting: Setting

    @property
    def arrays(self) -> List[mx.nd.NDArray]:
        return FLATTENER.flatten([self.inputs, self.shared])[0]  # type: ignore[no-any-return]

    @property
    def inputs(self) -> List[Any]:
        return [{k: v for k, v in s.items() if not callable(v)} for s in self.samples]

    @property
    def variables(self) -> Dict[str, mx.nd.NDArray]:
        params = self.net.collect_params().values()
        found = {p.name: p.data() for p in params if p.grad_req != "null"}
        found.update((f"array {i}", a) for i, a in enumerate(self.arrays) if a.grad is not None)
        return found


def entered(mode: str) -> Any:
    """Return a context in which autograd does as `mode` says."""
    return nullcontext() if mode == "infer" else autograd.record(train_mode=mode == "train")


def loss_of(leaf: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a weighted sum of a result; it has a gradient even if the result has none."""
    weight = np.random.RandomState(leaf.size).uniform(0.5, 1.5, leaf.shape)
    anchor = mx.nd.zeros((1,), dtype=leaf.dtype)
    anchor.attach_grad()
    weighted = leaf * mx.nd.array(weight, dtype=leaf.dtype)
    return mx.nd.broadcast_add(weighted.reshape((-1,)).sum(), anchor)


def joined(losses: List[Any], form: str) -> List[Any]:
    """Join losses, or leave them apart, as `form` says."""
    if form in ("list", "each") or not losses:
        return losses
    alike = [loss.astype(losses[0].dtype) for loss in losses]
    if form == "sum":
        return [sum(alike[1:], alike[0])]
    if form == "concat":
        return [mx.nd.concat(*alike, dim=0).mean() * len(alike)]
    assert form == "add_n", f"unknown form of losses: {form}"
    return [mx.nd.add_n(*alike)]


def run(case: Case, batch: Any = None) -> Dict[str, np.ndarray]:
    """Run the program once, as a loop or in a scope; return results and gradients by name."""
    setting, variables = case.setting, case.variables
    for array in variables.values():
        array.grad[:] = START if setting.grad_req == "add" else 0
    losses = []
    LATE.clear()
    with entered(setting.mode):
        with nullcontext() if batch is None else batch:
            leaves = FLATTENER.flatten([case.fn(sample) for sample in case.samples])[0]
            if setting.inside:
                losses = losses_of(leaves, setting)
        if not setting.inside:
            losses = losses_of(leaves, setting)
    training = setting.mode == "train"
    if setting.form == "each":
        for loss in losses:
            loss.backward(retain_graph=True, train_mode=training)
    elif losses:
        autograd.backward(losses, train_mode=training)
    values = {f"result {i}": leaf.asnumpy() for i, leaf in enumerate(leaves)}
    if losses:
        values.update((f"the gradient of {n}", a.grad.asnumpy()) for n, a in variables.items())
        values.update((f"what late array {i} got", a.grad.asnumpy()) for i, a in enumerate(LATE))
    return values


def run_written(case: Case) -> Dict[str, np.ndarray]:
    """Run the loop of a program that adds gradients up, but write them, and add afterwards."""
    params = [p for p in case.net.collect_params().values() if p.grad_req != "null"]
    arrays = [a for a in case.arrays if a.grad is not None]
    try:
        for p in params:
            p.grad_req = "write"
        for a in arrays:
            a.attach_grad("write")
        form = "list" if case.setting.form == "each" else case.setting.form
        setting = case.setting._replace(grad_req="write", form=form)
        values = run(case._replace(setting=setting))
    finally:
        for p in params:
            p.grad_req = "add"
        for a in arrays:
            a.attach_grad("add")
    return {n: a + START if "gradient" in n else a for n, a in values.items()}


def losses_of(leaves: List[Any], setting: Setting) -> List[Any]:
    """Return what to differentiate, of all floating-point results."""
    if setting.mode == "infer":
        return []
    floats = [leaf for leaf in leaves if np.dtype(leaf.dtype).kind == "f"]
    return joined([loss_of(leaf) for leaf in floats], setting.form)


def difference(wanted: Dict[str, np.ndarray], got: Dict[str, np.ndarray], part: float = 1) -> str:
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


def shaky(case: Case, wanted: Dict[str, np.ndarray]) -> bool:
    """Whether the loop moves by the tolerance if its inputs move by a few rounding errors."""
    params = [p.data() for p in case.net.collect_params().values()]
    floats = [a for a in params + case.arrays if np.dtype(a.dtype).kind == "f"]
    kept = [a.asnumpy() for a in floats]
    random = np.random.RandomState(0)
    try:
        for _ in range(4):
            for array, values in zip(floats, kept):
                eps = 8 * np.finfo(values.dtype).eps
                array[:] = values * (1 + eps * random.uniform(-1, 1, values.shape))
            if difference(wanted, run(case), 1 / 8):
                return True
    finally:
        for array, values in zip(floats, kept):
            array[:] = values
    return False


def loops_only(case: Case) -> None:
    """Run both loops and no scope: what ends the process here is no fault of a scope."""
    case.net.hybridize(False)
    run(case)
    case.net.hybridize()
    run(case)


def check_loop(case: Case, wanted: Dict[str, np.ndarray]) -> None:
    """Raise if MXNet's loop does not add up, or its hybridized one is not as its imperative one."""
    try:
        told = difference(wanted, run(case))
    except Exception as error:
        raise ExcusedError(f"MXNet's hybridized loop fails: {error}") from error
    if told:
        raise ExcusedError("MXNet's hybridized loop differs from its imperative one")
    if case.setting.grad_req == "add":
        case.net.hybridize(False)
        if difference(wanted, run_written(case)):
            raise ExcusedError("MXNet's loop does not add gradients up")


def compare(case: Case, *scopes: Dict[str, Any]) -> List[gdb.Batch]:
    """Compare the loop with scopes of these options; without any, with one of the case's own.

    Returns
    -------
    list of Batch
        The scopes, for further checks.

    Raises
    ------
    AssertionError
        A value or a gradient differs, or an array from outside was written to.
    ExcusedError
        The loop is no standard: MXNet's own hybridized loop differs from it as well, or it is so
        ill-conditioned that rounding decides.
    """
    before = [array.asnumpy() for array in case.arrays]
    case.net.hybridize(False)
    try:
        wanted = run(case)
    except Exception as error:
        raise ExcusedError(f"the loop itself fails: {error}") from error
    case.net.hybridize()
    batches = []
    for options in scopes or (case.setting.options,):
        batches.append(gdb.batching(**options))
        try:
            told = difference(wanted, run(case, batches[-1]))
        except Exception:
            check_loop(case, wanted)
            raise
        if told:
            check_loop(case, wanted)
            if shaky(case, wanted):
                raise ExcusedError("rounding decides")
            raise AssertionError(told)
    for number, (array, values) in enumerate(zip(case.arrays, before)):
        np.testing.assert_array_equal(array.asnumpy(), values, f"array {number} was written to")
    return batches
