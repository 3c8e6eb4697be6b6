"""The workloads of the experiments: each computes in a scope what the plain loop computes."""

import json
from argparse import Namespace

import pytest

import gluon_dynbatch as gdb
from relatedness.data import DataError
from workloads import modules, reads, sequences
from workloads.base import WorkloadError
from workloads.registry import make


def test_minibatches_of_an_epoch_share_no_sample():
    workload = sequences.tagging(limit=10, embedding_size=2, hidden_size=2)
    drawn = workload.minibatches(5, seed=1)
    first, second, third = (next(drawn) for _ in range(3))
    assert len({id(sample) for sample in first + second}) == 10
    assert [id(sample) for sample in first] != [id(sample) for sample in third]
    with pytest.raises(WorkloadError, match="minibatch of 11 .* has 10 sentences"):
        workload.minibatches(11, seed=1)


def tiny(name, limit=4):
    """Make a workload without data."""
    args = Namespace(seed=3, limit=limit, data=None, wikiner=None, sst=None, clevr=None)
    return make(name, args, embedding_size=3, hidden_size=4)


@pytest.mark.parametrize(
    "name", ["sequences", "characters", "treegru", "modules", "seq2seq", "reads"]
)
def test_workloads_compute_what_the_loop_computes(name):
    workload = tiny(name)
    trained = [p for p in workload.trainer._params if p.grad_req != "null"]
    assert {p.name for p in trained} >= {p.name for p in workload.model.score.params.values()}
    gdb.testing.check_against_loop(
        lambda sample: (workload.score(sample), workload.loss(sample)), workload.samples, trained
    )


def test_wandering_minibatches_have_half_to_twice_the_size():
    workload = tiny("wandering", limit=40)
    drawn = workload.minibatches(8, seed=1)
    assert {len(next(drawn)) for _ in range(200)} == set(range(4, 17))
    with pytest.raises(WorkloadError, match="minibatch of 42 .* has 40"):
        workload.minibatches(21, seed=1)


def test_every_step_of_what_reads_its_values_is_a_flush():
    workload = reads.pondering(limit=4)
    with gdb.batching(0) as batch:
        steps = [len(workload.model.think(s.x, s.patience)) for s in workload.samples]
    assert len(set(steps)) > 1
    assert len(batch.report.flushes) >= sum(steps)


def test_minibatches_of_random_programs_call_different_modules():
    questions = modules.random_questions(320, seed=1)
    called = [{name for q in questions[i : i + 64] for name, places in q.program if places}
              for i in range(0, 320, 64)]  # fmt: skip
    assert all(15 <= len(names) <= 30 for names in called)
    assert len({frozenset(names) for names in called}) == len(called)
    assert {len(places) for q in questions for _, places in q.program} == {0, 1, 2}


def test_clevr_questions_are_programs_and_answers(tmp_path):
    steps = [{"type": "scene", "inputs": [], "value_inputs": []},
             {"type": "filter_size", "inputs": [0], "value_inputs": ["large"]}]  # fmt: skip
    asked = {"questions": [{"program": [steps, steps[:1]], "answers": [True, 2]}]}
    path = tmp_path / "CLEVR_train_1_x.json"
    path.write_text(json.dumps(asked))
    found = modules.read_clevr(tmp_path)
    scene, large = ("scene", ()), ("filter_size large", (0,))
    assert found == [((scene, large), "True"), ((scene,), "2")]
    assert modules.read_clevr(tmp_path, limit=1) == found[:1]
    path.write_text("{}")
    with pytest.raises(DataError, match="CLEVR_train_1_x.json: is not"):
        modules.read_clevr(tmp_path)
    with pytest.raises(DataError, match="holds no CLEVR"):
        modules.read_clevr(tmp_path / "nowhere")


def test_wikiner_lines_are_words_and_tags(tmp_path):
    (tmp_path / "train.txt").write_text("Mad|I-ORG |||O\n\nx|O\n", encoding="utf-8")
    first, second = sequences.read_wikiner(tmp_path)
    assert first == (("Mad", "||"), ("I-ORG", "O"))
    assert second == (("x",), ("O",))
    assert sequences.read_wikiner(tmp_path, limit=1) == [first]


@pytest.mark.parametrize(
    "text, reason",
    [("a|O b\n", r"train.txt:1: 'b' is not"), ("a|O\n|O\n", r"train.txt:2: '\|O' is not"),
     ("a|\n", r":1: 'a\|' is not"), ("\n\n", "holds no sentences")],
)  # fmt: skip
def test_bad_wikiner_lines_are_named(tmp_path, text, reason):
    (tmp_path / "train.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        sequences.read_wikiner(tmp_path)
