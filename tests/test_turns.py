"""State that samples of `map` share: values, gradients and the state left behind are the loop's."""

import collections
import functools
import itertools
import linecache
import textwrap
import types

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.reach import Reach
from tests.cells import WIDTH, attached, equal, inputs, ready
from tests.common import FIXED
from tests.strategies import examples
from tests.test_threads import in_threads

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


def check(class_, count=4, **options):
    """Compare a map with the loop; return the report of the scope."""
    wanted = run(class_, count, loop)
    with gdb.batching(**FIXED) as batch:
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
@examples(40)
def test_programs_with_state(body, count, concurrency):
    check(network(body), count, concurrency=concurrency)


# Where state may be, and how it may change


class Counter:
    def __init__(self):
        self.value = 0

    def __call__(self):
        self.value += 1
        return self.value


class Stack(list):
    def push(self, value):
        self.append(value)


class Options(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Model(mx.gluon.Block):
    """Each way to change state is a method; the state decides what a sample returns."""

    shared: dict = {}

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")
        self.memory, self.last, self.n = None, 0, 0
        self.cache, self.queue, self.array = {}, collections.deque([0]), np.zeros(1)
        self.space, self.counter = types.SimpleNamespace(n=0), Counter()
        self.numbers, self.weights = itertools.count(), mx.nd.ones((1, WIDTH))
        self.metric, self.default = mx.metric.Loss(), collections.defaultdict(list)
        self.rows = [[0], [0]]
        self.stack, self.options, self.tally = Stack(), Options(n=0), collections.Counter()
        self.spaces, self.objects = [types.SimpleNamespace(n=0)], {"a": Counter()}

    def read(self, x):
        """Return an array and a number, which is read."""
        y = self.dense(x)
        return y, float(y.sum().asscalar())

    def set_first(self, x):
        self.memory = x
        for _ in range(3):
            self.memory, value = self.read(self.memory)
        return self.memory

    def set_after_a_read(self, x):
        before = self.last
        y, self.last = self.read(x)
        return self.read(y + before)[0]

    def counts(self, x):
        y, _ = self.read(x)
        self.n += 1
        return self.read(y * self.n)[0]

    def counts_sometimes(self, x):
        y, value = self.read(x)
        if value > 0:
            self.n += 1
        return self.read(y + self.n)[0]

    def starts_once(self, x):
        if self.memory is None:
            self.memory = self.read(x)[0]
        return self.read(x + self.memory)[0]

    def remembers(self, x):
        y, value = self.read(x)
        self.cache[round(value)] = y
        return self.read(y * len(self.cache))[0]

    def clears(self, x):
        self.queue.clear()
        y, value = self.read(x)
        self.queue.append(value)
        return self.read(y + len(self.queue) + self.queue[-1])[0]

    def writes_to_an_array(self, x):
        y, value = self.read(x)
        self.array[0] += value
        return self.read(y + float(self.array[0]))[0]

    def adds_to_an_array(self, x):
        y, value = self.read(x)
        self.weights[:] = self.weights + value
        return self.read(y + self.weights)[0]

    def has_a_namespace(self, x):
        y, value = self.read(x)
        self.space.n += value
        return self.read(y + self.space.n)[0]

    def calls_an_object(self, x):
        return self.read(self.read(x)[0] * self.counter())[0]

    def takes_the_next(self, x):
        return self.read(self.read(x)[0] * next(self.numbers))[0]

    def updates_a_metric(self, x):
        y, value = self.read(x)
        self.metric.update(None, [mx.nd.array([value])])
        return self.read(y + self.metric.get()[1])[0]

    def has_an_alias(self, x):
        rows = [row for row in self.rows if row]
        y, value = self.read(x)
        for row in reversed(rows):
            row.append(value)
        return self.read(y + sum(self.rows[1]))[0]

    def has_a_default(self, x):
        y, value = self.read(x)
        self.default["k"].append(value)
        return self.read(y + sum(self.default["k"]))[0]

    def deletes(self, x):
        y, value = self.read(x)
        if hasattr(self, "extra"):
            del self.extra
        else:
            self.extra = value
        return self.read(y + getattr(self, "extra", 2))[0]

    def uses_vars_of_a_child(self, x):
        y, value = self.read(x)
        self.dense.total = getattr(self.dense, "total", 0) + value
        return self.read(y + self.dense.total)[0]

    def has_a_stack(self, x):
        y, value = self.read(x)
        self.stack.push(value)
        return self.read(y + sum(self.stack))[0]

    def has_options(self, x):
        y, value = self.read(x)
        self.options.n += value
        return self.read(y + self.options.n)[0]

    def tallies(self, x):
        y, value = self.read(x)
        self.tally.update([value > 0])
        return self.read(y + self.tally[True])[0]

    def has_a_list_of_namespaces(self, x):
        y, value = self.read(x)
        for space in self.spaces:
            space.n += value
        return self.read(y + self.spaces[0].n)[0]

    def has_objects_in_a_dictionary(self, x):
        y, value = self.read(x)
        self.objects["a"].value += value
        return self.read(y + self.objects["a"].value)[0]

    def sets_an_item_of_a_slice(self, x):
        y, value = self.read(x)
        self.rows[:] = [[value], *self.rows[:1]]
        return self.read(y + self.rows[0][0] + self.rows[1][0])[0]

    def swaps(self, x):
        y, value = self.read(x)
        self.last, value = value, self.last
        return self.read(y + value)[0]

    def changes_its_class(self, x):
        y, value = self.read(x)
        self.shared["n"] = self.shared.get("n", 0) + 1
        return self.read(y * self.shared["n"])[0]


WAYS = [
    name for name, member in vars(Model).items()
    if isinstance(member, types.FunctionType) and name not in ("__init__", "read")
]  # fmt: skip
#: Samples that never wait for a turn: the attribute is set first.
FREE = {"set_first"}


def outcomes(way, apply):
    Model.shared.clear()
    net = ready(gdb.convert(Model()), 1)
    return [y.asnumpy() for y in apply(getattr(net, way), inputs(5))], state_of(net.rows)


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_change_state(way):
    wanted = outcomes(way, lambda fn, samples: list(map(fn, samples)))
    with gdb.batching(**FIXED) as batch:
        got = outcomes(way, batch.map)
    equal(got[0], wanted[0], 1e-4, 1e-5)
    assert_close(got[1], wanted[1])
    assert bool(batch.report.turns) == (way not in FREE)
    code = getattr(Model, way).__code__
    places = [where for _, where in batch.report.turns]
    assert all(where.filename == __file__ for where in places)
    assert way in FREE or any(where.function in (way, "__call__") for where in places)
    if way in FREE:  # all samples run together: a launch for each step and each sum
        assert batch.report.launches == 6 and code.co_name == way


@pytest.mark.parametrize("way", ["counts", "set_after_a_read", "clears"])
def test_all_functions_that_map_samples(way):
    def served(fn, samples):
        with gdb.RequestBatcher(fn, max_batch_size=5, batch_wait_timeout_s=5) as batcher:
            return [f.result() for f in [batcher.submit(x) for x in samples]]

    wanted = outcomes(way, lambda fn, samples: list(map(fn, samples)))[0]
    for apply in (
        gdb.map,
        lambda fn, samples: gdb.map(lambda x: fn(x), samples, concurrency=3),
        lambda fn, samples: gdb.map(functools.partial(fn), samples, **FIXED),
        lambda fn, samples: gdb.map(fn, iter(samples), debug=True),
        lambda fn, samples: list(gdb.imap(fn, samples, batch_size=3)),
        lambda fn, samples: [mx.nd.array(y) for y in served(fn, samples)],
    ):
        equal(outcomes(way, apply)[0], wanted, 1e-4, 1e-5)


def test_the_report_names_the_attribute_and_the_line():
    net = ready(gdb.convert(Model()))
    with gdb.batching(**FIXED) as batch:
        batch.map(net.counts, inputs(4))
    assert batch.report.turns.keys() == {("Model.n", batch.report.turns.most_common(1)[0][0][1])}
    text = str(batch.report)
    assert "3 samples waited for earlier ones, which may change Model.n" in text
    assert f"{__file__}:" in text and "in counts" in text
    assert '"attribute": "Model.n"' in batch.report.to_json()
    assert (
        batch.report.together([batch.report] * 2).turns[
            "Model.n", next(iter(batch.report.turns))[1]
        ]
        == 6
    )


def test_attributes_that_no_sample_changes_are_free():
    """A method that the program does not call may set them, and so may a constructor."""

    class Decoder(Model):
        def __init__(self):
            super().__init__()
            self.width, self.names = 3, {0: "a"}

        def set_width(self, width):
            self.width = width
            self.names.clear()

        def decode(self, x):
            found = []
            for _ in range(self.width):
                x, value = self.read(x)
                found.append(self.names.get(round(value), "b"))
            return found

    net = ready(gdb.convert(Decoder()))
    with gdb.batching(**FIXED) as batch:
        got = batch.map(net.decode, inputs(5))
    assert got == [net.decode(x) for x in inputs(5)]
    assert [flush.waiting for flush in batch.report.flushes] == [5, 5, 5]
    assert not batch.report.turns


def test_objects_of_one_sample_are_free():
    """Each sample changes nodes of its own, of a class that the network has objects of, too."""

    class Node:
        def __init__(self, x):
            self.x, self.h = x, None

    net, nodes = ready(gdb.convert(Model())), [Node(x) for x in inputs(5)]
    net.trees = nodes

    def visit(number):
        node = net.trees[number]
        node.h, value = net.read(node.x)
        node.h = net.read(node.h)[0] * value
        return node.h

    with gdb.batching(**FIXED) as batch:
        got = batch.map(visit, range(5))
    equal(got, [visit(i) for i in range(5)])
    assert not batch.report.turns and batch.report.flushes[0].waiting == 5
    equal([node.h for node in nodes], got)


def test_classes_are_as_before(monkeypatch):
    before = dict(vars(Model)), dict(vars(Counter))

    def fails(net, x):
        net.counts(x)
        raise KeyError

    for way in [*WAYS, fails]:
        net = ready(gdb.convert(Model()))
        fn = functools.partial(fails, net) if way is fails else getattr(net, way)
        gdb.map(fn, inputs(3), on_error="return")
        assert (dict(vars(Model)), dict(vars(Counter))) == before
        if way is fails:
            with pytest.raises(KeyError):
                gdb.map(fn, inputs(3))
        assert (dict(vars(Model)), dict(vars(Counter))) == before


def test_a_class_attribute_that_a_sample_sets_stays():
    class Counting(Model):
        total = 0

        def forward(self, x):
            y, _ = self.read(x)
            Counting.total += 1
            return y

    gdb.map(ready(gdb.convert(Counting())), inputs(3))
    assert Counting.total == 3 and vars(Counting)["total"] == 3


def test_samples_that_fail_leave_their_state():
    def run(apply):
        net = ready(gdb.convert(Model()), 1)

        def fn(number):
            y, _ = net.read(inputs(5)[number])
            net.n += 1
            if number % 2:
                raise KeyError(net.n)
            return net.read(y * net.n)[1]

        return [str(x) if isinstance(x, KeyError) else round(x, 4) for x in apply(fn)], net.n

    def loop(fn):
        for number in range(5):
            try:
                yield fn(number)
            except KeyError as error:
                yield error

    assert run(loop) == run(lambda fn: gdb.map(fn, range(5), on_error="return"))


def test_state_in_many_threads():
    """Networks of one class, each in its own thread, and one without a map."""
    wanted = outcomes("counts", lambda fn, samples: list(map(fn, samples)))[0]

    def work(number):
        net = ready(gdb.convert(Model()), 1)
        got = gdb.map(net.counts, inputs(5)) if number else [net.counts(x) for x in inputs(5)]
        equal(got, wanted, 1e-4, 1e-5)

    in_threads(work, 3)
    assert "n" not in vars(Model)


def test_functions_without_source():
    source = network(["y, self.count = x, self.count + 1", "v = self.dense(x).sum().asscalar()",
                      "x = x + self.items[-1] * self.count", "self.items.append(x)"])  # fmt: skip
    linecache.cache.clear()
    assert check(source).turns


@pytest.mark.parametrize("place", ["block", "object"])
def test_state_that_blocks_traced_once_read(place):
    """A recording of such a block would use the value that is in place when it is looked up."""

    class Adds(gdb.DynamicHybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")
            self.h, self.space = mx.nd.zeros((1, WIDTH)), Slots()
            self.space.h = self.h

        def forward(self, x):
            return self.dense(x) + (self.h if place == "block" else self.space.h)

    class Slots:
        __slots__ = ("h",)

    def run(apply):
        net = Adds()
        ready(net, 1).hybridize(trace_once=True)
        owner = net if place == "block" else net.space

        def fn(x):
            y = net(x)
            if y.sum().asscalar() > -9:
                owner.h = y
            return net(y)

        with gdb.batching(**FIXED):  # makes the recordings
            [net(x) for x in inputs(3)]
        return [y.asnumpy() for y in apply(fn, inputs(4))], net

    wanted, _ = run(lambda fn, samples: list(map(fn, samples)))
    got, net = run(lambda fn, samples: gdb.map(fn, samples, **FIXED))
    equal(got, wanted, 1e-4, 1e-5)
    net.h = net.space.h = mx.nd.zeros((1, WIDTH))
    with gdb.batching(**FIXED) as batch:
        [net(x) for x in inputs(3)]
    assert batch.report.traced.known  # recordings are used again after the map


def test_cells_of_mxnet_that_keep_state():
    zoneout = gdb.convert(rnn.ZoneoutCell(rnn.LSTMCell(3), 0.1, 0.1))
    found = Reach(lambda x: zoneout.unroll(2, x)).attributes()
    assert "_prev_output" in found[type(zoneout)]
    plain = gdb.convert(rnn.LSTMCell(3))
    assert not Reach(lambda x: plain(x, plain.begin_state(1))).attributes()
