"""The operators of random programs: those of the rule table, called as in their test cases."""

import ast
from functools import lru_cache, reduce

from docs.list_operators import spelling
from gluon_dynbatch import rules
from tests.rules.all_cases import draw

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


def spelled(op):
    """Return the spelling of a canonical operator name after ``F.``."""
    name = spelling(op)
    return f"_internal.{op}" if name.startswith("_") else name


def function(op, attrs):
    """Return an operator as a function of ``F`` and arrays."""
    keywords = _keywords(attrs)

    def call(F, *args):
        return reduce(getattr, spelled(op).split("."), F)(*args, **keywords)

    return call


@lru_cache(maxsize=None)
def cases(extents):
    by_operator = {}
    for case in draw(*extents):
        if case.stack and case.op not in LEFT_OUT and not _has_no_reference(case):
            by_operator.setdefault(case.op, []).append(case)
    return by_operator


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


def generated():
    return tuple(sorted(cases((2, 3, 4))))


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
