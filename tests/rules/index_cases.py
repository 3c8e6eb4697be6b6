"""Cases of the operators that choose elements by number."""

from __future__ import annotations

from typing import Iterator

from .interpreter import Array, Case, R, case

BOTH = "BB BS SB"


def tables(a: int, b: int, c: int) -> Iterator[Case]:
    table, both = Array((7, c)), {"input_dim": 7, "output_dim": c}
    for shape in ((R,), (R, a), (R, a, b)):
        for kind in ("index", "index32"):
            yield case("Embedding", Array(shape, kind, 7), table, rows="BS", stack="BS", **both)
            yield case("take", table, Array(shape, kind, 7), rows="SB", stack=BOTH)
        yield case("one_hot", Array(shape, "index", a), depth=a, on_value=2, rows="B", stack="B")
    yield case("one_hot", Array((R, a), "wild", b), depth=b, rows="B", stack="B")
    for mode in ("clip", "wrap"):
        yield case(
            "take", Array((a, b, c)), Array((R, b), "wild", a), mode=mode, rows="SB", stack=BOTH
        )
        yield case(
            "take",
            Array((R, a, b)),
            Array((c,), "wild", a),
            axis=1,
            mode=mode,
            rows="BS",
            stack="BS SB",
        )
        yield case(
            "take",
            Array((R, a, b)),
            Array((c, 2), "wild", b),
            axis=-1,
            mode=mode,
            rows="BS",
            stack="BS SB",
        )
        yield case("take", Array((a,)), Array((b,), "wild", a), mode=mode, stack=BOTH)
    yield case("take", Array((a, b)), Array((c,), "index", a), mode="raise")


def picks(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube = Array((R, a)), Array((R, a, b))
    pair = {"rows": "BB", "ones": "BS SB", "stack": BOTH}
    yield case("batch_take", x, Array((R,), "index32", a), gradient=False, **pair)
    for keep in (False, True):
        for mode in ("clip", "wrap"):
            given = {"keepdims": keep, "mode": mode, **pair}
            yield case("pick", x, Array((R,), "wild", a), **given)
            yield case("pick", cube, Array((R, b), "wild", a), axis=1, **given)
            yield case("pick", cube, Array((R, 1, b), "wild", a), axis=-2, **given)
        yield case(
            "pick", Array((a, b)), Array((b,), "index", a), axis=0, keepdims=keep, stack=BOTH
        )
        yield case("pick", Array((a,)), Array((1,), "index", a), keepdims=keep, stack=BOTH)
    for kind in ("index", "index32"):
        yield case("gather_nd", Array((a, b, c)), Array((1, 5), kind, a), stack=BOTH)
        least = min(a, b)
        yield case("gather_nd", Array((a, b, c)), Array((2, 5), kind, least), stack=BOTH)
        yield case("gather_nd", Array((a, b, c)), Array((2, 3, 2), kind, least), stack=BOTH)
        yield case("gather_nd", Array((a, b)), Array((2, 4), kind, least), stack=BOTH)


def coordinates(a: int, b: int, c: int) -> Iterator[Case]:
    size = {"shape": (7, 7), "stack": "B"}
    for kind in ("index", "index32"):
        yield case("_ravel_multi_index", Array((2, c), kind, 7), **size)
        yield case("_unravel_index", Array((a,), kind, 49), **size)


def cases(a: int, b: int, c: int) -> Iterator[Case]:
    for family in (tables, picks, coordinates):
        yield from family(a, b, c)
