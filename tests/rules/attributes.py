"""Calls of operators with every value of every attribute that MXNet describes.

`tests/fuzz/survey.py` compares all of them with the loop, in processes, as MXNet crashes on some.
"""

import contextlib
import ctypes
import re
from functools import lru_cache

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, MXNetError, check_call, mx_uint

import gluon_dynbatch as gdb
from gluon_dynbatch import rules
from tests.cells import cell
from tests.common import filled_memory, semantics
from tests.fuzz.operators import function, numpy_names

from . import numpy_calls
from .all_cases import EVERY
from .interpreter import is_float, made_array, mode_of

#: Values by the type that MXNet's description of an attribute begins with.
VALUES = {
    "boolean": ("True", "False"),
    "int (non-negative)": ("1", "2", "3"),
    "int": ("-3", "-2", "-1", "0", "1", "2", "3"),
    "long (non-negative)": ("1024",),
    "float": ("-1.5", "0", "0.3", "1", "2"),
    "double": ("-1.5", "0", "0.3", "1", "2"),
    "Shape": (
        "()", "(0,)", "(1,)", "(2,)", "(-1,)", "(-2,)", "(0, 1)", "(1, 0)", "(1, 2)", "(2, 2)",
        "(0, -1)", "(-1, 0)", "(-2, -1)", "(2, -2)", "(7,)", "(2, 1, 0)", "(0, 2, 1)", "(1, 1, 1)",
        "(0, 1, 2)",
    ),
    "string": ("C", "F"),  # the order of elements
    "tuple of <float>": ("(0.1, 0.2, 0.3)", "(0.1, 0.2, 0.3, 0.4)"),
}  # fmt: skip
#: Attributes that say how many arrays there are, or where and how to compute or to store.
FIXED = {"num_args", "ctx", "cudnn_off", "cudnn_tune", "workspace", "num_outputs", "forward_stype",
         "subscripts"}  # fmt: skip
#: Values with which MXNet ends the process.
FATAL = {("use_length", "None"), ("act_type", "rrelu"), ("num_groups", "0"), ("num_group", "0"),
         ("heads", "0")}  # fmt: skip
#: Relative and absolute, by dtype, coarsest first.
TOLERANCES = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-7}
#: Other dtypes of all floats of a call.
DTYPES = ("float16", "float64", "int32", "int64", "int8", "uint8", "bool")


def described(op):
    """Return the attributes of an operator, with MXNet's descriptions of their types."""
    handle, count = ctypes.c_void_p(), mx_uint()
    check_call(_LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    texts = [ctypes.c_char_p() for _ in range(4)]
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    outputs = (*texts[:2], count, *lists, *texts[2:])
    check_call(_LIB.MXSymbolGetAtomicSymbolInfo(handle, *map(ctypes.byref, outputs)))
    pairs = ((lists[0][k].decode(), lists[1][k].decode()) for k in range(count.value))
    return {name: text for name, text in pairs if "Symbol" not in text}


def values_of(name, text):
    """Return the values of an attribute, given MXNet's description of its type."""
    if name == "scalar":
        return (*VALUES["double"], "-0.0", "inf", "-inf", "nan", "1e40")
    if text.startswith("{"):
        return tuple(word.strip(" '") for word in text[1 : text.index("}")].split(","))
    kind = re.match(r"[^,(]*(?:\(non-negative\))?", text).group().strip()
    base = kind.replace(" or None", "")
    return VALUES[base] + ("None",) * (base != kind)


def has_no_reference(case, attrs):
    """Whether MXNet ends the process or reads foreign memory, in the loop as well.

    It divides integers by zero, refuses negative axes of cumsum, which a merged call computes, and
    lets oneDNN cast to integers, in its own way.
    """
    op, shape, dtype = case.op, attrs.get("shape", ""), attrs.get("__dtype__", "")
    axes = re.findall(r"\d+", attrs.get("axes", ""))
    return (
        any(pair in FATAL for pair in attrs.items())
        or (op == "amp_cast" and "float" not in attrs.get("dtype", "float"))
        or (op == "amp_cast" and dtype in ("float64", "int64"))  # oneDNN refuses these
        or (op == "transpose" and len({*axes}) < len(axes))
        or (op == "_unravel_index" and "0" in shape)
        or (op == "Reshape" and (shape == "(0,)" or "0" in shape and "reverse" in attrs))
        or (op, attrs.get("indices")) == ("_split_v2", "()")
        or (op == "_image_crop" and "-" in "".join(attrs.values()))
        or (op == "_image_resize" and bool(dtype))
        or (op in ("_image_to_tensor", "_image_normalize") and dtype == "bool")
        or (("_div" in op or "_mod" in op) and "int" in dtype)
        or (op == "_npi_norm" and dtype == "float16")  # it has no gradient; one in a scope is right
        or (op == "_np_cumsum" and "-" in attrs.get("axis", ""))
        or ("BatchNorm" in op and attrs.get("axis") != case.attrs.get("axis"))
    )


def changes(case):
    """Return the values of all attributes of a case, by name; ``__dtype__`` is that of floats."""
    found = {n: values_of(n, t) for n, t in described(case.op).items() if n not in FIXED}
    # MXNet refuses integers for prelu; a merged call computes their results.
    prelu = case.attrs.get("act_type") == "prelu"
    return {**found, "__dtype__": DTYPES[:2] if prelu else DTYPES}


def key_of(case, attrs):
    kinds = [(len(a.shape), a.kind) for a in case.inputs]
    return str((kinds, case.training, sorted(attrs.items())))


@lru_cache(maxsize=None)
def cases(front="nd"):
    """Return the cases of ``mx.nd``; or those that ``mx.np`` has by another name, and its own.

    Of its own, some are not in ``mx.nd``.
    """
    if front == "nd":
        return [c for c in EVERY if c.op[:5] != "_npi_" or hasattr(mx.nd._internal, c.op)]
    return [c for c in EVERY if c.op in numpy_names()] + numpy_calls.calls()


def changed(op, front="nd"):
    """Yield the attributes of each case of an operator, with one of them changed."""
    seen = set()
    for case in (c for c in cases(front) if c.op == op):
        for name, values in changes(case).items():
            for attrs in ({**case.attrs, name: value} for value in values):
                key = key_of(case, attrs)
                if key not in seen and not has_no_reference(case, attrs):
                    seen.add(key)
                    yield case, attrs


def changed_twice(rng, front="nd"):
    """Draw a case of any operator, with two attributes changed, from a generator of Python."""
    while True:
        case = rng.choice(cases(front))
        names = changes(case)
        pairs = {n: rng.choice(v) for n, v in rng.sample(sorted(names.items()), min(2, len(names)))}
        attrs = {**case.attrs, **pairs}
        if len(pairs) == 2 and not has_no_reference(case, attrs):
            return case, attrs


def run(case, attrs, scope, compiled=False, front="nd"):
    """Return results and gradients of three calls, or the error, in a scope or in the loop.

    The attribute ``__dtype__`` is a dtype of all inputs that are floats, or of the ``__input__``.
    """
    with semantics(front):
        return _run(case, attrs, scope, compiled, front)


def _run(case, attrs, scope, compiled, front):
    attrs = dict(attrs)
    dtype, only = attrs.pop("__dtype__", None), attrs.pop("__input__", None)
    pattern = (case.stack or "B" * len(case.inputs)).split()[0]
    rng = np.random.default_rng(1)
    shared = [a.draw(rng, 2) for a in case.inputs]
    samples = [
        [same if p == "S" else a.draw(rng, 2) for p, a, same in zip(pattern, case.inputs, shared)]
        for _ in range(3)
    ]
    if dtype:
        chosen = [a for sample in samples for k, a in enumerate(sample)
                  if (is_float(a) if only is None else k == only)]  # fmt: skip
        cast = {id(a): a.astype(dtype) for a in chosen}
        samples = [[cast.get(id(a), a) for a in sample] for sample in samples]
    arrays = list({id(a): a for sample in samples for a in sample}.values())
    no_gradient = {id(s[k]) for s in samples for k in rules.of(case.op).no_gradient if k < len(s)}
    variables = [a for a in arrays if is_float(a) and id(a) not in no_gradient]
    for array in variables:
        array.attach_grad()
    call = function(case.op, attrs, front)
    net = cell(call) if scope or compiled else lambda *args: call(mx.nd, *args)
    try:
        # Results are not variables, so they can be arrays of the samples.
        with mode_of(case, case.gradient), scope or contextlib.nullcontext():
            results = [net(*[a * 1 if p == "B" and id(a) in map(id, variables) else a
                             for p, a in zip(pattern, sample)]) for sample in samples]  # fmt: skip
        results = [out for r in results for out in (r if isinstance(r, (list, tuple)) else [r])]
        values = [out.asnumpy() for out in results]
        values = list(map(np.zeros_like, values)) if case.random else values
    except (MXNetError, gdb.DynBatchError, TypeError, ValueError) as error:
        return error, None
    if "S" not in pattern:
        # In the loop, samples that share running statistics update them in another order.
        values += [array.asnumpy() for array in arrays]
    heads = [out for out in results if is_float(out)]
    if not (case.gradient and heads and variables):
        return values, []
    try:
        weights = [made_array(rng.uniform(0.5, 1, o.shape), o.dtype) for o in heads]
        autograd.backward(heads, weights, train_mode=case.training)
        return values, [array.grad.asnumpy() for array in variables]
    except MXNetError as error:
        return values, error


def compare(case, attrs, front="nd", **options):
    """Compare calls in a scope with the loop; return a complaint, or None.

    There is none if MXNet's own loops differ, imperative, hybridized or run again on
    other memory: it leaves gradients of arrays that an empty result depends on as they are.
    """
    options = {"granularity": "block", "policy": "depth", "analysis_budget": None, **options}
    wanted = run(case, attrs, None, front=front)
    complaint = difference(wanted, run(case, attrs, gdb.batching(**options), front=front))
    with contextlib.suppress(MXNetError):
        # An error that nobody has seen would be that of the next call.
        mx.nd.waitall()
    if complaint:
        for compiled in (False, True):
            with filled_memory():
                again = run(case, attrs, None, compiled, front)
            if difference(wanted, again):
                return None
    return complaint


def difference(wanted, got):
    """Describe the first difference of results and gradients, or return None."""
    # A result in half precision has errors of half precision, and its gradient, too.
    dtypes = {x.dtype.name for part in wanted if isinstance(part, list) for x in part}
    close = next((value for name, value in TOLERANCES.items() if name in dtypes), 0)
    for what, a, b in zip(("values", "gradients"), wanted, got):
        if isinstance(a, list) and isinstance(b, gdb.ShapeError) and any(x.size == 0 for x in a):
            return None  # empty arrays are refused
        if isinstance(a, Exception) or isinstance(b, Exception):
            if isinstance(a, Exception) != isinstance(b, Exception):
                return f"{what}: {a!r:.250} in the loop, {b!r:.250} in a scope"
            return None
        for x, y in zip(a or (), b or ()):
            if (x.shape, x.dtype) != (y.shape, y.dtype):
                return f"{what}: {x.shape} {x.dtype} in the loop, {y.shape} {y.dtype} in a scope"
            allowed = close if x.dtype.name in TOLERANCES else 0
            if not np.allclose(x, y, allowed, allowed, equal_nan=True):
                return f"{what}: {x.ravel()[:6]} in the loop, {y.ravel()[:6]} in a scope"
    return None
