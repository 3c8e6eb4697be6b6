"""Expressions have the results and the gradients that MXNet's operators have."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Dict, Iterator, List, Tuple

import numpy as np
import pytest

from gluon_dynbatch import rules
from gluon_dynbatch.kernel.columns import NotExpressed
from gluon_dynbatch.kernel.express import express
from gluon_dynbatch.kernel.expression import Slot
from gluon_dynbatch.kernel.functions import FUNCTIONS
from gluon_dynbatch.kernel.operators import HANDLERS
from gluon_dynbatch.lower.segment import Segment
from gluon_dynbatch.modes import RECORDING, TRAINING
from tests.rules.all_cases import EVERY
from tests.rules.elementwise_cases import BINARY, SCALAR, UNARY
from tests.rules.interpreter import Case, Loop

from .interpreter import NUMPY, compare
from .programs import segment_of_rewrite

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")

#: What is left to MXNet among the cases of operators that have kernels, by words of the reason.
LEFT = {
    "Dropout": {"it draws"},
    "FullyConnected": {"32 pieces", "all rows share what is multiplied"},
    "LeakyReLU": {"not for selu"},
    "dot": {"32 pieces"},
    "softmax": {"rows have lengths", "int32"},
    "take": {"it chooses columns", "operator Cast", "not along axis 0"},
}

Case_ = Tuple[Segment, Dict[Slot, np.ndarray]]


def segments(c: Case, rng: np.random.Generator) -> Iterator[Case_]:
    """Yield the segments that the rules make of a case in both layouts, with their operands."""
    for stacked in (False, True):
        for pattern in (c.stack if stacked else c.rows).split():
            # One sample tells the shapes.
            loop = Loop(replace(c, gradient=False), pattern, stacked, [2], rng)
            answer = (rules.stack if stacked else rules.rows)(loop.sites()[0])
            arrays = []
            for one, letter in zip(loop.samples[0], pattern):
                array = one.asnumpy()
                if c.op != "amp_cast" and array.dtype == np.float32:
                    # The tolerances are those of single-precision constants in MXNet's kernels.
                    array = array.astype("float64")
                if letter == "B" and stacked:
                    array = np.stack([array, rng.permuted(array)])
                arrays.append(array)
            segment = segment_of_rewrite(
                answer,
                arrays,
                pattern,
                [o.shape if stacked else o.shape[1:] for o in loop.outputs[0]],
                stacked,
                rules.of(c.op).no_gradient,
                RECORDING | (TRAINING if c.training else 0),
                c.attrs.get("dtype", "float32" if c.op == "one_hot" else "float64"),
            )
            yield (
                segment,
                {
                    Slot("in", k): a.reshape(len(a), -1) if letter == "B" else a
                    for k, (a, letter) in enumerate(zip(arrays, pattern))
                },
            )


def check(c: Case) -> Tuple[int, List[str]]:
    """Compare what is expressed; return how much, and why the rest is not."""
    expressed, reasons, rng = 0, [], np.random.default_rng(0)
    for segment, arrays in segments(c, rng):
        try:
            found = express(segment)
        except NotExpressed as error:
            reasons.append(str(error))
        else:
            compare(segment, found, arrays, rng)
            expressed += 1
    return expressed, reasons


BY_OPERATOR = {
    op: list(cases)
    for op, cases in groupby(sorted(EVERY, key=lambda c: c.op), lambda c: c.op)
    if op in HANDLERS
}


@pytest.mark.parametrize("op", BY_OPERATOR)
def test_operators_equal_mxnet(op: str) -> None:
    outcomes = [check(c) for c in BY_OPERATOR[op]]
    reasons = [reason for _, reasons in outcomes for reason in reasons]
    words = LEFT.get(op, set())
    assert all(any(word in reason for word in words) for reason in reasons), reasons
    assert all(any(word in reason for reason in reasons) for word in words), reasons
    assert any(expressed for expressed, _ in outcomes)


def test_every_operator_has_cases() -> None:
    assert set(HANDLERS) - set(BY_OPERATOR) == {"_grad_add"}


#: Kinks, ends of ranges, and poles.
GRID = np.array([-2, -1, -0.5, 0, 0.5, 1, 2])
APART = {"Activation", "Cast", "amp_cast", "clip", "gamma", "gammaln", "hard_sigmoid", "smooth_l1"}
KINKED = [
    *((op, 1, {}) for op in UNARY if op in HANDLERS and op not in APART),
    *((op, 1, {"scalar": scalar}) for op in SCALAR for scalar in (0, 0.5, 1)),
    *(("LeakyReLU", 1, {"act_type": kind}) for kind in ("leaky", "elu", "gelu")),
    *(("Activation", 1, {"act_type": kind}) for kind in ("relu", "softrelu", "softsign")),
    ("clip", 1, {"a_min": -0.5, "a_max": 1}),
    ("hard_sigmoid", 1, {"alpha": 0.5}),
    ("smooth_l1", 1, {"scalar": 1}),
    ("_contrib_gradientmultiplier", 1, {"scalar": 0}),
    *((op, 2, {}) for op in BINARY),
    ("where", 3, {}),
]


@pytest.mark.parametrize("op, count, attrs", KINKED)
def test_kinks(op: str, count: int, attrs: Dict[str, object]) -> None:
    """Where there is a choice of derivatives, or none, it is MXNet's."""
    arrays = [a.reshape(-1, 7) for a in np.meshgrid(*[GRID] * count)]
    inputs = tuple((rules.INPUT, k) for k in range(count))
    step = rules.Step(op, {k: str(v) for k, v in attrs.items()}, inputs)
    answer = rules.Rewrite((step,), ((0, 0),))
    fixed = rules.of(op).no_gradient
    segment = segment_of_rewrite(answer, arrays, "B" * count, [(7,)], False, fixed, RECORDING)
    operands = {Slot("in", k): a for k, a in enumerate(arrays)}
    with np.errstate(all="ignore"):
        compare(segment, express(segment), operands, np.random.default_rng(0))


def test_functions_are_known() -> None:
    assert all(name in NUMPY or hasattr(np, name) for name in FUNCTIONS)
