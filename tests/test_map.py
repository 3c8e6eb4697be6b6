"""How `gdb.map` and `gdb.imap` pass samples to a function, and which they refuse."""

import functools
import itertools

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon

import gluon_dynbatch as gdb
from tests.cells import array, dense, equal, inputs, ready
from tests.common import refused
from tests.depth import examples

PAIRS = [(array(1, 4, seed=i), array(1, 4, seed=i + 3)) for i in range(3)]


class Cell(gdb.DynamicHybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(1, 4), init="ones")

    def hybrid_forward(self, F, left, right, weight):
        return F.tanh(left * weight) - right


class Plain(gluon.HybridBlock):
    def hybrid_forward(self, F, left, right):
        return F.tanh(left) - right


class Dynamic(gdb.DynamicHybridBlock):
    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, left, right, times=2):
        for _ in range(times):
            left = self.cell(left, right)
        return left


class Called(gluon.Block):
    def __call__(self, left, right):
        return super().__call__([left, right])

    def forward(self, both):
        return both[0] * both[1]


class Object:
    def __call__(self, left, right):
        return left.exp() + right


class Optional(gluon.Block):
    """Takes one argument, or two."""

    def forward(self, left, right=None):
        """Return the first argument."""
        return left

    def sum(self, left, right=None):
        """Return the sum of the arguments that are given."""
        return left if right is None else left + right


PARTIAL = functools.partial(lambda scale, left, right: left * scale + right, 3)
OF_TWO_ARGUMENTS = [lambda left, right: left * 2 + right, PARTIAL, Object(), Object().__call__]
BLOCKS = [Cell, Plain, Dynamic, Called, lambda: gdb.convert(Plain()), gluon.loss.L2Loss]
OF_ONE_ARGUMENT = [
    lambda pair: pair, lambda pair, more=None: pair, lambda *pairs: pairs[0], tuple, len, str,
]  # fmt: skip


@pytest.mark.parametrize("apply", [gdb.map, lambda *args: [*gdb.imap(*args)]], ids=["map", "imap"])
def test_tuples_are_arguments_of_a_function_of_several(apply):
    for fn in [*OF_TWO_ARGUMENTS, *[ready(make()) for make in BLOCKS]]:
        equal(apply(fn, PAIRS), [fn(*pair) for pair in PAIRS])
    block, samples = ready(Dynamic()), [PAIRS[0], (*PAIRS[1], 3)]
    equal(apply(block, samples), [block(*sample) for sample in samples])
    for fn in OF_ONE_ARGUMENT:
        assert apply(fn, PAIRS) == [fn(pair) for pair in PAIRS]


@pytest.mark.parametrize(
    "fn, sample, text",
    [
        (lambda a, b: a, PAIRS[0][0], "(a, b), but the sample is of type NDArray"),
        (lambda a, b: a, (1, 2, 3), "(a, b), but the sample is a tuple of 3"),
        (lambda a, b: a, list(PAIRS[0]), "(a, b), but the sample is of type list"),
        (Cell(), (*PAIRS[0], 1), "(left, right), but the sample is a tuple of 3"),
        (Dynamic(), PAIRS[0] * 2, "(left, right, times=2), but the sample is a tuple of 4"),
        (lambda: 0, PAIRS[0], "()"),
        (Optional(), PAIRS[0], "(left, right=None), so a sample that is a tuple of 2 may be"),
        (Optional().sum, PAIRS[0], "sum takes the arguments (left, right=None), so a sample"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(fn, sample, text):
    with refused(gdb.ArgumentError, text, "lambda sample"):
        gdb.map(fn, [sample])  # wrong


OPTIONS_OF_MAPS = [(gdb.map, {}), (gdb.map, {"debug": True}), (gdb.imap, {})]


@pytest.mark.parametrize("map_of, options", OPTIONS_OF_MAPS)
def test_samples_that_are_not_iterable_are_refused(map_of, options):
    with refused(gdb.ArgumentError, "type int", "a list of samples"):
        map_of(dense(), 3, **options)  # wrong


def test_samples_passed_as_the_function_are_refused():
    with refused(gdb.ArgumentError, "type list", "a function or a block"):
        gdb.map(PAIRS, Cell())  # wrong


def yielding(*args):
    yield args


async def waiting(x):
    return x


async def streaming(x):
    yield x


class Yielding(gdb.DynamicHybridBlock):
    forward = yielding


class YieldingCell(gdb.DynamicHybridBlock):
    hybrid_forward = yielding


class YieldingObject:
    __call__ = yielding


#: Functions by the kind of result that they return without running.
WOULD_NOT_RUN = {
    "a generator": (
        yielding, functools.partial(yielding), YieldingObject(), Yielding(), YieldingCell(),
    ),
    "a coroutine": (waiting,),
    "an asynchronous generator": (streaming,),
}  # fmt: skip
TAKERS = [gdb.map, gdb.imap, lambda fn, samples: gdb.RequestBatcher(fn)]  # wrong


@pytest.mark.parametrize("kind", WOULD_NOT_RUN)
def test_functions_whose_code_would_not_run_are_refused(kind):
    for fn in WOULD_NOT_RUN[kind]:
        for take in TAKERS[: 2 if kind == "a generator" else 3]:  # a batcher streams their values
            with refused(gdb.ArgumentError, f"returns {kind}"):
                take(fn, [])  # wrong
    with refused(gdb.ArgumentError, "returns a"):
        gdb.map(lambda x: WOULD_NOT_RUN[kind][0](x), [array(1, 4)])  # wrong


@pytest.fixture(scope="module")
def net():
    return dense(2, 3, 1, activation="tanh")


@given(count=st.integers(0, 9), size=st.integers(1, 4), prefetch=st.integers(0, 3))
@examples(13)
def test_results_come_in_order(net, count, size, prefetch):
    samples = inputs(count, 3)
    stream = gdb.imap(net, samples, batch_size=size, prefetch=prefetch)
    assert len(stream) == count
    equal([*stream], [net(x) for x in samples])


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_an_endless_stream_is_read_only_as_far_as_needed(net, prefetch):
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield mx.nd.ones((1, 3)) * number

    stream = gdb.imap(net, endless(), batch_size=4, prefetch=prefetch)
    for number in range(9):
        next(stream)
        assert len(taken) == 4 * (number // 4 + 1 + prefetch)
    with pytest.raises(TypeError, match="no length"):
        len(stream)


def test_two_minibatches_are_recorded_before_the_first_result(net):
    """The first one is in the engine while the second one is recorded."""
    order = []
    samples = (order.append("sample") or x for x in inputs(6, 3))
    for _ in gdb.imap(net, samples, batch_size=2):
        order.append("result")
    assert order[:5] == ["sample"] * 4 + ["result"]


def test_an_exception_takes_the_place_of_its_result_and_one_of_the_source_comes_last(net):
    def numbers():
        yield from range(6)
        raise OSError("the file is gone")

    def fn(number):
        y = net(mx.nd.ones((1, 3)) * number)
        if number in (1, 4):
            raise ValueError(number)
        return float(y.sum().asscalar())

    stream = gdb.imap(fn, numbers(), batch_size=4)
    for number in range(6):
        if number not in (1, 4):
            assert type(next(stream)) is float
            continue
        with pytest.raises(ValueError) as caught:
            next(stream)
        assert f"sample {number} of imap" in str(caught.value.__cause__)
        assert __file__ in str(caught.value.__cause__)
    with pytest.raises(OSError, match="the file is gone"):
        next(stream)


@pytest.mark.parametrize("call, function", [
    (lambda: gdb.map(len, PAIRS, width=2), "map"),
    (lambda: [*gdb.imap(len, PAIRS, width=2)], "imap"),
    (lambda: gdb.RequestBatcher(len, width=2), "RequestBatcher"),
    (lambda: gdb.testing.check_against_loop(len, PAIRS, width=2), "check_against_loop"),
])  # fmt: skip
def test_an_unknown_option_names_the_function_that_got_it(call, function):
    with pytest.raises(gdb.ArgumentError, match=f"^{function} has no option 'width'") as caught:
        call()
    assert isinstance(caught.value, TypeError) and "max_rows" in str(caught.value)
