"""Other systems: their files and requests, with a fake peer."""

import json
import pickle
import sys

import mxnet as mx
import pytest

import benchmark as program
from suite import remote
from suite.contest import Local
from suite.runner import Runner
from tests.experiments.test_benchmark import TINY
from workloads.registry import make

SICK = [*TINY, "--batch-sizes", "3", "--workloads", "sick", "--peers-python", sys.executable]
#: A peer with prepared answers, which checks the order of requests, and two peers that fail.
FAKE = """
import json, os
from peers.child import Peer

class Fake(Peer):
    version, flags = "1.0", "--fast"
    def __init__(self, task):
        super().__init__(task)
        print("a greeting on standard output")
        os.write(1, b"another, from native code")
        self.answers = json.load(open(os.environ["FAKE_ANSWERS"]))
    def check(self, work):
        return self.answers
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

class Wrong(Fake):
    def check(self, work):
        return {**self.answers, "losses": [2 * loss for loss in self.answers["losses"]]}
"""
NAMES = {"dynet": "Fake", "torch": "Broken", "dgl": "Wrong"}


@pytest.fixture()
def fakes(tmp_path, monkeypatch):
    """Put fake peers into the registry; return the path of the file with their answers."""
    (tmp_path / "fakes.py").write_text(FAKE)
    answers = tmp_path / "answers"
    monkeypatch.setenv("FAKE_ANSWERS", str(answers))
    for name, peer in NAMES.items():
        monkeypatch.setitem(remote.PEERS, name, {"sick": f"fakes:{peer}"})
    monkeypatch.chdir(tmp_path)  # as `python -m` imports from there
    return answers


@pytest.mark.parametrize("name", ["sick", "tagger", "sst"])
def test_a_task_is_the_workload_as_plain_data(name):
    args = program.parse(SICK)
    original = make(workload, args, **args.sizes)
    task = remote.plain(original)
    assert len(task.samples) == 12
    assert (task.learning_rate, task.weight_decay) == (0.05, 1e-4 if workload == "sick" else 0)
    parameters = original.model.collect_params().values()
    assert len(task.parameters) == len(parameters)
    assert sum(v.size for v in task.parameters.values()) == sum(p.data().size for p in parameters)
    for sample, (inputs, target) in zip(original.samples, task.samples):
        assert len(inputs) == len(sample.inputs)
        for plain, value in zip((*inputs, target), (*sample.inputs, sample.target)):
            is_array = isinstance(value, mx.nd.NDArray)
            assert plain == (value.asnumpy().tolist() if is_array else value)
    assert pickle.loads(pickle.dumps(task.samples)) == task.samples


def test_peers_run_the_same_minibatches_and_wrong_ones_are_left_out(tmp_path, fakes):
    args = program.parse(SICK)
    workload = make("sick", args, **args.sizes)
    samples = workload.samples
    answer = Local(Runner(workload), "gdb").check([samples[i : i + 3] for i in (0, 3, 6)])
    fakes.write_text(json.dumps({**answer, "values": answer["values"].tolist()}))
    argv = [*SICK, "--ways", "gdb:block:depth,dynet,torch,dgl", "--output", str(tmp_path / "out")]
    assert program.main(argv) == 0
    results = json.loads((tmp_path / "out" / "benchmark.json").read_text())["workloads"]["sick"]
    assert results["versions"]["dynet"] == "1.0; --fast"
    assert results["left_out"]["torch"] == "ImportError: No module named 'something'"
    assert "its losses differ" in results["left_out"]["dgl"]
    for kind in ("inference", "training"):
        rows = [row for row in results["rows"] if row["kind"] == kind]
        assert [row["way"] for row in rows] == ["gdb:block:depth"] * 2 + ["dynet"] * 2
        assert len({(row["minibatches"], row["samples"]) for row in rows}) == 1
