"""Cases of operators that compute each element by itself, or look up elements by number."""

from gluon_dynbatch import rules

from .interpreter import NEVER, Array, R, case

#: Functions of one array, by name, and those with a number; operators on two arrays.
SINGLE = sorted(set(rules.MERGED[0].rules) - {"LeakyReLU", "add_n", "amp_multicast"})
UNARY = [op for op in SINGLE if not op.endswith("_scalar")]
SCALAR = [op for op in SINGLE if op.endswith("_scalar")]
BINARY = sorted(set(rules.MERGED[1].rules) - {"where"})
RANDOM_LIKE = [op for op in sorted(rules.TABLE) if op.endswith("_like") and rules.of(op).random]
POSITIVE = "cbrt gamma gammaln log log10 log1p log2 rcbrt reciprocal rsqrt sqrt"
#: The kind of values of operators that are not defined for all numbers.
KINDS = {"arccosh": "above", **dict.fromkeys(POSITIVE.split(), "positive"),
         **dict.fromkeys(("arccos", "arcsin", "arctanh", "erfinv"), "unit")}  # fmt: skip
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


def unary(a, b, c):
    for op in UNARY:
        attrs, kind = PARAMETERS.get(op, {}), KINDS.get(op, "normal")
        yield case(op, Array((R, a), kind), **attrs)
        yield case(op, Array((R, a, b), kind), **attrs)
    yield case("exp", Array((R,)))
    yield case("exp", Array((R,)), __ctx_group__="first")
    for act in ["relu", "sigmoid", "tanh", "softsign"]:
        yield case("Activation", Array((R, a)), act_type=act)
    for op in SCALAR:
        yield case(op, Array((R, a), "positive"), scalar=1.5)
    for op in ("MakeLoss", "make_loss"):
        yield case(op, Array((R, a)), training=False)
        yield case(op, Array((R, a)), **NEVER)
    yield case("MakeLoss", Array((R, a)), normalization="batch", training=False, **NEVER)


def binary(a, b, c):
    for op in [op for op in BINARY if not op.startswith("broadcast_")]:
        same = Array((R, a), "positive")
        yield case(op, same, same)
    for op in [op for op in BINARY if op.startswith("broadcast_")]:
        full, row = Array((R, a, b), "positive"), Array((b,), "positive")
        yield case(op, full, full)
        yield case(op, full, row)
        yield case(op, Array((a, 1), "positive"), full)
    vector, matrix = Array((R,)), Array((R, 3))
    yield case("broadcast_add", matrix, Array((R, 1)))
    yield case("broadcast_add", matrix, Array((1, 3)))
    yield case("broadcast_add", matrix, Array((1,)))
    yield case("broadcast_add", vector, Array((1,)))
    yield case("broadcast_mul", vector, vector)
    # The shared operand has the rows, or one more axis; a sample's only row is broadcast.
    yield case("broadcast_add", Array((1, 3)), Array((a, 3)))
    yield case("broadcast_add", Array((1, 3)), Array((a, 1, 3)))
    # With the axis of the stack there are six groups of axes, one too many for MXNet.
    yield case("broadcast_add", Array((2, 1, 2, 1, 2)), Array((1, 2, 1, 2, 1)), stack="BS")
    yield case("broadcast_add", Array((R, 1, 2, 1, 2)), Array((1, 2, 1, 2, 1)), stack="BS")


def several(a, b, c):
    x = Array((R, a))
    yield case("add_n", x, x, x, num_args=3)
    yield case("add_n", x, num_args=1)
    yield case("amp_multicast", x, x, num_outputs=2)
    for condition in ((R, a), (R,)):
        yield case("where", Array(condition, "bit"), x, x)


def leaky(a, b, c):
    x, cube = Array((R, a)), Array((R, a, b))
    for act in ["leaky", "elu", "selu", "gelu"]:
        yield case("LeakyReLU", x, act_type=act, slope=0.3)
    yield case("LeakyReLU", x)
    single, many = Array((1,)), Array((a,))
    for data, slope in [(x, many), (x, single), (cube, many), (cube, single), (x, Array((1, a))),
                        (x, x), (Array((R,)), single), (many, many),
                        (cube, Array((1, a))), (cube, Array((R, a))), (cube, Array((R, 1))),
                        (Array((a, a, b)), Array((a, 1))), (Array((a, 5)), many)]:  # fmt: skip
        yield case("LeakyReLU", data, slope, act_type="prelu")


def random(a, b, c):
    x, cube = Array((R, a)), Array((R, a, b))
    yield case("Dropout", x, p=0.4, training=False)
    drawn = {"random": True, "gradient": False}
    for mode in ("training", "always"):
        yield case("Dropout", x, p=0.4, mode=mode, **drawn)
    yield case("Dropout", cube, axes=(1,), **drawn)
    yield case("Dropout", cube, axes=(0,), rows="", **drawn)
    for op in RANDOM_LIKE:
        attrs = {"k": 3, "p": 0.4} if op == "_random_negative_binomial_like" else {}
        yield case(op, x, **attrs, **drawn)
    yield case("_sample_poisson", Array((R, a), "positive"), **drawn)
    yield case("_sample_exponential", Array((R,), "positive"), shape=(a, b), **drawn)
    p, q = Array((R, a), "unit"), Array((R, a), "positive")
    for op in ["normal", "uniform"]:
        yield case(f"_sample_{op}", p, q, **drawn)
        yield case(f"_sample_{op}", p, q, shape=(b,), **drawn)
    yield case("_sample_gamma", q, q, **drawn)
    rows, vector = Array((R, a), "probability"), Array((a,), "probability")
    yield case("_sample_negative_binomial", Array((R, a), "length", 3), rows, **drawn)
    yield case("_sample_generalized_negative_binomial", q, q, **drawn)
    yield case("_sample_multinomial", rows, **drawn)
    yield case("_sample_multinomial", rows, shape=(b,), **drawn)
    cube = Array((R, b, a), "probability")
    yield case("_sample_multinomial", cube, shape=(b,), **drawn)
    yield case("_sample_multinomial", vector, **drawn)
    yield case("_sample_multinomial", vector, shape=(b, 2), **drawn)
    yield case("_sample_multinomial", rows, get_prob=True, **drawn)
    yield case("_sample_multinomial", vector, shape=(b,), get_prob=True, dtype="float32", **drawn)
    yield case("_sample_multinomial", cube, shape=(2, b), get_prob=True, dtype="float64", **drawn)


def densities(a, b, c):
    p, q, count = Array((R, a), "unit"), Array((R, a), "positive"), Array((R, a, b), "length", 4)
    positive, probability = Array((R, a, b), "positive"), Array((R, a, b), "probability")
    successes = Array((R, a), "length", 3)
    for name, *inputs in [
        ("normal", Array((R, a, b), "unit"), p, q),
        ("uniform", Array((R, a, b), "unit"), Array((R, a), "length", 1), q),
        ("gamma", positive, q, q),
        ("negative_binomial", count, successes, Array((R, a), "fraction")),
        ("generalized_negative_binomial", count, q, q),
        ("exponential", positive, q),
        ("poisson", count, q),
        ("dirichlet", Array((R, a, 2, b), "probability"), positive),
        ("dirichlet", probability, Array((R, b), "positive")),
    ]:
        for log in (False, True):
            yield case(f"_random_pdf_{name}", *inputs, is_log=log)
    without_rows = Array((a, b), "probability"), Array((b,), "positive")
    yield case("_random_pdf_dirichlet", *without_rows, is_log=True, **NEVER)


def tables(a, b, c):
    table, dims = Array((7, c)), {"input_dim": 7, "output_dim": c}
    for shape in ((R,), (R, a), (R, a, b)):
        for kind in ("index", "index32"):
            yield case("Embedding", Array(shape, kind, 7), table, shared=(1,), **dims)
            yield case("take", table, Array(shape, kind, 7))
        yield case("one_hot", Array(shape, "index", a), depth=a, on_value=2)
    yield case("one_hot", Array((R, a), "wild", b), depth=b)
    cube = Array((R, a, b))
    for mode, kind in (("clip", "wild"), ("wrap", "wild"), ("raise", "index")):
        rows = Array((R, b), kind, a)
        yield case("take", Array((a, b, c)), rows, mode=mode)
        yield case("take", cube, Array((c,), kind, a), axis=1, mode=mode)
        yield case("take", cube, Array((c, 2), kind, b), axis=-1, mode=mode)
        yield case("take", Array((a,)), Array((b,), kind, a), mode=mode)
    yield case("take", Array((a, b)), Array((c,), "index", a), axis=-2)
    yield case("take", Array((a, b)), Array((c,), "index32", a), mode="raise")


def picks(a, b, c):
    x, cube = Array((R, a)), Array((R, a, b))
    yield case("batch_take", x, Array((R,), "index32", a), gradient=False)
    for keep in (False, True):
        for mode in ("clip", "wrap"):
            attrs = {"keepdims": keep, "mode": mode}
            yield case("pick", x, Array((R,), "wild", a), **attrs)
            yield case("pick", cube, Array((R, b), "wild", a), axis=1, **attrs)
            yield case("pick", cube, Array((R, 1, b), "wild", a), axis=-2, **attrs)
        yield case("pick", Array((a, b)), Array((b,), "index", a), axis=0, keepdims=keep)
        yield case("pick", Array((a,)), Array((1,), "index", a), keepdims=keep)
    for shape, picks in [((a, b, c), (1, 5)), ((a, b, c), (2, 3, 2)), ((a, b), (2, 4))]:
        for kind in ("index", "index32"):
            chosen = Array(picks, kind, min(shape[: picks[0]]))
            yield case("gather_nd", Array(shape), chosen)
            data = Array((*picks[1:], *shape[picks[0] :]))
            yield case("_backward_gather_nd", data, chosen, shape=shape)
        places = Array((1, min(a, 2)), kind.replace("index", "place"), a)
        yield case("scatter_nd", Array((min(a, 2), b, c)), places, shape=(a, b, c))


def coordinates(a, b, c):
    size = {"shape": (7, 7)}
    for kind in ("index", "index32"):
        yield case("_ravel_multi_index", Array((2, c), kind, 7), **size)
        yield case("_unravel_index", Array((a,), kind, 49), **size)


FAMILIES = (
    unary, binary, several, leaky, random, densities, tables, picks, coordinates,
)  # fmt: skip
