"""Other systems: their files and requests, with a peer that is made up."""

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
#: Answers as ours would, told beforehand, and looks at what it is asked for.
FAKE = """
import json, os
from peers.child import Peer

class Fake(Peer):
    version, flags = "1.0", "--fast"
    def __init__(self, task):
        super().__init__(task)
        print("a greeting on standard output")
        os.write(1, b"another, from native code")
        self.told = json.load(open(os.environ["FAKE_ANSWERS"]))
    def check(self, work):
        return self.told
    def step(self, batch):
        self.run.append("timed" if "reset" in self.run else "warm")
    predict = step
    def reset(self):
        self.run.append("reset")
    def time(self, kind, warm, work):
        self.run = []
        answer = super().time(kind, warm, work)
        assert self.run == ["warm"] * bool(warm) + ["reset"] + ["timed"] * len(work)
        return answer

class Broken(Peer):
    def __init__(self, task):
        raise ImportError("No module named 'something'")

class Stubborn(Fake):
    def check(self, work):
        return {**self.told, "losses": [2 * loss for loss in self.told["losses"]]}
"""
NAMES = {"dynet": "Fake", "torch": "Broken", "dgl": "Stubborn"}


@pytest.fixture()
def fakes(tmp_path, monkeypatch):
    """Put made-up peers into the registry; return where they find their answers."""
    (tmp_path / "fakes.py").write_text(FAKE)
    answers = tmp_path / "answers"
    monkeypatch.setenv("FAKE_ANSWERS", str(answers))
    for name, kind in NAMES.items():
        monkeypatch.setitem(remote.PEERS, name, {"sick": f"fakes:{kind}"})
    monkeypatch.chdir(tmp_path)  # where `python -m` looks first
    return answers


@pytest.mark.parametrize("workload", ["sick", "tagger", "sst"])
def test_a_task_is_the_workload_in_plain_data(workload):
    args = program.parse(SICK)
    made = make(workload, args, **args.sizes)
    read = remote.plain(made)
    assert len(read.samples) == 12
    assert (read.learning_rate, read.weight_decay) == (0.05, 1e-4 if workload == "sick" else 0)
    parameters = made.model.collect_params().values()
    assert len(read.parameters) == len(parameters)
    assert sum(v.size for v in read.parameters.values()) == sum(p.data().size for p in parameters)
    for sample, (inputs, target) in zip(made.samples, read.samples):
        assert len(inputs) == len(sample.inputs)
        for value, own in zip((*inputs, target), (*sample.inputs, sample.target)):
            assert value == (own.asnumpy().tolist() if isinstance(own, mx.nd.NDArray) else own)
    assert pickle.loads(pickle.dumps(read.samples)) == read.samples


def test_all_run_the_same_minibatches_and_who_differs_is_left_out(tmp_path, fakes):
    args = program.parse(SICK)
    made = make("sick", args, **args.sizes)
    answer = Local(Runner(made), "gdb").check([made.samples[i : i + 3] for i in (0, 3, 6)])
    fakes.write_text(json.dumps({**answer, "values": answer["values"].tolist()}))
    argv = [*SICK, "--ways", "gdb:block:depth,dynet,torch,dgl", "--output", str(tmp_path / "out")]
    assert program.main(argv) == 0
    own = json.loads((tmp_path / "out" / "benchmark.json").read_text())["workloads"]["sick"]
    assert own["versions"]["dynet"] == "1.0; --fast"
    assert own["left_out"]["torch"] == "ImportError: No module named 'something'"
    assert "its losses differ" in own["left_out"]["dgl"]
    for kind in ("inference", "training"):
        rows = [row for row in own["rows"] if row["kind"] == kind]
        assert [row["way"] for row in rows] == ["gdb:block:depth"] * 2 + ["dynet"] * 2
        assert len({(row["minibatches"], row["samples"]) for row in rows}) == 1
