"""Random programs equal the plain loop under every option.

The loop is in :func:`gluon_dynbatch.testing.check_against_loop`.  Every plan made on the way is
checked as well: graph, grouping, plan, and the lower bound.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch import scope as batch_module
from gluon_dynbatch.cache import PlanCache
from gluon_dynbatch.plan import check as plan_check
from gluon_dynbatch.plan import make
from gluon_dynbatch.schedule import POLICIES
from gluon_dynbatch.scope import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests import strategies
from tests.strategies import Cells, Gate, cells, dags, run_tree, sequence_batches, tree_batches

SMALL = gdb.Budget(visits=12)


def examples(count):
    """Run `count` programs, the same ones each time; what fails is shrunk."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )


def check(program, **options):
    """Compare with the loop, check all invariants, and return the number of launches."""
    batch = check_against_loop(program.fn, program.samples, program.params, **options)
    return strategies.check_invariants(batch)


KINDS = {
    "dags": (dags(), 60),
    "trees": (tree_batches(), 30),
    "sequences": (sequence_batches(), 24),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_random_programs(granularity, policy, kind):
    strategy, count = KINDS[kind]

    @examples(count)
    @given(strategy)
    def run(program):
        options = {"granularity": granularity, "policy": policy}
        small = check(program, analysis_budget=SMALL, **options)
        full = check(program, analysis_budget=None, **options)
        assert full <= small, "more analysis made more launches"

    run()


@examples(25)
@given(strategies.PROGRAMS)
def test_without_analysis_every_call_runs_by_itself(program):
    batch = check_against_loop(program.fn, program.samples, program.params, analysis_budget=0)
    assert batch.report.launches == batch.report.nodes


@examples(25)
@given(strategies.PROGRAMS)
def test_with_all_options_automatic(program):
    check(program)
    check(program)


@examples(12)
@given(
    st.one_of(
        dags(dtypes=("float64",)),
        tree_batches(dtypes=("float64",)),
        sequence_batches(dtypes=("float64",)),
    )
)
def test_double_precision(program):
    for granularity in GRANULARITIES:
        check(program, granularity=granularity)


@examples(10)
@given(strategies.PROGRAMS, st.sampled_from(strategies.GRAD_REQS), st.sampled_from(GRANULARITIES))
def test_parameters_that_add_up_or_stay(program, grad_req, granularity):
    block = program.block
    try:
        block.embedding.collect_params().setattr("grad_req", grad_req)
        block.other.collect_params().setattr("grad_req", grad_req)
        block.child_sum.hidden.collect_params().setattr("grad_req", grad_req)
        check(program, granularity=granularity)
    finally:
        block.collect_params().setattr("grad_req", "write")


@examples(10)
@given(
    strategies.PROGRAMS,
    st.sets(st.sampled_from(["linear", "gate", "child_sum", "rows", "pool", "embedding"])),
)
def test_cells_that_are_not_hybridized(program, plain):
    """Their operators are recorded one by one, or run at once if nothing lazy reaches them."""
    block = program.block
    try:
        for name in plain:
            getattr(block, name).hybridize(False)
        check(program)
    finally:
        block.hybridize()


def test_nothing_is_recorded_of_a_block_that_is_not_hybridized():
    net = Cells()
    net.initialize()
    batch = check_against_loop(
        lambda tree: run_tree(net, tree)[0], [[1, [2]], 3], net.collect_params().values()
    )
    assert batch.report.nodes == 0


@pytest.mark.parametrize("max_rows", [1, 2, 5, 100])
@examples(4)
@given(strategies.PROGRAMS, st.sampled_from(GRANULARITIES))
def test_max_rows_limits_every_launch(max_rows, program, granularity):
    batch = check_against_loop(
        program.fn, program.samples, program.params, max_rows=max_rows, granularity=granularity
    )
    for launch in batch.plan.launches if batch.plan else ():
        assert launch.rows <= max_rows or len(launch.units) == 1


@examples(10)
@given(strategies.PROGRAMS, st.sampled_from(GRANULARITIES))
def test_debug_agrees(program, granularity):
    check_against_loop(
        program.fn, program.samples, program.params, granularity=granularity, debug=True
    )


@examples(10)
@given(strategies.PROGRAMS, st.sampled_from(GRANULARITIES))
def test_reading_values_on_the_way(program, granularity):
    """A value that is asked for splits the work into flushes and changes nothing else."""

    def fn(sample):
        result = program.fn(sample)
        for leaf in gdb.record.recorder.FLATTENER.flatten(result)[0][:1]:
            leaf.asnumpy()
        return result

    batch = check_against_loop(fn, program.samples, program.params, granularity=granularity)
    assert len(batch.report.flushes) >= len(batch.report.forced)


def check_inference(program, **options):
    """Compare values with the loop, without record(); return the scope."""
    wanted = [program.fn(sample) for sample in program.samples]
    with gdb.batching(**options) as batch:
        got = [program.fn(sample) for sample in program.samples]
    leaves, spec = gdb.record.recorder.FLATTENER.flatten(wanted)
    found, same = gdb.record.recorder.FLATTENER.flatten(got)
    assert spec == same
    for a, b in zip(leaves, found):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), 1e-4, 1e-5)
    return batch


@examples(10)
@given(dags(dtypes=("float32",)))
def test_inference(program):
    """Without record(), nothing but values."""
    check_inference(program)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_nobody_reads_change_nothing(kind, monkeypatch):
    """Numbers of rows are rounded up from 256 on; here all are, so that small programs will do."""
    for module in (make, plan_check):
        monkeypatch.setattr(module, "spare_rows", lambda rows: -rows % 8)
    spare = []

    @examples(30)
    @given(KINDS[kind][0])
    def run(program):
        batch = check_inference(program, granularity="operator", policy="search")
        if strategies.check_invariants(batch):
            spare.extend(launch.spare for launch in batch.plan.launches)

    monkeypatch.setattr(batch_module.RUNTIME, "plans", PlanCache())
    run()
    monkeypatch.setattr(batch_module.RUNTIME, "plans", PlanCache())
    assert sum(map(bool, spare)) > len(spare) // 20


class Half(gdb.DynamicHybridBlock):
    """What of a cell runs on a CPU in half precision: neither FullyConnected nor dot."""

    def hybrid_forward(self, F, x, rows):
        scores = F.softmax(F.broadcast_mul(x, rows), axis=-1)
        return F.tanh(scores), F.mean(rows, axis=0, keepdims=True) * x


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_half_precision(granularity):
    cell = Half()
    cell.initialize()
    cell.hybridize()
    random = np.random.RandomState(0)
    samples = []
    for rows in (1, 3, 3, 2):
        samples.append(
            [mx.nd.array(random.uniform(-1, 1, (n, 4)), dtype="float16") for n in (1, rows)]
        )
        for array in samples[-1]:
            array.attach_grad()

    def fn(sample):
        scores, mean = cell(*sample)
        return [scores.max(axis=0), mean + sample[0]]

    check_against_loop(fn, samples, granularity=granularity)


def test_the_strategies_reach_every_operation():
    """A random program that never calls a cell would prove nothing about it."""
    seen = set()

    @settings(examples(300), phases=[Phase.generate])
    @given(dags())
    def collect(program):
        seen.update(step.op for sample in program.samples for step in sample.steps)

    collect()
    assert seen == set(strategies.OPERATIONS)
    assert isinstance(cells().gate, Gate)
