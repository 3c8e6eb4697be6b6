"""Calls and Python expressions, as users write them."""

from tests.rules.interpreter import R


def _python(body, v):
    """Combine an array with another of the same shape."""
    rows = R if tuple(s[0] for s in v.shapes) == body.leading else v.shape[0]
    # No comparisons: MXNet's loop crashes on some of two computed arrays.
    op = body.choose.pick(["+", "-", "*"])
    return f"{v.name} {op} {body.need((rows, *v.shape[1:]))}"


def _nested_sum(body, v):
    """Nest sums of existing values and of functions of them; a term may occur twice."""
    alike = [u.name for u in body.floats() if u.shapes == v.shapes]
    text = v.name
    tanh = body.front.forms["tanh"]
    for _ in range(body.choose.count(2, 4)):
        form = body.choose.pick(["{}", "{}", tanh, "0.5 * {}"])
        terms = [form.format(body.choose.pick(alike)) for _ in range(body.choose.count(0, 2))]
        text = body.front.sum([text, *terms])
    return tanh.format(text) if body.choose.flag() else text


def _branch(body, v):
    """Branch on a value, which forces its computation."""
    number = f"{body.value().name}.sum().asnumpy().item()"
    return f"{v.name} * 2 if {number} > 0 else 1 - {v.name}"


#: Expressions of one array, in cells and outside.
CHAINS = [
    "F.tanh({})", "F.sigmoid({})", "F.relu({})", "F.exp(-F.square({}))", "F.BlockGrad({})",
    "F.flip({}, axis=0)", "F.Activation({}, act_type='softrelu')", "F.identity({})",
    "F.cumsum({}, axis=0)", "F.sort({}, axis=-1)", "F.cast({}, dtype='float64')",
    "F.LeakyReLU({}, act_type='elu')", "F.clip({}, -0.5, 0.5)", "F.L2Normalization({})",
    "2 - {}", "{} * 0.5", "-{}", "{} / 3", "{} ** 2", "1 / (2 + {} ** 2)", "{} > 0", "{} % 2",
]  # fmt: skip
#: Expressions of one array, outside of cells only.
EAGER = [
    *(f"{{}}[{key}]" for key in (
        "0:1", "0", "-1", "-1:", ":1", "0:100", "None", ":, 0", ":, -1:", "..., 0", "0:1, 0:1",
        "::-1", ":, 0:2:2",
    )),
    *(f"{{}}.{call}" for call in (
        "sum()", "mean(axis=0)", "max(axis=-1)", "reshape((-1,))", "reshape((0, -1))",
        "reshape((1, -1))", "reshape(shape=(-1, 1))", "flatten()", "transpose()", "T",
        "expand_dims(0)", "astype('float64')", "copy()", "tanh()", "softmax()", "abs()",
        "clip(-1, 1)", "argmax(axis=-1)", "norm()", "detach()", "zeros_like()",
        "slice_axis(axis=0, begin=0, end=1)", "as_in_context(mx.cpu())",
    )),
    "{0}.reshape_like(F.flatten({0}))", "{0} + F.zeros(shape=(1,) * {0}.ndim, dtype={0}.dtype)",
]  # fmt: skip


#: How a recursive cell combines the states of its children.
JOINED = [
    "F.add_n(*[F.tanh(c) for c in children])",
    "F.max(F.stack(*children), axis=0)",
    "F.mean(F.concat(*children, dim=0), axis=0, keepdims=True)",
    "F.add_n(*[F.sigmoid(a0 + c) * c for c in children])",
    "F.add_n(F.add_n(*[F.tanh(c) for c in children]), a0)",
    "F.tanh(F.add_n(*children, F.add_n(*children), F.add_n(a0, children[0])))",
]


def add_call(body, eager):
    """Append a call of a tame operator, or an expression as users write it."""
    choose = body.choose
    if choose.flag():
        return body.add_case(body.front.tame())
    v, choice = body.value(), choose.count(0, 9)
    if not v.shape:
        return body.add(f"2 * {v.name}")
    if choice < 3:
        return body.add((_python, _nested_sum, _branch if eager else _nested_sum)[choice](body, v))
    if eager and choice < 7:
        return body.add(choose.pick(body.front.eager).format(v.name))
    text = v.name
    for _ in range(choose.count(1, 3)):
        text = choose.pick(body.front.chains).format(f"({text})" if "(" not in text else text)
    return body.add(text)
