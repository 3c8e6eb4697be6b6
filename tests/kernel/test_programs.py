"""Kernels of parts of models; what runs in MXNet, and why."""

from array import array as array_of
from dataclasses import replace

import mxnet as mx
import pytest
from mxnet.gluon import nn

from gluon_dynbatch.kernel.express import express
from gluon_dynbatch.native import assembling, executing
from gluon_dynbatch.rules.site import RefuseError
from gluon_dynbatch.testing import check_against_loop
from tests.cells import array, attached
from tests.cells import dense as dense_block

from .test_operators import outcomes, run


def dense(F, x, weight, *bias, units, **more):
    return F.FullyConnected(x, weight, *bias, num_hidden=units, no_bias=not bias, **more)


def lstm(F, x, h, c, *p):
    """Run an LSTM cell of three features."""
    gates = dense(F, x, p[0], p[1], units=12) + dense(F, h, p[2], p[3], units=12)
    i, forget, out, new = F.SliceChannel(gates, num_outputs=4, axis=1)
    c = F.Activation(forget, act_type="sigmoid") * c + F.sigmoid(i) * F.tanh(new)
    return F.sigmoid(out) * F.tanh(c), c


def normalised(F, x, *p):
    h = F.relu(dense(F, x, p[0], p[1], units=4)) + 0.5
    h = F.LayerNorm(h, p[2], p[3], axis=-1, eps=1e-3)
    return h, F.log_softmax(h, temperature=2.0)


def shared(F, x, matrix, row, *p):
    """Combine products with shared matrices and shared vectors along different axes."""
    h = F.broadcast_add(F.dot(x, matrix, transpose_b=True), F.reshape(row, (1, 1, -1)))
    column = F.broadcast_like(F.reshape(p[0], (1, 3, 1)), h, (0, 2), (0, 2))
    return dense(F, h * column, p[1], p[0], units=3, flatten=False)


def moved(F, x, y):
    last = F.slice_axis(x, axis=1, begin=-1, end=None)
    x = F.concat(x, F.expand_dims(y, axis=1), last, dim=1)
    x = F.slice(x, begin=(None, 1, None), end=(None, None, 3))
    return F.stack(x, x * 2, axis=3).reshape((0, -1))


def transposed(F, x):
    """Permute columns, by a transpose and by a step, into more pieces than a loop takes."""
    turned = F.transpose(F.exp(x), (0, 2, 1))
    half = F.slice(F.reshape(turned, (0, -1)), begin=(None, 80), end=(None, None), step=(None, -2))
    return turned + x, half + 1, F.sum(F.transpose(turned, (0, 2, 1)), axis=(1, 2))


def turned(F, x, y):
    """Multiply transposes, of one matrix and of several, from either side and from both."""
    one, other = F.transpose(x, (0, 2, 1)), F.transpose(y, (0, 1, 3, 2))
    several = F.batch_dot(F.reshape(other, (-3, 0, 0)), F.reshape(y, (-3, 0, 0)))
    products = F.batch_dot(x, one), F.batch_dot(one, x), F.batch_dot(one, one, transpose_b=True)
    return [*products, F.reshape(several, (-4, -1, 2, 0, 0))]


def from_left(F, x, y, *p):
    """Multiply from the left, as products of transposes, by two weights."""
    columns = F.concat(F.transpose(x, (0, 2, 1)), F.transpose(y, (0, 2, 1)), dim=2)
    products = dense(F, columns, p[0], units=6, flatten=False), F.dot(columns, p[1])
    return [F.transpose(product, (0, 2, 1)) for product in products]


def from_left_by_more(F, x, *p):
    """Multiply in the same way by a weight that is larger than the matrix of a row."""
    product = dense(F, F.transpose(x, (0, 2, 1)), p[0], units=100, flatten=False)
    return F.transpose(product, (0, 2, 1))


def deep(F, x):
    """Nest sums that take exponential time unless common subexpressions are shared."""
    for _ in range(400):
        x = F.sin(x) + x * 0.5
    return F.broadcast_axis(F.slice_axis(x, axis=1, begin=1, end=2), axis=1, size=2)


def blocked(F, x, y):
    return x * F.BlockGrad(F.sin(y)) + F.BlockGrad(x)


def read_twice(F, x, h, *p):
    product = F.dot(x, p[0])
    return product + F.dot(h, p[1]), F.tanh(product)


def per_row(F, x, y):
    """Multiply every column of a row by the same number."""
    return F.broadcast_mul(x, F.exp(y)), F.broadcast_mul(x, y * 2)


def gaps(F, x, *p):
    """Compute products of parts of rows, whose results are parts of rows as well."""
    side = F.reshape(dense(F, F.reshape(x, (0, -1, 2)), p[2], units=3, flatten=False), (0, -1))
    left, right = dense(F, x, p[0], units=4), dense(F, x, p[1], units=4)
    parts = dense(F, F.reshape(left, (0, -1, 2)), p[2], units=3, flatten=False)
    return F.concat(left, right, side, dim=1), parts


def added(F, x, y, *p):
    matrix = dense(F, x, p[0], units=4, flatten=False)
    return matrix + F.reshape(dense(F, y, p[1], units=8), (0, 2, 4))


def split(F, x, *p):
    product = dense(F, x, p[0], units=4)
    left, right = F.split(product, num_outputs=2, axis=1)
    return product * 2, F.tanh(left) * right


def parted(F, x, *p):
    """Split products without other readers, into equal and into other parts."""
    left, right = F.split_v2(dense(F, x, p[0], units=4), 2, axis=1)
    short, _, long = F.split_v2(dense(F, x, p[1], units=7), (2, 4), axis=1)
    return F.tanh(left) * right, short, long * 2


def casts(F, x, y):
    return F.cast(F.concat(x, y * 2, dim=1), "float32")


#: Per cell, the shapes of the arrays of a row, and of weights.
CELLS = {
    lstm: ([(4,), (3,), (3,)], [(12, 4), (12,), (12, 3), (12,)]),
    normalised: ([(3,)], [(4, 3), (4,), (4,), (4,)]),
    shared: ([(3, 5)], [(2, 5), (2,), (3,), (3, 2)]),
    moved: ([(2, 5), (5,)], []),
    transposed: ([(9, 9)], []),
    turned: ([(3, 4), (2, 3, 4)], []),
    from_left: ([(17, 17), (17, 17)], [(6, 34), (34, 5)]),
    from_left_by_more: ([(20, 15)], [(100, 20)]),
    deep: ([(3,)], []),
    blocked: ([(3,), (3,)], []),
    read_twice: ([(2,), (2,)], [(2, 3), (2, 3)]),
    added: ([(2, 3), (3,)], [(4, 3), (8, 3)]),
    split: ([(3,)], [(4, 3)]),
    parted: ([(3,)], [(4, 3), (7, 3)]),
    casts: ([(3,), (2,)], []),
    per_row: ([(5,), (1,)], []),
    gaps: ([(6,)], [(4, 6), (4, 6), (3, 2)]),
}


def launch_of(fn, shapes, weights=()):
    """Compare a cell in double precision with MXNet; return its one launch, as `run` does."""
    shared = attached([array(*s, dtype="float64", seed=9 + k) for k, s in enumerate(weights)])
    samples = [
        [*attached([array(n, *s, dtype="float64", seed=k) for k, s in enumerate(shapes)]), *shared]
        for n in (1, 3, 2)
    ]
    (launch,) = run(fn, samples, tolerance=(1e-10, 1e-12))
    return launch


@pytest.mark.parametrize("fn", CELLS)
def test_parts_of_models_equal_mxnet(fn):
    assert outcomes([launch_of(fn, *CELLS[fn])]) == (1, set())


def expressions(fn, kind):
    """Return the expressions of a kind from which a cell's results are computed."""
    segment, _ = launch_of(fn, *CELLS[fn])
    stack = list(express(segment))
    seen = []
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.append(node)
            stack += node.args
    return [node for node in seen if node.kind == kind]


@pytest.mark.parametrize("fn, products", [(lstm, [2]), (read_twice, [1, 1]), (split, [1])])
def test_added_products_become_one_unless_read_elsewhere(fn, products):
    assert [len(product.args) for product in expressions(fn, "product")] == products


def test_expressions_shared_by_all_columns_are_computed_once_per_row():
    totals = {str(total) for total in expressions(per_row, "reduced")}
    assert totals == {"reduced[sum, 1](exp(in1))", "reduced[sum, 1](mul(in1, 2.0))"}


def test_columns_are_moved_once():
    moves = {str(node) for node in expressions(transposed, "permuted")}
    assert moves == {f"permuted[{columns} columns](exp(in0))" for columns in (81, 41)}


def test_factors_that_are_transposes_are_read_where_they_are():
    assert [len(expressions(turned, kind)) for kind in ("permuted", "dot")] == [0, 4]


def test_parts_of_a_product_are_products():
    assert sorted(product.width for product in expressions(parted, "product")) == [2, 2, 2, 3]


def test_products_of_transposes_move_nothing_unless_the_matrix_is_large():
    counts = [[len(expressions(fn, kind)) for kind in ("permuted", "dot")]
              for fn in (from_left, from_left_by_more)]  # fmt: skip
    assert counts == [[0, 2], [2, 0]]


X = [(2, 2)]
UNSUPPORTED = [
    (lambda F, x, w: F.nansum(x, axis=1), "operator nansum has no native steps"),
    (lambda F, x, w: F.cast(x, "float16"), "float16"),
]


@pytest.mark.parametrize("fn, reason", UNSUPPORTED, ids=[reason for _, reason in UNSUPPORTED])
def test_unsupported_operators_run_in_mxnet(fn, reason):
    count, reasons = outcomes([launch_of(fn, X, X)])
    assert not count and all(reason in text for text in reasons)


def test_kernels_are_refused_on_a_gpu():
    segment, _ = launch_of(lambda F, x: F.exp(x), [(2,)])
    with pytest.raises(RefuseError, match="gpu"):
        express(replace(segment, context=mx.gpu()))


class Like(nn.HybridBlock):
    """An operator that only takes the shape of a sum."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def hybrid_forward(self, F, x, a, b):
        return F.tanh(getattr(F, self.operator)(x, F.add_n(a, b)))


@pytest.mark.parametrize("operator", ["broadcast_like", "slice_like"])
@pytest.mark.parametrize("dtype", ["float16", "uint8", "int8", "int32", "int64", "float64"])
def test_sums_of_arrays_that_no_kernel_reads(dtype, operator):
    """Native code adds up operands that are sums, also if only their shape is used."""
    net = Like(operator)
    net.hybridize()
    rows = [mx.nd.array([range(n, n + 8)], dtype=dtype) for n in range(9)]
    x = array(1, 1 if operator == "broadcast_like" else 8)
    for granularity in ("operator", "block"):
        samples = [(x, rows[n], rows[n + 1]) for n in range(8)]
        check_against_loop(lambda s: net(*s), samples, [], granularity=granularity, policy="depth")


def test_native_code_adds_only_types_that_it_has_codes_for():
    kinds = [assembling.kind_of(dtype) for dtype in executing.DTYPES]
    assert kinds == [0, 1, 2, 3, 4]
    assert {assembling.kind_of(dtype) for dtype in ("float16", "uint8", "int8")} == {-1}


def test_blocks_share_kernels_whether_they_are_trained_or_not():
    """Kernels of a backward pass are made for the parameters that get a gradient there."""
    trained, frozen = (dense_block(3, 2) for _ in range(2))
    frozen.collect_params().setattr("grad_req", "null")
    samples = attached([array(1, 2, seed=k) for k in range(3)])
    plans = [
        check_against_loop(net, samples, policy="depth").plan for net in (trained, frozen, trained)
    ]
    first, *others = ({k for k in plan.kernels if not isinstance(k, str)} for plan in plans)
    assert len(first) == 1 and others == [first, first]


TABLES = ["packs", "operand_packs", "shared", "sums", "trained", "reached"]


@pytest.mark.parametrize("table", TABLES)
def test_an_entry_of_a_recipe_has_all_fields_of_its_struct(table):
    numbers = dict.fromkeys(("row_bytes", "parameters", "saved", "added", "far", "draws"), ())
    kernel = executing.NativeKernel(array_of("q"), (), {})
    forward = assembling.Direction(kernel, order=(), operands=[], results=(), apart=[])
    entries = {name: [] for name in TABLES}

    def recipe(**given):
        tables = {**numbers, **entries, **given}
        rest = dict(gathers=False, table_rows=0, single=-1, products=None)
        assembling.Recipe(forward, None, **tables, **rest)

    recipe()
    with pytest.raises(ValueError, match="No value specified for struct attribute"):
        recipe(**{table: [{"number": 0}]})


def many_pieces(F, x, y):
    """Repeat columns, and sum over columns, that fall into more pieces than a loop takes."""
    rows, columns = F.sum(x, axis=2, keepdims=True), F.sum(F.tanh(y), axis=1, keepdims=True)
    table = F.broadcast_add(F.tanh(rows), F.transpose(rows, (0, 2, 1)))
    return [F.broadcast_mul(x, rows), F.broadcast_mul(columns, x), table, F.mean(y, axis=(1, 2))]


@pytest.mark.parametrize("size", [(40, 50), (50, 3), (3, 50), (33, 1)])
def test_many_pieces_are_repeated_and_summed_by_kernels(size):
    assert outcomes([launch_of(many_pieces, [size, size])]) == (1, set())
