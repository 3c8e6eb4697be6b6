"""Calls with random attributes and Python operators, as users write them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

from tests.rules.interpreter import R

from .writer import Body, Value


def _axes(body: Body, v: Value) -> Any:
    """Return None, one axis or several, negative ones too."""
    axes = [a - v.ndim * body.choose.flag() for a in range(v.ndim) if body.choose.flag()]
    return (None, axes[0] if axes else -1, tuple(axes) or 0)[body.choose.count(0, 2)]


def _axis(body: Body, v: Value) -> int:
    return body.choose.count(-v.ndim, v.ndim - 1)


def _reduce(body: Body, v: Value) -> str:
    op = body.choose.pick(["sum", "mean", "max", "min", "prod", "nansum", "norm"])
    more = "" if op == "norm" or not body.choose.flag() else ", exclude=True"
    return f"F.{op}({v.name}, axis={_axes(body, v)}, keepdims={body.choose.flag()}{more})"


def _softmax(body: Body, v: Value) -> str:
    op = body.choose.pick(["softmax", "log_softmax", "softmin"])
    return f"F.{op}({v.name}, axis={_axis(body, v)})"


def _transpose(body: Body, v: Value) -> str:
    axes = list(range(v.ndim))
    at = body.choose.count(0, v.ndim - 1)
    axes = axes[at:] + axes[:at] if body.choose.flag() else axes[::-1]
    return f"F.transpose({v.name}, axes={tuple(axes)})"


def _expand(body: Body, v: Value) -> str:
    return f"F.expand_dims({v.name}, axis={body.choose.count(-v.ndim - 1, v.ndim)})"


def _squeeze(body: Body, v: Value) -> str:
    return f"F.squeeze({v.name}, axis={_axis(body, v)})"


RESHAPES: Tuple[Tuple[int, ...], ...] = (
    (0, -1), (-1,), (-1, 0), (0, -2), (-3, -2), (0, -3, -2), (-4, -1, 1, -2), (0, -4, 1, -1, -2),
    (-1, 1), (1, -1), (0, 0, -1), (-2, 1),
)  # fmt: skip


def _reshape(body: Body, v: Value) -> str:
    # MXNet reads beyond the shape if a code asks for more axes than there are.
    codes = [c for c in RESHAPES if _axes_used(c) <= v.ndim]
    return f"F.reshape({v.name}, shape={body.choose.pick(codes)})"


def _axes_used(codes: Tuple[int, ...]) -> int:
    return sum({0: 1, -3: 2, -4: 1}.get(c, 0) for c in codes)


def _slice(body: Body, v: Value) -> str:
    begin, end = [None], [None]
    for extent in v.shape[1:]:
        first = body.choose.count(0, extent - 1)
        begin.append(first)  # type: ignore[arg-type]
        end.append(body.choose.count(first + 1, extent))  # type: ignore[arg-type]
    if body.choose.flag():
        begin[0], end[0] = 0, 1  # type: ignore[call-overload]
    return f"F.slice({v.name}, begin={tuple(begin)}, end={tuple(end)})"


def _slice_axis(body: Body, v: Value) -> str:
    axis = _axis(body, v)
    first = body.choose.count(0, v.shape[axis] - 1)
    end = body.choose.pick([None, first + 1])
    return f"F.slice_axis({v.name}, axis={axis}, begin={first}, end={end})"


def _partner(body: Body, v: Value) -> str:
    """Return an operand that fits `v`: equal, or broadcast along some axes."""
    rows = R if tuple(s[0] for s in v.shapes) == body.leading else v.shape[0]
    shape = [n if body.choose.count(0, 2) else 1 for n in (rows, *v.shape[1:])]
    first = body.choose.count(0, v.ndim - 1) if body.choose.count(0, 3) == 3 else 0
    return body.need(tuple(shape[first:]))


def _broadcast(body: Body, v: Value) -> str:
    op = body.choose.pick(["add", "sub", "mul", "maximum", "minimum", "hypot", "greater", "equal"])
    pair = [v.name, _partner(body, v)]
    return f"F.broadcast_{op}({', '.join(pair[::-1] if body.choose.flag() else pair)})"


def _python(body: Body, v: Value) -> str:
    if body.choose.flag():
        op = body.choose.pick(["+", "-", "*", ">", "<=", "!="])
        rows = R if tuple(s[0] for s in v.shapes) == body.leading else v.shape[0]
        return f"{v.name} {op} {body.need((rows, *v.shape[1:]))}"
    return body.choose.pick(
        ["2 - {}", "{} * 0.5", "-{}", "{} / 3", "{} ** 2", "1 / (2 + {} ** 2)", "{} > 0", "{} % 2"]
    ).format(v.name)


def _dot(body: Body, v: Value) -> str:
    turned, width = body.choose.flag(), body.choose.count(1, 4)
    other = (width, v.shape[-1]) if turned else (v.shape[-1], width)
    return f"F.dot({v.name}, {body.need(other)}, transpose_b={turned})"


def _batch_dot(body: Body, v: Value) -> str:
    rows = R if tuple(s[0] for s in v.shapes) == body.leading else v.shape[0]
    other = body.need((rows, v.shape[-1], body.choose.count(1, 3)))
    return f"F.batch_dot({v.name}, {other})"


def _dense(body: Body, v: Value) -> str:
    flat, width = body.choose.flag(), body.choose.count(1, 4)
    size = 1
    for n in v.shape[1:] if flat else v.shape[-1:]:
        size *= n
    weight = body.need((width, size))
    return f"F.FullyConnected({v.name}, {weight}, no_bias=True, num_hidden={width}, flatten={flat})"


def _join(body: Body, v: Value) -> str:
    others = [u.name for u in body.floats() if u.shapes == v.shapes]
    count = body.choose.count(1, 3)
    names = ", ".join([v.name] + [body.choose.pick(others) for _ in range(count)])
    op = body.choose.pick(["concat", "stack", "add_n"])
    axis = {"concat": f", dim={_axis(body, v)}", "stack": f", axis={_axis(body, v)}", "add_n": ""}
    return f"F.{op}({names}{axis[op]})"


def _nested_sum(body: Body, v: Value) -> str:
    """Sums of sums, of what is there or computed for them, some of them twice."""
    alike = [u.name for u in body.floats() if u.shapes == v.shapes]
    text = v.name
    for _ in range(body.choose.count(2, 4)):
        form = body.choose.pick(["{}", "{}", "F.tanh({})", "0.5 * {}"])
        terms = [form.format(body.choose.pick(alike)) for _ in range(body.choose.count(0, 2))]
        text = f"F.add_n({', '.join([text, *terms])})"
    return f"F.tanh({text})" if body.choose.flag() else text


def _split(body: Body, v: Value) -> str:
    axis = _axis(body, v)
    parts = [n for n in (2, 3, 4) if v.shape[axis] % n == 0] or [1]
    squeeze = body.choose.flag() and v.ndim > 1
    return (
        f"F.split({v.name}, num_outputs={body.choose.pick(parts)}, axis={axis}, "
        f"squeeze_axis={squeeze})"
    )


def _repeat(body: Body, v: Value) -> str:
    if body.choose.flag():
        return f"F.repeat({v.name}, repeats=2, axis={body.choose.pick([None, *range(v.ndim)])})"
    reps = tuple(body.choose.count(1, 2) for _ in range(body.choose.count(1, v.ndim)))
    return f"F.tile({v.name}, reps={reps})"


def _take(body: Body, v: Value) -> str:
    axis = _axis(body, v)
    shape = body.choose.pick([(2,), (R,), (R, 2), (1,)])
    index = body.need(shape, body.choose.pick(["index", "index32", "wild"]), v.shape[axis])
    mode = body.choose.pick(["clip", "wrap"])
    return f"F.take({v.name}, {index}, axis={axis}, mode={mode!r})"


def _pick(body: Body, v: Value) -> str:
    index = body.need((R, *v.shape[1:-1]), "index", v.shape[-1])
    return f"F.pick({v.name}, {index}, axis=-1, keepdims={body.choose.flag()})"


def _where(body: Body, v: Value) -> str:
    return f"F.where({v.name} > 0, {v.name}, 0.5 * {v.name})"


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
CALLS: Tuple[Callable[[Body, Value], str], ...] = (
    _chain, _python, _broadcast, _dense, _join, _reduce, _softmax, _transpose, _expand, _squeeze,
    _reshape, _slice, _slice_axis, _dot, _batch_dot, _split, _repeat, _take, _pick, _where,
    _nested_sum, _nested_sum,
)  # fmt: skip


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


def add_call(body: Body, eager: bool) -> bool:
    """Append a call with random attributes."""
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
