"""State that samples of `map` share: values, gradients and the state left behind are the loop's."""

import itertools
import linecache
import textwrap

import mxnet as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import WIDTH, attached, equal, inputs, ready
from tests.common import FIXED
from tests.depth import examples

#: A network that keeps state in all kinds of places; ``{body}`` is a random program.
SOURCE = """
class Notes:
    def __init__(self, x):
        self.h, self.rows, self.total = x, [x, x], 0

    def add(self, x):
        self.total = self.total + 1
        self.rows.append(x)


class Slots:
    __slots__ = ("h",)


class Child(mx.gluon.Block):
    def __init__(self, x):
        super().__init__()
        self.h, self.seen = x, []

    def forward(self, x):
        y, self.h = self.h, x
        return x + y

    def reset(self, x):
        self.h = x


def helper(block, x):
    block.outside = x


class Net(mx.gluon.Block):
    mode = 0

    def __init__(self):
        super().__init__()
        x = mx.nd.ones((1, WIDTH))
        self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")
        self.child = Child(x)
        self.h, self.count, self.items, self.cache, self.table = x, 0, [x], {{"a": x}}, x.copy()
        self.notes, self.slots, self.states = Notes(x), Slots(), {{"rows": [x, x]}}
        self.slots.h = x
        self.parts = [Child(x), Child(x)]
        for part in self.parts:
            self.register_child(part)

    def step(self, x):
        self.count += 1
        y = self.dense(x + self.h)
        if y.sum().asscalar() > 0:
            self.h = y
        return y

    def run(self, number, x):
{body}
        return x
"""
#: Statements; they may read ``x``, the number of the sample and ``v``, a computed value.
STATEMENTS = """
x = self.dense(x)
v = float(x.sum().asscalar())
v = float(x.max().asscalar())
self.h = x
x = self.dense(x + self.h)
self.h = self.dense(self.h); x = x + self.h
self.count += 1
x = self.dense(x * (1 + 0.1 * self.count))
self.mode = 1 - self.mode
x = x * (1 + self.mode)
self.items.append(x)
self.items[-1] = x
self.items = [x]
self.items.clear(); self.items.append(x)
self.items += [x]
x = self.dense(x + self.items[-1] * len(self.items))
self.cache["a"] = x
self.cache = {"a": x}
self.cache[number % 2] = x
x = self.dense(x + self.cache.get(number % 2, self.cache["a"]))
known = self.cache; known["a"] = x
self.notes.h = x
x = self.dense(x - self.notes.h)
self.notes.add(x)
x = x * (1 + 0.1 * self.notes.total) + self.notes.rows[-1]
for row in [self.notes.rows, self.items]: row.append(x)
self.states["rows"][0] = x
x = self.dense(x - self.states["rows"][0])
self.slots.h = x
x = self.dense(x + self.slots.h)
x = self.child(x)
self.child.reset(x)
self.child.h = x * 2
self.child.seen.append(number)
x = x * (1 + 0.01 * len(self.child.seen))
for child in self.parts: x = self.dense(child(x))
setattr(self, "extra", x)
x = x + getattr(self, "extra", 0)
if hasattr(self, "extra"): del self.extra
helper(self, x)
x = self.dense(x + getattr(self, "outside", 1))
x = self.step(x)
x = gdb.map(self.step, [x, x * 2])[1]
x = sum(gdb.map(lambda y: self.step(y) + self.notes.h, [x, x * 2]))
self.table = self.table + x; x = self.dense(self.table)
""".strip().splitlines()

NUMBERS = itertools.count()


def lines(draw, depth=0):
    statements = draw(st.lists(st.sampled_from(STATEMENTS), min_size=2, max_size=7 - 2 * depth))
    for statement in statements:
        yield statement
        if depth < 2 and draw(st.integers(0, 5)) == 0:
            yield draw(st.sampled_from(["if v > 0:", "for _ in range(2):", "if number % 2:"]))
            yield from (f"    {line}" for line in lines(draw, depth + 1))


@st.composite
def programs(draw):
    return ["v = 0.0", *lines(draw)]


def network(body):
    """Return the class of a network that runs these lines for a sample."""
    source = SOURCE.format(body=textwrap.indent("\n".join(body), " " * 8))
    name = f"<program {next(NUMBERS)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    namespace = {"mx": mx, "nn": nn, "gdb": gdb, "WIDTH": WIDTH}
    exec(compile(source, name, "exec"), namespace)
    return namespace["Net"]


def state_of(value):
    """Return the state that is left in an object, as arrays and numbers."""
    if isinstance(value, mx.nd.NDArray):
        return value.asnumpy().round(3).tolist()
    if isinstance(value, dict):
        return {key: state_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [state_of(item) for item in value]
    if isinstance(value, nn.Dense):
        return None
    if hasattr(value, "__slots__") and not hasattr(value, "__dict__"):
        return {name: state_of(getattr(value, name, None)) for name in value.__slots__}
    if hasattr(value, "__dict__"):
        fields = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        return state_of({**fields, **dict(getattr(value, "_children", {}))})
    return value


def run(class_, count, mapper):
    """Run the samples; return results, gradients and the state that is left, and the network."""
    net = ready(gdb.convert(class_()), 1)
    samples = attached(inputs(count))
    with mx.autograd.record():
        results = mapper(net.run, list(enumerate(samples)))
        losses = [result.sum() for result in results]
    mx.autograd.backward(losses)
    arrays = [*samples, *(p.data() for p in net.collect_params().values())]
    return results, [array.grad for array in arrays], state_of(net)


def loop(fn, samples):
    return [fn(*sample) for sample in samples]


def check(class_, count=4, debug=False, **options):
    """Compare a map with the loop; return the report of the scope."""
    wanted = run(class_, count, loop)
    with gdb.batching(**FIXED, debug=debug) as batch:
        got = run(class_, count, lambda fn, samples: batch.map(fn, samples, **options))
    for wanted_part, got_part in zip(wanted[:2], got[:2]):
        equal(got_part, wanted_part, 1e-3, 1e-4)
    assert_close(got[2], wanted[2])
    return batch.report


def assert_close(got, wanted):
    """Compare nested states."""
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        got, wanted = list(got.values()), list(wanted.values())
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted):
            assert_close(a, b)
    elif isinstance(wanted, float):
        np.testing.assert_allclose(got, wanted, 1e-2, 1e-2)
    else:
        assert got == wanted


@given(body=programs(), count=st.integers(2, 4), concurrency=st.sampled_from([None, None, 2]))
@examples(20)
def test_programs_with_state_equal_the_loop(body, count, concurrency):
    check(network(body), count, concurrency=concurrency)


@given(body=programs(), count=st.integers(2, 3))
@examples(6)
def test_debug_raises_no_false_alarm(body, count):
    """And changes the state and the gradients once."""
    check(network(body), count, debug=True)
