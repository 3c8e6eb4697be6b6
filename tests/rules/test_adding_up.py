"""Gradients of parameters add up over launches, which MXNet has to do right."""

from __future__ import annotations

from typing import List

import numpy as np
import pytest

from gluon_dynbatch import rules

from .all_cases import EVERY, NAMES
from .interpreter import (
    Case,
    attach,
    call_operator,
    call_symbol,
    differentiate,
    is_float,
    mode_of,
    rewrite_symbol,
)

START = 0.25
KNOWN = [
    pytest.param(case, id=name)
    for name, case in zip(NAMES, EVERY)
    # Those that write to their inputs cannot be given copies; of these, BatchNorm sets the gradient
    # of a gamma that it does not use to zero.
    if case.gradient and not case.random and rules.adds_up(case.op) and not rules.mutates(case.op)
]


def gradients(case: Case, grad_req: str) -> List[np.ndarray]:
    """Run the operator as a ``CachedOp`` and go backward, as a launch does."""
    rng = np.random.default_rng(0)
    arrays = [array.draw(rng, 2) for array in case.inputs]
    attach(case.op, arrays)
    trained = [array for array in arrays if array.grad is not None]
    for array in trained:
        array.attach_grad(grad_req)
        array.grad[:] = START if grad_req == "add" else 0
    step = rules.Step(case.op, case.attrs, tuple((rules.INPUT, k) for k in range(len(arrays))))
    with mode_of(case, recording=True):
        heads = tuple((0, k) for k in range(len(call_operator(case, arrays))))
        outputs = call_symbol(rewrite_symbol(rules.Rewrite((step,), heads), len(arrays)), arrays)
    if trained and any(map(is_float, outputs)):
        drawn = [rng.normal(size=o.shape).astype(o.dtype) for o in outputs]
        differentiate(outputs, drawn, case.training)
    return [array.grad.asnumpy() for array in trained]


@pytest.mark.parametrize("case", KNOWN)
def test_gradients_are_added(case: Case) -> None:
    for added, written in zip(gradients(case, "add"), gradients(case, "write")):
        np.testing.assert_allclose(added, START + written, 1e-4, 1e-4)


def test_an_operator_nobody_looked_at_is_not_trusted() -> None:
    assert rules.adds_up("FullyConnected") and not rules.adds_up("clip")
    assert "SVMOutput" in rules.REFUSED and not rules.adds_up("SVMOutput")
    assert set(rules.TABLE) >= rules.OVERWRITES
