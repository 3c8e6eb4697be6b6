"""The operators of random programs: those of the rule table, called as in their test cases.

With ``mx.np``, these are its own operators, and those of ``mx.nd`` that it has by another name.
"""

import ast
from dataclasses import replace
from functools import lru_cache, reduce

import mxnet as mx

from docs.list_operators import canonical_name
from gluon_dynbatch import rules
from gluon_dynbatch.rules.spelling import spelling
from tests.rules import numpy_calls
from tests.rules.all_cases import draw
from tests.rules.interpreter import R

#: Operators of the rule table that programs never call, with the reason.
LEFT_OUT = {
    **dict.fromkeys(
        ("MakeLoss", "make_loss"),
        "its gradient ignores the head gradient, so unused results have gradients too",
    ),
    **dict.fromkeys(
        ("_linalg_det", "_linalg_slogdet"),
        "with grad_req add, MXNet's gradient of a variable corrupts its heap",
    ),
    "RNN": "MXNet computes gradients of states and lower layers from those of weights and data; "
    "if these are not wanted, from memory that was never written",
}
#: Operators that do not crash MXNet, unlike some others.
TAME = (
    "Concat Embedding LayerNorm Pad Reshape SliceChannel SwapAxis _backward_gather_nd _np_cumsum "
    "_split_v2 argmax batch_dot broadcast_add broadcast_maximum broadcast_mul dot expand_dims "
    "gather_nd log_softmax max mean min nanprod nansum one_hot pick prod repeat reverse scatter_nd "
    "slice slice_axis softmax squeeze stack sum take tile transpose where"
)


#: Where the operators of ``mx.np`` are, after ``F.``, by how their names begin.
PLACES = {"_npx_": "npx.", "_npi_": "np._internal.", "_np_": "np._op."}


@lru_cache(maxsize=None)
def numpy_names():
    """Return the names in ``mx.np`` or ``mx.npx`` of operators, by canonical name."""
    names = {}
    for prefix in PLACES:
        for name in sorted(mx.operator.get_all_registered_operators()):
            if name.startswith(prefix) and not name.startswith(("_npx__", f"{prefix}_")):
                names.setdefault(canonical_name(name), name)
    return names


def spelled(op, front="nd"):
    """Return the spelling of a canonical operator name after ``F.``."""
    if front == "np":
        name = numpy_names()[op]
        prefix = next(prefix for prefix in PLACES if name.startswith(prefix))
        return PLACES[prefix] + name[len(prefix) :]
    name = spelling(op)
    return f"_internal.{op}" if name.startswith("_") else name


def function(op, attrs, front="nd"):
    """Return an operator as a function of ``F`` and arrays."""
    keywords = _keywords(attrs)

    def call(F, *args):
        return reduce(getattr, spelled(op, front).split("."), F)(*args, **keywords)

    return call


@lru_cache(maxsize=None)
def cases(extents, front="nd"):
    by_operator = {}
    for case in draw(*extents):
        named = front == "nd" or case.op in numpy_names()
        if named and case.stack and case.op not in LEFT_OUT and not _has_no_reference(case):
            by_operator.setdefault(case.op, []).append(case)
    for case in numpy_calls.calls() if front == "np" else ():
        by_operator.setdefault(case.op, []).extend(_resized(case, extents))
    return by_operator


def _resized(case, extents):
    """Yield a call with other extents: one for each of its own, or any number of rows."""
    for sizes in ({}, {2: R}, {3: R}, dict(zip((2, 3, 4), extents))):
        inputs = (replace(a, shape=tuple(sizes.get(n, n) for n in a.shape)) for a in case.inputs)
        yield replace(case, inputs=tuple(inputs))


def _has_no_reference(case):
    """Whether MXNet's loop is wrong for a call.

    In prediction mode, a running statistic gets no gradient, wherever else it is read.  Without
    lengths, SequenceLast corrupts MXNet's heap.  A bias gets no gradient if its weight has none.
    Leaky ReLU, with a slope or with slopes, always computes in single precision.
    """
    statistics = "BatchNorm" in case.op
    no_lengths = case.op == "SequenceLast" and "use_sequence_length" not in case.attrs
    bias = case.op == "FullyConnected" and len(case.inputs) == 3
    leaky = case.op == "LeakyReLU" and case.attrs.get("act_type", "leaky") in ("leaky", "prelu")
    return statistics or no_lengths or bias or leaky


def generated(front="nd"):
    return tuple(sorted(cases((2, 3, 4), front)))


def not_generated():
    """Return the operators of the rule table that programs never call, with the reason."""
    missing = sorted(set(rules.TABLE) - set(generated()))
    return {op: LEFT_OUT.get(op, "no case in tests/rules") for op in missing}


def arguments(attrs):
    return "".join(f", {name}={_literal(text)!r}" for name, text in _keywords(attrs).items())


def _keywords(attrs):
    return {k: v for k, v in attrs.items() if k not in ("num_args", "__ctx_group__")}


def _literal(text):
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
