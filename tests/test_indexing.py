"""Arrays are chosen by index arrays in a scope as without one, and this reads no value."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.native import executing
from tests import inside
from tests.cells import cell, equal
from tests.common import FIXED, loop_and_scope, semantics
from tests.depth import examples

pytestmark = pytest.mark.filterwarnings("ignore:.*has been renamed:DeprecationWarning")
twice = cell(lambda F, x: x * 2)


def outcome(arrays, choose, **options):
    """Return values and gradients of `choose` for the doubles of some arrays, and the scope."""
    for x in arrays:
        x.attach_grad()
    with autograd.record():
        if options:
            with gdb.batching(**options) as batch:
                results = [choose(k, twice(x)) for k, x in enumerate(arrays)]
        else:
            batch, results = None, [choose(k, twice(x)) for k, x in enumerate(arrays)]
    autograd.backward(results)
    return [a.asnumpy() for a in [*results, *(x.grad for x in arrays)]], batch


@st.composite
def keys(draw):
    """Draw the shape of an array, and for three samples keys of one form that it takes.

    Keys are numbers, or whole slices, and NumPy's arrays behind them.
    """
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    dtype = draw(st.sampled_from(["float32", "int32", "int64", "uint8"]))
    seed = draw(st.integers(0, 99))
    axis = draw(st.integers(0, len(shape) - 1))
    numbers = draw(st.booleans())
    count = draw(st.integers(1, len(shape) - axis)) if axis == 0 or numbers else 1
    before = (0 if numbers else slice(None),) * axis
    behind = (slice(None),) * draw(st.integers(0, len(shape) - axis - 1)) * (count == 1)
    rng = np.random.RandomState(seed)

    def indices(extent):
        # MXNet adds the gradient of negative indices to other memory.
        return rng.randint(0, extent, sizes).astype(dtype)

    axes = range(axis, axis + count)
    return shape, [(*before, *(indices(shape[i]) for i in axes), *behind) for _ in range(3)]


#: Ways to write index arrays, and the types of indices that they take.
INDICES = {
    "arrays": lambda make, index: make(index, dtype=index.dtype),
    "arrays of NumPy": lambda make, index: index.astype("int64"),
    "lists": lambda make, index: index.astype("int64").tolist(),
}


@pytest.mark.parametrize("front", ["nd", "np"])
@examples(30)
@given(drawn=keys(), written=st.sampled_from(sorted(INDICES)))
def test_index_arrays_are_recorded(front, drawn, written):
    shape, chosen = drawn
    make = getattr(mx, front).array
    with semantics(front):
        arrays = [make(np.random.RandomState(k).uniform(size=shape)) for k in range(3)]
        write = INDICES[written]
        keys_ = [
            tuple(write(make, x) if isinstance(x, np.ndarray) else x for x in key) for key in chosen
        ]

        def choose(k, x):
            return x[keys_[k] if len(keys_[k]) > 1 else keys_[k][0]] * 3

        got, batch = outcome(arrays, choose, **FIXED)
        wanted, _ = outcome(arrays, choose)
    equal(got, wanted)
    assert len(batch.report.flushes) == 1 and not batch.report.forced
    assert not any(isinstance(reason, str) for reason in batch.plan.kernels)


@pytest.mark.parametrize("front", ["nd", "np"])
def test_pending_indices_choose_from_ordinary_arrays(front):
    make = getattr(mx, front).array
    with semantics(front):
        table = make(np.arange(12).reshape(4, 3))
        arrays = [make([n, 1]) for n in (0, 1, 0.5)]

        def choose(k, x):
            return table[x.detach()] + x.sum()

        got, batch = outcome(arrays, choose, **FIXED)
        equal(got, outcome(arrays, choose)[0])
    assert len(batch.report.flushes) == 1 and not batch.report.forced


@pytest.mark.filterwarnings("ignore:.*np.bool:DeprecationWarning")
@examples(20)
@given(case=keys(), front=st.sampled_from(["nd", "np"]), made=st.booleans())
def test_index_arrays_choose_elements_that_are_written(case, front, made):
    """As in the loop, although the index arrays are pending."""
    shape, (key, *_) = case

    def written():
        make = mx.np.array if front == "np" else mx.nd.array
        index = tuple(
            make(part, dtype="int32") + 0 if isinstance(part, np.ndarray) else part for part in key
        )
        target = make(np.zeros(shape)) if made else outer.copy()
        target[index] = 3
        target[index[0] if len(index) == 1 else index] += 1
        return target.asnumpy()

    with semantics(front):
        outer = (mx.np.zeros if front == "np" else mx.nd.zeros)(shape)
        wanted = written()
        with gdb.batching(**FIXED):
            found = written()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["array", "array of NumPy", "list"])
def test_masks_read_values(kind):
    """They are no index arrays: how many elements they choose depends on their values."""
    mask = np.array([True, False, True, True])
    with semantics("np"):
        given_mask = {"array": mx.np.array(mask), "list": mask.tolist()}.get(kind, mask)
        arrays = [mx.np.array(np.arange(8).reshape(4, 2)) + k for k in range(3)]
        got, batch = outcome(arrays, lambda k, x: x[given_mask], **FIXED)
        equal(got, outcome(arrays, lambda k, x: x[given_mask])[0])
    assert batch.report.forced


def test_keys_that_are_no_index_arrays_give_what_mxnet_gives():
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    with semantics("np"):
        i, none = mx.np.array([1, 0], dtype="int32"), mx.np.zeros((0,), dtype="int32")
        keys_ = [(0, slice(None), i), (None, i), (..., i), (i, 0), (slice(0, 1), i), none]
        for key in keys_:
            with gdb.batching(**FIXED):
                y = twice(mx.np.array(x))[key]
            wanted = mx.np.array(x * 2)[key]
            assert y.shape == wanted.shape
            np.testing.assert_array_equal(y.asnumpy(), wanted.asnumpy())


def test_arrays_that_are_made_in_a_scope_choose_and_are_chosen_from():
    arrays = [mx.nd.array(np.arange(12).reshape(4, 3)) + k for k in range(3)]

    def choose(k, x):
        made = mx.nd.array(np.arange(12).reshape(4, 3))
        index = mx.nd.array([k, 2, 1], dtype="int32")
        return made[index] * x[index] + made[1:][mx.nd.zeros((1,))] + x[:, index][index, index]

    got, batch = outcome(arrays, choose, **FIXED)
    equal(got, outcome(arrays, choose)[0])
    assert len(batch.report.flushes) == 1 and not batch.report.forced
    assert not any(isinstance(reason, str) for reason in batch.plan.kernels)


NEGATIVE = [[-1, 0, -4], [3.0, -2.0, 1.0], [-0.5, 2.7, -3.9]]


@pytest.mark.parametrize("front", ["nd", "np"])
@pytest.mark.parametrize("values", NEGATIVE)
def test_negative_indices_count_from_the_end(values, front):
    """Gradients go to the elements that were read."""
    make = getattr(mx, front).array
    with semantics(front):
        index = make(np.array(values, dtype="float32"))
        arrays = [make(np.arange(12, dtype="float32").reshape(4, 3)) + k for k in range(3)]
        got, _ = outcome(arrays, lambda k, x: x[index], **FIXED)
        with autograd.pause():
            wanted = [(x * 2)[index].asnumpy() for x in arrays]
    equal(got[:3], wanted)
    total = np.zeros((4, 3), np.float32)
    np.add.at(total, index.asnumpy().astype("int32"), 2)
    equal(got[3:], [total] * 3)


CHECKED = {
    "rows": (lambda x, i: x[i], 0, 4),
    "elements": (lambda x, i: mx.nd.gather_nd(x, mx.nd.stack(i * 0, i)), 1, 3),
    "a sum by index": (
        lambda x, i: mx.nd._internal._backward_gather_nd(
            x[:1], mx.nd.stack(i.reshape((1,)), i.reshape((1,)) * 0), shape=(5, 3, 3)
        ), 0, 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("late", [False, True])
def test_indices_that_do_not_fit_are_errors_of_the_first_reader(name, late):
    choose, axis, size = CHECKED[name]
    for bad in (size, -size - 1):
        with gdb.batching(**FIXED) as batch:
            results = [
                choose(twice(mx.nd.ones((4, 3))), mx.nd.array([i], dtype="int32")) * 2
                for i in (0, bad, 1)
            ]
        assert not any(isinstance(reason, str) for reason in batch.plan.kernels)
        text = f"index {bad} is out of bounds for axis {axis} with size {size}"
        with pytest.raises(IndexError, match=text):
            results[2 * late].asnumpy()
        with gdb.batching(**FIXED):
            right = [choose(twice(mx.nd.ones((4, 3))), mx.nd.array([i])) for i in (0, 1, 2)]
        assert all(np.isin(x.asnumpy(), (0, 2)).all() for x in right)


def test_index_arrays_of_numpy_that_do_not_fit():
    with semantics("np"):
        for bad in (4, -5):
            with gdb.batching(**FIXED):
                results = [
                    twice(mx.np.ones((4, 3)))[mx.np.array([i], dtype="int64")] for i in (0, bad, 1)
                ]
            with pytest.raises(IndexError, match=f"index {bad} is out of bounds for axis 0"):
                results[0].asnumpy()
            np.testing.assert_array_equal(results[2].asnumpy(), np.full((1, 3), 2))


TAKEN = {
    "rows of its own": lambda x, table, i: mx.nd.take(x, i, mode="raise"),
    "columns of its own": lambda x, table, i: mx.nd.take(x.T, i, axis=1, mode="raise").T,
    "rows of a table": lambda x, table, i: mx.nd.take(table, i + x[0, :1] - x[0, 0], mode="raise"),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("bad", [4, -1, 3.5, -0.5])
def test_take_fails_as_the_loop_does(name, bad):
    """Even for what would be a fitting index without its fraction; gradients are of the others."""
    table, arrays = mx.nd.array(np.arange(12).reshape(4, 3)), []
    for k in range(3):
        arrays.append(mx.nd.array(np.arange(12).reshape(4, 3) + k))

    def results(indices, **options):
        for x in [table, *arrays]:
            x.attach_grad()
        with autograd.record():
            samples = zip(arrays, indices)
            if not options:
                return [TAKEN[name](twice(x), table, mx.nd.array([i])) for x, i in samples]
            with gdb.batching(**options) as batch:
                got = [TAKEN[name](twice(x), table, mx.nd.array([i])) for x, i in samples]
        assert not any(isinstance(reason, str) for reason in batch.plan.kernels)
        return got

    with pytest.raises(mx.MXNetError, match="take operator contains indices out of bound"):
        results([bad])[0].asnumpy()
    wanted = results([0, 3.0, 1])
    autograd.backward([wanted[0], wanted[2]])
    gradients = [x.grad.copy() for x in [table, *arrays]]
    got = results([0, bad, 1], **FIXED)
    text = f"take operator contains indices out of bound: index {int(bad)} does not fit size 4"
    with pytest.raises(mx.MXNetError, match=text):
        got[0].asnumpy()
    equal([got[0], got[2]], [wanted[0], wanted[2]])
    assert np.isnan(got[1].asnumpy()).all()
    autograd.backward([got[0], got[2]])
    equal([x.grad for x in [table, *arrays]], gradients)


def test_equal_rows_of_a_strict_table_are_computed_once():
    """Those of a failing index, too, which is equal to itself."""
    table = mx.nd.array(np.arange(512).reshape(4, 128) / 512)
    wide = cell(lambda F, x, w: F.tanh(F.FullyConnected(x, w, num_hidden=64, no_bias=True)))
    weight = mx.nd.array(np.random.RandomState(0).uniform(size=(64, 128)) / 128)
    for index in ([0, 2] * 8, [0, 7] * 8):
        with gdb.batching(**FIXED) as batch:
            rows = [mx.nd.take(table, mx.nd.array([i]), mode="raise") for i in index]
            got = [wide(x, weight) for x in rows]
        assert not any(isinstance(reason, str) for reason in batch.plan.kernels)
        if 7 in index:
            with pytest.raises(mx.MXNetError, match="index 7 does not fit size 4"):
                got[0].asnumpy()
        for x, i in zip(got, index):
            wanted = wide(table[i : i + 1], weight) if i < 4 else mx.nd.full((1, 64), np.nan)
            equal([x], [wanted])


def passes(F, states, source, target):
    """Gather the ends of edges, and add up what is computed of them at the nodes."""
    ends = F.take(states, source, mode="wrap"), F.take(states, F.cast(target, dtype="int32"))
    nodes = F.expand_dims(F.contrib.arange_like(states, axis=0), axis=0)
    target = F.cast(target, dtype="float32")
    leads_to = F.broadcast_equal(F.expand_dims(target, axis=1), nodes)
    known = F.one_hot(F.slice_axis(target, axis=0, begin=0, end=1), depth=3)
    total = F.dot(leads_to, F.tanh(ends[0] + F.broadcast_mul(ends[1], known)), transpose_a=True)
    # Of the largest and of the second element of each node.
    best = F.argmax(total, axis=1)
    chosen = F.pick(total, best, axis=1) + F.pick(total, 1 - F.minimum(best, 1), axis=1)
    return F.broadcast_add(F.concat(states, total, dim=1), F.expand_dims(chosen, axis=1))


@examples(3)
@given(
    st.lists(st.sampled_from([(1, 1), (2, 5), (7, 3), (40, 36)]), min_size=2, max_size=3),
    st.sampled_from(["float32", "float64", "int32", "int64"]),
    st.integers(0, 99),
)
def test_graphs_of_all_sizes_share_launches(sizes, dtype, seed):
    rng, net = np.random.RandomState(seed), cell(passes)

    def indices(nodes, edges):
        return mx.nd.array(rng.randint(0, nodes, edges), dtype=dtype)

    graphs = []
    for nodes, edges in sizes:
        states = mx.nd.array(rng.normal(size=(nodes, 3)))
        states.attach_grad()
        graphs.append((states, indices(nodes, edges), indices(nodes, edges)))
    batch = gdb.testing.check_against_loop(
        lambda graph: net(graph[0] * 2, *graph[1:]), graphs, **{**FIXED, "granularity": "block"}
    )
    assert batch.report.launches <= 2 and not batch.report.split
    assert not any(isinstance(reason, str) for reason in batch.plan.kernels)


def test_sums_by_index_of_ragged_samples_share_a_launch():
    rng, arrays = np.random.RandomState(0), []
    for nodes, edges in [(2, 5), (7, 3), (4, 9)]:
        x = mx.nd.array(rng.normal(size=(edges, 3)))
        x.attach_grad()
        arrays.append((nodes, x, mx.nd.array(rng.randint(0, nodes, (1, edges)))))

    def total(nodes, x, index):
        return mx.nd._internal._backward_gather_nd(twice(x), index, shape=(nodes, 3))

    batch = gdb.testing.check_against_loop(lambda graph: total(*graph), arrays, **FIXED)
    assert batch.report.launches == 2
    assert not any(isinstance(reason, str) for reason in batch.plan.kernels)


def test_without_a_way_to_report_indices_mxnet_runs_what_checks_them(monkeypatch):
    """The reason names the operator that the user called, not those that merge it."""
    inside.with_new_plans(monkeypatch)
    inside.without_reports_of_failures(monkeypatch)
    index = mx.nd.array([[0, 2]])
    arrays = [mx.nd.array(np.arange(6).reshape(3, 2) * 10.5 + k) for k in range(3)]
    got, batch = outcome(arrays, lambda k, x: mx.nd.gather_nd(x, index), **FIXED)
    equal(got, outcome(arrays, lambda k, x: mx.nd.gather_nd(x, index))[0])
    (reason,) = (kernels for kernels in batch.plan.kernels if isinstance(kernels, str))
    assert reason.startswith("operator gather_nd has no native steps here: native code cannot")


@pytest.fixture
def use_threads():
    yield executing.use_threads
    executing.use_threads(1)


@pytest.mark.parametrize("wrong", [[7], range(64)], ids=["one index", "an index of each sample"])
def test_threads_that_share_a_launch_report_one_index(use_threads, wrong):
    """A failure of any thread is an error of this launch, once, and of no later one."""
    use_threads(4, 4)
    table = mx.nd.array(np.arange(2**14).reshape(128, 128))
    good = mx.nd.array(np.arange(2**9) % 128, dtype="int32")
    bad = mx.nd.concat(good[:-1], mx.nd.array([128], dtype="int32"), dim=0)

    def run(wrong):
        with gdb.batching(**FIXED) as batch:
            results = [twice(table + k)[bad if k in wrong else good] for k in range(64)]
        assert not any(isinstance(reason, str) for reason in batch.plan.kernels)
        return results

    for _ in range(3):
        results = run(wrong)
        with pytest.raises(IndexError, match="index 128 is out of bounds for axis 0 with size 128"):
            results[0].asnumpy()
        wanted = [twice(table + k)[good].asnumpy() for k in range(64)]
        for k in wrong:
            wanted[k][-1] = np.nan
        equal(results, wanted)  # MXNet raises at the first read only
        equal(run([]), [twice(table + k)[good] for k in range(64)])


@st.composite
def programs_with_a_failing_index(draw):
    """Draw how samples gather or add up rows, which ones fail, and what is read first."""
    count = draw(st.integers(2, 5))
    bad = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count))
    steps = draw(st.lists(st.sampled_from(["gather", "add", "flush", "double"]), max_size=5))
    return count, bad, [*steps, draw(st.sampled_from(["gather", "add"]))], draw(st.booleans())


@examples(15)
@given(programs_with_a_failing_index())
def test_after_the_error_only_values_of_failed_indices_are_lost(program):
    """Values and gradients of all other samples are those of the loop."""
    count, bad, steps, keeps_last = program
    net = cell(lambda F, x, w: F.FullyConnected(x, w, num_hidden=3, no_bias=True, flatten=False))
    weight = mx.nd.array(np.arange(9).reshape(3, 3) / 9)
    arrays = [mx.nd.array(np.arange(12).reshape(4, 3) / 12 + k) for k in range(count)]
    for array in [weight, *arrays]:
        array.attach_grad()

    def value(k, x, wrong, flush):
        for number, step in enumerate(steps):
            x = net(x, weight)
            last = number == len(steps) - 1
            index = mx.nd.array([[9 if wrong and last == keeps_last else k % 4, 1]]).reshape((1, 2))
            if step == "gather":
                x = mx.nd.gather_nd(x, index)
            elif step == "add":
                x = mx.nd._internal._backward_gather_nd(x[:2], index, shape=(4, 3))
            elif step == "flush":
                flush()
            else:
                x = x * 2
            if x.shape[0] != 4:
                x = mx.nd.concat(x, x, dim=0)
            x = mx.nd.broadcast_add(x, x.mean(axis=0, keepdims=True))
            x = mx.nd.broadcast_add(x, x.mean(axis=1, keepdims=True))
        return x.sum()

    right = [k for k in range(count) if k not in bad]
    with autograd.record():
        wanted = [value(k, arrays[k], False, lambda: None) for k in right]
    if wanted:
        autograd.backward(wanted)
    gradients = [array.grad.copy() for array in [weight, *(arrays[k] for k in right)]]
    with autograd.record(), gdb.batching(**FIXED) as batch:
        got = [value(k, x, k in bad, batch.flush) for k, x in enumerate(arrays)]
    fails = keeps_last or any(step in ("gather", "add") for step in steps[:-1])
    if fails:
        with pytest.raises(IndexError, match="index 9"):
            mx.nd.waitall()
            got[0].asnumpy()
    lost = {k for k in bad if np.isnan(got[k].asscalar())}
    assert lost == (bad if fails else set())
    equal([got[k] for k in right], wanted)
    if wanted:
        autograd.backward([got[k] for k in right])
        equal([array.grad for array in [weight, *(arrays[k] for k in right)]], gradients)


def test_an_error_that_nobody_reads_stays_with_its_flush():
    """Memory of a flush that failed is not reused: the engine keeps the error with it."""
    table, index = mx.nd.ones((1 << 16, 2)), mx.nd.array([[1, 1 << 16]])
    for _ in range(2):
        with gdb.batching(**FIXED):
            results = [twice(table + k)[index[0]] for k in range(2)]
        del results
        mx.nd.ones((1,)).wait_to_read()  # the engine's only thread for this has gone through it all
        with gdb.batching(**FIXED):
            results = [twice(table + k)[:1] for k in range(2)]
        equal(results, [mx.nd.full((1, 2), 2 + 2 * k) for k in range(2)])
    with pytest.raises(IndexError):
        mx.nd.waitall()


@pytest.mark.parametrize("key", [slice(None), slice(None, None, 1), ()], ids=str)
@pytest.mark.parametrize("made", ["outside", "variable", "constant", "result"])
def test_all_of_an_array_is_the_array(front, made, key):
    """So it stays in its graph where autograd does not record, and counts once among heads."""

    def run(scope):
        x = getattr(mx, front).array([[1.0, 2], [3, 4]])
        v = x.copy()
        v.attach_grad()
        if made == "variable":
            x = v
        with autograd.record():
            with scope:
                if made == "constant":
                    x = getattr(mx, front).array([[1.0, 2], [3, 4]])
                elif made == "result":
                    x = v * 3
                with autograd.pause():
                    whole = x[key]
                assert whole is x and x[key] is x
                results = [whole * v, whole * 2 + v]
            results.append(x[key])
            results.append(x[key])
        autograd.backward(results[: 4 if made != "outside" and made != "constant" else 2])
        return [*results, v.grad]

    loop_and_scope(run, **FIXED)
