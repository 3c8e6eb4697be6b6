"""Where samples of `map` may keep state, how they may change it, and what waits for what."""

import functools
import linecache
import types

import mxnet as mx
import pytest
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.samples.reach import ProgramReach
from tests import stateful
from tests.cells import WIDTH, equal, inputs, ready
from tests.common import FIXED
from tests.stateful import Counter, Model
from tests.test_threads import in_threads
from tests.test_turns import assert_close, check, network, state_of

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
def test_all_ways_to_change_state_equal_the_loop(way):
    wanted = outcomes(way, lambda fn, samples: list(map(fn, samples)))
    with gdb.batching(**FIXED) as batch:
        got = outcomes(way, batch.map)
    equal(got[0], wanted[0], 1e-4, 1e-5)
    assert_close(got[1], wanted[1])
    turns = batch.report.found_of("turn")
    assert bool(turns) == (way not in FREE)
    code = getattr(Model, way).__code__
    places = [found.where for found in turns]
    assert all(where.filename == stateful.__file__ for where in places)
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
    (found,) = batch.report.found_of("turn")
    assert (found.name, found.calls, found.where.function) == ("Model.n", 3, "counts")
    assert found.where.filename == stateful.__file__
    assert f"in turn     3 x Model.n at {found.where}\n" in str(batch.report)
    assert '"name": "Model.n"' in batch.report.to_json()
    (twice,) = batch.report.together([batch.report] * 2).found_of("turn")
    assert twice.calls == 6


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
    assert not batch.report.found_of("turn")


def test_methods_of_the_same_name_are_told_apart():
    """The program adds to sets and lists of its own, and a vocabulary has a method of this name."""

    class Vocabulary:
        def __init__(self):
            self.words = {0: "a"}

        def add(self, word):
            self.words[len(self.words)] = word

        def __setitem__(self, index, word):
            self.words[index] = word

        def __getitem__(self, index):
            return self.words.get(index, "b")

    class Reader(mx.gluon.Block):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")
            self.vocabulary = Vocabulary()

    net = ready(gdb.convert(Reader()))

    def decode(x):
        seen, found = set(), [None] * 3
        for number in range(3):
            x = net.dense(x)
            value = float(x.sum().asscalar())
            seen.add(round(value))
            found[number] = net.vocabulary[len(seen)]
        return found

    with gdb.batching(**FIXED) as batch:
        got = batch.map(decode, inputs(5))
    assert got == [decode(x) for x in inputs(5)]
    assert not batch.report.found_of("turn")


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
    assert not batch.report.found_of("turn") and batch.report.flushes[0].waiting == 5
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
    assert check(source).found_of("turn")


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
    found = ProgramReach(lambda x: zoneout.unroll(2, x)).attributes()
    assert "_prev_output" in found[type(zoneout)]
    plain = gdb.convert(rnn.LSTMCell(3))
    assert not ProgramReach(lambda x: plain(x, plain.begin_state(1))).attributes()


def test_functions_that_mxnet_generates_change_no_state():
    """They set an attribute ``value`` of objects of MXNet; their code has no file."""
    net = ready(gdb.convert(nn.Dense(WIDTH, in_units=WIDTH)), 1)
    assert not ProgramReach(lambda x: mx.nd.split(mx.nd.stack(net(x), x), 2)).attributes()


def test_recordings_are_used_while_samples_wait():
    class Joins(gdb.DynamicHybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")

        def forward(self, x):
            return self.dense(mx.nd.concat(x, self.dense(x), dim=0))

    net = ready(Joins(), 1)
    net.hybridize(trace_once=True)

    def fn(x):
        for _ in range(3):
            if net(x).sum().asscalar() > 0:
                break
            x = mx.nd.concat(x, x, dim=0)
        return net(x)

    wanted = [fn(x).asnumpy() for x in inputs(5)]
    with gdb.batching(**FIXED) as batch:
        got = [y.asnumpy() for y in batch.map(fn, inputs(5))]
    equal(got, wanted, 1e-4, 1e-5)
    assert batch.report.traced.known >= 5 > batch.report.traced.new
