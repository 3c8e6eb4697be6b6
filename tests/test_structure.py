"""``flatten`` and ``unflatten`` are exact inverses; equal structures have equal keys."""

import copy
import enum
import random
import sys
from collections import namedtuple
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Tuple

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch.native.recording import Structure, flatten, read_key, unflatten
from gluon_dynbatch.scope import RUNTIME
from tests.cells import WIDTH, dense
from tests.common import FIXED
from tests.depth import examples
from tests.test_trace_once import Node, chain, scope, traced, x


class Leaf:
    """Takes the place of an array; compared by identity."""


Pair = namedtuple("Pair", ["left", "right"])
STATICS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.builds(slice, st.integers(), st.none()),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(-9, 9)),
)
KEYS = st.text(max_size=2) | st.integers()


def nests(atoms):
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(KEYS, inner, max_size=4),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=12,
    )


def described(value, leaf=lambda leaf: "leaf"):
    """Describe a nest by types and values: dictionaries in their order, arrays by `leaf`."""
    if isinstance(value, Leaf):
        return leaf(value)
    if isinstance(value, dict):
        return ("dict", [(repr(k), described(v, leaf)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [described(item, leaf) for item in value])
    return (type(value), repr(value))


@examples(25)
@given(nests(STATICS | st.builds(Leaf)))
def test_unflatten_undoes_flatten(value):
    leaves, spec = flatten(value, Leaf)
    assert described(unflatten(spec, leaves), id) == described(value, id)


class First(gdb.DynamicHybridBlock):
    """A cell that takes any arguments after an array."""

    def hybrid_forward(self, F, first, *rest):
        return first * 2


@examples(15)
@given(st.lists(nests(STATICS | st.builds(Leaf)), max_size=4))
def test_the_key_of_a_call_says_how_its_arguments_are_nested(rest):
    """A new kind of call needs no second walk over its arguments."""
    cell = First()
    cell.hybridize()
    leaves, spec = flatten([Leaf(), *rest], Leaf)
    args = unflatten(spec, [x()] * len(leaves))
    with gdb.batching(**FIXED):
        cell(*args)
    (key,) = RUNTIME.library.callee(cell).entries
    mode, spec, types, argument_of = read_key(key)
    parts = [flatten(argument) for argument in args]
    assert (mode, spec) == (0, flatten(tuple(args))[1])
    assert argument_of == tuple(i for i, (leaves, _) in enumerate(parts) for _ in leaves)
    assert types == (types[0],) * len(argument_of)


#: Values that look alike; each is also put into a nest.
CLOSE = [
    0, 0.0, -0.0, False, 1, True, 1.0, None, "", "1", b"1", float("nan"), np.float32(1), Leaf(),
    "*", 0.1, 0.1 + 1e-17 + 2e-17, [], (), {}, [[]], [()], (1, 2), Pair(1, 2), [[1], 2], [1, [2]],
    {"a": 1, "b": 2}, {"b": 2, "a": 1},
]  # fmt: skip


#: Numbers of structures of arguments, by what describes them.
NUMBERS = {}


def leaves_of(value):
    """List arrays or symbols of a nest, and describe the rest."""
    is_array, leaves = (mx.nd.NDArray, mx.sym.Symbol), []

    def visit(value):
        if isinstance(value, is_array):
            leaves.append(value)
            return "array"
        if isinstance(value, dict):
            return {repr(key): visit(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value).__name__, [visit(item) for item in value]
        return type(value).__name__, repr(value)

    return NUMBERS.setdefault(repr(visit(value)), len(NUMBERS)), leaves


class Described(gdb.DynamicHybridBlock):
    """A cell whose result depends on how its arguments are nested, and on their order."""

    def hybrid_forward(self, F, first, *rest):
        number, leaves = leaves_of(rest)
        for k, leaf in enumerate(leaves):
            first = first + leaf * (k + 2)
        return first + number


@pytest.mark.parametrize("debug", [False, True])
def test_each_structure_has_its_own_calls_also_if_it_has_come_before(debug):
    """Known calls are found by numbers if they have few arguments, so all kinds come often."""
    cell, rows = Described(), dense(4 * WIDTH)
    cell.hybridize()
    more = [
        10**30,
        -1,
        2,
        [None, [True, (0, [1, [2, [3, []]]])]],
        Leaf(),
        [Leaf(), Leaf()],
        (Leaf(), 1),
    ]
    few = [[Leaf()] * k + [nest] for nest in (1, 1.0) for k in (1, 9, 20, 21, 22, 23, 30)]
    kinds = [(nest,) for nest in CLOSE + more + few]
    kinds += [(nest, nest) for nest in (Leaf(), [], 1)] + [(), ([Leaf()], []), ([], [Leaf()])]
    order = [kind for _ in range(4) for kind in kinds]
    random.Random(1).shuffle(order)
    with gdb.batching(**FIXED, debug=debug):
        row, sources, got = rows(x()).reshape((4, WIDTH)), [], []
        for number, kind in enumerate(order):
            leaves, spec = flatten(kind, Leaf)
            # Views of a result, arrays of the user, and constants.
            makers = [
                lambda k: row[k % 4 : k % 4 + 1],
                lambda k: x(k),
                lambda k: mx.nd.ones((1, WIDTH)),
            ]
            arrays = [makers[(number + k) % 3](number + k) for k in range(len(leaves))]
            sources.append(arrays)
            got.append(cell(x(), *unflatten(spec, arrays)))
    for kind, arrays, result in zip(order, sources, got):
        leaves, spec = flatten(kind, Leaf)
        number, _ = leaves_of(unflatten(spec, arrays))
        wanted = x().asnumpy() + sum((k + 2) * a.asnumpy() for k, a in enumerate(arrays)) + number
        np.testing.assert_allclose(result.asnumpy(), wanted, 1e-4, 1e-4)


def test_specs_and_keys_are_equal_exactly_if_the_structures_are():
    nests = [*CLOSE, *([x, {"a": (x,)}] for x in CLOSE)]
    forms = [
        (described(nest), flatten(nest, Leaf)[1], Structure(None).write(0, copy.deepcopy(nest)))
        for nest in nests
    ]
    for (a, spec, key), (b, other_spec, other_key) in product(forms, forms):
        assert (spec == other_spec) == (key == other_key) == (a == b), (a, b)
        assert (spec != other_spec) == (a != b), (a, b)
        assert spec != other_spec or hash(spec) == hash(other_spec), (a, b)


def key(value):
    return Structure(None).write(0, value)


@examples(25)
@given(nests(STATICS), st.sampled_from([list, dict, Leaf]))
def test_keys_of_long_tuples_are_kept_unless_something_in_them_can_change(value, changeable):
    long = Pair(tuple(range(60)), value)
    assert key(long) == key(long) == key(copy.deepcopy(long))
    inner = changeable()
    holder = long, inner
    before = key(holder)
    if changeable is list:
        inner.append(1)
    elif changeable is dict:
        inner[1] = 1
    else:
        inner.times = 1
    assert key(holder) != before == key((long, changeable()))


def test_the_memory_of_tuples_with_numbers_is_bounded():
    first = tuple(range(1000))
    before = sys.getrefcount(first)
    key(first)
    assert sys.getrefcount(first) == before + 1
    keys = {key((number, *first)) for number in range(3000)}
    assert sys.getrefcount(first) == before
    assert len(keys) == 3000, "a number was used again"


def test_many_tuples_with_numbers_are_told_apart():
    tuples = [(number, *range(16)) for number in range(20_000)]
    keys = list(map(key, tuples))
    assert len(set(keys)) == len(keys) and list(map(key, tuples)) == keys


@given(st.lists(st.integers(0, 11), min_size=1, max_size=20))
def test_keys_say_which_arrays_are_the_same(numbers):
    arrays = [x() for _ in range(20)]
    same = [numbers.index(number) for number in numbers]
    assert key([arrays[n] for n in numbers]) == key([arrays[n] for n in same])
    if len(set(numbers)) < len(numbers):
        assert key([arrays[n] for n in numbers]) != key([x() for _ in numbers])


class Shape(NamedTuple):
    times: int
    names: Tuple[str, ...]


@dataclass(frozen=True)
class Frozen:
    times: int


class Slotted:
    __slots__ = ("times", "__hidden")

    def __init__(self, times):
        self.times = times
        self.__hidden = times


class Extended(NamedTuple("Extended", [("names", tuple)])):
    """A tuple with attributes."""


def extended(times):
    value = Extended(())
    value.times = times
    return value


class Kind(enum.Enum):
    ONE, TWO = 1, 2

    @property
    def times(self):
        return self.value


def ring(times):
    first, second = Node(times), Node(times)
    first.next, second.next = second, first
    return first


MAKERS = [
    lambda n: Shape(n, ("a",)), Frozen, Node, Slotted, lambda n: Node(np.int32(n)), extended, Kind,
    lambda n: Node(range(n)[-1] + 1, np.arange(3)), lambda n: ring(n).next,
    lambda n: Node(n, x(n)),  # its array is an argument
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_objects_are_compared_by_value(make):
    """After a change, an object has another structure."""
    block = traced(lambda block, x, shape: chain(block, x, shape.times))
    account = scope(block, [(x(1), make(1)), (x(2), make(1)), (x(3), make(2)), (x(4), make(2))])
    assert (account.new, account.known, account.refused) == (2, 2, [])
    if make is Node:
        shape = Node(1)
        assert scope(block, [(x(), shape)]).known == 1
        shape.times = 3
        assert scope(block, [(x(), shape)]).new == 1


def test_one_array_twice_is_another_structure_than_two_arrays():
    block = traced(lambda block, a, b: block.net(a) + 2 * block.net(b))
    same = x(1)
    account = scope(block, [(same, same), (x(1), x(2)), (x(3), x(4)), (same, same)])
    assert (account.new, account.known) == (2, 2)


class Token(int):
    """A number whose text does not tell which one it is."""

    def __repr__(self):
        return "token"


class Word(str):
    """A string with an attribute."""


def word(text, tag):
    value = Word(text)
    value.tag = tag
    return value


class Color(enum.IntEnum):
    RED, GREEN = 1, 2


TYPE = np.dtype([("a", "i4"), ("b", "i4")])
OTHER_TYPE = np.dtype([("a", "i4"), ("c", "f4")])
#: Values that look alike.
ALIKE = [
    1, True, 1.0, "1", b"1", Token(1), Token(2), Color.RED, Color.GREEN, word("1", "a"),
    word("1", "b"), Word("1"), complex(0, 0), complex(-0.0, 0), 2**64, -(2**64), 2**64 + 2**80,
    np.float32(0), np.float32(-0.0), np.float64(0), np.int8(1), np.bool_(True), np.str_("1"),
    np.bytes_(b"1"), np.datetime64(1, "D"), np.datetime64(1, "s"), np.zeros(1, TYPE)[0],
    np.zeros(1, OTHER_TYPE)[0], slice(1), slice(True), slice(1.0), slice(Token(1)),
    slice(Token(2)), "\ud800", "\ud801", {1: 0}, {True: 0}, {1.0: 0}, {(1, 2): 0}, {(True, 2): 0},
]  # fmt: skip


def test_values_that_look_alike_have_different_specs():
    values = [*enumerate(ALIKE), *enumerate(copy.deepcopy(ALIKE))]
    specs = [(i, flatten(value, Leaf)[1]) for i, value in values]
    for (i, spec), (j, other) in product(specs, specs):
        assert (spec == other) == (i == j), (spec, other)
        assert spec != other or hash(spec) == hash(other)


def test_values_that_look_alike_have_different_keys():
    """Calls with objects of subclasses, which may have attributes, have no keys."""
    keys = []
    for i, value in [*enumerate(ALIKE), *enumerate(copy.deepcopy(ALIKE))]:
        if type(getattr(value, "stop", value)) in (Token, Word):
            with pytest.raises(TypeError):
                key(value)
        else:
            keys.append((i, key(value)))
    for (i, one), (j, other) in product(keys, keys):
        assert (one == other) == (i == j), (one, other)
    arrays = [np.zeros(2, TYPE), np.zeros(2, OTHER_TYPE)]
    assert key(arrays[0]) != key(arrays[1])


def test_values_that_cannot_be_compared_are_refused():
    for value in (word("1", [1]), np.array([None], object)[0:1], slice(slice(1)), slice(Leaf())):
        with pytest.raises(TypeError):
            flatten(value, Node)


#: Integers around the limits of machine integers, and of any size.
WHOLE = st.builds(lambda sign, bits, more: sign * 2**bits + more, st.sampled_from([-1, 1]),
                  st.integers(0, 700), st.integers(-2, 2)) | st.integers()  # fmt: skip
VALUES = nests(STATICS | WHOLE)


@examples(50)
@given(VALUES, VALUES)
def test_keys_and_specs_are_equal_exactly_if_random_values_are(one, other):
    for a, b in ((one, other), (one, copy.deepcopy(one)), ([one, other], [other, one])):
        same = described(a) == described(b)
        assert (flatten(a, Leaf)[1] == flatten(b, Leaf)[1]) == same
        assert (key(a) == key(b)) == same


def test_keys_of_long_integers_hold_all_digits():
    """Wherever in the key the digits are, and however long it is by then."""
    for length in range(0, 520, 3):
        for bits in range(64, 2100, 28):
            assert hex(2**bits + 1).encode() in key(["x" * length, 2**bits + 1]), (length, bits)


def test_arguments_of_cells_have_a_deepest_nesting():
    """Flattening does not recurse, and ends if a list contains itself."""
    nest = ring = []
    for _ in range(5000):
        nest = [nest, 1]
    leaves, spec = flatten(nest, Leaf)
    assert flatten(unflatten(spec, leaves), Leaf) == (leaves, spec)
    ring.append(ring)
    with pytest.raises(gdb.NestingError, match="contain themselves") as error:
        flatten(ring, Leaf)
    assert isinstance(error.value, RecursionError)
