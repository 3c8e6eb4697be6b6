"""Every operator of MXNet is in exactly one class, and what is said of it is so."""

from __future__ import annotations

import ctypes
from typing import Dict, FrozenSet, List

import mxnet as mx
import pytest
from mxnet.base import _LIB, check_call

from gluon_dynbatch import rules


def canonical_name(op: str) -> str:
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    name = ctypes.c_char_p()
    check_call(_LIB.MXSymbolGetAtomicSymbolName(handle, ctypes.byref(name)))
    assert name.value is not None
    return name.value.decode()


def registered() -> FrozenSet[str]:
    """Return the operators of MXNet, without their aliases."""
    return frozenset(map(canonical_name, mx.operator.get_all_registered_operators()))


OPERATORS = registered()
SAID: Dict[str, FrozenSet[str]] = {
    "merges": frozenset(rules.TABLE),
    "is one array for all samples": rules.CREATION,
    "never merges": frozenset(rules.REFUSED),
}


def test_the_registry_was_read() -> None:
    assert len(OPERATORS) > 800
    assert {"Convolution", "_plus_scalar", "_backward_Convolution", "_npi_add"} <= OPERATORS


def classes(op: str) -> List[str]:
    """Name the classes of an operator; what is said of it by name goes before patterns."""
    by_name = [said for said, names in SAID.items() if op in names]
    return by_name or [part.family for part in rules.INTERNAL if part.names(op)]


def test_every_operator_is_in_one_class() -> None:
    assert not {op: classes(op) for op in OPERATORS if len(classes(op)) != 1}


@pytest.mark.parametrize("said", SAID)
def test_no_class_names_an_operator_that_is_gone(said: str) -> None:
    assert SAID[said] <= OPERATORS


def users() -> List[str]:
    return [op for op in OPERATORS if not any(op in names for names in SAID.values())]


def test_every_pattern_is_of_use() -> None:
    found = users()
    for part in rules.INTERNAL:
        for pattern in part.operators:
            alone = part._replace(operators=frozenset([pattern]))
            assert any(alone.names(op) for op in found), pattern


def test_no_operator_is_refused_twice() -> None:
    named = [op for part in rules.NEVER for op in part.operators]
    assert len(named) == len(set(named))
    families = [part.family for part in rules.NEVER + rules.INTERNAL]
    assert len(families) == len(set(families))


@pytest.mark.parametrize("op", ["_backward_dot", "sgd_update", "_npi_add", "cast_storage"])
def test_internal_operators_are_refused_by_family(op: str) -> None:
    part = rules.internal(op)
    assert part is not None
    site = rules.Site(op, {}, ((2, 3),), ((2, 3),), (True,), False)
    for ask in (rules.rows, rules.stack):
        answer = ask(site)
        assert isinstance(answer, rules.Refusal)
        assert op in answer.reason and part.reason in answer.reason


def test_generated_functions_of_mxnet_belong_to_users() -> None:
    """What `mx.nd` and `mx.sym` show without an underscore is internal by name only."""
    internal = {op for op in users() if not op.startswith("_")}
    # Optimizer steps and conversions to sparse arrays; users reach them through other classes.
    assert all(
        op.endswith(("_update", "_phase1", "_phase2", "_finite", "_lars", "_sum_sq"))
        or op in {"cast_storage", "reset_arrays", "fill_element_0index"}
        for op in internal
    ), internal
