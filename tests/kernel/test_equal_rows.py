"""Rows that equal indices select from a table are computed once."""

import contextlib

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.kernel.layout import Columns, Slot, Weight
from gluon_dynbatch.kernel.step import Product
from gluon_dynbatch.native import executing
from gluon_dynbatch.testing import check_against_loop
from tests import inside
from tests.cells import array, attached, ready
from tests.depth import examples
from tests.kernel.native import launch

#: So wide that a product takes longer than copies of its rows.
UNITS = 256


class Words(gdb.DynamicHybridBlock):
    """Scores words, and arrays that replace embeddings."""

    def __init__(self, dtype="float32", tables=1):
        super().__init__()
        with self.name_scope():
            self.tables = [nn.Embedding(9, UNITS, dtype=dtype) for _ in range(tables)]
            for table in self.tables:
                self.register_child(table)
            self.score = nn.Dense(UNITS, in_units=UNITS, activation="tanh", dtype=dtype)

    def forward(self, words, *more):
        rows = [table(words) for table in self.tables]
        total = sum(self.score(row[i : i + 1]) for row in rows for i in range(len(row)))
        return total + sum(self.score(x) for x in more) if more else total


@pytest.fixture
def programs(monkeypatch):
    """Return a list that collects what programs do with equal rows."""
    return inside.equal_rows_of_programs(monkeypatch)


def keys_in(programs):
    """Return the keys of rows, for each forward launch that computes equal rows once."""
    return [keys for program in programs for keys in program.keys]


def sentences(seed, index_dtype="int32", dtype="float32", count=5):
    rng = np.random.RandomState(seed)
    lengths = rng.randint(1, 9, count)
    words = [mx.nd.array(rng.randint(0, 9, n), dtype=index_dtype) for n in lengths]
    replacements = attached([array(1, UNITS, seed=k, dtype=dtype) for k in range(2)])
    return [(w, *replacements[: k % 3]) for k, w in enumerate(words)]


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("index_dtype", ["int32", "int64", "float32"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_equal_the_loop(programs, dtype, index_dtype, tables):
    net = ready(Words(dtype, tables), 0.05)
    tolerance = (1e-5, 1e-5) if dtype == "float32" else (1e-12, 1e-12)
    samples = sentences(3, index_dtype, dtype)
    check_against_loop(lambda s: net(*s), samples, net.collect_params(), tolerance)
    keys = keys_in(programs)
    embedded = np.concatenate([rows[rows[:, 0] >= 0] for rows in keys])
    assert len(set(embedded[:, 0])) == tables, "rows of two tables have different keys"
    assert set(embedded[:, 4]) == {np.dtype(index_dtype).itemsize}
    words = tables * sum(len(words) for words, *_ in samples)
    assert embedded[:, 3].sum() % words == 0, "a row was not recognised"
    assert any((rows[:, 0] < 0).any() for rows in keys), "no array replaces an embedding"
    backward = [program for program in programs if not program.forward]
    assert any(x.launches for x in backward), "no gradients of equal rows were added up"


class Held(gdb.DynamicHybridBlock):
    """Scores words that it looks up; something else may read what was looked up, too."""

    def __init__(self, reader, rows=9):
        super().__init__()
        self.reader, self.kept = reader, []
        with self.name_scope():
            self.table = nn.Embedding(rows, UNITS)
            self.score = nn.Dense(UNITS, in_units=UNITS, activation="tanh")

    def forward(self, words):
        rows = self.table(words)
        total = sum(self.score(rows[i : i + 1]) for i in range(len(rows)))
        if self.reader == "launch":
            total = total + rows.max(axis=0, keepdims=True)
        if self.reader == "user":
            self.kept.append(rows)
        return [total, rows] if self.reader == "result" else total


READERS = [None, "launch", "user", "result"]
WORDS = st.lists(st.lists(st.integers(-2, 11), min_size=1, max_size=9), min_size=1, max_size=6)


@examples(10)
@given(st.data(), WORDS, st.sampled_from(["int32", "int64", "float32"]), st.booleans())
def test_distinct_rows_are_looked_up_by_the_launch_that_needs_them(data, lists, dtype, debug):
    """Whoever else reads the rows of the table, and in whatever order programs are reused."""
    net = ready(Held(None), 0.05)
    samples = [mx.nd.array(numbers, dtype=dtype) for numbers in lists]
    for reader in data.draw(st.lists(st.sampled_from(READERS), min_size=1, max_size=3)):
        net.reader = reader
        net.table.weight.grad_req = data.draw(st.sampled_from(["write", "null"]))
        del net.kept[:]
        check_against_loop(net, samples, net.collect_params(), (1e-5, 1e-5), debug=debug)
        for rows, words in zip(net.kept[-len(samples) :], samples):
            np.testing.assert_array_equal(rows.asnumpy(), net.table(words).asnumpy())
        with gdb.batching():
            results = [net(words) for words in samples]
        for result, words in zip(results, samples):
            wanted = net(words)
            for got, expected in zip(*(x if reader == "result" else [x] for x in (result, wanted))):
                np.testing.assert_allclose(got.asnumpy(), expected.asnumpy(), 1e-5, 1e-5)


@pytest.mark.parametrize("reader", READERS)
def test_rows_are_gathered_only_if_something_reads_them(programs, reader):
    net, samples = ready(Held(reader), 0.05), [words for words, *_ in sentences(5)]
    with gdb.batching(granularity="operator", policy="depth"):
        results = [net(words) for words in samples]
    (forward,) = programs
    assert forward.looked_up == 1
    assert forward.not_gathered == (reader is None)
    del results


class Checked(mx.gluon.HybridBlock):
    """Looks up rows by indices that have to fit."""

    def __init__(self, rows):
        super().__init__()
        with self.name_scope():
            self.table = self.params.get("table", shape=(rows, UNITS))

    def hybrid_forward(self, F, words, table):
        return F.take(table, words, mode="raise")


@pytest.mark.parametrize("rows", [9, 4])
def test_indices_that_nobody_reads_have_to_fit(programs, rows):
    net, checked = ready(Held(None), 0.05), ready(Checked(rows))
    samples = [words for words, *_ in sentences(5)]

    def score(words):
        checked(words)
        return net(words)

    fails = rows < 9
    with pytest.raises(mx.MXNetError, match="bound") if fails else contextlib.nullcontext():
        with gdb.batching(granularity="operator", policy="depth"):
            results = [score(words) for words in samples]
        results[0].asnumpy()
        mx.nd.waitall()
    (forward,) = programs
    assert forward.not_gathered == 1


class Join(mx.gluon.HybridBlock):
    """Reads a word's state next to an array that differs from word to word."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        with self.name_scope():
            self.first = nn.Dense(UNITS, in_units=UNITS, use_bias=kind != "plain")
            if kind in ("two products", "product of the other"):
                self.second = nn.Dense(UNITS, in_units=UNITS)

    def hybrid_forward(self, F, state, x):
        total = F.sigmoid(self.first(state) + x)
        if self.kind == "two products":
            total = total * F.tanh(self.second(state) - x)
        elif self.kind == "read again":
            total = total * state
        elif self.kind == "product of the other":
            total = F.tanh(self.first(state) + self.second(x))
        return total * x


class Leaves(gdb.DynamicHybridBlock):
    """Joins the state of each word, of which equal words have the same, with an array."""

    def __init__(self, kind, depth):
        super().__init__()
        with self.name_scope():
            self.table = nn.Embedding(9, UNITS)
            self.layers = [nn.Dense(UNITS, in_units=UNITS, activation="tanh") for _ in range(depth)]
            for layer in self.layers:
                self.register_child(layer)
            self.join = Join(kind)

    def forward(self, words, arrays):
        state = self.table(words)
        for layer in self.layers:
            state = layer(state)
        joined = [self.join(state[i : i + 1], x) for i, x in enumerate(arrays)]
        return mx.nd.add_n(*joined)


JOINS = ["plain", "bias", "two products", "read again", "product of the other"]


@examples(15)
@given(st.data(), WORDS, st.sampled_from(JOINS), st.integers(1, 2))
def test_products_of_equal_states_are_computed_once(data, lists, kind, depth):
    """Whichever parameters are trained, and whether the arrays get gradients."""
    net = ready(Leaves(kind, depth), 0.05)
    samples = [
        (mx.nd.array(words), [array(1, UNITS, seed=k + 10 * n) for k in range(len(words))])
        for n, words in enumerate(lists)
    ]
    if data.draw(st.booleans()):
        attached([x for _, arrays in samples for x in arrays])
    # Of a layer with a frozen weight, MXNet leaves out the gradient of the bias.
    for block in (net.table, *net.layers[:-1], net.join):
        grad_req = data.draw(st.sampled_from(["write", "write", "null"]))
        block.collect_params().setattr("grad_req", grad_req)
    options = data.draw(st.sampled_from([{}, {"debug": True}, {"granularity": "block"}]))
    check_against_loop(lambda s: net(*s), samples, net.collect_params(), (1e-5, 1e-5), **options)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("kind", JOINS)
def test_which_products_are_computed_once(programs, kind, trained):
    net = ready(Leaves(kind, 2), 0.05)
    words = [words for words, *_ in sentences(5)]
    recording = mx.autograd.record() if trained else contextlib.nullcontext()
    with recording, gdb.batching(granularity="operator", policy="depth"):
        losses = [net(x, [array(1, UNITS, seed=k) for k in range(len(x))]) for x in words]
    forward = programs[0]
    assert forward.launches == 2, "the states of the second layer are those of equal words"
    # Backward, other contributions to the gradient of the state are not linear in that.
    others = ["read again"] + ["two products"] * trained
    assert forward.products == (kind not in others)
    del losses


def test_a_table_may_change_before_the_backward_pass():
    """The gradient of a weight is that of the rows as they were."""
    net, samples = ready(Held(None), 0.05), [words for words, *_ in sentences(6)]
    gradients = []
    for scope in (contextlib.nullcontext, gdb.batching):
        net.table.weight.set_data(mx.nd.arange(9 * UNITS).reshape((9, UNITS)) / 900)
        with mx.autograd.record(), scope():
            losses = [net(words) for words in samples]
        mx.nd.waitall()
        net.table.weight.data()[:] = 7
        mx.autograd.backward(losses)
        gradients.append(net.score.weight.grad().asnumpy())
    np.testing.assert_allclose(*gradients, 1e-5, 1e-5)


def test_rows_of_earlier_flushes_count_as_distinct(programs):
    """Half of the embeddings are kept from an earlier flush, and read in place."""
    net, samples = ready(Words(), 0.05), [words for words, *_ in sentences(4)]
    with gdb.batching() as batch:
        rows = [net.tables[0](words) for words in samples]
        batch.flush()
        more = [net.tables[0](words) for words in samples]
        results = [net.score(row[:1]) for row in (*rows, *more)]
    for result, words in zip(results, samples * 2):
        wanted = net.score(net.tables[0](words)[:1])
        np.testing.assert_allclose(result.asnumpy(), wanted.asnumpy(), 1e-5, 1e-6)
    (keys,) = keys_in(programs)
    embedded = keys[:, 0] >= 0
    # A piece with rows of both flushes counts as one of earlier rows.
    assert 1 < keys[embedded, 3].sum() <= len(samples) <= keys[~embedded, 3].sum()


WEIGHT = Weight(Columns(Slot("param", 0)), 3, 3, transposed=True)
LEFT, OUT = Columns(Slot("in", 0)), Columns(Slot("out", 0))
PRODUCT = Product(LEFT, WEIGHT, OUT, None, False, 1, "float32")
KEYS = st.lists(st.tuples(st.integers(-1, 1), st.lists(st.integers(0, 5), max_size=9)), max_size=4)


@given(KEYS, st.sampled_from(["int32", "int64", "float32"]), st.booleans())
def test_equal_rows_are_computed_once_unless_they_are_few(keys, index_dtype, backward):
    """The input rows all differ, so the results show which rows were computed."""
    ids = [
        (t, n) if t >= 0 else (t, k, i)
        for k, (t, numbers) in enumerate(keys)
        for i, n in enumerate(numbers)
    ]
    rows = np.arange(3 * len(ids), dtype=np.float32).reshape(-1, 3)
    arrays = {
        Slot("in", 0): rows,
        Slot("param", 0): np.eye(3, dtype=np.float32).ravel(),
        Slot("out", 0): np.full_like(rows, np.nan),
    }
    typed_keys = [(table, np.array(numbers, dtype=index_dtype)) for table, numbers in keys]
    equal = (executing.TOTAL, executing.SINGLE) if backward else (executing.PICK, executing.REPEAT)
    launch([PRODUCT], arrays, len(ids), keys=typed_keys, equal=equal)
    if 4 * len(set(ids)) > 3 * len(ids):
        wanted = rows
    elif backward:
        equal_rows = [[i for i, other in enumerate(ids) if other == row_id] for row_id in ids]
        wanted = [rows[i].sum(axis=0) * (i[0] == k) for k, i in enumerate(equal_rows)]
    else:
        wanted = [rows[ids.index(row_id)] for row_id in ids]
    np.testing.assert_array_equal(arrays[Slot("out", 0)], np.reshape(wanted, rows.shape))


def test_indices_of_two_types_with_equal_bits_are_told_apart():
    """The bits of 1.0 are also an integer, which is clipped to the last row."""
    net = ready(Words(), 0.05)
    bits = int(np.float32(1).view(np.int32))
    samples = [mx.nd.array([1, 1, 1], dtype="float32"), mx.nd.array([bits] * 3, dtype="int32")] * 4
    check_against_loop(net, samples, net.collect_params(), (1e-5, 1e-5))
    with gdb.batching(granularity="operator", policy="depth") as batch:
        one, other = [net.score(net.tables[0](words)) for words in samples[:2]]
    assert batch.report.launches == 3, "the products share a launch"
    assert not np.allclose(one.asnumpy(), other.asnumpy())
