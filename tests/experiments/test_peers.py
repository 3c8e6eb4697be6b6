"""Other systems: data and requests, with a fake peer."""

import contextlib
import json
import pickle
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import benchmark as program
from suite import remote, ways
from suite.contest import Local, agree
from suite.runner import Runner
from tests.experiments.test_benchmark import TINY
from workloads.registry import make

SICK = [*TINY, "--batch-sizes", "3", "--workloads", "sick", "--peers-python", sys.executable]
#: A peer that gives prepared answers and checks its requests.
FAKE = """
import json, os
from peers.child import Peer

class Fake(Peer):
    version, flags = "1.0", "--fast"
    def __init__(self, task):
        super().__init__(task)
        print("a greeting on standard output")
        os.write(1, b"another, from native code")
        self.answer = json.load(open(os.environ["FAKE_ANSWERS"]))
    def check(self, work):
        return self.answer
    def step(self, batch):
        self.run.append("timed" if "reset" in self.run else "warm")
    predict = step
    def reset(self):
        self.run.append("reset")
    def time(self, kind, warm, work):
        self.run = []
        seconds = super().time(kind, warm, work)
        assert self.run == ["warm"] * bool(warm) + ["reset"] + ["timed"] * len(work)
        return seconds

class Broken(Peer):
    def __init__(self, task):
        raise ImportError("No module named 'something'")

class Differing(Fake):
    def check(self, work):
        return {**self.answer, "losses": [2 * loss for loss in self.answer["losses"]]}
"""
NAMES = {"dynet": "Fake", "torch": "Broken", "dgl": "Differing"}


@pytest.fixture()
def fakes(tmp_path, monkeypatch):
    """Register the fake peers; return the path of the file with their answers."""
    (tmp_path / "fakes.py").write_text(FAKE)
    answers = tmp_path / "answers"
    monkeypatch.setenv("FAKE_ANSWERS", str(answers))
    for name, peer in NAMES.items():
        monkeypatch.setitem(remote.PEERS, name, {"sick": f"fakes:{peer}"})
    monkeypatch.chdir(tmp_path)  # where `python -m` looks first
    return answers


@pytest.mark.parametrize("name", ["sick", "tagger", "sst"])
def test_a_task_is_the_workload_as_plain_data(name):
    args = program.parse(SICK)
    workload = make(name, args, **args.sizes)
    task = remote.plain(workload)
    assert len(task.samples) == 12
    assert (task.learning_rate, task.weight_decay) == (0.05, 1e-4 if name == "sick" else 0)
    parameters = workload.model.collect_params().values()
    assert len(task.parameters) == len(parameters)
    assert sum(v.size for v in task.parameters.values()) == sum(p.data().size for p in parameters)
    for sample, (inputs, target) in zip(workload.samples, task.samples):
        assert len(inputs) == len(sample.inputs)
        for plain, raw in zip((*inputs, target), (*sample.inputs, sample.target)):
            assert plain == (raw.asnumpy().tolist() if isinstance(raw, mx.nd.NDArray) else raw)
    assert pickle.loads(pickle.dumps(task.samples)) == task.samples


def test_peers_run_the_same_minibatches_and_are_left_out_if_they_differ(tmp_path, fakes):
    args = program.parse(SICK)
    workload = make("sick", args, **args.sizes)
    answer = Local(Runner(workload), "gdb").check([workload.samples[i : i + 3] for i in (0, 3, 6)])
    fakes.write_text(json.dumps({**answer, "values": answer["values"].tolist()}))
    argv = [*SICK, "--ways", "gdb:block:depth,dynet,torch,dgl", "--output", str(tmp_path / "out")]
    assert program.main(argv) == 0
    sick = json.loads((tmp_path / "out" / "benchmark.json").read_text())["workloads"]["sick"]
    assert sick["versions"]["dynet"] == "1.0; --fast"
    assert sick["left_out"]["torch"] == "ImportError: No module named 'something'"
    assert "its losses differ" in sick["left_out"]["dgl"]
    for kind in ("inference", "training"):
        rows = [row for row in sick["rows"] if row["kind"] == kind]
        assert [row["way"] for row in rows] == ["gdb:block:depth"] * 2 + ["dynet"] * 2
        assert len({(row["minibatches"], row["samples"]) for row in rows}) == 1


INSTALLED = {"torch": remote.PYTHON, "jax": remote.JAX_PYTHON}


@pytest.mark.parametrize("task", ["sick", "tagger"])
@pytest.mark.parametrize("name", INSTALLED)
def test_an_installed_peer_has_the_gradients_of_the_loop(name, task):
    """For sentences of several lengths and trees of several depths, most of which JAX pads."""
    if not INSTALLED[name].exists():
        pytest.skip("make peers has not installed it")
    args = program.parse([*TINY, "--workloads", task])
    workload = make(task, args, **args.sizes)
    batch = sorted(workload.samples, key=lambda sample: len(sample.inputs[0]))[::4]
    assert len({len(sample.inputs[0]) for sample in batch}) == 3
    with contextlib.closing(remote.Remote(name, workload, args, name, 1)) as peer:
        peer.greet()
        gradients = peer.gradients(batch)
        assert agree([peer], Local(Runner(workload, "hybridized"), "loop"), 3) == ([peer], {})
        assert peer.time("training", [batch], 3, [batch[:1]]).samples == 3
    with autograd.record():
        loss = mx.nd.add_n(*(workload.loss(sample).reshape(1) for sample in batch)) / 3
    loss.backward()
    named = workload.model._collect_params_with_prefix()
    trained = {name: p.grad() for name, p in named.items() if p.grad_req != "null"}
    assert set(gradients) == set(trained)
    for parameter, expected in trained.items():
        expected, actual = expected.asnumpy(), np.asarray(gradients[parameter])
        assert np.abs(expected).max() > 1e-6
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_minibatches_of_similar_lengths_are_the_same_ones_for_all_who_run_as_many():
    names = ["gdb-buckets", "hybridized-buckets", "gdb:block:depth-buckets"]
    assert ways.read_ways(",".join(names)) == names
    assert ways.options_of(names[2])["granularity"] == "block"
    args = program.parse([*TINY, "--limit", "60", "--ways", "gdb-buckets"])
    with contextlib.ExitStack() as stack:
        roster = ways.Roster("tagger", args, stack)
        ours, other = (roster.make(name) for name in names[:2])
        whole = roster.workload.samples
        work = [list(whole[i : i + 10]) for i in range(0, 60, 10)]
        portions = [each.portion(work, 3) for each in (ours, other)]
        assert [batch[: args.loop_samples] for batch in portions[0]] == portions[1]
        everything = sorted(sample.size for sample in whole)
        sizes = [[sample.size for sample in batch] for batch in portions[0]]
        assert sizes == [everything[i : i + 10] for i in (0, 20, 40)], "of all lengths alike"
        assert ways.Roster("sick", args, stack).make("gdb-buckets") is None, "all of one length"
