"""Calls with random attributes and Python operators, as users write them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

from tests.rules import drawn
from tests.rules.interpreter import Case, R

from .writer import Body, Value


def _python(body: Body, v: Value) -> str:
    if body.choose.flag():
        op = body.choose.pick(["+", "-", "*", ">", "<=", "!="])
        rows = R if tuple(s[0] for s in v.shapes) == body.leading else v.shape[0]
        return f"{v.name} {op} {body.need((rows, *v.shape[1:]))}"
    return body.choose.pick(
        ["2 - {}", "{} * 0.5", "-{}", "{} / 3", "{} ** 2", "1 / (2 + {} ** 2)", "{} > 0", "{} % 2"]
    ).format(v.name)


def _nested_sum(body: Body, v: Value) -> str:
    """Sums of sums, of what is there or computed for them, some of them twice."""
    alike = [u.name for u in body.floats() if u.shapes == v.shapes]
    text = v.name
    for _ in range(body.choose.count(2, 4)):
        form = body.choose.pick(["{}", "{}", "F.tanh({})", "0.5 * {}"])
        terms = [form.format(body.choose.pick(alike)) for _ in range(body.choose.count(0, 2))]
        text = f"F.add_n({', '.join([text, *terms])})"
    return f"F.tanh({text})" if body.choose.flag() else text


def _chain(body: Body, v: Value) -> str:
    text = v.name
    for _ in range(body.choose.count(1, 3)):
        text = body.choose.pick(
            ["F.tanh({})", "F.sigmoid({})", "F.relu({})", "F.exp(-F.square({}))", "F.BlockGrad({})",
             "F.flip({}, axis=-1)", "F.Activation({}, act_type='softrelu')", "F.identity({})",
             "F.cumsum({}, axis=0)", "F.sort({}, axis=-1)", "F.cast({}, dtype='float64')",
             "F.LeakyReLU({}, act_type='elu')", "F.clip({}, -0.5, 0.5)", "F.L2Normalization({})"]
        ).format(text)  # fmt: skip
    return text


def _creation(body: Body, v: Value) -> str:
    made = body.choose.pick(["zeros", "ones"])
    return f"{v.name} + F.{made}(shape=(1,) * {v.ndim}, dtype={body.dtype!r})"


#: Calls with operators of ``F``, in cells and outside.
CALLS: Tuple[Callable[[Body, Value], str], ...] = (_chain, _python, _nested_sum)


def _index(body: Body, v: Value) -> str:
    key = body.choose.pick(
        ["0:1", "0", "-1", "-1:", ":1", "0:100", "None", ":, 0", ":, -1:", "..., 0", "0:1, 0:1",
         "::-1", ":, 0:2:2"]
    )  # fmt: skip
    return f"{v.name}[{key}]"


def _method(body: Body, v: Value) -> str:
    call = body.choose.pick(
        ["sum()", "mean(axis=0)", "max(axis=-1)", "reshape((-1,))", "reshape((0, -1))",
         "reshape((1, -1))", "reshape(shape=(-1, 1))", "flatten()", "transpose()", "T",
         "expand_dims(0)", "astype('float64')", "copy()", "tanh()", "softmax()", "abs()",
         "clip(-1, 1)", "argmax(axis=-1)", "norm()", "reshape_like(F.flatten({0}))", "detach()",
         "slice_axis(axis=0, begin=0, end=1)", "zeros_like()", "as_in_context(mx.cpu())"]
    )  # fmt: skip
    return f"{v.name}.{call.format(v.name)}"


def _branch(body: Body, v: Value) -> str:
    """Branch on a value, which has to be computed for that."""
    return f"{v.name} * 2 if float({body.value().name}.sum().asscalar()) > 0 else 1 - {v.name}"


#: What arrays can do outside of cells only.
EAGER: Tuple[Callable[[Body, Value], str], ...] = (_index, _method, _branch, _creation)


#: Calls with random attributes, but for families of which some are a danger to their process.
TAME = (
    *drawn.OFTEN, drawn.one_axis, drawn.choosing_by_number, drawn.joining_and_cutting,
    drawn.products, drawn.repeating, drawn.where,
)  # fmt: skip


def _gives_all_gradients(c: Case) -> bool:
    """Whether those of MXNet's loop are a standard; see `operators.LIMITED`."""
    return c.op != "_linalg_gemm2" and c.attrs.get("no_bias") != "False"


def add_call(body: Body, eager: bool) -> bool:
    """Append a call with random attributes, or what users write with arrays."""
    family = body.choose.pick((*TAME, None, None, None, None, None, None))
    cases = [c for c, _ in (family(body.choose) if family else ()) if _gives_all_gradients(c)]
    if cases:
        return body.call(body.choose.pick(cases))
    v = body.value()
    if not v.ndim:
        return body.add(f"2 * {v.name}")
    recipe = body.choose.pick((*CALLS, *EAGER, *EAGER) if eager else CALLS)
    return body.add(recipe(body, v))


LAYERS: Dict[str, Callable[[Any, Value], str]] = {
    "dense": lambda c, v: (
        f"nn.Dense({c.count(1, 4)}, in_units={v.shape[-1]}, flatten=False, "
        f"activation={c.pick([None, 'tanh', 'relu'])!r}, use_bias={c.flag()})"
    ),
    "norm": lambda c, v: f"nn.LayerNorm(in_channels={v.shape[-1]})",
    "drop": lambda c, v: "nn.Dropout(0)",
    "lambda": lambda c, v: "nn.HybridLambda('softsign')",
    "flat": lambda c, v: "nn.Flatten()",
    "swish": lambda c, v: "nn.Swish()",
}
"""Gluon layers that a cell may have as a child, by the start of their name."""
