"""Which operators programs are made of: those of the rule table, as their cases call them."""

import ast
from functools import lru_cache, reduce

from docs.list_operators import spelling
from gluon_dynbatch import rules
from tests.rules.all_cases import draw

#: Operators of the rule table that no program calls, with the reason.
LEFT_OUT = {
    **dict.fromkeys(
        ("MakeLoss", "make_loss"),
        "its gradient ignores the head gradient, so results that are not used count too",
    ),
    **dict.fromkeys(
        ("_linalg_det", "_linalg_slogdet"),
        "with grad_req add, MXNet's gradient of a variable corrupts its heap",
    ),
    "RNN": "MXNet's gradients of states and lower layers need gradients of weights and data, which "
    "they read, or are what was in memory",
}
#: Operators that are no danger to their process, as MXNet crashes on some.
TAME = (
    "Concat Embedding LayerNorm Pad Reshape SliceChannel SwapAxis _np_cumsum _split_v2 argmax "
    "batch_dot broadcast_add broadcast_maximum broadcast_mul dot expand_dims gather_nd log_softmax "
    "max mean min nanprod nansum one_hot pick prod repeat reverse slice slice_axis softmax squeeze "
    "stack sum take tile transpose where"
)


def spelled(op):
    """Return how programs write a canonical operator name after ``F.``."""
    name = spelling(op)
    return f"_internal.{op}" if name.startswith("_") else name


def function(op, attrs):
    """Return an operator as a function of ``F`` and arrays."""
    given = {k: v for k, v in attrs.items() if k not in ("num_args", "__ctx_group__")}

    def call(F, *args):
        return reduce(getattr, spelled(op).split("."), F)(*args, **given)

    return call


@lru_cache(maxsize=None)
def cases(extents):
    found = {}
    for case in draw(*extents):
        if case.stack and case.op not in LEFT_OUT and not _left_out(case):
            found.setdefault(case.op, []).append(case)
    return found


def _left_out(case):
    """Whether a call has no loop to compare with.

    It is in single precision always, or corrupts MXNet's heap; with a bias beside a weight that has
    no gradient, MXNet gives the bias none either, nor, in prediction mode, an array that is a
    running statistic, wherever else it is read.
    """
    moves = "BatchNorm" in case.op
    no_lengths = case.op == "SequenceLast" and "use_sequence_length" not in case.attrs
    bias = case.op == "FullyConnected" and len(case.inputs) == 3
    return moves or no_lengths or bias or case.attrs.get("act_type") == "prelu"


def generated():
    return tuple(sorted(cases((2, 3, 4))))


def not_generated():
    """Return the operators of the rule table that programs never call, with the reason."""
    left = sorted(set(rules.TABLE) - set(generated()))
    return {op: LEFT_OUT.get(op, "no case in tests/rules") for op in left}


def arguments(attrs):
    return "".join(
        f", {name}={_literal(text)!r}"
        for name, text in attrs.items()
        if name not in ("num_args", "__ctx_group__")
    )


def _literal(text):
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
