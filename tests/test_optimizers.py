"""Fused optimizers update as MXNet's do, in one operation of the engine."""

import copy
import json
import pickle

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.common import semantics
from tests.forks import output_of

#: Fused optimizers, and those of MXNet.
PAIRS = [(gdb.FusedAdaGrad, mx.optimizer.AdaGrad), (gdb.FusedAdam, mx.optimizer.Adam)]
every_pair = pytest.mark.parametrize("pair", PAIRS)
SHAPES = st.sampled_from([(1,), (3,), (5, 7), (64,), (2, 3, 4), (33, 40)])


class Parameters(gluon.Block):
    """Parameters of some shapes, whose gradients are set from outside."""

    def __init__(self, shapes, ctx=None, **kwargs):
        super().__init__(prefix="parameters_")
        for number, shape in enumerate(shapes):
            setattr(self, f"p{number}", self.params.get(f"p{number}", shape=shape, **kwargs))
        mx.random.seed(1)
        self.initialize(mx.init.Normal(1.0), ctx=ctx)

    def set_gradients(self, seed):
        """Set random gradients."""
        rng = np.random.RandomState(seed)
        for parameter in self.collect_params().values():
            if parameter.grad_req == "null":
                continue
            values = rng.normal(size=parameter.shape)
            for array, gradient in zip(parameter.list_data(), parameter.list_grad()):
                gradient[:] = values.astype(gradient.dtype)
                array._fresh_grad = True


def train(trainer, net, steps):
    """Make some steps, with gradients that differ."""
    for step in steps:
        net.set_gradients(step)
        trainer.step(2 + step % 2)


def values_of(net):
    parameters = net.collect_params().values()
    return [array.asnumpy() for parameter in parameters for array in parameter.list_data()]


def check(pair, run):
    """Check that a function of either optimizer's class returns the same parameters.

    AdaGrad does the same in the same order; MXNet's Adam may round less often.
    """
    for ours, theirs in zip(*map(values_of, map(run, pair))):
        if pair[0] is gdb.FusedAdaGrad:
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, 2e-6, 2e-6)


@every_pair
@given(
    st.lists(SHAPES, min_size=1, max_size=6),
    st.sampled_from([0.5, 0.05, 0.001]),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([None, 0.3, 0, -1.0]),  # of Adam, the last two clip nothing
    st.booleans(),
    st.booleans(),
)
def test_updates_are_those_of_mxnet(pair, shapes, rate, decay, clip, scheduled, multipliers):
    def run(optimizer):
        net = Parameters(shapes)
        for number, parameter in enumerate(net.collect_params().values()):
            if multipliers:
                parameter.lr_mult, parameter.wd_mult = 0.5 + number, 2.0 * number
        options = {"learning_rate": rate, "wd": decay, "clip_gradient": clip}
        if scheduled:
            options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=rate)
        optimizer = optimizer(**options)
        train(gluon.Trainer(net.collect_params(), optimizer), net, range(5))
        return net

    check(pair, run)


@pytest.mark.filterwarnings("ignore:Accumulating with float16:UserWarning")
@pytest.mark.parametrize(
    "pair, dtype, master",
    [(pair, "float16", True) for pair in PAIRS]
    + [(PAIRS[1], dtype, False) for dtype in ("float16", "float64")],  # AdaGrad has neither
)
def test_other_types_are_updated_beside_float32(pair, dtype, master):
    """Half precision is left to MXNet, with weights in single precision (`master`) or without."""

    def run(optimizer):
        net = Parameters([(3, 4), (5,), (2, 2)])
        net.p1.cast(dtype)
        optimizer = optimizer(learning_rate=0.1, multi_precision=master)
        train(gluon.Trainer(net.collect_params(), optimizer), net, range(3))
        return net

    check(pair, run)


@every_pair
@pytest.mark.parametrize("in_store", [False, True])
def test_parameters_on_several_contexts(pair, in_store):
    def run(optimizer):
        net = Parameters([(3, 4), (5,)], ctx=[mx.cpu(0), mx.cpu(1), mx.cpu_pinned(0)])
        trainer = gluon.Trainer(net.collect_params(), optimizer(), update_on_kvstore=in_store)
        train(trainer, net, range(3))
        return net

    check(pair, run)


@every_pair
def test_sparse_gradients_are_left_to_mxnet(pair):
    def run(optimizer):
        mx.random.seed(1)
        net = nn.Sequential(prefix="sparse_")
        net.add(
            nn.Embedding(9, 4, sparse_grad=True, prefix="words_"),
            nn.Dense(2, in_units=4, flatten=False, prefix="dense_"),
        )
        net.initialize(mx.init.Normal(1.0))
        trainer = gluon.Trainer(net.collect_params(), optimizer(learning_rate=0.1))
        for words in ([1, 2, 2], [3], [1, 8]):
            with autograd.record():
                loss = (net(mx.nd.array(words)) ** 2).sum()
            loss.backward()
            trainer.step(1)
        return net

    check(pair, run)


@every_pair
def test_arrays_of_numpys_interface(pair):
    def run(optimizer):
        net = Parameters([(3, 4), (5,)])
        train(gluon.Trainer(net.collect_params(), optimizer(learning_rate=0.1)), net, range(3))
        return net

    with semantics("np"):
        check(pair, run)


@every_pair
def test_parameters_that_get_other_arrays(pair):
    """A step is made for the arrays of the last one, and again if they are others."""

    def run(optimizer):
        net = Parameters([(3, 4), (5,)])
        trainer = gluon.Trainer(net.collect_params(), optimizer(learning_rate=0.1))
        train(trainer, net, range(2))
        net.p0.cast("float64")
        net.p0.cast("float32")
        net.p1.grad_req = "add"
        train(trainer, net, range(2, 4))
        trainer.set_learning_rate(0.2)
        net.p0.grad_req = "null"
        train(trainer, net, range(4, 6))
        return net

    check(pair, run)


@every_pair
@given(st.lists(st.sets(st.integers(0, 4)), min_size=2, max_size=6), st.sampled_from([1, 2]))
def test_steps_update_only_what_has_new_gradients(pair, chosen, types):
    """Each step updates other parameters, such as the experts that a minibatch calls."""

    def run(optimizer):
        net = Parameters([(3, 4), (5,), (2, 2), (64,), (12,)])
        parameters = list(net.collect_params().values())
        if types == 2:
            net.p1.cast("float16")
        trainer = gluon.Trainer(net.collect_params(), optimizer(multi_precision=True))
        for step, numbers in enumerate(chosen):
            net.set_gradients(step)
            for number, parameter in enumerate(parameters):
                parameter.data()._fresh_grad = number in numbers
            trainer.step(1, ignore_stale_grad=True)
        return net

    check(pair, run)


@every_pair
def test_states_are_exchanged_with_mxnets(pair, tmp_path):
    """A run goes on from the states that any of both has saved; an optimizer can be copied."""

    def run(first, second):
        net, path = Parameters([(3, 4), (5,)]), str(tmp_path / "states")
        trainer = gluon.Trainer(net.collect_params(), first(learning_rate=0.1))
        train(trainer, net, range(2))
        trainer.save_states(path)
        trained = copy.deepcopy(trainer._updaters[0].states)
        optimizer = copy.deepcopy(second(learning_rate=0.1, begin_num_update=2))
        again = gluon.Trainer(net.collect_params(), optimizer)
        updater = again._updaters[0]
        updater.states, updater.states_synced = trained, dict.fromkeys(trained, True)
        train(again, net, range(2, 4))
        return net

    fused, plain = pair
    check((fused, plain), lambda second: run(plain, second))
    check((fused, plain), lambda first: run(first, plain))


@every_pair
def test_a_run_goes_on_from_a_file_of_mxnets(pair, tmp_path):
    """The optimizer in the file is exchanged, as the page on training says."""

    def run(optimizer):
        net, path = Parameters([(3, 4), (5,)]), str(tmp_path / "states")
        trainer = gluon.Trainer(net.collect_params(), pair[1](learning_rate=0.1))
        train(trainer, net, range(2))
        trainer.save_states(path)
        with open(path, "rb") as file:
            states, old = pickle.load(file)
        new = optimizer(learning_rate=0.1, begin_num_update=old.num_update)
        with open(path, "wb") as file:
            pickle.dump((states, new), file)
        again = gluon.Trainer(net.collect_params(), optimizer(learning_rate=0.1))
        again.load_states(path)
        assert type(again.optimizer) is optimizer
        train(again, net, range(2, 4))
        return net

    check(pair, run)


PROGRAM = """
from mxnet import gluon, profiler
from tests.test_optimizers import Parameters, train
net = Parameters([(3, 4), (5,), (7, 2)])
trainer = gluon.Trainer(net.collect_params(), "fusedadagrad")
train(trainer, net, [0])
net.set_gradients(1)
mx.nd.waitall()
profiler.set_config(filename=sys.argv[1], profile_all=True, aggregate_stats=False)
profiler.set_state("run")
trainer.step(1)
mx.nd.waitall()
profiler.set_state("stop")
profiler.dump()
"""


def test_a_step_is_one_operation(tmp_path):
    path = tmp_path / "trace.json"
    output_of(PROGRAM, str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    ran = [e["name"] for e in events if e.get("cat") == "operator" and e["ph"] == "B"]
    assert [name for name in ran if name != "DeleteVariable"] == ["gluon_dynbatch FusedAdaGrad"]
