"""Random numbers of native steps: Philox 4x32-10, the same on every instruction set."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch.kernel.draws import DRAWS
from gluon_dynbatch.kernel.layout import IDENTITY, KEY, Columns, Slot
from gluon_dynbatch.kernel.step import Access, Instruction, Pointwise
from gluon_dynbatch.native import executing
from tests.cells import cell
from tests.fuzz.operators import function
from tests.rules.all_cases import EVERY

from .native import launch

#: Per type, the numbers that 16 counters give.
GROUP = {np.float32: 64, np.float64: 32}


def philox(counter, key):
    """Return the four words of a counter, as the paper defines them."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            right >> 32 ^ counter[1] ^ key[0],
            right & 0xFFFFFFFF,
            left >> 32 ^ counter[3] ^ key[1],
            left & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_the_reference_gives_the_known_answers():
    """They come with the authors' library Random123."""
    ones, words = 0xFFFFFFFF, "{:08x} {:08x} {:08x} {:08x}".format
    assert words(*philox([0] * 4, [0] * 2)) == "6627e8d5 e169c58d bc57ac4c 9b00dbd8"
    assert words(*philox([ones] * 4, [ones] * 2)) == "408f276d 41c83b0e a20bc7c6 6d5451fd"
    digits_of_pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    assert words(*philox(*digits_of_pi)) == "d16cfe09 94fdcceb 5001e420 24126ea1"


def expected(dtype, key, identity, draw, column):
    """Return the number of a column."""
    group, rest = divmod(column, GROUP[dtype])
    (number, lane), (unit, row) = divmod(rest, 16), identity
    counter = [int(w) & 0xFFFFFFFF for w in (group * 16 + lane, draw, row, unit)]
    words = philox(counter, [int(w) & 0xFFFFFFFF for w in key])
    if dtype is np.float32:
        return (words[number] >> 8) * 2.0**-24
    return ((words[2 * number] >> 5) * 2.0**26 + (words[2 * number + 1] >> 6)) * 2.0**-53


@pytest.fixture(params=executing.instruction_sets())
def instruction_set(request):
    executing.use_instruction_set(request.param)
    yield
    executing.use_instruction_set()


def draw(dtype, key, identities, number, first, width, moved=False):
    """Run a loop that draws; if it also loads an array that is not dense, its rows run apart."""
    out = np.full((len(identities), width + 5 * moved), np.nan, dtype)
    arrays = {KEY: key, IDENTITY: identities, Slot("out", 0): out}
    load = Access(0, Columns(IDENTITY, first), "uniform", float(number))
    copy = Instruction("negative", 1, (0,), ()), Instruction("negative", 1, (1,), ())
    store = Access(1, Columns(Slot("out", 0), 3 * moved), "row")
    launch([Pointwise(width, out.dtype.name, 2, (load,), copy, (store,))], arrays, len(out))
    return out[:, 3 * moved :][:, :width]


INT = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize("dtype", GROUP)
def test_numbers_are_those_of_the_reference(instruction_set, dtype):
    @given(
        st.tuples(INT, INT),
        st.lists(st.tuples(INT, INT), min_size=1, max_size=7),
        *(st.integers(0, n) for n in (3, 200, 700)),
        st.booleans(),
        st.integers(0, 10**6),
    )
    def check(key, identities, number, first, width, moved, chosen):
        rows = np.array(identities, np.int32)
        drawn = draw(dtype, np.array(key, np.int32), rows, number, first, width + 1, moved)
        row, column = chosen % len(rows), chosen % (width + 1)
        wanted = expected(dtype, key, identities[row], number, first + column)
        assert drawn[row, column] == wanted
        # Parts of rows, and single rows, have the same numbers.
        part = draw(dtype, np.array(key, np.int32), rows[row : row + 1], number, first + column, 1)
        assert part.item() == wanted and drawn.min() >= 0 and drawn.max() < 1

    check()


def test_numbers_are_uniform_and_uncorrelated():
    """Fixed keys, so it cannot fail by chance."""
    rows = np.stack([np.arange(400) // 4, np.arange(400) % 4], axis=1).astype(np.int32)
    a, b, c = (
        draw(np.float32, np.array(key, np.int32), rows, number, 0, 500)
        for key, number in (((1, 2), 0), ((1, 2), 1), ((2, 2), 0))
    )
    counts = np.histogram(a, 100, (0, 1))[0]
    assert ((counts - a.size / 100) ** 2).sum() / (a.size / 100) < 150  # chi-squared, 99 degrees
    pairs = [(a, b), (a, c), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a[:, 16:], a[:, :-16])]
    for x, y in pairs:
        correlation = np.corrcoef(x.ravel(), y.ravel())[0, 1]
        assert abs(correlation) * np.sqrt(x.size) < 4


#: Results that kernels do not compute.
INTEGERS = {"_sample_multinomial": {"dtype": "float32"}}


@pytest.mark.parametrize("op", DRAWS)
def test_operators_that_draw_have_kernels(op):
    cases, rng = [c for c in EVERY if c.op == op and c.random], np.random.default_rng(0)
    assert cases
    for c in cases:
        net = cell(function(c.op, {**c.attrs, **INTEGERS.get(op, {})}))
        with mx.autograd.train_mode(), gdb.batching(granularity="block") as batch:
            for _ in range(3):
                net(*(array.draw(rng, 2) for array in c.inputs))
        kernels = [batch.plan.kernels_of(launch.number) for launch in batch.plan.launches]
        assert len(kernels) == 1 and not isinstance(kernels[0], str), kernels
