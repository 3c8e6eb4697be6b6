"""Threads and cores: speed over threads, workers with a core each; no test asserts timings."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import benchmark as program
import cores
import tree_lstm_relatedness as training
from relatedness import scoring
from relatedness.corpora import load_corpus
from suite import remote, threads
from suite.tables import Measured, Row, Rows
from tests.common import PATIENCE
from tests.experiments.test_benchmark import TINY
from tests.experiments.test_processes import alive, start


def groups(tmp_path, lines, **files):
    """Make files of control groups, and one that names the groups of this process."""
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(lines)
    return cores.quota(tmp_path, tmp_path / "own")


def test_a_quota_of_any_group_around_the_process_limits_its_cores(tmp_path):
    files = {"cpu_dot_max": "max 100000", "a__cpu_dot_max": "250000 100000",
             "a__b__cpu_dot_max": "max 100000"}  # fmt: skip
    assert groups(tmp_path, "0::/a/b\n", **files) == 2.5
    assert groups(tmp_path, "0::/\n") == float("inf")
    assert groups(tmp_path, "0::/a/gone\n") == 2.5
    old = {"cpu__c__cpu.cfs_quota_us": "-1", "cpu__c__cpu.cfs_period_us": "100000"}
    assert groups(tmp_path, "4:cpuacct,cpu:/c\n0::/\n", **old) == float("inf")
    old["cpu__c__cpu.cfs_quota_us"] = "150000"
    assert groups(tmp_path, "4:cpuacct,cpu:/c\n0::/\n", **old) == 1.5
    assert cores.quota(tmp_path, tmp_path / "none") == float("inf")
    assert 1 <= cores.usable() <= len(cores.allowed())


def rows_of(rates):
    """Make rows of rounds of one minibatch from rates by label."""
    return Rows(
        Row("training", 8, label, 1, 8, rate, 1e3 * 8 / rate, number)
        for label, rounds in rates.items()
        for number, rate in enumerate(rounds)
    )


RATES = {
    "gdb@1": [9, 20, 9, 20],
    "gdb@2": [10, 10, 10, 10],
    "gdb@nothing set": [10, 12, 10, 12],
    "torch@1": [5, 5, 5, 5],
    "torch@2": [8, 8, 8, 8],
    "torch@nothing set": [4, 4, 4, 4],
}


def test_the_best_number_of_threads_is_chosen_in_other_rounds_than_it_is_judged_in():
    measured = Measured("W", "words", "from", "so", 2, {}, {}, rows_of(RATES))
    table = threads.table(measured)
    assert list(table.columns)[:6] == ["kind", "batch", "way", "1", "2", "nothing set"]
    ours, theirs = table.rows
    assert ours[:6] == ("training", 8, "gdb", "14", "**10**", "11")
    assert ours[6:] == pytest.approx((12 / 10, 12 / 8, 10 / 8))
    assert theirs[3:6] == ("5", "**8**", "4") and theirs[6:] == (0.5, None, None)
    assert "|  **8** |           4 |" in table.markdown()


@pytest.fixture()
def environments(tmp_path, monkeypatch):
    """Note what a process of each contender finds set, instead of starting other systems."""
    (tmp_path / "noting.py").write_text(
        "import os\n"
        "from peers.child import Peer\n"
        "class Noting(Peer):\n"
        "    def __init__(self, task):\n"
        "        self.version = os.environ.get('OMP_NUM_THREADS', 'nothing')\n"
        "        super().__init__(task)\n"
        "    def step(self, batch): pass\n"
        "    predict = reset = step\n"
        "    reset = lambda self: None\n"
        "    def check(self, work): raise SystemExit(f'set: {self.version}')\n"
    )
    monkeypatch.setitem(remote.PEERS, "torch", {"sick": "noting:Noting"})
    monkeypatch.chdir(tmp_path)  # where `python -m` looks first
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(cores, "usable", lambda: 1)


def test_speed_over_threads_is_measured_written_and_drawn(tmp_path, environments, capsys):
    """Each setting has a process of its own; numbers beyond the cores are left out, and said so."""
    output = tmp_path / "out"
    argv = [*TINY, "--threads", "1,64", "--busy", "--workloads", "sick", "--ways", "gdb,torch",
            "--batch-sizes", "3", "--peers-python", sys.executable, "--kinds", "training",
            "--output", str(output)]  # fmt: skip
    assert program.main(argv) == 0
    printed = capsys.readouterr().out
    assert "64 threads: left out; this process may use 1 cores" in printed
    assert "torch@1: left out; set: 1" in printed
    assert "torch@nothing set: left out; set: nothing" in printed
    sick = json.loads((output / "threads.json").read_text())["workloads"]["sick"]
    assert [(row["way"], row["round"]) for row in sick["rows"]] == [
        ("gdb@1", 0), ("gdb@1", 1), ("gdb@nothing set", 0), ("gdb@nothing set", 1),
    ]  # fmt: skip
    assert {path.name for path in output.iterdir()} == {
        "threads.json", "threads.md", "threads-sick-3.png", "threads-sick-3.svg",
    }  # fmt: skip
    assert program.main([*argv, "--read"]) == 0
    assert printed.endswith(capsys.readouterr().out)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    output = tmp_path_factory.mktemp("trained")
    small = ["--limit", "8", "--embedding-size", "4", "--hidden", "3", "--epochs", "1"]
    assert training.main(["train", *small, "--output", str(output)]) == 0
    return output / "best"


def lines_of(count):
    """Make lines of JSON of pairs without names."""
    lines = []
    for pair in load_corpus(limit=count)["test"]:
        sides = (pair.tokens_a, pair.tree_a), (pair.tokens_b, pair.tree_b)
        records = [{"words": " ".join(words), "heads": [head + 1 for head in tree.heads]}
                   for words, tree in sides]  # fmt: skip
        lines.append(json.dumps(dict(zip("ab", records))))
    return lines


def predict(capsys, path, checkpoint, *options):
    """Run `predict`; return its status, its output, and its messages without that of the rates."""
    capsys.readouterr()
    fixed = ["--batch-size", "4", "--granularity", "block", "--policy", "depth"]
    files = ["--input", str(path), "--checkpoint", str(checkpoint)]
    status = training.main(["predict", *files, *fixed, *options])
    printed, messages = capsys.readouterr()
    kept = [line for line in messages.splitlines() if "2 workers" not in line]
    return status, printed, kept


def test_workers_answer_like_one_process(tmp_path, checkpoint, capsys):
    """In order; invalid pairs and repeated names are skipped or named, as in one process."""
    lines = lines_of(30)
    lines[3], lines[17] = '{"a": 1}', "[]"
    lines[9] = lines[9].replace("{", '{"name": "1", ', 1)  # the name of the first line
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    skip = ["--on-bad-sample", "skip", "--limit", "26"]
    for options, status, count, messages in ((skip, 0, 26, 5), ([], 2, 0, 1)):
        one = predict(capsys, path, checkpoint, *options)
        assert (one[0], len(one[1].splitlines()), len(one[2])) == (status, count, messages)
        assert predict(capsys, path, checkpoint, *options, "--workers", "2") == one


def test_an_error_of_a_worker_is_one_line(tmp_path, checkpoint, capsys, monkeypatch):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines_of(12)) + "\n")
    failing = "import sys; from relatedness import scoring; scoring.Scorer.score = lambda *_: 1 / 0"
    killed = "import os; os.kill(os.getpid(), 9)"
    for code, text in (
        (f"{failing}; scoring.main(sys.argv[1])", r"ZeroDivisionError: division by zero"),
        (killed, r"\(process \d+\) was killed by SIGKILL"),
    ):
        monkeypatch.setattr(scoring, "START", code)
        status, printed, (line,) = predict(capsys, path, checkpoint, "--workers", "2")
        assert (status, printed) == (2, "") and re.fullmatch(rf"error: worker \d:? {text}", line)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_all_workers(tmp_path, checkpoint):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines_of(100) * 2000) + "\n")
    command = ["predict", "--input", path, "--checkpoint", checkpoint, "--workers", "2"]
    process = start(*command, "--batch-size", "8", program=training)
    children, limit = [], time.monotonic() + PATIENCE
    while len(children) < 2:
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        children = list(map(int, found.split()))
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "Traceback" not in message
    assert not any(map(alive, children))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no processes")
def test_a_worker_has_one_core(tmp_path):
    code = "import os; print(os.sched_getaffinity(0))"
    found = [
        subprocess.run([sys.executable, "-c", code], preexec_fn=lambda i=i: cores.begin(i),
                       capture_output=True, text=True).stdout
        for i in range(len(cores.allowed()) + 1)
    ]  # fmt: skip
    assert found == [f"{{{core}}}\n" for core in (*cores.allowed(), cores.allowed()[0])]


def test_efficiency_is_the_share_of_what_as_many_alone_would_do():
    assert str(cores.Rates("pairs", 4, 1000.0, 3000.0)) == (
        "3,000 pairs/s with 4 workers, 1,000 alone; efficiency 75%"
    )
    assert "too little" in str(cores.Rates("pairs", 4, 0.0, 3000.0))
