"""Recorded work appears in traces of mx.profiler under the names of blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import mxnet as mx
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.profiling import PROFILER

#: MXNet's profiler can be set up once in a process, so that this runs in one of its own.
PROGRAM = """
import sys
import mxnet as mx
from mxnet import profiler
from tests.test_profiling import block, run
profiler.set_config(filename=sys.argv[1], profile_all=True, aggregate_stats=False)
run(block("before_"))
profiler.set_state("run")
run(block("shown_"))
profiler.pause()
run(block("paused_"))
profiler.resume()
run(block("resumed_"))
profiler.set_state("stop")
run(block("after_"))
profiler.dump()
"""


INPUTS = [mx.nd.ones((1, 4)) * i for i in range(5)]


def block(prefix: str) -> Any:
    made = gdb.convert(nn.Dense(3, in_units=4, prefix=prefix))
    made.initialize()
    made.hybridize()
    return made


def run(net: Any) -> None:
    """Two launches forward and two backward."""
    with autograd.record(), gdb.batching(granularity="block", policy="depth"):
        outputs = [mx.nd.relu(net(x)) for x in INPUTS]
    autograd.backward(outputs)
    mx.nd.waitall()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: Any) -> Dict[str, List[float]]:
    """Return the names in the trace, each with the times at which entries begin and end."""
    path = tmp_path_factory.mktemp("profile") / "trace.json"
    root = Path(__file__).parent.parent
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run(command, check=True, cwd=root, env=environment, timeout=100)
    found: Dict[str, List[float]] = {}
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        if event.get("cat") == "gluon_dynbatch":
            found.setdefault(event["name"], []).append(event["ts"])
    return found


def test_launches_appear_under_the_names_of_blocks_while_the_profiler_runs(trace):
    blocks = {name for name in trace if "relu" not in name}
    assert blocks == {"shown x5", "shown backward x5", "resumed x5", "resumed backward x5"}
    assert len(trace["relu x5"]) == len(trace["relu backward x5"]) == 4


def test_entries_follow_each_other_as_the_work_does(trace):
    order = ["shown x5", "relu x5", "relu backward x5", "shown backward x5"]
    times = [trace[name][:2] for name in order]
    flat = [t for pair in times for t in pair]
    assert flat == sorted(flat)


def test_nothing_is_made_while_the_profiler_does_not_run(monkeypatch):
    def refuse(*args: Any) -> None:
        raise AssertionError("a launch was shown")

    monkeypatch.setattr(PROFILER, "shown", refuse)
    run(block("quiet_"))
