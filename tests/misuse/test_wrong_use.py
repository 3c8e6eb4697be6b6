"""Wrong use of options, scopes, blocks and gradients; see also ``tests/test_bad_input.py``.

The message must name a line that has the comment ``# wrong``.
"""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.

import contextlib
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import BUDGET_VARIABLE
from tests import inside
from tests.cells import array, cell, dense, equal
from tests.common import FIXED, SAMPLES, named_lines, refused, works
from tests.inside import as_before_the_first_scope

net = pytest.fixture(lambda unharmed: unharmed, name="net")


@pytest.mark.parametrize("use", [str, lambda y: y[:, 1], lambda y: float(y[0, 0])])
def test_a_pending_array_of_a_failed_scope_has_no_value(net, use):
    """No use and no later scope gets its value; values computed before the failure stay."""
    x = array(1, 4)
    wanted = net(x)
    with contextlib.suppress(KeyError), gdb.batching() as batch:
        flushed = net(x)
        batch.flush()
        read = net(x)
        read.asnumpy()
        y = net(x) + 1
        raise KeyError("my own")
    assert y.shape == (1, 3)
    with refused(gdb.StaleArrayError, "KeyError", "my own"):
        y.asnumpy()  # wrong
    with pytest.raises(gdb.StaleArrayError, match="my own"):
        use(y)
    with refused(gdb.StaleArrayError, "my own"), gdb.batching():
        net(x)
        net(mx.nd.concat(y, array(1, 1), dim=1))  # wrong
    equal([flushed, read], [wanted] * 2)


#: Functions with options.
FUNCTIONS = {
    "batching": gdb.batching,
    "map": lambda **options: gdb.map(dense(), [array(1, 4)], **options),  # wrong
    "imap": lambda **options: gdb.imap(dense(), [array(1, 4)], **options),  # wrong
    "hybridize": lambda **options: dense().hybridize(**options),  # wrong
    "batcher": lambda **options: gdb.RequestBatcher(dense(), **options),  # wrong
    "budget": gdb.Budget,
    "check": lambda **options: gdb.testing.check_against_loop(dense(), SAMPLES, **options),  # wrong
}
NAN = float("nan")
BUDGETS = [-1, -0.5, NAN, "fast", "-2", "nan", "", True, np.bool_(False), [1], b"1", 1j]
NAMES = ["node", "", None, 3, ["block"], np.ones(2)]
SCOPES = ("batching", "map", "imap", "batcher")
NOT_BOOLEAN, RAISE = ["True or False"], ["'raise', "]
#: By option: the error, texts in its message, wrong values, and the functions with the option.
WRONG = {
    "analysis_budget": (
        gdb.BudgetError, ["0 or more", '"auto"', "None"], BUDGETS, (*SCOPES, "hybridize"),
    ),
    "granularity": (
        gdb.OptionError, ["'auto', 'graph', 'block', 'operator'"], NAMES, (*SCOPES, "hybridize"),
    ),
    "policy": (
        gdb.OptionError, ["'auto', 'depth', 'agenda', 'search'"], NAMES, (*SCOPES, "hybridize"),
    ),
    "milliseconds": (gdb.BudgetError, ["milliseconds"], [-1, NAN, True, "3"], ["budget"]),
    "visits": (gdb.BudgetError, ["visits"], [-1, NAN, True, "3", 1.5], ["budget"]),
    "max_rows": (gdb.OptionError, ["at least 1", "None"], [0, -1, 1.5, True, "3", NAN], SCOPES),
    "strict": (gdb.OptionError, NOT_BOOLEAN, ["yes", 1, None, []], SCOPES),
    "debug": (gdb.OptionError, NOT_BOOLEAN, ["no", 0], SCOPES),
    "trace_once": (gdb.OptionError, NOT_BOOLEAN, ["no", 1, None], ["hybridize"]),
    "on_error": (gdb.OptionError, [*RAISE, "'return'"], ["ignore"], ["map"]),
    "concurrency": (gdb.OptionError, ["at least 1"], [0, True], ["map"]),
    "batch_size": (gdb.OptionError, ["at least 1"], [0, True, 10**30], ["imap"]),
    "prefetch": (gdb.OptionError, ["at least 0"], [-1, True, 0.5], ["imap"]),
    "max_batch_size": (gdb.OptionError, ["at least 1"], [0, True], ["batcher"]),
    "max_queue": (gdb.OptionError, ["at least 1"], [1.5], ["batcher"]),
    "batch_wait_timeout_s": (gdb.OptionError, ["0 or more"], [-1, NAN, "1", True], ["batcher"]),
    "continuous": (gdb.OptionError, NOT_BOOLEAN, ["no", None], ["batcher"]),
    "on_full": (gdb.OptionError, [*RAISE, "'wait'"], ["drop"], ["batcher"]),
    "tolerance": (
        gdb.OptionError, ["None, or a relative and an absolute one"],
        [0, 1e-3, "12", (1e-3,), (1e-3, -1), (1e-3, NAN), np.ones(2)], ["check"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_of_an_option_is_refused(name):
    error, texts, values, functions = WRONG[name]
    for value in values:
        for function in functions:
            with refused(error, repr(value), *texts, recorded=False):
                FUNCTIONS[function](**{name: value})  # wrong


def test_numpys_numbers_are_numbers():
    """Sizes are often computed with NumPy."""
    four, net = np.int64(4), dense()
    with gdb.batching(max_rows=four, **FIXED) as batch:
        outputs = batch.map(net, [array(1, 4)] * 8, concurrency=four)
    assert batch.report.launches == 2
    equal(list(gdb.imap(net, [array(1, 4)] * 8, batch_size=four, prefetch=np.uint8(2))), outputs)
    with gdb.RequestBatcher(net, four, np.float32(0.01), max_queue=four) as batcher:
        answer = batcher.submit(array(1, 4), timeout_s=np.int64(60)).result()
    equal([mx.nd.array(answer)], outputs[:1])


@pytest.mark.parametrize("name", ["max_rows", "strict", "debug"])
def test_hybridize_refuses_an_option_without_a_default(name):
    with refused(gdb.ArgumentError, repr(name), "batching()", recorded=False):
        dense().hybridize(**{name: INNER[name]})  # wrong


def test_hybridize_refuses_a_flag_that_gluon_would_ignore():
    """Of the options of a backend, MXNet knows the names."""
    names = "analysis_budget, granularity, policy, trace_once, active, backend"
    with refused(gdb.ArgumentError, "'trace_onse'", names, "static_alloc", recorded=False):
        dense().hybridize(trace_onse=True)  # wrong
    dense().hybridize(backend="ONEDNN", of_backend=True)
    dense().hybridize(True, "ONEDNN", of_backend=True)
    dense().hybridize(static_alloc=True, static_shape=True, inline_limit=3, forward_bulk_size=4)


def test_hybridize_takes_the_options_of_a_block_that_overrides_it():
    class Net(mx.gluon.nn.Dense):
        def hybridize(self, active=True, **flags):
            self.fast = flags.pop("fast")
            super().hybridize(active, **flags)

    net = gdb.convert(Net(2))
    net.hybridize(fast=True, trace_once=True, static_alloc=True)
    assert net.fast


class Forgetful(gdb.DynamicHybridBlock):
    """A block that does not call `super().__init__()`."""

    def __init__(self, child=None):
        if child is not None:
            self.child = child

    def hybrid_forward(self, F, x):  # noqa: D102
        return F.tanh(x)


class ForgetfulStock(mx.gluon.HybridBlock):
    """The same with Gluon's class."""

    def __init__(self):
        self.size = 3


@pytest.mark.parametrize(
    "use",
    [
        lambda: Forgetful(dense()),
        lambda: Forgetful()(array(1, 4)),
        lambda: Forgetful().initialize(),
        lambda: gdb.map(Forgetful(), [array(1, 4)]),
        lambda: gdb.convert(ForgetfulStock()),
    ],
)
def test_a_block_without_gluons_init_says_so(use):
    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) first"):
        use()


def test_a_missing_attribute_of_a_block_is_reported_as_ever():
    """The class's own `__getattr__` is asked, also that of a converted class."""

    class Answers(mx.gluon.HybridBlock):
        def __getattr__(self, name):
            if name != "answer":
                raise AttributeError(name)
            return 42

    assert gdb.convert(Answers()).answer == 42
    with pytest.raises(AttributeError, match="^'Dense' object has no attribute 'answer'$"):
        _ = dense().answer


@pytest.mark.parametrize("params", [lambda net: net, lambda net: [array(1, 4)], lambda net: "w",
                                    lambda net: np.ones(2)])  # fmt: skip
def test_check_against_loop_takes_parameters_only(net, params):
    with refused(gdb.ArgumentError, "params holds", "collect_params()", recorded=False):
        gdb.testing.check_against_loop(net, [array(1, 4)], params(net))  # wrong


def test_check_against_loop_takes_a_function_and_samples(net):
    with refused(gdb.ArgumentError, "of type list cannot be called", recorded=False):
        gdb.testing.check_against_loop([array(1, 4)], net)  # wrong
    for number in 4, np.float64(4):
        kind = type(number).__name__
        with refused(gdb.ArgumentError, f"of type {kind}, which is not iterable", recorded=False):
            gdb.testing.check_against_loop(net, number)  # wrong


@pytest.mark.parametrize("value", ["fast", "-1", "nan", ""])
def test_a_wrong_budget_in_the_environment_is_refused(monkeypatch, value):
    monkeypatch.setenv(BUDGET_VARIABLE, value)
    with pytest.raises(gdb.BudgetError, match=f"{BUDGET_VARIABLE}.*{value!r}"), gdb.batching():
        dense()(array(1, 4))


INNER = {"granularity": "operator", "policy": "search", "analysis_budget": 3, "max_rows": 7,
         "strict": True, "debug": True}  # fmt: skip


@pytest.mark.parametrize("name", INNER)
def test_a_nested_scope_with_other_settings_is_refused(net, name):
    """After the error, the outer scope can still be used."""
    texts = name.replace("analysis_", ""), "outer scope", f"opened at {__file__}:"
    with gdb.batching(**FIXED, analysis_budget=gdb.Budget(visits=99), max_rows=9) as batch:
        first = net(array(1, 4))
        with refused(gdb.ScopeError, *texts):
            with gdb.batching(**{name: INNER[name]}):  # wrong
                net(array(1, 4))
        second = net(array(1, 4))
    assert batch.report.launches == 1
    equal([first], [second])


def test_map_of_a_scope_that_is_not_open_is_refused():
    batch = gdb.batching()
    with refused(gdb.ScopeError, "not open"):
        batch.map(dense(), [])  # wrong


@pytest.mark.parametrize("shape", [{"in_units": 4}, {}], ids=["shape known", "shape deferred"])
def test_a_block_that_is_not_initialised_is_refused(net, shape):
    block = gdb.convert(nn.Dense(3, prefix="other_", **shape))
    block.hybridize()
    with refused(gdb.UninitializedError, "other_weight", "initialize()"), gdb.batching():
        net(array(1, 4))
        block(array(1, 4))  # wrong
    block.initialize()
    with gdb.batching():
        got = block(array(1, 4))
    equal([got], [block(array(1, 4))])


@pytest.mark.parametrize("thing", [3, None, nn.Dense, lambda x: x, mx.nd.ones(2)])
def test_convert_takes_blocks_only(thing):
    with refused(gdb.ArgumentError, "convert takes a Gluon block", type(thing).__name__):
        gdb.convert(thing)  # wrong


def recorded_losses(block):
    with autograd.record(), gdb.batching(**FIXED):
        return [(block(array(1, 4) * i) ** 2).sum() for i in range(3)]


def test_a_second_backward_pass_and_one_without_recording_are_refused():
    block = dense()
    losses = recorded_losses(block)
    autograd.backward(losses)
    once = block.weight.grad().asnumpy()
    with pytest.raises(RuntimeError, match="retain_graph|once"):
        autograd.backward(losses)
    np.testing.assert_array_equal(block.weight.grad().asnumpy(), once)
    with gdb.batching():
        loss = block(array(1, 4)).sum()
    with pytest.raises(RuntimeError, match="record"):
        loss.backward()
    works(block)


def test_backward_sample_by_sample():
    """The loop allows it, if losses have graphs of their own; the same loss twice is an error."""
    block = dense()
    block.collect_params().setattr("grad_req", "add")
    losses = recorded_losses(block)
    losses[0].backward()
    losses[1].backward()
    with refused(gdb.GradientError, "once", late=True):
        losses[1].backward()  # wrong


@pytest.mark.parametrize("inside", [False, True])
def test_second_order_gradient_is_refused(inside, monkeypatch):
    """A gradient penalty must not be ignored, not even with the first scope of a process."""
    put_back = as_before_the_first_scope(monkeypatch)
    block = dense()
    x = array(1, 4)
    x.attach_grad()
    x.grad[:] = 7
    with autograd.record():
        scope = gdb.batching()
        with scope if inside else contextlib.nullcontext():
            with scope:
                loss = (block(x) ** 2).sum()
            with refused(gdb.GradientError, "gradients of gradients"):
                autograd.grad(loss, x, create_graph=True, retain_graph=True)  # wrong
    np.testing.assert_array_equal(x.grad.asnumpy(), 7)
    loss.backward()
    assert np.abs(x.grad.asnumpy()).max() < 7
    works(block)
    put_back()


GRANULARITIES = pytest.mark.parametrize("granularity", ["block", "operator"])


@GRANULARITIES
def test_debug_finds_a_wrong_rule(net, monkeypatch, granularity):
    block = cell(lambda F, x: x * 3)
    inside.with_wrong_rule(monkeypatch, "_mul_scalar", {"scalar": "99"})
    with refused(gdb.MismatchError, "block: the_cell", "in launch 1 than alone", late=True):
        with gdb.batching(debug=True, granularity=granularity):
            got = [net(x) for x in SAMPLES]
            got = [block(y) for y in got]  # wrong
    with gdb.batching(granularity=granularity):
        got = [block(net(x)) for x in SAMPLES]
    assert not np.allclose(got[0].asnumpy(), 3 * net(SAMPLES[0]).asnumpy())


def test_debug_accepts_random_numbers(net):
    with autograd.train_mode(), gdb.batching(debug=True):
        got = [mx.nd.Dropout(net(x), p=0.5) * 2 for x in SAMPLES]
    assert {y.shape for y in got} == {(1, 3)}


#: By name of a block or operator: a call, and whether it is found only when its flush is planned.
NOT_MERGED = {
    "the_cell": (cell(lambda F, x: F.LinearRegressionOutput(x, x)), True),
    "LinearRegressionOutput": (lambda y: mx.nd.LinearRegressionOutput(y, y), True),  # wrong
    "batch_take": (
        lambda y: mx.nd.batch_take(y, mx.nd.array([0], dtype="int32")),  # wrong
        False,
    ),
}  # fmt: skip


@GRANULARITIES
@pytest.mark.parametrize("name", NOT_MERGED)
def test_calls_that_do_not_merge_are_reported_and_refused_by_strict(net, name, granularity):
    call, planned = NOT_MERGED[name]

    def run(**options):
        with gdb.batching(granularity=granularity, **options) as batch:
            for _ in range(3):
                y = net(SAMPLES[0])
                call(y)  # wrong
        return batch

    report = run().report
    (row,) = report.alone
    assert (row.name.rstrip("0_"), row.calls) == (name, 3)
    assert named_lines(str(row.where))[0].endswith("# wrong")
    assert f"ran alone   3 x {row.name}" in str(report)
    data = json.loads(report.to_json())
    assert [x["name"] for x in data["findings"] if x["kind"] == "alone"] == [row.name]
    assert any(flush["findings"] for flush in data["flushes"]) == planned
    texts = ["3 calls", name] if planned else [f"operator {name} run at once"]
    with refused(gdb.NotMergedError, *texts, "strict=False", late=True):
        run(strict=True)
    with gdb.batching(strict=True) as batch:
        got = [mx.nd.relu(net(x)) for x in SAMPLES]
    assert batch.report.alone == [] and len(got) == len(SAMPLES)


#: Functions of a net and three arrays of other sizes, whose calls need several launches.
SPLIT = {
    "sizes": lambda net, xs: [mx.nd.cumsum(net(x), axis=0) for x in xs],  # wrong
    "numbers": lambda net, xs: [
        mx.nd.concat(*[net(x)] * n, dim=1) for n, x in enumerate(xs, 1)  # wrong
    ],
}


@pytest.mark.parametrize("name", SPLIT)
def test_calls_that_need_several_launches_are_refused_by_strict(net, name):
    xs = [array(n, 4) for n in (1, 2, 3)]
    with gdb.batching(**FIXED) as batch:
        results = SPLIT[name](net, xs)
    (row,) = batch.report.split
    assert len(results) == 3 and not batch.report.alone
    texts = f"{row.calls} calls merged only in several launches", row.name, row.reason, row.advice
    with refused(gdb.NotMergedError, *texts, "strict=False to run them so", late=True):
        with gdb.batching(**FIXED, strict=True):
            SPLIT[name](net, xs)
    with gdb.batching(**FIXED, strict=True) as batch:
        results = SPLIT[name](net, xs[1:2])
    assert len(results) == 1 and not batch.report.split
