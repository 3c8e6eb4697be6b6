"""Where values are in memory: arrays, columns of these, matrices, maps, and columns that move."""

from __future__ import annotations

from math import prod
from typing import NamedTuple, Tuple


class Slot(NamedTuple):
    """An array that a launch reads or writes, by what it is for.

    Kinds are "in" and "out" (operands and results), "param", "work" (what a step leaves for later
    steps), and backward "head" and "grad" (gradients of results and of operands).
    """

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


class Place(NamedTuple):
    """Columns of an array, from `column` on."""

    slot: Slot
    column: int = 0

    def at(self, column: int) -> Place:
        """Return columns from one of these on."""
        return Place(self.slot, self.column + column)

    def __str__(self) -> str:
        return f"{self.slot}[{self.column}:]" if self.column else str(self.slot)


class Weight(NamedTuple):
    """A matrix that all rows are multiplied with, or chosen from."""

    place: Place
    #: As it is stored.
    rows: int
    columns: int
    #: Whether rows are multiplied with its transpose, as ``FullyConnected`` does.
    transposed: bool
    #: Whether a row to be multiplied has a single one, and zeros: it is given as the place of the
    #: one, a number that is clipped to the rows of the matrix.
    chosen: bool = False

    @property
    def units(self) -> int:
        """Numbers per row of the product."""
        return self.rows if self.transposed else self.columns

    @property
    def inputs(self) -> int:
        """Numbers per row that is multiplied."""
        if self.chosen:
            return 1
        return self.columns if self.transposed else self.rows

    def flipped(self) -> Weight:
        """Return what takes the gradient of the product to that of its rows."""
        return self._replace(transposed=not self.transposed)

    def __str__(self) -> str:
        return f"{self.place}{'.T' if self.transposed else ''}"


class Dot(NamedTuple):
    """What of two values of a row is multiplied: some matrices each, m x k and k x n."""

    matrices: int
    m: int
    k: int
    n: int
    #: Whether those of the first and of the second value are stored the other way round.
    turned: Tuple[bool, bool]
    #: A value, 0 or 1, that is a gradient: where a matrix of it is zero, so is the product.
    gradient: int = -1

    def gradients(self) -> Tuple[Dot, Dot]:
        """Return for either value how the gradient is multiplied with the other."""
        count, m, k, n, (left, right), _ = self
        first = Dot(count, m, n, k, (False, not right), 0)
        if left:
            first = Dot(count, k, n, m, (right, True), 1)
        second = Dot(count, k, m, n, (not left, False), 1)
        if right:
            second = Dot(count, n, m, k, (True, left), 0)
        return first, second


#: What a convolution computes: its result, of data, kernel and perhaps bias; or of the gradient of
#: the result, with the kernel the gradient of the data, with the data those of kernel and bias.
OF_RESULT, OF_DATA, OF_KERNEL = range(3)
Pair = Tuple[int, int]


class Maps(NamedTuple):
    """A convolution of some images in each row, or one of its gradients."""

    of: int
    images: int
    groups: int
    #: Maps of a group in the data, and in the result.
    channels: int
    filters: int
    #: Sizes of maps, and of the kernel.
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
        """Return how a result is computed, given how many maps there are in all groups."""
        counts = images, groups, channels // groups, filters // groups
        how = cls(OF_RESULT, *counts, data, data, kernel, stride, dilate, pad)
        high, wide = (
            (n + 2 * zeros - reach - 1) // step + 1
            for n, zeros, reach, step in zip(data, pad, how.reach, stride)
        )
        return how._replace(result=(high, wide))

    @property
    def reach(self) -> Pair:
        """How far the last element of the kernel is from the first."""
        (high, wide), (down, across) = self.kernel, self.dilate
        return (high - 1) * down, (wide - 1) * across

    @property
    def width(self) -> int:
        """Numbers per row of what is computed."""
        if self.of == OF_KERNEL:
            return self.groups * self.filters * (self.channels * prod(self.kernel) + 1)
        count, size = (self.channels, self.data) if self.of else (self.filters, self.result)
        return self.images * self.groups * count * prod(size)


class Order(Tuple[int, ...]):
    """For each column, the one that is moved there, or -1 for a zero; none goes to two places."""

    @classmethod
    def of_transpose(cls, rows: int, columns: int) -> Order:
        """Return how the elements of a matrix move when it is transposed."""
        return cls(columns * i + j for j in range(columns) for i in range(rows))

    def turned(self, width: int) -> Order:
        """Return how gradients go back to a row of some width."""
        back = [-1] * width
        for column, source in enumerate(self):
            if source >= 0:
                back[source] = column
        return Order(back)

    def __str__(self) -> str:
        return f"{len(self)} columns"
