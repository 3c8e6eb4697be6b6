"""`check_against_loop` compares results of any kind, and begins both runs with the same state."""

import collections
import dataclasses
import datetime
import enum
import itertools
import types
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.oracle.results import find_difference, to_numpy, values_of
from gluon_dynbatch.record.lazy import Lazy
from gluon_dynbatch.testing import check_against_loop
from tests.cells import dense, inputs
from tests.common import refused

Pair = collections.namedtuple("Pair", "left right")


TOTAL = 0


class Slots:
    __slots__ = ("score",)

    def __init__(self, score):
        self.score = score


@dataclasses.dataclass
class Hypothesis:
    score: float
    parent: object = None


@dataclasses.dataclass(eq=False)
class Plain:
    score: object


class Color(enum.Enum):
    RED, GREEN = 1, 2


class Words(list):
    pass


def itself(value):
    """Return an object that holds itself."""
    plain = Plain(value)
    plain.score = [value, plain]
    return plain


#: What a result may be, made of a number; other numbers make other results.
KINDS = {
    "float": float,
    "integer": int,
    "boolean": bool,
    "string": str,
    "bytes": lambda n: str(n).encode(),
    "complex": lambda n: complex(0, n),
    "none": lambda n: None if n else 0,
    "not a number": lambda n: float(n) if n else float("nan"),
    "array": lambda n: mx.nd.ones((1, 2)) * n,
    "integer array": lambda n: mx.nd.full((2,), n, dtype="int32"),
    "dtype": lambda n: mx.nd.zeros((1,), dtype="float16" if n else "float32"),
    "shape": lambda n: np.zeros(n + 1),
    "numpy": lambda n: np.full((2, 2), n),
    "numpy scalar": np.float32,
    "numpy text": lambda n: np.array([str(n)]),
    "numpy objects": lambda n: np.array([{"n": n}, None], dtype=object),
    "list": lambda n: [1, [n]],
    "length": lambda n: [0] * n,
    "tuple": lambda n: (n, None),
    "a list or a tuple": lambda n: [1] if n else (1,),
    "list of a class": lambda n: Words([n]),
    "deque": lambda n: collections.deque([n]),
    "dictionary": lambda n: {"a": {"b": n}},
    "keys": lambda n: {n: 1},
    "default dictionary": lambda n: collections.defaultdict(list, a=[n]),
    "set": lambda n: {n, "a", None},
    "named tuple": lambda n: Pair(mx.nd.ones(2) * n, 1),
    "data class": lambda n: Hypothesis(n, Hypothesis(0, mx.nd.ones(1) * n)),
    "object": lambda n: Plain(np.ones(2) * n),
    "slots": lambda n: Slots([n]),
    "namespace": lambda n: types.SimpleNamespace(n=n),
    "an object that holds itself": itself,
    "exception": lambda n: KeyError(n),
    "enumeration": lambda n: Color.RED if n else Color.GREEN,
    "date": lambda n: datetime.date(2000, 1, n + 1),
    "path": lambda n: Path(str(n)),
    "class": lambda n: int if n else float,
    "range": range,
    "sparse": lambda n: mx.nd.ones((2, 2)).tostype("csr") * n,
}


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_all_kinds(kind):
    """Equal results pass.  Others fail, with the number of the sample."""
    make = KINDS[kind]
    net = dense(2, 4)
    check_against_loop(lambda x: [net(x), make(1)], inputs(3), net.collect_params())
    numbers = itertools.chain([1, 1, 1], [1, 0, 1])
    with pytest.raises(AssertionError, match=r"result 1\b"):
        check_against_loop(lambda x, numbers=numbers: make(numbers.__next__()), inputs(3))


def test_the_path_to_a_value_and_tolerances():
    values = iter([1.0, 1.1, 1.0])
    fn = lambda x: Pair({"k": [0, Plain(values.__next__())]}, 2)  # noqa: E731
    with pytest.raises(AssertionError) as caught:
        check_against_loop(fn, inputs(1))
    text = "result 0[0]['k'][1].score is 1.1 in the scope and 1.0 in the loop; "
    assert str(caught.value).startswith(text)
    values = iter([1.0, 1.1])
    check_against_loop(fn, inputs(1), tolerance=(0.2, 0))


@pytest.mark.parametrize("make", [iter, lambda pair: (y for y in pair), lambda pair: object()])
def test_what_cannot_be_compared(make):
    with refused(gdb.ArgumentError, "result 0[1] holds an object of type", "cannot be compared"):
        check_against_loop(lambda x: [x, make([x])], inputs(2))  # wrong


def test_gradients_of_arrays_in_objects():
    net = dense(2, 4)
    fn = lambda x: {"score": Hypothesis(1.0, Slots(net(x)))}  # noqa: E731
    check_against_loop(fn, inputs(3), net.collect_params())
    assert net.weight.grad().asnumpy().any()


def test_both_runs_begin_with_the_same_state():
    class Counting(mx.gluon.Block):
        def __init__(self):
            super().__init__()
            self.n, self.seen, self.table = 0, {"all": [1]}, mx.nd.zeros(1)
            self.log = collections.deque()

        def forward(self, x):
            self.n += 1
            self.seen["all"].append(float(x.sum().asscalar()))
            self.log.append(self.n)
            self.table[:] = self.table + 1
            self.last = len(self.seen["all"])
            return [x * self.n, self.n, self.last, sum(self.log), self.table.asscalar()]

    net = Counting()
    check_against_loop(net, inputs(3))
    assert net.n == 3 and len(net.seen["all"]) == 4 and list(net.log) == [1, 2, 3]
    check_against_loop(net, inputs(3))
    assert net.n == 6 and net.table.asscalar() == 6


def test_both_runs_begin_with_the_same_variables():
    """State that belongs to no object: variables, classes, defaults, and random generators."""
    seen = []

    class Counter:
        n = 0

    def fn(x, kept=[0]):  # noqa: B006
        global TOTAL
        TOTAL += 1
        Counter.n += 1
        kept[0] += 1
        seen.append(x)
        return [x * len(seen), TOTAL, Counter.n, kept[0], np.random.uniform()]

    before = TOTAL
    check_against_loop(fn, inputs(3))
    assert [TOTAL - before, Counter.n, len(seen), fn.__defaults__] == [3, 3, 3, ([3],)]


@pytest.mark.parametrize("debug", [False, True])
def test_both_fronts(front, debug):
    """Models of both pass, also traced; and one that depends on the scope does not."""
    numpy, net = front == "np", dense(4, 4, prefix="both_")
    ones = (mx.np if numpy else mx.nd).ones

    class Twice(gdb.DynamicHybridBlock):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            y = self.net(self.net(x))
            return y * 2 if y.asnumpy().sum() > 0 else y

    samples = [ones((1, 4)) * (i - 2) for i in range(5)]
    model = Twice()
    check_against_loop(model, samples, debug=debug)
    model.hybridize(trace_once=True)
    check_against_loop(model, samples, debug=debug)
    wanted = [model(x).asnumpy() for x in samples]
    for got in (gdb.map(model, samples, debug=debug), list(gdb.imap(model, iter(samples), 2))):
        for x, y in zip(got, wanted):
            assert isinstance(x, mx.np.ndarray) == numpy
            np.testing.assert_allclose(x.asnumpy(), y, 1e-5, 1e-6)
    with pytest.raises(AssertionError):
        check_against_loop(lambda x: model(x) + isinstance(net(x), Lazy), samples)


def test_the_message_says_that_a_program_draws_random_numbers():
    drop = mx.gluon.nn.Dropout(0.5)
    drop.hybridize()
    with pytest.raises(AssertionError, match="two runs of the plain loop differ as well.* Dropout"):
        check_against_loop(lambda x: drop(x * 2), [mx.nd.ones((1, 40)) for _ in range(3)])


def test_the_message_says_nothing_of_random_numbers_if_runs_of_the_loop_agree():
    def fn(x):
        return x * 2 if isinstance(mx.nd.zeros((1,)), Lazy) else x

    with pytest.raises(AssertionError, match="result 0") as caught:
        check_against_loop(fn, [mx.nd.ones((1, 2)) for _ in range(3)])
    assert "random" not in str(caught.value) and "float64" in str(caught.value)


@pytest.mark.parametrize("dtype, wrong, right", [("float32", 1e-3, 1e-4), ("float64", 1e-8, 1e-12)])
def test_gradients_are_compared_in_proportion_to_their_largest_value(dtype, wrong, right):
    """A sum of terms up to 300 has errors of some 1e-5, also where the terms cancel."""

    def gradients(error):
        return [("x", np.array([300, -(0.01 + error)], dtype))]

    loop = gradients(0)
    assert find_difference(loop, gradients(right), None, are_sums=True) is None
    assert find_difference(loop, gradients(wrong), None, are_sums=True) is not None
    assert find_difference(loop, gradients(right), (0, right / 2), are_sums=True) is not None
    if dtype == "float32":
        assert find_difference(loop, gradients(right), None) is not None, "values are no sums"


def test_parameters_of_unknown_shape_get_one_from_the_first_call():
    net = gdb.convert(mx.gluon.nn.Dense(2))
    net.initialize()
    net.hybridize()
    samples = [mx.nd.ones((1, 3)), mx.nd.zeros((1, 3))]
    batch = check_against_loop(net, samples, net.collect_params())
    assert net.weight.shape == (2, 3) and batch.report.launches == 1


def test_the_classes_and_shapes_of_arrays_are_compared():
    ones = [mx.nd.ones((1,)), mx.np.ones((1,)), mx.nd.ones((1, 1)), mx.nd.ones((1,), dtype="int32")]
    values = [to_numpy(values_of(array, "it")) for array in ones]
    assert find_difference(values[0], values[0], None) is None
    texts = ["a ndarray of mx.np", "of shape (1, 1)", "int32"]
    for text, other in zip(texts, values[1:]):
        assert text in find_difference(values[0], other, None)
