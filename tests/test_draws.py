"""Random numbers in scopes: what they depend on, masks of dropout, and their gradients."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import contrib, nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.native import executing
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from tests import inside
from tests.cells import WIDTH, array, attached, cell, equal, ready
from tests.common import FIXED

RATE = 0.4
KEPT = np.float32(1) - np.float32(RATE)


def drop(F, x, **options):
    return F.Dropout(x, p=RATE, **options)


def values(results):
    return [y.asnumpy() for y in results]


def same(runs):
    first = runs[0]
    for run in runs[1:]:
        assert len(run) == len(first)
        assert all(np.array_equal(a, b) for a, b in zip(run, first))


def is_native(batch):
    return "by MXNet" not in str(batch.plan)


class Dropping(gdb.DynamicHybridBlock):
    """A tree over vectors, with dropout of words, inside of its cell, and of its result."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.table = nn.Embedding(5, WIDTH)
            self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")
            self.join = cell(self.add, self.dense)

    def add(self, F, x, y):
        """Return the vector of two trees."""
        return F.tanh(drop(F, x) + drop(F, self.dense(drop(F, y))))

    def forward(self, tree):
        """Return the vector of a number, or of a pair of trees."""
        if not isinstance(tree, tuple):
            return drop(mx.nd, self.table(tree))
        return self.join(*[self(part) for part in tree])


def train(net, trees, seed=5, **options):
    """Return values and gradients, and the scope."""
    mx.random.seed(seed)
    for parameter in net.collect_params().values():
        parameter.zero_grad()
    with autograd.record(), gdb.batching(**options) as batch:
        outputs = [net(tree) for tree in trees]
    autograd.backward(outputs)
    gradients = [p.grad() for p in net.collect_params().values()]
    return values([*outputs, *gradients]), batch


A, B, C = (mx.nd.array([k]) for k in (1, 2, 3))
TREES = [((A, B), (C, (A, B))), (A, A), ((A, A), (A, A)), (((C, B), A), A), (B, (A, C)), (A, A)]


# What draws depend on


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_draws_do_not_depend_on_how_calls_are_batched(granularity):
    """Values are equal to the last digit, as products of any number of rows are here."""
    net, runs, counts = ready(Dropping()), [], set()
    for policy in POLICIES:
        for budget in (0, 10, None):
            for most in (1, 3, None):
                options = {"policy": policy, "analysis_budget": budget, "max_rows": most}
                run, batch = train(net, TREES, granularity=granularity, **options)
                runs.append(run[: len(TREES)])
                counts.add(batch.report.launches)
                assert is_native(batch)
    masks = [[y != 0 for y in run] for run in runs]
    same(masks)
    for run in runs[1:]:
        equal(run, runs[0])
    assert len(counts) > 2


@pytest.fixture
def use_threads():
    yield executing.use_threads
    executing.use_threads(1)


def test_draws_do_not_depend_on_blocks_of_rows_or_threads(use_threads):
    net, x = cell(lambda F, x: drop(F, F.tanh(x))), attached([mx.nd.ones((3000, 200))])[0]
    runs = []
    for threads in (1, 2, 5):
        use_threads(threads)
        mx.random.seed(1)
        with autograd.record(), gdb.batching(**FIXED):
            # Other rows, so that the programs are new.
            y = [net(x), net(mx.nd.ones((threads, 200)))][0]
        y.backward()
        runs.append([y.asnumpy(), x.grad.asnumpy()])
    same(runs)
    assert ((runs[0][0] == 0) == (runs[0][1] == 0)).all()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_seed_repeats_a_run_of_several_scopes_and_flushes(granularity):
    net = ready(Dropping())

    def run(seed):
        mx.random.seed(seed)
        results = []
        with autograd.train_mode():
            for _ in range(2):
                with gdb.batching(granularity=granularity, policy="depth"):
                    for tree in TREES:
                        results += values([net(tree)])  # a flush
        return results

    first, second = run(3), run(3)
    same([first, second])
    assert not np.array_equal(first[0], run(4)[0])
    # Flushes with equal plans draw different numbers.
    assert not np.array_equal(first[: len(TREES)], first[len(TREES) :])


def test_equal_calls_of_equal_arrays_draw_different_numbers():
    """Rows of one table, of which the products would be computed once, and the same array."""
    table = ready(nn.Embedding(3, 256))
    net = ready(gdb.convert(nn.HybridSequential(prefix="net_")))
    net.add(nn.Dropout(RATE), nn.Dense(256, in_units=256))
    net.initialize()
    x = array(1, 256)
    with autograd.train_mode(), gdb.batching(**FIXED) as batch:
        words = [net(table(mx.nd.array([1]))) for _ in range(20)]
        others = [net(x) for _ in range(20)]
        twice = cell(lambda F, x: F.concat(drop(F, x), drop(F, x)))(x)
    assert is_native(batch)
    for results in (words, others, list(twice.reshape((2, -1)))):
        assert len({y.tobytes() for y in values(results)}) == len(results)


def test_calls_of_a_piece_draw_different_numbers():
    net, word = ready(Dropping()), mx.nd.array([1])
    net.hybridize(trace_once=True)
    with autograd.train_mode(), gdb.batching(**FIXED) as batch:
        results = [net((word, (word, word))) for _ in range(10)]
    assert is_native(batch) and batch.report.traced.known >= 7
    assert len({y.tobytes() for y in values(results)}) == 10


def test_samples_that_wait_for_values_draw_different_numbers():
    net = cell(lambda F, x: drop(F, x + 1))

    def sample(x):
        while x.sum().asscalar() < 60:
            x = net(x)
        return x

    def run():
        mx.random.seed(9)
        with autograd.train_mode(), gdb.batching(**FIXED):
            return values(gdb.map(sample, [mx.nd.ones((1, 16))] * 8))

    first = run()
    same([first, run()])
    assert len({y.tobytes() for y in first}) == 8


# Masks and gradients


def masks_of(results):
    """Return masks from arrays whose other elements are not zero."""
    return [(y != 0) / KEPT for y in values(results)]


PROGRAMS = {
    "plain": (lambda F, x: x, {}, (2, 8)),
    "channels": (lambda F, x: x, {"axes": (2,)}, (2, 4, 3)),
    "one for each row": (lambda F, x: x, {"axes": (1,)}, (2, 8)),
    "one for all rows": (lambda F, x: x, {"axes": (0,)}, (2, 8)),
    "one": (lambda F, x: x, {"axes": (0, 1)}, (2, 8)),
    "reduced": (lambda F, x: F.softmax(x), {}, (2, 40)),
    "always": (lambda F, x: x, {"mode": "always"}, (1, 600)),
    "a part": (lambda F, x: F.slice_axis(x, axis=1, begin=1, end=9), {}, (2, 12)),
    "one element": (lambda F, x: F.sum(x, axis=1, keepdims=True), {}, (3, 5)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("before, options, shape", PROGRAMS.values(), ids=PROGRAMS)
def test_gradients_are_those_of_the_loop_with_the_same_masks(
    before, options, shape, granularity, dtype
):
    """The cell also returns what it drops, which gives the mask that the loop multiplies with."""

    def dropping(F, x, w):
        y = drop(F, before(F, F.broadcast_mul(x, w)) + 3, **options)
        return F.tanh(y) * y, y

    def masking(F, x, w, mask):
        y = (before(F, F.broadcast_mul(x, w)) + 3) * mask
        return F.tanh(y) * y, y

    samples = attached([array(*shape, seed=k, dtype=dtype) for k in range(5)])
    weight = attached([array(*(1,) * (len(shape) - 1), shape[-1], dtype=dtype)])[0]
    net, twin = cell(dropping), cell(masking)
    with autograd.record(), gdb.batching(granularity=granularity, policy="depth") as batch:
        results = [net(x * 1, weight) for x in samples]
    assert is_native(batch)
    results = [list(result) for result in results]
    autograd.backward(sum(results, []))
    got = [*samples, weight], [x.grad.asnumpy() for x in [*samples, weight]]
    masks = [mx.nd.array(mask, dtype=dtype) for mask in masks_of(y for _, y in results)]
    with autograd.record():
        wanted = [list(twin(x, weight, mask)) for x, mask in zip(samples, masks)]
    autograd.backward(sum(wanted, []))
    # Masks are numbers in single precision.
    tolerance = (1e-5, 1e-5) if dtype == "float32" else (1e-6, 1e-7)
    equal(sum(results, []), sum(wanted, []), *tolerance)
    equal(got[1], [x.grad for x in got[0]], *tolerance)
    # Elements along these axes have one mask.
    for mask in values(masks):
        for axis in options.get("axes", ()):
            assert (mask == mask.take([0], axis)).all()


def test_a_retained_graph_has_the_same_masks_again():
    net, x = cell(lambda F, x: drop(F, F.square(x))), attached([mx.nd.ones((4, 50))])[0]
    with autograd.record(), gdb.batching(**FIXED):
        y = net(net(x))
    y.backward(retain_graph=True)
    first = x.grad.asnumpy()
    with autograd.train_mode(), gdb.batching(**FIXED):
        net(net(x)).asnumpy()  # the same program with another key
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), first)
    assert (first != 0).any()


def test_a_rate_of_one_is_left_to_mxnet():
    """It multiplies with zero times infinity."""
    with autograd.train_mode(), gdb.batching(**FIXED) as batch:
        y = cell(lambda F, x: F.Dropout(x, p=1))(mx.nd.ones((1, 4)))
    assert "it keeps no element" in str(batch.plan)
    assert y.shape == (1, 4)


WRONG = {
    "deviation": lambda x: mx.nd.random.normal_like(x, scale=-1.5),
    "no deviation": lambda x: mx.nd.random.normal_like(x, scale=0),
    "bounds": lambda x: mx.nd.random.uniform_like(x, 2, 1),
    "rate": lambda x: mx.nd.random.exponential_like(x, lam=0),
}


@pytest.mark.parametrize("draw", WRONG.values(), ids=WRONG)
def test_wrong_parameters_are_left_to_mxnet(draw):
    """It raises for them."""
    with gdb.batching(granularity="operator"):
        results = [draw(mx.nd.ones((1, 3)) * k) for k in (1, 2)]
    with pytest.raises(mx.MXNetError, match="Check failed"):
        values(results)


def test_without_training_nothing_is_drawn():
    mx.random.seed(1)
    wanted = mx.nd.random.uniform(shape=(3,)).asnumpy()
    mx.random.seed(1)
    with autograd.predict_mode(), gdb.batching(**FIXED) as batch:
        y = cell(drop)(mx.nd.ones((1, 4)))
    np.testing.assert_array_equal(y.asnumpy(), np.ones((1, 4)))
    assert is_native(batch)
    np.testing.assert_array_equal(mx.nd.random.uniform(shape=(3,)).asnumpy(), wanted)


def test_a_mode_that_always_drops_draws_for_each_call():
    """In prediction mode, too, and from one array; ``debug=True`` does not compare the masks."""
    net, x = cell(lambda F, x: drop(F, x, mode="always")), array(1, 64)
    with gdb.batching(**FIXED, debug=True):
        results = [net(x) for _ in range(5)]
    assert len({y.tobytes() for y in values(results)}) == 5


def test_debug_compares_dropout_in_prediction_mode(monkeypatch):
    """With a rule that makes launches draw numbers in each mode."""
    inside.with_wrong_rule(monkeypatch, "Dropout", {"mode": "always"})
    for mode, error in [("train", nullcontext()), ("predict", pytest.raises(gdb.MismatchError))]:
        with getattr(autograd, f"{mode}_mode")(), error, gdb.batching(**FIXED, debug=True):
            cell(drop)(array(1, 64)).asnumpy()


# Cells and layers


def lstm(**kwargs):
    return rnn.LSTMCell(8, input_size=8, **kwargs)


def stacked(*cells):
    stack = rnn.HybridSequentialRNNCell()
    for each in cells:
        stack.add(each)
    return stack


CELLS = {
    "DropoutCell": lambda: stacked(lstm(), rnn.DropoutCell(RATE), lstm()),
    "ZoneoutCell": lambda: rnn.ZoneoutCell(lstm(), RATE, RATE),
    "VariationalDropoutCell": lambda: contrib.rnn.VariationalDropoutCell(lstm(), RATE, RATE, RATE),
}


@pytest.mark.parametrize("make", CELLS.values(), ids=CELLS)
def test_recurrent_cells(make):
    """All launches are native, and the masks are those of the seed."""
    net = make()
    net.initialize()
    sequences = attached([array(1, n, 8, seed=n) for n in (2, 4, 5, 5)])

    def run(seed):
        mx.random.seed(seed)
        with autograd.record(), gdb.batching(granularity="operator", policy="depth") as batch:
            outputs = []
            for x in sequences:
                net.reset()
                outputs.append(net.unroll(x.shape[1], x * 1, merge_outputs=True)[0])
        autograd.backward(outputs)
        assert is_native(batch), batch.plan
        assert batch.report.launches < batch.report.nodes
        return values([*outputs, *(x.grad for x in sequences)])

    first = run(1)
    same([first, run(1)])
    assert not np.array_equal(first[0], run(2)[0])
    assert all(np.isfinite(a).all() and a.any() for a in first)


def test_zoneout_keeps_old_states():
    """Each element of a state is the new one or the old one."""
    net = rnn.ZoneoutCell(rnn.RNNCell(50, input_size=50), zoneout_states=RATE)
    net.initialize()
    states = [array(1, 50, seed=k) for k in range(30)]
    with autograd.train_mode(), gdb.batching(**FIXED) as batch:
        results = [net(x * 1, [x])[1][0] for x in states]
    assert is_native(batch)
    new = [net.base_cell(x, [x])[1][0] for x in states]
    changed = []
    for before, after, y in zip(*map(values, (states, new, results))):
        is_old, is_new = y == before, np.isclose(y, after, 1e-4, 1e-5)
        assert (is_old | is_new).all()
        changed.append(is_new)
    # A mask is zero at the rate of zoneout, where the old state stays.
    assert abs(np.mean(changed) - KEPT) < 4 * np.sqrt(RATE * KEPT / np.size(changed))


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_a_cell_with_dropout_is_one_launch(granularity):
    body = ready(nn.Dense(WIDTH, in_units=WIDTH, activation="tanh"))
    nets = [
        cell(lambda F, x: body(x), body), cell(lambda F, x: drop(F, body(drop(F, x))), body)
    ]  # fmt: skip
    counts = []
    for net in nets:
        with autograd.record(), gdb.batching(granularity=granularity, policy="depth") as batch:
            for length in (1, 2, 3):
                x = array(1, WIDTH, seed=length)
                for _ in range(length):
                    x = net(x)
        counts.append(batch.report.launches)
    assert counts == [3, 3]


@pytest.mark.parametrize("sizes", [(1, 2, 3), (4, 4, 4)])
def test_arrays_of_several_sizes_share_a_launch(sizes):
    net = cell(lambda F, x: drop(F, F.softmax(x + 1, axis=0)))
    samples = attached([array(n, 6, seed=n) for n in sizes])
    runs = []
    for budget in (0, None):
        mx.random.seed(2)
        options = {**FIXED, "analysis_budget": budget}
        with autograd.record(), gdb.batching(**options) as batch:
            outputs = [net(x) for x in samples]
        autograd.backward(outputs)
        assert is_native(batch)
        runs.append(values([*outputs, *(x.grad for x in samples)]))
    same(runs)
    assert batch.report.launches == 1


def test_threads_have_seeds_of_their_own():
    """As for MXNet's operators: each thread draws from a state of its own."""
    net = cell(drop)

    def run(seed):
        mx.random.seed(seed)
        with autograd.train_mode(), gdb.batching(**FIXED):
            return values(net(mx.nd.ones((1, 64))) for _ in range(4))

    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(run, range(6)))
    same([sum(runs, []), sum(map(run, range(6)), [])])
    assert len({y.tobytes() for y in sum(runs, [])}) == 24
