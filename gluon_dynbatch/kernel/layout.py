"""Descriptions of operands: arrays, their columns, matrices, convolutions and permutations."""

from __future__ import annotations

from math import prod
from typing import Iterator, NamedTuple, Sequence, Tuple

import numpy as np


class Slot(NamedTuple):
    """An array that a launch reads or writes.

    Its kind is "in" or "out" (an operand or a result), "param", "work" (an intermediate result),
    or, in the backward pass, "head" or "grad" (the gradient of a result or of an operand).  Kernels
    that draw random numbers read `KEY` and `IDENTITY`.
    """

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


#: The key of all random numbers of a flush, and the numbers that identify each row: its unit, and
#: which row of the unit it is.  Both are two integers of 32 bits.
KEY, IDENTITY = Slot("key", 0), Slot("identity", 0)


class Columns(NamedTuple):
    """The columns of an array from `column` on."""

    slot: Slot
    column: int = 0

    def shifted(self, columns: int) -> Columns:
        """Return the place that begins some columns further."""
        return Columns(self.slot, self.column + columns)

    def __str__(self) -> str:
        return f"{self.slot}[{self.column}:]" if self.column else str(self.slot)


#: How indices beyond either end of a table select a row: the nearest, or from the other end on, or
#: they fail.
CLIP, WRAP, STRICT = "clip", "wrap", "raise"


class Weight(NamedTuple):
    """A matrix that all rows of a launch are multiplied with, or a table that they index."""

    place: Columns
    #: The shape in memory.
    rows: int
    columns: int
    #: Whether rows are multiplied with its transpose, as in ``FullyConnected``.
    transposed: bool
    #: `CLIP`, `WRAP` or `STRICT` if each row of the left operand is one-hot, given as the index of
    #: the one.  The product then gathers rows of the matrix.
    gathered: str = ""

    @property
    def units(self) -> int:
        """Width of a row of the product."""
        return self.rows if self.transposed else self.columns

    @property
    def inputs(self) -> int:
        """Width of a row of the left operand."""
        if self.gathered:
            return 1
        return self.columns if self.transposed else self.rows

    def __str__(self) -> str:
        return f"{self.place}{'.T' if self.transposed else ''}"


class Dot(NamedTuple):
    """A batched product in each row of a launch, of matrices m x k with matrices k x n."""

    matrices: int
    m: int
    k: int
    n: int
    #: Whether the matrices of the left and of the right operand are stored transposed.
    transposed: Tuple[bool, bool]
    #: Which operand, 0 or 1, is a gradient: where one of its matrices is zero, so is the product,
    #: even if the other matrix is not finite.  -1 if neither is.
    gradient: int = -1

    @property
    def stored_shapes(self) -> Tuple[Pair, Pair]:
        """Rows and columns of the matrices of the left and of the right operand, as stored."""
        left = (self.k, self.m) if self.transposed[0] else (self.m, self.k)
        right = (self.n, self.k) if self.transposed[1] else (self.k, self.n)
        return left, right

    def exchanging(self, operand: int) -> Dot:
        """Return the same products of matrices that are stored in the other order."""
        left, right = self.transposed
        return self._replace(transposed=(left, not right) if operand else (not left, right))

    def gradients(self) -> Tuple[Dot, Dot]:
        """Return the products that compute the gradients of the left and of the right operand."""
        m, k, n, (left, right) = self.m, self.k, self.n, self.transposed
        if left:
            of_left = self._replace(m=k, k=n, n=m, transposed=(right, True), gradient=1)
        else:
            of_left = self._replace(m=m, k=n, n=k, transposed=(False, not right), gradient=0)
        if right:
            of_right = self._replace(m=n, k=m, n=k, transposed=(True, left), gradient=0)
        else:
            of_right = self._replace(m=k, k=m, n=n, transposed=(not left, False), gradient=1)
        return of_left, of_right


#: Indices inside a row may select in the same ways.  Or negative ones count from the end, and
#: indices beyond either end fail; fractions are rounded down, or towards zero.
CHECKED, TRUNCATED = "checked", "truncated"


class Index(NamedTuple):
    """Positions, given by `number` indices, in rows that are arrays of outer x count x inner.

    With several `sizes`, each position has an index per size, as in ``gather_nd``.
    """

    outer: int
    #: Sizes of the indexed axes; their product is the count.
    sizes: Tuple[int, ...]
    number: int
    inner: int
    #: `CLIP`, `WRAP`, `CHECKED`, `TRUNCATED` or `STRICT`.
    mode: str
    #: Whether each chosen element has an index of its own, along the only indexed axis.
    each: bool = False
    #: Whether an index that does not fit chooses nothing instead of failing: in derivatives.
    lenient: bool = False

    @property
    def chosen(self) -> int:
        """Number of indices."""
        return self.gathered if self.each else self.number * len(self.sizes)

    @property
    def gathered(self) -> int:
        """Width of a row of the chosen elements."""
        return self.outer * self.number * self.inner

    @property
    def width(self) -> int:
        """Width of a row of the array that elements are chosen from."""
        return self.outer * prod(self.sizes) * self.inner


#: Orders of positions: of the largest or the least element; of all elements.
ARGMAX, ARGMIN, DESCENDING, ASCENDING = range(4)
#: How many elements native code sorts or chooses; it does so on its stack.
MOST_SORTED = 1024


class Ranking(NamedTuple):
    """The first `number` positions along an axis of outer x size x inner elements, by value."""

    outer: int
    size: int
    inner: int
    number: int
    #: `ARGMAX`, `ARGMIN`, `DESCENDING` or `ASCENDING`.
    order: int


#: What a convolution computes: the result from data, kernel and optional bias; the gradient of the
#: data from the gradient of the result and the kernel; or the gradients of kernel and bias from the
#: gradient of the result and the data.
OF_RESULT, OF_DATA, OF_KERNEL = range(3)
Pair = Tuple[int, int]


class Maps(NamedTuple):
    """A convolution of the images in each row, or one of its gradients."""

    of: int
    images: int
    groups: int
    #: Channels per group in the data, and in the result.
    channels: int
    filters: int
    #: Heights and widths.
    data: Pair
    result: Pair
    kernel: Pair
    stride: Pair
    dilate: Pair
    pad: Pair

    @classmethod
    def of_sizes(
        cls, images: int, groups: int, channels: int, filters: int,
        data: Pair, kernel: Pair, stride: Pair, dilate: Pair, pad: Pair,
    ) -> Maps:  # fmt: skip
        """Return the forward convolution; `channels` and `filters` are totals over all groups."""
        maps = cls(
            of=OF_RESULT,
            images=images,
            groups=groups,
            channels=channels // groups,
            filters=filters // groups,
            data=data,
            result=data,  # until it is known
            kernel=kernel,
            stride=stride,
            dilate=dilate,
            pad=pad,
        )
        height, width = (
            (extent + 2 * margin - reach - 1) // step + 1
            for extent, margin, reach, step in zip(data, pad, maps.reach, stride)
        )
        return maps._replace(result=(height, width))

    @property
    def reach(self) -> Pair:
        """Distance from the first to the last element of the dilated kernel, per axis."""
        (height, width), (down, across) = self.kernel, self.dilate
        return (height - 1) * down, (width - 1) * across

    @property
    def width(self) -> int:
        """Width of a row of the output."""
        if self.of == OF_KERNEL:
            return self.groups * self.filters * (self.channels * prod(self.kernel) + 1)
        count, size = (self.channels, self.data) if self.of else (self.filters, self.result)
        return self.images * self.groups * count * prod(size)


class Order(Tuple[int, ...]):
    """The source of each column, or -1 for a zero; each source is used at most once."""

    @classmethod
    def of_transpose(cls, rows: int, columns: int) -> Order:
        """Return the order that transposes a matrix of this shape."""
        return cls.of_transposes(1, rows, columns)

    @classmethod
    def of_transposes(cls, matrices: int, rows: int, columns: int) -> Order:
        """Return the order that transposes each of several matrices of this shape."""
        sources = np.arange(matrices * rows * columns).reshape(matrices, rows, columns)
        return cls(sources.transpose(0, 2, 1).ravel().tolist())

    def after(self, first: Sequence[int]) -> Order:
        """Return the order that has the effect of `first`, followed by this one."""
        return Order(first[source] if source >= 0 else -1 for source in self)

    def inverse(self, width: int) -> Order:
        """Return the order that moves gradients back to a source of this width."""
        columns = np.full(width + 1, -1)  # the last one is that of zeros, which have no source
        columns[np.array(self, dtype=np.int64)] = np.arange(len(self))
        return Order(columns[:-1].tolist())

    def __str__(self) -> str:
        return f"{len(self)} columns"


class Repeats(Order):
    """The source of each column, where each source that is used is used equally often."""

    @property
    def times(self) -> int:
        """How often a source is used."""
        return len(self) // len(set(self))

    def together(self) -> Order:
        """Return the order that puts the columns of each source side by side."""
        return Order(sorted(range(len(self)), key=self.__getitem__))

    def inverse(self, width: int) -> Order:
        """Return the order that moves the sums of `together` to a source of this width."""
        return Order(sorted(set(self))).inverse(width)


def parts_between(start: int, width: int, size: int) -> Iterator[Tuple[int, int, int, int]]:
    """Cut columns that consist of parts of a size into runs of whole parts, and pieces of one.

    Yields the number of the first part, how many there are, and the first column and the columns
    within each.
    """
    end = start + width
    while start < end:
        number, first = divmod(start, size)
        parts = 1 if first else max((end - start) // size, 1)
        columns = min(size - first, end - start)
        yield number, parts, first, columns
        start += parts * columns
