"""A scope leaves nothing behind, and everything that a program may do with scopes works."""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Iterator, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import HybridBlock, nn
from mxnet.ndarray import register

import gluon_dynbatch as gdb
from gluon_dynbatch import rules
from gluon_dynbatch.batch import BUDGET_VARIABLE, RUNTIME
from gluon_dynbatch.lazy import LazyNDArray
from gluon_dynbatch.record import STATE

HOOKED = [
    (register, "_imperative_invoke"),
    (HybridBlock, "_call_cached_op"),
    (autograd, "set_recording"),
    (autograd, "set_training"),
]
ORIGINALS = [getattr(owner, name) for owner, name in HOOKED]


def originals_are_back() -> bool:
    return all(getattr(o, n) is f for (o, n), f in zip(HOOKED, ORIGINALS))


def array(*shape: int) -> mx.nd.NDArray:
    values = np.random.RandomState(sum(shape)).uniform(-1, 1, shape)
    return mx.nd.array(values, dtype="float32")


SAMPLES = [array(1, 4) * i for i in range(1, 6)]


@pytest.fixture
def net() -> gdb.DynamicHybridBlock:
    block = gdb.convert(nn.Dense(3, in_units=4))
    block.initialize(mx.init.Uniform(1))
    block.hybridize()
    return block


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    assert STATE.batch is None and STATE.recorder is None
    assert originals_are_back()
    assert not autograd.is_recording() and not autograd.is_training()


def equal(got: Any, wanted: Any) -> None:
    got, wanted = ([a.asnumpy() for a in arrays] for arrays in (got, wanted))
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


# What a scope leaves behind


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
def test_exception_leaves_nothing_behind(net, kind):
    with pytest.raises(kind), autograd.record(), gdb.batching():
        net(SAMPLES[0])
        assert STATE.recorder is not None and not originals_are_back()
        raise kind
    assert STATE.batch is None and STATE.recorder is None and originals_are_back()
    assert not autograd.is_recording()


def test_exception_while_computing_leaves_nothing_behind(net, monkeypatch):
    def fail(segment):
        raise ZeroDivisionError

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError), autograd.record():
        patch.setattr(RUNTIME.dispatcher, "executable", fail)
        with gdb.batching():
            net(SAMPLES[0])
    assert not autograd.is_recording()


def test_exception_while_computing_in_mid_scope_leaves_the_mode_alone(net, monkeypatch):
    """The scope goes on after a flush that failed."""

    def fail(segment):
        raise ZeroDivisionError

    wanted = net(SAMPLES[1])
    with autograd.train_mode(), gdb.batching():
        lost = net(SAMPLES[0])
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(RUNTIME.dispatcher, "executable", fail)
            lost.asnumpy()
        assert autograd.is_training() and not autograd.is_recording()
        got = net(SAMPLES[1])
    equal([got], [wanted])
    with pytest.raises(gdb.StaleArrayError, match="ZeroDivisionError"):
        lost.asnumpy()


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_mode_is_that_of_the_user(net, recording, training):
    modes = [autograd.record(train_mode=training) if recording else autograd.predict_mode()]
    if training and not recording:
        modes = [autograd.train_mode()]
    with modes[0]:
        with gdb.batching() as batch:
            net(SAMPLES[0])
            batch.flush()
            assert (autograd.is_recording(), autograd.is_training()) == (recording, training)
            with autograd.pause():
                net(SAMPLES[1]).asnumpy()
                assert not autograd.is_recording()
            net(SAMPLES[2])
        assert (autograd.is_recording(), autograd.is_training()) == (recording, training)


def test_hooks_stay_until_the_last_scope_closes(net):
    with gdb.batching():
        with gdb.batching():
            net(SAMPLES[0])
        assert not originals_are_back()
        assert type(net(SAMPLES[0])) is LazyNDArray
    assert originals_are_back()


# Scopes in a program


def test_scope_in_a_loop(net):
    wanted = [net(x) for x in SAMPLES]
    for _ in range(20):
        with gdb.batching(granularity="block") as batch:
            got = [net(x) for x in SAMPLES]
        assert (batch.report.nodes, batch.report.launches) == (5, 1)
        equal(got, wanted)
    assert batch.report.flushes[0].cached


def test_scope_entered_again(net):
    """The report is that of the last time; values of all times stay."""
    batch = gdb.batching(granularity="block")
    results = []
    for count in (2, 3, 4):
        with batch:
            results.append([net(x) for x in SAMPLES[:count]])
        assert batch.report.nodes == count
    for count, got in zip((2, 3, 4), results):
        equal(got, [net(x) for x in SAMPLES[:count]])


def test_scope_entered_again_after_an_exception(net):
    batch = gdb.batching()
    with contextlib.suppress(KeyError), batch:
        net(SAMPLES[0])
        raise KeyError
    with batch:
        got = net(SAMPLES[0])
    equal([got], [net(SAMPLES[0])])


def test_scope_entered_within_itself(net):
    batch = gdb.batching(granularity="block")
    with batch:
        first = net(SAMPLES[0])
        with batch as inner:
            second = net(SAMPLES[1])
        assert inner is batch
        third = net(SAMPLES[2])
    assert batch.report.launches == 1
    equal([first, second, third], [net(x) for x in SAMPLES[:3]])


def test_scope_within_a_scope_is_the_outer_one(net):
    with gdb.batching(granularity="block") as outer:
        first = net(SAMPLES[0])
        with gdb.batching() as inner:
            second = net(SAMPLES[1])
        assert inner is outer and second.pending
    assert outer.report.launches == 1
    equal([first, second], [net(x) for x in SAMPLES[:2]])


def test_exception_in_an_inner_scope_that_is_caught(net):
    with gdb.batching():
        first = net(SAMPLES[0])
        with contextlib.suppress(KeyError), gdb.batching():
            second = net(SAMPLES[1])
            raise KeyError
        third = net(SAMPLES[2])
    equal([first, second, third], [net(x) for x in SAMPLES[:3]])


def test_empty_scope():
    with gdb.batching() as batch:
        pass
    assert (batch.report.nodes, batch.report.launches, batch.report.flushes) == (0, 0, [])
    assert batch.plan is None and str(batch.report) == "nothing was recorded"


def test_scope_without_hybridized_calls(net):
    net.hybridize(False)
    with gdb.batching() as batch:
        got = [net(x) for x in SAMPLES]
        total = mx.nd.add_n(*SAMPLES)
    assert batch.report.nodes == 0 and type(total) is mx.nd.NDArray
    equal(got, [net(x) for x in SAMPLES])


def test_flush_with_nothing_pending(net):
    with gdb.batching() as batch:
        batch.flush()
        net(SAMPLES[0]).asnumpy()
        batch.flush()
        batch.flush()
    batch.flush()
    assert len(batch.report.flushes) == 1


def test_samples_with_nothing_to_do(net):
    def run(sample: List[mx.nd.NDArray]) -> Any:
        total = mx.nd.zeros((1, 3))
        for x in sample:
            total = total + net(x)
        return total

    samples = [[], SAMPLES[:2], [], SAMPLES[:1], []]
    gdb.testing.check_against_loop(run, samples)
    equal(gdb.map(run, samples), [run(s) for s in samples])
    assert gdb.map(lambda sample: None, samples) == [None] * 5
    assert gdb.map(run, []) == []


def test_one_sample(net):
    batch = gdb.testing.check_against_loop(net, SAMPLES[:1], net.collect_params().values())
    assert batch.report.nodes == batch.report.launches == 1


def test_the_same_sample_twice(net):
    x = array(1, 4)
    x.attach_grad()
    parameters = net.collect_params().values()
    gdb.testing.check_against_loop(net, [x, x, x], parameters)
    gdb.testing.check_against_loop(
        lambda s: net(mx.nd.concat(net(s), s, dim=1)[:, 3:]), [x, x], parameters
    )


class Mix(gdb.DynamicHybridBlock):
    def hybrid_forward(self, F, a, b, c):
        return F.tanh(a) * b + c * 3


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_the_same_array_as_several_arguments(granularity):
    block = Mix()
    block.hybridize()
    other = array(1, 4)
    for x in (*SAMPLES, other):
        x.attach_grad()

    def run(x):
        return [block(x, x, x), block(x, other, x), block(other, other, x), block(other, x, other)]

    gdb.testing.check_against_loop(run, SAMPLES[:3], granularity=granularity)
    gdb.testing.check_against_loop(
        lambda x: block(*[block(x, x, other)] * 3), SAMPLES[:3], granularity=granularity
    )


class Through(gdb.DynamicHybridBlock):
    def hybrid_forward(self, F, a, b):
        return a, F.tanh(b), b, a


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_outputs_that_are_inputs(granularity):
    block = Through()
    block.hybridize()
    for x in SAMPLES:
        x.attach_grad()
    gdb.testing.check_against_loop(lambda x: block(x, x * 2), SAMPLES[:3], granularity=granularity)
    with gdb.batching(granularity=granularity):
        a, _, b, again = block(SAMPLES[0], SAMPLES[1])
    a[:] = 0
    equal([b, again], [SAMPLES[1], SAMPLES[0]])


# Constants


def test_constants_are_each_samples_own(net):
    with gdb.batching():
        zeros = [mx.nd.zeros((1, 3)) for _ in range(3)]
        sums = [z + net(x) for z, x in zip(zeros, SAMPLES)]
        zeros[1][:] = 5
        after = [z + net(x) for z, x in zip(zeros, SAMPLES)]
    equal(zeros, [mx.nd.zeros((1, 3)), mx.nd.ones((1, 3)) * 5, mx.nd.zeros((1, 3))])
    equal(sums, [net(x) for x in SAMPLES[:3]])
    equal(after, [z + net(x) for z, x in zip(zeros, SAMPLES)])


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.__setitem__(slice(None), 5),
        lambda a: a.__setitem__((0, 1), 5),
        lambda a: a.__setitem__(0, mx.nd.array([7, 8, 9])),
        lambda a: a.__iadd__(2),
        lambda a: a.__imul__(3),
        lambda a: mx.nd.ones((1, 3)).copyto(a),
        lambda a: mx.nd.elemwise_add(a, a, out=a),
        lambda a: a.__setitem__(slice(0, 1), 5),
    ],
)
def test_constant_that_is_written_to_after_the_scope(net, write):
    with gdb.batching():
        first, second, third = (mx.nd.ones((1, 3)) for _ in range(3))
        y = net(SAMPLES[0]) * second
    expected = mx.nd.ones((1, 3))
    write(first)
    write(expected)
    equal(
        [first, second, third, y],
        [expected, mx.nd.ones((1, 3)), mx.nd.ones((1, 3)), net(SAMPLES[0])],
    )
    write(y)
    equal([second], [mx.nd.ones((1, 3))])


@pytest.mark.parametrize("rows", [1, 2])
def test_view_of_a_constant_that_is_written_to_in_the_scope(net, rows):
    """Eagerly, a view shares memory with its array."""

    def run() -> Any:
        state = mx.nd.zeros((3, 3))
        for i in range(rows):
            state[i] = net(SAMPLES[i])[0]
        return state

    wanted = run()
    with gdb.batching():
        got = run()
    equal([got], [wanted])


def test_constants_of_any_kind(net):
    def run(x):
        y = net(x)
        return [
            y * mx.nd.ones((1, 3)), y + mx.nd.full((1, 3), 2.5), y + mx.nd.arange(3),
            mx.nd.dot(y, mx.nd.eye(3)), y + mx.nd.zeros_like(y), y + y.ones_like(),
            y + mx.nd.array([[1, 2, 3]]), y + 1, y + np.float32(2), mx.nd.zeros((2, 2)),
        ]  # fmt: skip

    gdb.testing.check_against_loop(run, SAMPLES[:3])


def test_random_creation_is_drawn_for_each_sample(net):
    with gdb.batching():
        noise = [mx.nd.random.normal(shape=(1, 3)) for _ in range(3)]
        got = [net(x) + n for x, n in zip(SAMPLES, noise)]
    assert len({tuple(n.asnumpy().ravel()) for n in noise}) == 3
    equal(got, [net(x) + n for x, n in zip(SAMPLES, noise)])


def test_input_written_to_between_calls(net):
    """The loop reads the value that an array has when the call is made."""

    def run() -> Any:
        x = mx.nd.ones((1, 4))
        first = net(x)
        x[:] = 2
        second = net(x)
        x += 1
        return [first, second, net(x)]

    wanted = run()
    with gdb.batching():
        got = run()
    equal(got, wanted)


def set_view(x: mx.nd.NDArray) -> None:
    view = x[0:1]
    view[:] = 2


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.__setitem__(slice(None), 2),
        lambda x: x.__setitem__((0, 1), 2),
        lambda x: x.__setitem__(slice(None), np.full((1, 4), 2.0)),
        lambda x: x.__iadd__(1),
        lambda x: mx.nd.zeros((1, 4)).copyto(x),
        lambda x: mx.nd.elemwise_add(x, x, out=x),
        set_view,
    ],
    ids=["all", "one", "NumPy", "+=", "copyto", "out=", "view"],
)
def test_array_from_outside_written_to_between_calls(net, write):
    def run() -> Any:
        x = array(1, 4)
        first = net(x)
        write(x)
        return [first, net(x)]

    wanted = run()
    with gdb.batching():
        got = run()
    equal(got, wanted)


def test_parameter_written_to_between_calls(net):
    ones, zeros = mx.nd.ones((3, 4)), mx.nd.zeros((3, 4))

    def run() -> Any:
        net.weight.set_data(ones)
        first = net(SAMPLES[0])
        net.weight.set_data(zeros)
        second = net(SAMPLES[0])
        net.weight.data()[:] = 2
        return [first, second, net(SAMPLES[0])]

    wanted = run()
    with gdb.batching():
        got = run()
    equal(got, wanted)


# Training

TRAINING = """
    import mxnet as mx
    import gluon_dynbatch as gdb

    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(64, in_units=64, activation="tanh"))
    net.add(mx.gluon.nn.Dense(1, in_units=64))
    gdb.convert(net)
    net.initialize()
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "{optimizer}", {{"learning_rate": 0.01}})
    samples = [mx.nd.random.normal(shape=(1, 64)) for _ in range(64)]
    first = None
    for _ in range(10):
        with mx.autograd.record():
            with gdb.batching():
                losses = [(net(x) - 1) ** 2 for x in samples]
            loss = mx.nd.concat(*losses, dim=0).mean()
        loss.backward()
        trainer.step(1)
        first = loss if first is None else first
    print(first.asscalar() > loss.asscalar())
"""


def output_of(program: str, **environment: str) -> str:
    """Run a program in a process of its own; one that hangs fails."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=Path(gdb.__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=30,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_trainer_step_right_after_backward(optimizer, engine):
    """Nothing waits between the steps: a backward pass that waited for the optimizer would hang."""
    program = TRAINING.format(optimizer=optimizer)
    assert output_of(program, MXNET_ENGINE_TYPE=engine).split()[-1] == "True"


LATE = """
    import mxnet as mx
    import gluon_dynbatch as gdb

    net = gdb.convert(mx.gluon.nn.Dense(3, in_units=4))
    net.initialize()
    net.hybridize()
    late = mx.nd.ones((1500, 1500))
    for _ in range(6):
        late = mx.nd.dot(late, late) * 0
    with mx.autograd.record(), gdb.batching():
        losses = [net(late[:1, :4]) for _ in range(3)]
    mx.autograd.backward(losses)
    print("end of the program")
"""


def test_process_that_ends_while_a_backward_pass_is_queued():
    """MXNet stops the threads of custom functions first and waits for all work afterwards."""
    assert "end of the program" in output_of(LATE)


@pytest.mark.parametrize("ask", ["flush", "asnumpy"])
def test_leaving_in_mid_recording_keeps_gradients(net, ask):
    """A value that is asked for cuts the work in two flushes, and gradients cross the cut."""

    def run(x):
        y = net(x)
        if ask == "asnumpy":
            assert y.asnumpy().shape == (1, 3)
        elif STATE.batch is not None:
            STATE.batch.flush()
        return net(mx.nd.concat(y, x[:, :1], dim=1))

    for x in SAMPLES:
        x.attach_grad()
    batch = gdb.testing.check_against_loop(run, SAMPLES, net.collect_params().values())
    assert len(batch.report.flushes) == 6


# Generators


def test_closing_a_generator_keeps_what_it_yielded(net):
    def outputs():
        with gdb.batching():
            for x in SAMPLES:
                yield net(x)

    wanted = [net(x) for x in SAMPLES]
    equal(list(outputs()), wanted)
    got = []
    generator = outputs()
    for y in generator:
        got.append(y)
        if len(got) == 2:
            break
    generator.close()
    assert STATE.batch is None and originals_are_back()
    equal(got, wanted[:2])


def test_dropping_a_generator_closes_its_scope(net):
    def outputs():
        with gdb.batching():
            for x in SAMPLES:
                yield net(x)

    generator = outputs()
    next(generator)
    del generator
    gc.collect()
    assert STATE.batch is None and originals_are_back()


def test_calls_beside_a_suspended_generator(net):
    """Recorded or not, their values are not lost with the generator's scope."""

    def outputs():
        with gdb.batching():
            yield net(SAMPLES[0])

    generator = outputs()
    next(generator)
    beside = net(SAMPLES[1])
    generator.close()
    equal([beside], [net(SAMPLES[1])])


def test_samples_from_a_generator(net):
    wanted = [net(x) for x in SAMPLES]
    equal(gdb.map(net, (x for x in SAMPLES)), wanted)
    with gdb.batching(granularity="block") as batch:
        got = list(map(net, (x for x in SAMPLES)))
    assert batch.report.launches == 1
    equal(got, wanted)


# debug=True and strict=True


def break_rule(monkeypatch: Any, op: str) -> None:
    """Make the rewrites of an operator wrong: a scalar attribute is changed."""
    for layout in ("rows", "stack"):
        right = getattr(rules, layout)

        def wrong(site: Any, right: Any = right) -> Any:
            answer = right(site)
            if site.op != op or isinstance(answer, rules.Refusal):
                return answer
            steps = tuple(
                step._replace(attrs={**step.attrs, "scalar": "99"}) if step.op == op else step
                for step in answer.steps
            )
            if hasattr(answer, "_replace"):
                return answer._replace(steps=steps)
            return dataclasses.replace(answer, steps=steps)

        monkeypatch.setattr(rules, layout, wrong)


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_debug_finds_a_wrong_rule(net, monkeypatch, granularity):
    class Cell(gdb.DynamicHybridBlock):
        def hybrid_forward(self, F, x):
            return x * 3

    block = Cell(prefix="tripling_")
    block.hybridize()
    break_rule(monkeypatch, "_mul_scalar")
    with pytest.raises(gdb.MismatchError, match=r"block: tripling") as caught:
        with gdb.batching(debug=True, granularity=granularity):
            got = [net(x) for x in SAMPLES]
            line = sys._getframe().f_lineno + 1
            got = [block(y) for y in got]
    assert f"{__file__}:{line} in " in str(caught.value)
    with gdb.batching(granularity=granularity):
        got = [block(net(x)) for x in SAMPLES]
    assert not np.allclose(got[0].asnumpy(), 3 * net(SAMPLES[0]).asnumpy())


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_debug_accepts_what_is_right(net, granularity):
    def run(x):
        return mx.nd.softmax(net(x) * 2) + net(x[:, ::-1])

    batch = gdb.testing.check_against_loop(
        run, SAMPLES, net.collect_params().values(), debug=True, granularity=granularity
    )
    assert batch.report.nodes == 5 * 5


def test_debug_accepts_random_numbers(net):
    with autograd.train_mode(), gdb.batching(debug=True):
        got = [mx.nd.Dropout(net(x), p=0.5) * 2 for x in SAMPLES]
    assert {y.shape for y in got} == {(1, 3)}


def test_strict_is_the_scopes_own(net):
    batch_norm = gdb.convert(nn.BatchNorm(in_channels=3))
    batch_norm.initialize()
    batch_norm.hybridize()
    with pytest.raises(gdb.NotMergedError, match="BatchNorm"), autograd.train_mode():
        with gdb.batching(strict=True):
            _ = [batch_norm(net(x)) for x in SAMPLES]
    with autograd.train_mode(), gdb.batching() as batch:
        got = [batch_norm(net(x)) for x in SAMPLES]
    assert batch.report.alone[0].calls == len(got)


# Defaults


def budget_of(net: gdb.DynamicHybridBlock, **options: Any) -> str:
    with gdb.batching(**options) as batch:
        net(SAMPLES[0])
    return batch.report.flushes[0].budget


def test_budget_from_the_environment(net, monkeypatch):
    assert budget_of(net) == "unlimited"
    monkeypatch.setenv(BUDGET_VARIABLE, "2.5")
    assert budget_of(net) == "2.5 ms"
    assert budget_of(net, analysis_budget=7) == "7 ms"
    assert budget_of(net, analysis_budget=None) == "unlimited"
    monkeypatch.setenv(BUDGET_VARIABLE, "none")
    assert budget_of(net) == "unlimited"
    monkeypatch.setenv(BUDGET_VARIABLE, "0")
    assert budget_of(net) == "0 ms"
    net.hybridize(analysis_budget=5)
    assert budget_of(net) == "5 ms"


@pytest.mark.parametrize("scopes", [{}, {"policy": "search"}])
def test_defaults_from_hybridize(net, scopes):
    net.hybridize(analysis_budget=3, granularity="block", policy="agenda")
    with gdb.batching(**scopes) as batch:
        got = [net(x) for x in SAMPLES]
    (flush,) = batch.report.flushes
    wanted = ("block", scopes.get("policy", "agenda"), "3 ms")
    assert (flush.granularity, flush.policy, flush.budget) == wanted
    equal(got, [net(x) for x in SAMPLES])


def test_defaults_from_hybridize_end_with_the_next_hybridize(net):
    net.hybridize(analysis_budget=0)
    net.hybridize()
    assert budget_of(net) == "unlimited"


def test_a_budget_of_zero_runs_calls_one_by_one(net):
    with gdb.batching(analysis_budget=0) as batch:
        got = [net(x) for x in SAMPLES]
    assert batch.report.launches == batch.report.nodes == 5
    equal(got, [net(x) for x in SAMPLES])


def test_max_rows(net):
    with gdb.batching(max_rows=2, granularity="block") as batch:
        got = [net(x) for x in SAMPLES]
    assert batch.report.launches == 3 and batch.report.flushes[0].largest_width == 2
    equal(got, [net(x) for x in SAMPLES])


# What a user can see


def test_one_line_per_flush_in_the_log(net, caplog):
    with caplog.at_level(logging.DEBUG, "gluon_dynbatch"), gdb.batching(granularity="block") as b:
        net(SAMPLES[0]).asnumpy()
        net(SAMPLES[1])
    assert [(r.levelname, r.name) for r in caplog.records] == [("DEBUG", "gluon_dynbatch")] * 2
    assert caplog.messages == [flush.line for flush in b.report.flushes]
    assert caplog.messages[0].startswith("1 calls -> 1 launches (block by depth, plan ")


def test_nothing_in_the_log_by_default(net, caplog):
    with caplog.at_level(logging.INFO), gdb.batching():
        net(SAMPLES[0])
    assert caplog.messages == []


@pytest.mark.parametrize("recording", [False, True])
def test_leaving_a_scope_waits_for_nothing(net, monkeypatch, recording):
    """MXNet runs on while the user records the next minibatch."""
    waits = []
    for owner, name in (
        (mx.nd.NDArray, "wait_to_read"), (mx.nd.NDArray, "asnumpy"), (mx.nd.NDArray, "asscalar"),
        (mx.nd, "waitall"), (mx.nd.ndarray, "waitall"),
    ):  # fmt: skip
        real = getattr(owner, name)

        def counted(*args: Any, real: Any = real, name: str = name) -> Any:
            waits.append(name)
            return real(*args)

        monkeypatch.setattr(owner, name, counted)
    with autograd.record() if recording else contextlib.nullcontext():
        with gdb.batching(granularity="block", policy="depth") as batch:
            got = [net(x) for x in SAMPLES]
    assert waits == [] and batch.report.forced == {} and not batch.report.flushes[0].measured
    if recording:
        autograd.backward(got)
        assert waits == []
    got[0].asnumpy()
    assert "asnumpy" in waits


def test_plain_gluon_outside_of_a_scope(net):
    y = net(SAMPLES[0])
    assert type(y) is mx.nd.NDArray
    with gdb.batching():
        assert type(net(SAMPLES[0])) is LazyNDArray
    assert type(net(SAMPLES[0])) is mx.nd.NDArray


def test_stock_blocks_are_recorded_too():
    """Blocks that were not converted are seen as well, if they are hybridized."""
    block = nn.Dense(3, in_units=4)
    block.initialize()
    block.hybridize()
    wanted = [block(x) for x in SAMPLES]
    with gdb.batching(granularity="block") as batch:
        got = [block(x) for x in SAMPLES]
    assert (batch.report.nodes, batch.report.launches) == (5, 1)
    equal(got, wanted)
