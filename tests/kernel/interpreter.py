"""Runs expressions with NumPy, and segments with MXNet: two ways to the same numbers."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from scipy import special

from gluon_dynbatch.kernel.derivative import Differentiation
from gluon_dynbatch.kernel.express import Expressed
from gluon_dynbatch.kernel.expression import (
    CAST,
    CONST,
    DOT,
    FUNCTION,
    JOIN,
    PART,
    PRODUCT,
    RAMP,
    READ,
    SPREAD,
    TOP,
    TOTAL,
    Dot,
    Node,
    Slot,
    Weight,
)
from gluon_dynbatch.lower.segment import Segment
from gluon_dynbatch.modes import TRAINING
from gluon_dynbatch.run.dispatch import _compile

Arrays = Dict[Slot, np.ndarray]


def _rint(x: np.ndarray) -> np.ndarray:
    """Round as MXNet does, ties down."""
    low, high = np.floor(x), np.ceil(x)
    return np.where(x - low <= high - x, low, high)


def _round(x: np.ndarray) -> np.ndarray:
    """Round as C does, ties away from zero."""
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _mod(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(y == 0, 0, np.mod(x, np.where(y == 0, 1, y)))


NUMPY: Dict[str, Any] = {
    "copy": lambda x: x,
    "multiplier": lambda x, factor: x,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "sigmoid": special.expit,
    "softrelu": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "relu": lambda x: np.maximum(x, 0),
    "hard_sigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "erf": special.erf,
    "erfinv": special.erfinv,
    "gamma": special.gamma,
    "gammaln": special.gammaln,
    "digamma": special.digamma,
    "greatest": np.maximum,
    "rint": _rint,
    "round": _round,
    "fix": np.trunc,
    "mod": _mod,
    "lesser": np.less,
    "lesser_equal": np.less_equal,
    "select": lambda c, a, b: np.where(c != 0, a, b),
    "clip": np.clip,
    "smooth_l1": lambda x, s: np.where(
        np.abs(x) > s**-2, np.abs(x) - 0.5 * s**-2, 0.5 * x * x * s**2
    ),
    "gelu": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
    "gate": lambda a, b: np.where(a == 0, 0, a * b),
}


class Interpreter:
    """The values of expressions for some rows."""

    def __init__(self, arrays: Arrays, rows: int):
        self._arrays, self._rows = arrays, rows
        self._known: Dict[Node, np.ndarray] = {}

    def value(self, wanted: Node) -> np.ndarray:
        known, stack = self._known, [wanted]
        while stack:
            node = stack[-1]
            missing = [arg for arg in node.args if arg not in known]
            if missing:
                stack += missing
                continue
            made = np.asarray(self._compute(node, [known[arg] for arg in node.args]))
            assert made.shape in ((self._rows, node.width), (1, node.width)), (node, made.shape)
            made = np.broadcast_to(made, (self._rows, node.width)).astype(node.dtype)
            known[stack.pop()] = made
        return known[wanted]

    def _compute(self, node: Node, args: List[np.ndarray]) -> Any:
        kind, attrs, width = node.kind, node.attrs, node.width
        if kind == READ:
            slot, every = attrs
            return self._arrays[slot].reshape(1 if every else self._rows, width)
        if kind == CONST:
            return np.full((1, width), float(attrs[0]))
        if kind == RAMP:
            return np.arange(width)[None] + attrs[0]
        if kind == FUNCTION:
            name, values = attrs
            return (NUMPY.get(name) or getattr(np, name))(*args, *values)
        if kind in (PART, SPREAD):
            (start,) = attrs
            return args[0][:, start : start + (width if kind == PART else 1)].repeat(
                width if kind == SPREAD else 1, axis=1
            )
        if kind == PRODUCT:
            return self._product(node, args)
        if kind == DOT:
            return self._dots(attrs[0], args)
        only = args[0] if args else None
        made = {
            CAST: lambda: only,
            JOIN: lambda: np.concatenate(args, axis=1),
            TOTAL: lambda: only.sum(axis=1, keepdims=True),
            TOP: lambda: only.max(axis=1, keepdims=True),
        }
        return made[kind]()

    def _dots(self, how: Dot, args: List[np.ndarray]) -> np.ndarray:
        shapes, pair = [(how.m, how.k), (how.k, how.n)], []
        for x, shape, turned in zip(args, shapes, how.turned):
            matrices = x.reshape(self._rows, how.matrices, *(shape[::-1] if turned else shape))
            pair.append(matrices.swapaxes(2, 3) if turned else matrices)
        return (pair[0] @ pair[1]).reshape(self._rows, -1)

    def _product(self, node: Node, args: List[np.ndarray]) -> np.ndarray:
        total: Any = 0
        weights, biases = node.attrs
        for x, weight in zip(args, weights):
            matrix = self._arrays[weight.slot].reshape(weight.rows, weight.columns)
            total = total + multiplied(x, weight) @ (matrix.T if weight.transposed else matrix)
        for bias in biases:
            total = total + self._arrays[bias].reshape(-1)
        return total.reshape(self._rows, -1)


def multiplied(x: np.ndarray, weight: Weight) -> np.ndarray:
    """Return the rows that a matrix is multiplied with."""
    if weight.chosen:
        return np.eye(weight.rows)[np.clip(x.reshape(-1).astype(int), 0, weight.rows - 1)]
    return x.reshape(-1, weight.inputs)


class Outcome(NamedTuple):
    """Results, and gradients by what they are of."""

    results: List[np.ndarray]
    gradients: Arrays


def interpret(expressed: Expressed, arrays: Arrays, heads: Sequence[np.ndarray]) -> Outcome:
    """Compute results, and gradients from the gradients of results."""
    build, rows = expressed.expressions, len(heads[0])
    pairs = []
    for number, result in enumerate(expressed.results):
        slot = Slot("head", number)
        arrays = {**arrays, slot: heads[number]}
        pairs.append((result, build.read(slot, result.width, result.dtype)))
    found = Differentiation(build, pairs).gradients()
    run = Interpreter(arrays, rows)
    gradients: Arrays = {slot: run.value(node) for slot, node in found.rows.items()}

    def add(slot: Slot, gradient: np.ndarray) -> None:
        gradient = gradient.reshape(arrays[slot].shape)
        gradients[slot] = gradients.get(slot, 0) + gradient

    for slot, node, _ in found.every:
        add(slot, run.value(node).reshape(-1, arrays[slot].size).sum(axis=0))
    for weight, gradient, x in found.matrices:
        g = run.value(gradient).reshape(-1, weight.units)
        outer = multiplied(run.value(x), weight).T @ g
        add(weight.slot, outer.T if weight.transposed else outer)
    return Outcome([run.value(result) for result in expressed.results], gradients)


def run_segment(
    segment: Segment,
    wanted: Sequence[Slot],
    arrays: Arrays,
    heads: Sequence[np.ndarray],
) -> Outcome:
    """Do with MXNet what `interpret` does."""
    executable = _compile(segment)
    given = {slot: mx.nd.array(a, dtype=a.dtype) for slot, a in arrays.items()}
    arguments = [Slot(*argument) for argument in executable.arguments]
    for slot in set(wanted) & set(arguments):
        given[slot].attach_grad()
    training = bool(segment.mode & TRAINING)
    with autograd.record(train_mode=training):
        results = executable.run(*(given[slot] for slot in arguments))
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    if any(array.grad is not None for array in given.values()):
        head_grads = [mx.nd.array(h, dtype=h.dtype) for h in heads]
        autograd.backward(results, head_grads, train_mode=training)
    gradients = {s: a.grad.asnumpy() for s, a in given.items() if a.grad is not None}
    return Outcome([result.asnumpy() for result in results], gradients)


def compare(
    segment: Segment,
    expressed: Expressed,
    arrays: Arrays,
    rng: np.random.Generator,
    close: Tuple[float, float] = (1e-6, 1e-7),
) -> None:
    """Check that expressions have the results and the gradients that MXNet finds."""
    rows = next(
        len(a) for s, a in arrays.items() if s.kind == "in" and not segment.inputs[s.number].shared
    )
    heads = [rng.normal(size=(rows, port.row_size)).astype(port.dtype) for port in segment.outputs]
    ours = interpret(expressed, arrays, heads)
    theirs = run_segment(segment, list(expressed.differentiable), arrays, heads)
    rtol, atol = close
    for got, want in zip(ours.results, theirs.results):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    for slot, want in theirs.gradients.items():
        got = ours.gradients.get(slot, np.zeros_like(want))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=str(slot))
