"""Cases of the operators that look at one element at a time, or choose some by number."""

from __future__ import annotations

from typing import Iterator

from gluon_dynbatch import rules

from .interpreter import BOTH, Array, Case, R, case

#: Functions of one array, by name, and those with a number; operators on two arrays.
SINGLE = sorted(set(rules.MERGED[0].rules) - {"LeakyReLU", "add_n", "amp_multicast"})
UNARY = [op for op in SINGLE if not op.endswith("_scalar")]
SCALAR = [op for op in SINGLE if op.endswith("_scalar")]
BINARY = sorted(set(rules.MERGED[1].rules) - {"where"})
RANDOM_LIKE = [op for op in sorted(rules.TABLE) if op.endswith("_like") and rules.of(op).random]
POSITIVE = ["arccosh"]
UNIT = ["arccos", "arcsin", "arctanh", "erfinv"]
LOGS = "cbrt gamma gammaln log log10 log1p log2 rcbrt reciprocal rsqrt sqrt"
PARAMETERS = {
    "Activation": {"act_type": "softrelu"},
    "Cast": {"dtype": "float64"},
    "amp_cast": {"dtype": "float32"},
    "clip": {"a_min": -0.5, "a_max": 0.5},
    "smooth_l1": {"scalar": 1.5},
    "_contrib_quadratic": {"a": 1, "b": 2, "c": 3},
    "_contrib_gradientmultiplier": {"scalar": 3},
    "hard_sigmoid": {"alpha": 0.3},
}


def kind_for(op: str) -> str:
    if op in POSITIVE:
        return "above"
    return "unit" if op in UNIT else "positive" if op in LOGS.split() else "normal"


def unary(a: int, b: int, c: int) -> Iterator[Case]:
    for op in UNARY:
        attrs = PARAMETERS.get(op, {})
        yield case(op, Array((R, a), kind_for(op)), rows="B", stack="B", **attrs)
        yield case(op, Array((R, a, b), kind_for(op)), rows="B", stack="B", **attrs)
    yield case("exp", Array((R,)), rows="B", stack="B")
    yield case("exp", Array((R,)), rows="B", stack="B", __ctx_group__="first")
    for act in ["relu", "sigmoid", "tanh", "softsign"]:
        yield case("Activation", Array((R, a)), act_type=act, rows="B", stack="B")
    for op in SCALAR:
        yield case(op, Array((R, a), "positive"), scalar=1.5, rows="B", stack="B")
    for op in ("MakeLoss", "make_loss"):
        yield case(op, Array((R, a)), training=False, rows="B", stack="B")
        yield case(op, Array((R, a)))
    yield case("MakeLoss", Array((R, a)), normalization="batch", training=False)


def binary(a: int, b: int, c: int) -> Iterator[Case]:
    for op in [op for op in BINARY if not op.startswith("broadcast_")]:
        same = Array((R, a), "positive")
        yield case(op, same, same, rows="BB", stack=BOTH)
    for op in [op for op in BINARY if op.startswith("broadcast_")]:
        full, row = Array((R, a, b), "positive"), Array((b,), "positive")
        yield case(op, full, full, rows="BB", stack=BOTH)
        yield case(op, full, row, rows="BS", stack=BOTH)
        yield case(op, Array((a, 1), "positive"), full, rows="SB", stack=BOTH)
    vector, matrix = Array((R,)), Array((R, 3))
    yield case("broadcast_add", matrix, Array((R, 1)), rows="BB", stack=BOTH)
    yield case("broadcast_add", matrix, Array((1, 3)), rows="BS", stack=BOTH)
    yield case("broadcast_add", matrix, Array((1,)), rows="BS", stack=BOTH)
    yield case("broadcast_add", vector, Array((1,)), rows="BS", stack=BOTH)
    yield case("broadcast_mul", vector, vector, rows="BB", stack=BOTH)
    # The shared operand brings the rows, or an axis more: a sample's one row is spread over it.
    yield case("broadcast_add", Array((1, 3)), Array((a, 3)), stack=BOTH)
    yield case("broadcast_add", Array((1, 3)), Array((a, 1, 3)), stack=BOTH)
    # Six groups of axes would be one too many for MXNet.
    yield case("broadcast_add", Array((2, 1, 2, 1, 2)), Array((1, 2, 1, 2, 1)), stack="BS")
    yield case(
        "broadcast_add", Array((R, 1, 2, 1, 2)), Array((1, 2, 1, 2, 1)), rows="BS", stack="BS"
    )


def several(a: int, b: int, c: int) -> Iterator[Case]:
    x = Array((R, a))
    yield case("add_n", x, x, x, num_args=3, rows="BBB", stack="BBB BBS BSB SBB BSS SBS SSB")
    yield case("add_n", x, num_args=1, rows="B", stack="B")
    yield case("amp_multicast", x, x, num_outputs=2, rows="BB", stack=BOTH)
    condition = Array((R, a), "bit")
    every = "BBB BBS BSB BSS SBB SBS SSB"
    yield case("where", condition, x, x, rows="BBB", stack=every)
    yield case("where", Array((R,), "bit"), x, x, rows="BBB", stack=every)


def leaky(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube = Array((R, a)), Array((R, a, b))
    for act in ["leaky", "elu", "selu", "gelu"]:
        yield case("LeakyReLU", x, act_type=act, slope=0.3, rows="B", stack="B")
    yield case("LeakyReLU", x, rows="B", stack="B")
    prelu = {"act_type": "prelu", "stack": BOTH}
    for data in (x, cube):
        yield case("LeakyReLU", data, Array((a,)), rows="BS", **prelu)
        yield case("LeakyReLU", data, Array((1,)), rows="BS", **prelu)
    yield case("LeakyReLU", x, Array((1, a)), rows="BS", **prelu)
    yield case("LeakyReLU", x, x, rows="BB", **prelu)
    yield case("LeakyReLU", Array((R,)), Array((1,)), rows="BS", **prelu)
    yield case("LeakyReLU", Array((a,)), Array((a,)), **prelu)


def random(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube = Array((R, a)), Array((R, a, b))
    yield case("Dropout", x, p=0.4, training=False, rows="B", stack="B")
    drawn = {"random": True, "gradient": False}
    for mode in ("training", "always"):
        yield case("Dropout", x, p=0.4, mode=mode, rows="B", stack="B", **drawn)
    yield case("Dropout", cube, axes=(1,), rows="B", stack="B", **drawn)
    yield case("Dropout", cube, axes=(0,), stack="B", **drawn)
    for op in RANDOM_LIKE:
        rare = {"k": 3, "p": 0.4} if op == "_random_negative_binomial_like" else {}
        yield case(op, x, rows="B", stack="B", **rare, **drawn)
    yield case("_sample_poisson", Array((R, a), "positive"), rows="B", stack="B", **drawn)
    yield case(
        "_sample_exponential", Array((R,), "positive"), shape=(a, b), rows="B", stack="B", **drawn
    )
    p = Array((R, a), "unit")
    q = Array((R, a), "positive")
    pairs = {"rows": "BB", "stack": BOTH, **drawn}
    for op in ["normal", "uniform"]:
        yield case(f"_sample_{op}", p, q, **pairs)
        yield case(f"_sample_{op}", p, q, shape=(b,), **pairs)
    yield case("_sample_gamma", q, q, **pairs)
    yield case(
        "_sample_negative_binomial",
        Array((R, a), "length", 3),
        Array((R, a), "probability"),
        **pairs,
    )
    yield case("_sample_generalized_negative_binomial", q, q, **pairs)
    odds, one = Array((R, a), "probability"), Array((a,), "probability")
    yield case("_sample_multinomial", odds, rows="B", stack="B", **drawn)
    yield case("_sample_multinomial", odds, shape=(b,), rows="B", stack="B", **drawn)
    cube = Array((R, b, a), "probability")
    yield case("_sample_multinomial", cube, shape=(b,), rows="B", stack="B", **drawn)
    yield case("_sample_multinomial", one, stack="B", **drawn)
    yield case("_sample_multinomial", one, shape=(b, 2), stack="B", **drawn)
    yield case("_sample_multinomial", odds, get_prob=True, **drawn)


def densities(a: int, b: int, c: int) -> Iterator[Case]:
    sample, p, q = Array((R, a, b), "unit"), Array((R, a), "unit"), Array((R, a), "positive")
    count = Array((R, a, b), "length", 4)
    three = {"rows": "BBB", "stack": "BBB BBS BSB BSS SBB SBS SSB"}
    pair = {"rows": "BB", "stack": BOTH}
    for log in (False, True):
        name = "_random_pdf_{}".format
        yield case(name("normal"), sample, p, q, is_log=log, **three)
        yield case(name("uniform"), sample, Array((R, a), "length", 1), q, is_log=log, **three)
        yield case(name("gamma"), Array((R, a, b), "positive"), q, q, is_log=log, **three)
        yield case(name("negative_binomial"), count, Array((R, a), "length", 3),
                   Array((R, a), "fraction"), is_log=log, **three)  # fmt: skip
        yield case(name("generalized_negative_binomial"), count, q, q, is_log=log, **three)
        yield case(name("exponential"), Array((R, a, b), "positive"), q, is_log=log, **pair)
        yield case(name("poisson"), count, q, is_log=log, **pair)
        odds = Array((R, a, b), "probability")
        yield case(name("dirichlet"), Array((R, a, 2, b), "probability"),
                   Array((R, a, b), "positive"), is_log=log, **pair)  # fmt: skip
        yield case(name("dirichlet"), odds, Array((R, b), "positive"), is_log=log, **pair)
        yield case(name("dirichlet"), Array((a, b), "probability"), Array((b,), "positive"),
                   is_log=log)  # fmt: skip


def tables(a: int, b: int, c: int) -> Iterator[Case]:
    table, both = Array((7, c)), {"input_dim": 7, "output_dim": c}
    for shape in ((R,), (R, a), (R, a, b)):
        for kind in ("index", "index32"):
            yield case("Embedding", Array(shape, kind, 7), table, rows="BS", stack="BS", **both)
            yield case("take", table, Array(shape, kind, 7), rows="SB", stack=BOTH)
        yield case("one_hot", Array(shape, "index", a), depth=a, on_value=2, rows="B", stack="B")
    yield case("one_hot", Array((R, a), "wild", b), depth=b, rows="B", stack="B")
    cube, columns = Array((R, a, b)), {"rows": "BS", "stack": "BS SB"}
    for mode in ("clip", "wrap"):
        rows = Array((R, b), "wild", a)
        yield case("take", Array((a, b, c)), rows, mode=mode, rows="SB", stack=BOTH)
        yield case("take", cube, Array((c,), "wild", a), axis=1, mode=mode, **columns)
        yield case("take", cube, Array((c, 2), "wild", b), axis=-1, mode=mode, **columns)
        yield case("take", Array((a,)), Array((b,), "wild", a), mode=mode, stack=BOTH)
    yield case("take", Array((a, b)), Array((c,), "index", a), mode="raise")


def picks(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube = Array((R, a)), Array((R, a, b))
    pair = {"rows": "BB", "stack": BOTH}
    yield case("batch_take", x, Array((R,), "index32", a), gradient=False, **pair)
    for keep in (False, True):
        for mode in ("clip", "wrap"):
            given = {"keepdims": keep, "mode": mode, **pair}
            yield case("pick", x, Array((R,), "wild", a), **given)
            yield case("pick", cube, Array((R, b), "wild", a), axis=1, **given)
            yield case("pick", cube, Array((R, 1, b), "wild", a), axis=-2, **given)
        one = {"keepdims": keep, "stack": BOTH}
        yield case("pick", Array((a, b)), Array((b,), "index", a), axis=0, **one)
        yield case("pick", Array((a,)), Array((1,), "index", a), **one)
    for shape, wanted in [((a, b, c), (1, 5)), ((a, b, c), (2, 3, 2)), ((a, b), (2, 4))]:
        least = min(shape[: wanted[0]])
        for kind in ("index", "index32"):
            yield case("gather_nd", Array(shape), Array(wanted, kind, least), stack=BOTH)


def coordinates(a: int, b: int, c: int) -> Iterator[Case]:
    size = {"shape": (7, 7), "stack": "B"}
    for kind in ("index", "index32"):
        yield case("_ravel_multi_index", Array((2, c), kind, 7), **size)
        yield case("_unravel_index", Array((a,), kind, 49), **size)


FAMILIES = (
    unary, binary, several, leaky, random, densities, tables, picks, coordinates,
)  # fmt: skip
