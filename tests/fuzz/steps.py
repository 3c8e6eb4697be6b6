"""Steps of functions of a sample that no cell can do: reads, writes, gradients, types, devices.

Each appends lines to a body.
"""

from tests.rules.interpreter import R

#: Features of the states that samples keep.
WIDTH = 3
INTEGERS = ("int32", "int64", "uint8", "int8")
OTHERS = (*INTEGERS, "float16", "float32", "float64")
#: Expressions of one array of any type.
TYPED = [
    "{} + 1", "{} * 2", "2 - {}", "-{}", "{} > 1", "F.sum({}, axis=0)", "{}.sum()", "{}.max()",
    "F.reshape({}, (-1,))", "F.abs({})", "F.square({})", "F.clip({}, 1, 3)", "F.relu({})",
    "F.flip({}, axis=0)", "{}.copy()", "{}.detach()", "{}[0:1]", "{}[-1]", "F.tile({}, (2,))",
    "F.expand_dims({}, axis=0)", "F.broadcast_add({0}, {0}[0:1])", "F.BlockGrad({})", "{}.T",
    "F.one_hot({}, depth=3)", "F.argmax({}, axis=0)", "F.zeros_like({})", "F.tanh({})",
    "F.sort({}, axis=-1)", "F.mean({}, axis=0)", "F.identity({})",
]  # fmt: skip
#: Expressions of two arrays of one type and shape.
PAIRS = [
    "{} + {}", "{} - {}", "{} * {}", "F.add_n({0}, {1}, {0})", "F.maximum({}, {})",
    "F.concat({}, {}, dim=0)", "F.stack({}, {})", "F.where({0} > 1, {0}, {1})", "{} == {}",
    "F.add_n({0}, F.add_n({1}, {1}), {0})", "F.broadcast_mul({}, {})",
]  # fmt: skip
#: Expressions that read the value of {1}.
READS = [
    "{} * float({}.sum().asscalar())",
    "{0}[int({1}.reshape((-1,)).argmax(axis=0).asscalar()) % len({0})]",
    "F.take({}, F.argmax({}.reshape((1, -1)), axis=1))",
    "{}[F.argmax({}.reshape((1, -1)), axis=1) * 0]",
    "{0}[np.argsort({1}.asnumpy().ravel())[:2] % len({0})]",
    "settle({}) + F.sum({})",
    "F.concat(*[row * 2 for row in {}[0:2]], dim=0) + {}.sum()",
    "{} * (2 if {}.sum() > 0 else 3)",
    "{} + F.array({}.asnumpy()[..., 0]).astype({dtype!r}).sum()",
    "{} * len(str({}.asnumpy().sum() > 0))",
]  # fmt: skip
#: Writes to a new array; {1} is an array to read.
WRITES = [
    "{}[:] = 0.5", "{}[0:1] = 2", "{} += 1", "{} *= {}", "{}[:] = {}", "{0}[-1] = {0}[0]",
    "F.tanh({1}, out={0})", "{}[0:1][:] = 0.5", "{0}.reshape((-1,))[0:1] = 3", "{1}.copyto({0})",
]  # fmt: skip
#: Blocks that samples make, which are not hybridized, of one array or of two of one shape.
MADE = [
    "nn.Activation('softrelu')({})", "nn.ELU(0.3)({})", "nn.Swish()({})", "nn.Dropout(0)({})",
    "nn.Flatten()({})", "nn.GELU()({})", "in_turn(nn.SELU(), nn.Swish())({})",
    "loss.L2Loss()({0}, {0})", "loss.L1Loss(weight=0.3)({}, {})",
    "changed(nn.ELU(0.3), _alpha=abs(s['number']))({})",
]  # fmt: skip
#: Gradients that samples compute for themselves, of an array.
SLOPES = [
    "slope(lambda x: tanh(x) * x, {})", "{0} - 0.1 * slope(lambda x: tanh(x * 2), {0})",
    "slope(lambda x: x * {0}.detach(), {0} * 2)", "slope(lambda x: x[0:1] + tanh(x[-1:]), {})",
]  # fmt: skip
#: Parts of a parameter.
PARTS = [
    "{}.data()[0:1]", "{}.data()[-1]", "{}.data()[0:1][0]", "2 * {}.data()[0]", "{}.data().T",
    "{}.data().reshape((-1,))", "{}.data()[:, 0:1]", "{0}.data()[0] * {0}.data()",
    "{}.data()[0, 1:]", "{}.data().detach()[0]",
    "{0}.data()[0:2].asnumpy().sum() * {0}.data()[0:2]",
]  # fmt: skip
#: State of a program: an expression that reads it, and lines that change it to {}.
STATES = [
    ("net.last", ["net.last = {}"]),
    ("net.memory.last", ["net.memory.last = {}", "net.memory.last = net.last + {}"]),
    ("net.table['h']", ["net.table['h'] = {}", "net.table.update(h={})"]),
    ("net.items[-1]", ["net.items.append({})", "net.items[0] = {}", "net.items[-1] = {}"]),
    ("net.memory.items[0]", ["net.memory.items.insert(0, {})"]),
    ("net.memory.table['h']", ["net.memory.table['h'] = F.tanh({})"]),
    ("F.ones((1, 3), dtype={dtype!r}) * net.count", ["net.count += 1", "net.memory.count = 2"]),
    (
        "F.ones((1, 3), dtype={dtype!r}) * net.memory.count",
        ["net.memory.count += 1", "net.count = int({}.sum().asscalar() > 0)"],
    ),
]


def typed(body):
    """Call operators on an array of another type, or cast one."""
    choose, other = body.choose, [v for v in body.values if v.dtype != body.dtype]
    if not other or choose.count(0, 2) == 0:
        if choose.flag():
            dtype = choose.pick(INTEGERS)
            return body.input((R, 3), choose.pick(["length", "bit"]), 4, dtype)
        dtype = choose.pick(OTHERS)
        text = body.value().name
        as_type = body.front.forms["to integers"] if dtype in INTEGERS else "{}.astype({!r})"
        return body.add(as_type.format(text, dtype))
    v = choose.pick(other[::-1])
    alike = [u.name for u in other if u.shapes == v.shapes and u.dtype == v.dtype]
    choice = choose.count(0, 3)
    if choice == 0:
        return body.add(body.front.forms["cast"].format(v.name, body.dtype))
    if choice == 1:
        return body.add(choose.pick(body.front.pairs).format(v.name, choose.pick(alike)))
    return body.add(choose.pick(body.front.typed).format(v.name))


def made(body):
    """Call a block that each sample makes, with attributes of its own or those of the others."""
    first, second = body.value(), body.value()
    alike = second if second.shapes == first.shapes else first
    return body.add(body.choose.pick(MADE).format(first.name, alike.name))


def slope_text(front, text, name):
    """Return an expression of `SLOPES` of an array as a front end spells it."""
    return text.format(name).replace("tanh(", front.forms["tanh"].split("{")[0])


def descend(body):
    """Compute a gradient within a sample."""
    return body.add(slope_text(body.front, body.choose.pick(SLOPES), body.value().name))


def part(body):
    """Take a part of a parameter."""
    if body.parameters:
        body.add(body.choose.pick(PARTS).format(body.choose.pick(body.parameters)))


def read(body):
    """Go on with what a value says."""
    text = body.choose.pick(body.front.reads)
    return body.add(text.format(body.value().name, body.value().name, dtype=body.dtype))


def attach(body):
    """Attach a gradient between two uses of a new array, a pending result or a part of one."""
    choose, tanh = body.choose, body.front.forms["tanh"]
    twice = f"2 * {body.value().name}"
    copied = body.front.forms["identity"].format(twice)
    text = choose.pick([body.fresh(), twice, f"({twice})[0:1]", copied])
    name = body.add(text)
    if not name:
        return
    if choose.flag():
        body.add(tanh.format(name))
    if body.run(f"late(s, {name}).attach_grad()"):
        uses = [tanh, "{} * {}", "{0}.grad + {0}", "{}[0:1]", "{}.detach() * {}"]
        for _ in range(choose.count(1, 2)):
            body.add(choose.pick(uses).format(name, name))


def write(body):
    """Write in place to an array that is no part of a recorded graph."""
    choose = body.choose
    pause = choose.pick(["with autograd.pause(): ", ""]) if body.inference else ""
    pause = pause if body.inference else "with autograd.pause(): "
    source = body.value().name
    name = body.add(choose.pick([f"2 * {source}", f"{source}.copy()"]), pause + "{} = {}")
    for _ in range(choose.count(1, 2) if name else 0):
        if choose.flag():
            uses = [body.front.forms["tanh"], "{}[0:1]", "{}.copy()"]
            body.add(choose.pick(uses).format(name), pause + "{} = {}")
        body.run(pause + choose.pick(body.front.writes).format(name, source))


def hop(body):
    """Compute something on another device."""
    device = body.choose.pick(["mx.cpu(1)", "mx.cpu(2)"])
    v = body.value()
    to_device = body.front.forms["to device"]
    there = body.add(to_device.format(v.name, device))
    if not there:
        return
    text = there
    for _ in range(body.choose.count(1, 2)):
        text = body.choose.pick(body.front.chains[:16]).format(f"({text})" if "(" in text else text)
    body.hide(there)
    name = body.add(text)
    if name:
        hidden = body.hide(name)
        body.add(to_device.format(body.choose.pick(hidden).name, "mx.Context(*setting.device)"))


def remember(body):
    """Read or change the state that samples share."""
    choose = body.choose
    text, changes = choose.pick(body.front.states)
    if choose.flag():
        return body.add(f"{text.format(dtype=body.dtype)} * 1")
    value = body.front.forms["tanh"].format(body.need((1, WIDTH)))
    return body.run(choose.pick(changes).format(value))
