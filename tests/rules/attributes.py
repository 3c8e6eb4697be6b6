"""Calls of operators with every value of every attribute that MXNet describes, one at a time.

``python -m tests.rules.attributes`` compares all of them with the loop, each operator in a process
of its own, because MXNet crashes on some values.
"""

import contextlib
import ctypes
import random
import re
import subprocess
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, MXNetError, check_call, mx_uint

import gluon_dynbatch as gdb
from gluon_dynbatch import rules
from tests.cells import cell
from tests.common import ROOT
from tests.fuzz.operators import function

from .all_cases import EVERY
from .interpreter import is_float, mode_of

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
        "(0, -1)", "(-1, 0)", "(-2, -1)", "(2, 1, 0)", "(0, 2, 1)", "(1, 1, 1)", "(0, 1, 2)",
    ),
    "tuple of <float>": ("(0.1, 0.2, 0.3)", "(0.1, 0.2, 0.3, 0.4)"),
}  # fmt: skip
#: Attributes that say how many arrays there are, or where and how to compute or to store.
FIXED = {"num_args", "ctx", "cudnn_off", "cudnn_tune", "workspace", "num_outputs", "forward_stype"}
#: Values with which MXNet ends the process.
FATAL = {("use_length", "None"), ("act_type", "rrelu"), ("num_groups", "0"), ("num_group", "0")}
#: Other dtypes of all floats of a call.
DTYPES = ("float16", "float64", "int32", "int64", "int8", "uint8")


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


def changed(op):
    """Yield the attributes of each case of an operator, with one of them changed."""
    attributes = {name: text for name, text in described(op).items() if name not in FIXED}
    seen = set()
    for case in EVERY:
        if case.op != op or case.random or not case.stack:
            continue
        kinds = [(len(a.shape), a.kind) for a in case.inputs]
        for name, text in attributes.items():
            for value in values_of(name, text):
                attrs = {**case.attrs, name: value}
                key = str((kinds, case.training, sorted(attrs.items())))
                ends = (name, value) in FATAL or op == "_unravel_index" and "0" in value
                if key not in seen and not ends:
                    seen.add(key)
                    yield case, attrs
        # MXNet refuses integers for prelu; a merged call computes their results.
        prelu = case.attrs.get("act_type") == "prelu"
        for dtype in DTYPES[:2] if prelu else DTYPES:
            key = str((kinds, case.training, sorted(case.attrs.items()), dtype))
            if key not in seen:
                seen.add(key)
                yield case, {**case.attrs, "__dtype__": dtype}


def run(case, attrs, scope):
    """Return results and gradients of three calls, or the error, in a scope or in the loop."""
    attrs = dict(attrs)
    dtype, pattern = attrs.pop("__dtype__", None), case.stack.split()[0]
    rng = np.random.default_rng(1)
    shared = [a.draw(rng, 2) for a in case.inputs]
    samples = [
        [same if p == "S" else a.draw(rng, 2) for p, a, same in zip(pattern, case.inputs, shared)]
        for _ in range(3)
    ]
    if dtype:
        cast = {id(a): a.astype(dtype) for sample in samples for a in sample if is_float(a)}
        samples = [[cast.get(id(a), a) for a in sample] for sample in samples]
    arrays = list({id(a): a for sample in samples for a in sample}.values())
    no_gradient = {id(s[k]) for s in samples for k in rules.of(case.op).no_gradient if k < len(s)}
    variables = [a for a in arrays if is_float(a) and id(a) not in no_gradient]
    for array in variables:
        array.attach_grad()
    call = function(case.op, attrs)
    net = cell(call) if scope else lambda *args: call(mx.nd, *args)
    try:
        # Results are not variables, so they can be arrays of the samples.
        with mode_of(case, case.gradient), scope or contextlib.nullcontext():
            results = [net(*[a * 1 if p == "B" and id(a) in map(id, variables) else a
                             for p, a in zip(pattern, sample)]) for sample in samples]  # fmt: skip
        results = [out for r in results for out in (r if isinstance(r, (list, tuple)) else [r])]
        values = [out.asnumpy() for out in results]
    except (MXNetError, gdb.DynBatchError, TypeError, ValueError) as error:
        return error, None
    heads = [out for out in results if is_float(out)]
    if not (case.gradient and heads and variables):
        return values, []
    try:
        weights = [mx.nd.array(rng.uniform(0.5, 1, o.shape), dtype=o.dtype) for o in heads]
        autograd.backward(heads, weights, train_mode=case.training)
        return values, [array.grad.asnumpy() for array in variables]
    except MXNetError as error:
        return values, error


def compare(case, attrs):
    """Compare a call with the loop; return a complaint, or None."""
    wanted, wanted_gradients = run(case, attrs, None)
    options = {"granularity": "block", "policy": "depth", "analysis_budget": None}
    got, gradients = run(case, attrs, gdb.batching(**options))
    with contextlib.suppress(MXNetError):
        # An error that nobody has seen would be that of the next call.
        mx.nd.waitall()
    pairs = [("values", wanted, got), ("gradients", wanted_gradients, gradients)]
    for what, a, b in pairs:
        if isinstance(a, list) and isinstance(b, gdb.ShapeError) and any(x.size == 0 for x in a):
            return None  # empty arrays are refused
        if isinstance(a, Exception) or isinstance(b, Exception):
            if isinstance(a, Exception) != isinstance(b, Exception):
                return f"{what}: {a!r:.250} in the loop, {b!r:.250} in a scope"
            return None
        for x, y in zip(a, b):
            close = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-7}.get(x.dtype.name, 0)
            if (x.shape, x.dtype) != (y.shape, y.dtype):
                return f"{what}: {x.shape} {x.dtype} in the loop, {y.shape} {y.dtype} in a scope"
            if not np.allclose(x, y, close, close, equal_nan=True):
                return f"{what}: {x.ravel()[:6]} in the loop, {y.ravel()[:6]} in a scope"
    return None


def main(op=None, count="1000000"):
    if op is None:
        for op in sorted(rules.TABLE):
            command = [sys.executable, "-W", "ignore", "-m", "tests.rules.attributes", op]
            try:
                done = subprocess.run(command, cwd=ROOT, timeout=200)
                if done.returncode:
                    print(f"{op}: exit {done.returncode}", flush=True)
            except subprocess.TimeoutExpired:
                print(f"{op}: timeout", flush=True)
        return
    calls = list(changed(op))
    for case, attrs in random.Random(1).sample(calls, min(len(calls), int(count))):
        call = f"{op} {attrs} {[(a.shape, a.kind) for a in case.inputs]}"
        # The last line is the call with which MXNet ends the process.
        print(call, file=sys.stderr, flush=True)
        complaint = compare(case, attrs)
        if complaint:
            print(f"{call}: {complaint}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
