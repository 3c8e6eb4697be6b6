"""Records give equal bits however many threads share them."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_dynbatch.kernel.layout import CLIP, STRICT, WRAP, Columns, Slot, Weight
from gluon_dynbatch.kernel.step import (
    FEW,
    MODES,
    PACKED,
    PANELS,
    Kernel,
    Product,
    SlotArray,
)
from gluon_dynbatch.native import executing
from gluon_dynbatch.run import team
from tests.forks import output_of
from tests.kernel.native import Code, add_up, launch, pack

#: From one to more than this machine has processors.
THREADS = (1, 2, 3, 5, 8, 16)
DTYPES = st.sampled_from(["float32", "float64"])
SEEDS = st.integers(0, 2**32 - 1)
#: Whether the transpose of a matrix is in memory, and what the matrix is.
MATRICES = st.tuples(st.booleans(), st.sampled_from([PACKED, PANELS, FEW]))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Leave one thread to the tests that follow."""
    yield
    executing.use_threads(1)


def draw(seed, dtype, *shape):
    """Return random numbers, of which some rows are zero."""
    random = np.random.RandomState(seed % 2**32)
    array = random.standard_normal(shape).astype(dtype)
    array[random.rand(len(array)) < 0.2] = 0
    return array


def assert_equal_bits(compute):
    """Check that `compute`, which returns an array, does so for all numbers of threads."""
    executing.use_threads(1)
    wanted = compute()
    for threads in THREADS[1:]:
        executing.use_threads(threads, threads)
        got = compute()
        assert got.tobytes() == wanted.tobytes(), f"{threads} threads"


@given(SEEDS, DTYPES, st.integers(0, 400), st.integers(1, 400), st.integers(1, 300), MATRICES)
def test_products_have_equal_bits(seed, dtype, rows, units, inputs, matrices):
    transposed, matrices = matrices
    a, w, b = draw(seed, dtype, rows, inputs), draw(1, dtype, units, inputs), draw(2, dtype, units)
    left, weight, bias, out = Slot("in", 0), Slot("param", 0), Slot("param", 1), Slot("out", 0)
    shape = (units, inputs) if transposed else (inputs, units)
    factor = Weight(Columns(weight), *shape, transposed)
    step = Product(Columns(left), factor, Columns(out), Columns(bias), False, 1, dtype)

    def compute():
        c = np.full((rows, units), np.nan, dtype)
        launch([step], {left: a, weight: w.ravel(), bias: b, out: c}, rows, matrices)
        return c

    assert_equal_bits(compute)


@given(SEEDS, DTYPES, st.integers(1, 300), st.integers(1, 300), st.integers(0, 40),
       st.sampled_from([executing.PICK, executing.TOTAL]),
       st.sampled_from([executing.REPEAT, executing.SINGLE]))  # fmt: skip
def test_launches_on_equal_rows_have_equal_bits(seed, dtype, units, inputs, rows, before, after):
    """Some rows are equal; their order is random."""
    rows = 40 * rows
    index = np.random.RandomState(seed % 1000).randint(0, max(rows // 3, 1), rows).astype(np.int32)
    table, w = draw(seed, dtype, max(rows // 3, 1), inputs), draw(1, dtype, units, inputs)
    left, weight, out = Slot("in", 0), Slot("param", 0), Slot("out", 0)
    factors = Columns(left), Weight(Columns(weight), units, inputs, True)
    step = Product(*factors, Columns(out), None, False, 1, dtype)

    def compute():
        c = np.full((rows, units), np.nan, dtype)
        arrays = {left: table[index], weight: w.ravel(), out: c}
        launch([step], arrays, rows, keys=[(0, index)], equal=(before, after))
        return c

    assert_equal_bits(compute)


@given(SEEDS, DTYPES, st.lists(st.integers(0, 1500), max_size=4), st.integers(1, 150),
       st.integers(1, 150), st.booleans(), st.sampled_from([0, 0, 3]))  # fmt: skip
def test_gradients_of_weights_have_equal_bits(seed, dtype, rows, n, k, second, columns):
    width = max(columns, 1)
    dys = [draw(seed + i, dtype, count, n * width) for i, count in enumerate(rows)]
    xs = [draw(seed + i + 99, dtype, count, k * width) for i, count in enumerate(rows)]

    def compute():
        dw = draw(seed, dtype, n, k)
        add_up(executing.MATRIX, dw, dys, xs, second, columns)
        return dw

    first = draw(seed, "float64", n, k)
    parts = [np.concatenate([each.reshape(-1, size, width).transpose(0, 2, 1).reshape(-1, size)
                             for each in arrays] or [np.zeros((0, size))]).astype("float64")
             for arrays, size in ((dys, n), (xs, k))]  # fmt: skip
    most = abs(first) + abs(parts[0].T) @ abs(parts[1])
    error = abs(compute() - (first + parts[0].T @ parts[1]))
    assert (error <= np.finfo(dtype).eps * (len(parts[0]) + 10) * most).all()
    assert_equal_bits(compute)


@given(SEEDS, DTYPES, st.integers(0, 3000), st.integers(1, 300),
       st.sampled_from([CLIP, WRAP, STRICT]))  # fmt: skip
def test_gradients_of_biases_and_tables_have_equal_bits(seed, dtype, rows, n, mode):
    dy = draw(seed, dtype, rows, n)
    index = np.random.RandomState(seed % 1000).randint(-3, 50, (rows, 1)).astype(np.int32)

    def compute():
        bias, table = draw(1, dtype, n), draw(2, dtype, 40, n)
        add_up(executing.ROW, bias, [dy], [dy])
        program = Code()
        option = len(MODES) * executing.DTYPES["int32"] + MODES.index(mode)
        program.add("sum_record", record=executing.SCATTER, dtype=executing.DTYPES[dtype], rows=40,
                    columns=n, target=(program.base(table), 0), option=option,
                    count=1)  # fmt: skip
        program.add_chunk((program.base(dy), 0), n, (program.base(index), 0), 1, rows)
        program.run(scratch=executing.sum_scratch(executing.DTYPES[dtype], 40, n, 1))
        return np.concatenate([bias[None], table])

    got, wanted = compute()[1:], draw(2, dtype, 40, n)
    chosen = {CLIP: index.clip(0, 39), WRAP: index % 40, STRICT: index}[mode][:, 0]
    fits = (chosen >= 0) & (chosen < 40)
    np.add.at(wanted, chosen[fits], dy[fits])
    np.testing.assert_array_equal(got, wanted)
    assert_equal_bits(compute)


@st.composite
def pieces(draw_):
    """Return an operation, the first elements of target and source, and a number of elements."""
    count = draw_(st.integers(0, 15_000))
    operation = draw_(st.sampled_from([0, 1, 2]))
    return operation, *(draw_(st.integers(0, 25_000 - count)) for _ in range(2)), count


@given(SEEDS, DTYPES, st.lists(st.lists(pieces(), max_size=6), max_size=5), st.data())
def test_copies_and_packed_matrices_have_equal_bits(seed, dtype, records, data):
    """Records that read what others write, or write the same elements, run in their order."""
    kind, size = executing.DTYPES[dtype], np.dtype(dtype).itemsize
    roles = [data.draw(st.tuples(*[st.integers(0, 2)] * 2)) for _ in records]
    packed = data.draw(st.lists(st.integers(0, 2), max_size=3))

    def compute():
        program = Code()
        arrays = [draw(seed + i, dtype, 25_000) for i in range(3)]
        bases = [program.base(array) for array in arrays]
        for source in packed:
            target = program.base(np.empty(executing.packed_bytes(kind, 150, 100), np.uint8))
            program.add("pack_record", record=executing.PACK, dtype=kind, source=(bases[source], 0),
                        row_stride=100, column_stride=1, rows=150, columns=100,
                        target=(target, 0))  # fmt: skip
        for (target, source), rows in zip(roles, records):
            if source == target:  # copies within an array may overlap
                rows = [(2, *numbers) for _, *numbers in rows]
            program.add("rows_record", record=executing.ROWS, dtype=kind, element_size=size,
                        count=len(rows), target=(bases[target], 0))  # fmt: skip
            for operation, to, start, count in rows:
                program.add("piece", operation=operation, target=to, count=count,
                            source=(bases[source], start * size))  # fmt: skip
        program.run()
        return np.concatenate([*arrays, *(a.view(dtype) for a in program.arrays[3:])])

    assert_equal_bits(compute)


@given(SEEDS, DTYPES, st.integers(1, 100), st.booleans())
def test_long_packed_matrices_have_equal_bits(seed, dtype, columns, transposed):
    """A matrix of few panels of columns is packed some rows at a time."""
    kind, rows = executing.DTYPES[dtype], 60_001 // columns
    matrix = draw(seed, dtype, rows * columns)
    strides = (1, rows) if transposed else (columns, 1)

    def compute():
        program = Code()
        packed = np.empty(executing.packed_bytes(kind, rows, columns), np.uint8)
        target = program.base(packed)
        program.add("pack_record", record=executing.PACK, dtype=kind, row_stride=strides[0],
                    column_stride=strides[1], rows=rows, columns=columns,
                    source=(program.base(matrix), 0), target=(target, 0))  # fmt: skip
        program.run()
        return packed.view(dtype)

    assert_equal_bits(compute)
    assert np.count_nonzero(compute()) == np.count_nonzero(matrix)


ROWS, WIDTH = 400, 40  # of each of four arrays
TIMES = 30  # that a launch computes its product: enough work to be shared


@st.composite
def stages(draw_):
    """Return a kind, the array and the first row of its source and its target, and rows.

    Source and target are two arrays, because no launch overwrites what it reads.
    """
    arrays = draw_(st.permutations(range(4)))[:2]
    source, target = ((array, draw_(st.integers(0, ROWS - 40))) for array in arrays)
    kind = draw_(st.sampled_from(["launch", "launch", "copy", "add", "sum"]))
    return kind, source, target, draw_(st.integers(1, 40))


def program_of(stages_, arrays, sums, weight):
    """Return a program of stages on four arrays, and its only kernel."""
    program, kind, names = Code(), executing.DTYPES["float32"], ("in", "out", "param")
    left, out, param = (Slot(name, 0) for name in names)
    factor = Weight(Columns(param), WIDTH, WIDTH, True)
    step = Product(Columns(left), factor, Columns(out), None, False, 1, "float32")
    operands = {slot: SlotArray(WIDTH, "float32", False) for slot in (left, out)}
    operands[param] = SlotArray(WIDTH * WIDTH, "float32", True)
    kernel = Kernel((step,) * TIMES, operands).native()
    bases, totals = ([program.base(array) for array in each] for each in (arrays, sums))
    packed = pack(program, factor, weight)
    for number, (name, (source, first), (target, to), rows) in enumerate(stages_):
        places = {left: (bases[source], 4 * WIDTH * first), out: (bases[target], 4 * WIDTH * to)}
        places[factor] = packed, 0
        if name == "launch":
            program.add_launch(kernel, rows, sum((places[slot] for slot in kernel.slots), ()))
        elif name == "sum":
            total = totals[number % len(totals)]
            program.add("sum_record", record=executing.MATRIX, dtype=kind, rows=WIDTH,
                        columns=WIDTH, target=(total, 0), count=1)  # fmt: skip
            program.add_chunk(places[left], WIDTH, places[out], WIDTH, rows)
        else:
            program.add("rows_record", record=executing.ROWS, dtype=kind, element_size=4, count=1,
                        target=places[out])  # fmt: skip
            program.add("piece", operation=name == "add", source=places[left],
                        count=WIDTH * rows)  # fmt: skip
    return program, kernel


def run_stages(stages_):
    """Run stages; return the content of all arrays."""
    arrays = [draw(i, "float32", ROWS, WIDTH) for i in range(4)]
    sums = [draw(i, "float32", WIDTH, WIDTH) for i in range(2)]
    program, kernel = program_of(stages_, arrays, sums, draw(9, "float32", WIDTH, WIDTH) / 10)
    program.run([kernel], executing.sum_scratch(0, WIDTH, WIDTH, 1))
    return np.concatenate([np.ravel(array) for array in arrays + sums])


@given(st.lists(stages(), min_size=2, max_size=60))
def test_stages_of_a_program_have_equal_bits(stages_):
    """Launches, sums and copies that read what others write, or not, in one program."""
    assert_equal_bits(lambda: run_stages(stages_))


def test_independent_stages_are_one_group():
    """Copies come first, then launches, then sums; a stage that reads a result is not in it."""
    apart = [("launch", (0, 10 * i), (1, 10 * i), 5) for i in range(20)]
    apart += [("copy", (0, 0), (2, 0), 5), ("copy", (2, 0), (3, 200), 5)]
    apart += [("sum", (0, 20), (3, 0), 5), ("sum", (0, 0), (3, 0), 5)]
    after = [("copy", (1, 0), (2, 100), 5), ("launch", (2, 100), (3, 100), 5)]
    arrays = [np.zeros((ROWS, WIDTH), np.float32) for _ in range(4)]
    weight = np.zeros((WIDTH, WIDTH), np.float32)
    program, kernel = program_of(apart + after, arrays, [weight, weight.copy()], weight)
    groups = executing.Program(np.array(program.code), [kernel]).groups
    levels = [[level for level, _ in group] for group in groups]
    assert levels == [[0, 0, 1] + 20 * [8] + 2 * [9]]


IDLE = """
import time
from tests.kernel.test_team import members, processor_time, wide_product

executing.use_threads(3, 3)
for _ in range(20):
    wide_product()
end, used, before = time.monotonic() + 200, 1, 0
while used and time.monotonic() < end:  # on a busy machine, it takes a while until all sleep
    time.sleep(0.2)
    used, before = processor_time() - before, processor_time()
print(len(members()), used)
if os.fork() == 0:
    print(len(members()), flush=True)
    wide_product()
    print(len(members()), flush=True)
    os._exit(0)
os.wait()
"""


def members():
    """Return the folders of the threads of the team."""
    tasks = Path("/proc/self/task").iterdir()
    return [task for task in tasks if (task / "comm").read_text().strip() == "gdb_team"]


def processor_time():
    """Return the nanoseconds that the team has run."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in members())


def wide_product():
    test_products_have_equal_bits.hypothesis.inner_test(1, "float32", 400, 400, 300, (True, PACKED))
    executing.use_threads(3, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's lists of threads")
def test_the_team_sleeps_when_idle_and_is_made_again_after_a_fork():
    printed = output_of("from gluon_dynbatch.native import executing\nimport os\n" + IDLE).split()
    most = max(THREADS) - 1
    assert printed == [str(most), "0", "0", str(most)]


@pytest.mark.skipif(sys.platform != "linux", reason="binds the process to one processor")
def test_a_process_that_may_use_one_processor_has_no_team():
    program = """
    from gluon_dynbatch.native import executing
    from tests.kernel import test_team
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    executing.use_threads(8)
    test_team.THREADS = ()
    products = test_team.test_products_have_equal_bits.hypothesis.inner_test
    products(1, "float32", 400, 400, 300, (True, test_team.PACKED))
    print(len(test_team.members()))
    """
    assert output_of(program).split() == ["0"]


TAKEN = """
import subprocess, sys
from gluon_dynbatch.native import executing
from tests.kernel import test_team
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
try:
    results = list(test_team.long_products([(1,), *5 * [(THREADS)]]))
finally:
    for other in others:
        other.kill()
print(len(results), len(set(results)))
"""


def long_products(numbers_of_threads):
    """Return the bytes of a product, whose tasks take milliseconds, for some numbers of threads."""
    rows, units, inputs = 3000, 800, 600
    a, w = draw(3, "float32", rows, inputs), draw(1, "float32", units, inputs)
    left, weight, out = Slot("in", 0), Slot("param", 0), Slot("out", 0)
    factor = Weight(Columns(weight), units, inputs, True)
    step = Product(Columns(left), factor, Columns(out), None, False, 1, "float32")
    for threads in numbers_of_threads:
        executing.use_threads(*threads)
        c = np.full((rows, units), np.nan, np.float32)
        launch([step], {left: a, weight: w.ravel(), out: c}, rows)
        yield c.tobytes()


@pytest.mark.parametrize("threads", ["64,", "3, 3"])
def test_results_are_equal_while_other_processes_take_the_processors(threads):
    """Members lose their processors in the middle of tasks, bound to processors or not."""
    assert output_of(TAKEN.replace("THREADS", threads)).split() == ["6", "1"]


SETTINGS = [("", "64"), ("3", "3"), ("4,2", "4"), ("0", "64"), ("many", "64"), ("quota", "2")]


def test_the_number_of_threads_that_the_user_sets_is_a_limit(monkeypatch):
    counts = []
    monkeypatch.setattr(executing, "use_threads", lambda count: counts.append(str(count)))
    monkeypatch.setattr(team, "quota", lambda: 2.5 if setting == "quota" else math.inf)
    for setting, _ in SETTINGS:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
        team.use_threads()
    assert counts == [count for _, count in SETTINGS]
