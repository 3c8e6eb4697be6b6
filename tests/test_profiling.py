"""Recorded work appears in traces of mx.profiler under the names of blocks."""

import json
from concurrent.futures import ThreadPoolExecutor, TimeoutError

import mxnet as mx
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.run.profiling import PROFILER
from tests.forks import output_of

#: Runs in another process, as MXNet's profiler can be set up only once in each.
PROGRAM = """
from mxnet import profiler
from tests.test_profiling import run
profiler.set_config(filename=sys.argv[1], profile_all=True, aggregate_stats=False)
run(dense(prefix="before_"))
profiler.set_state("run")
run(dense(prefix="shown_"))
profiler.pause()
run(dense(prefix="paused_"))
profiler.resume()
run(dense(prefix="resumed_"))
profiler.set_state("stop")
run(dense(prefix="after_"))
profiler.dump()
"""

#: The profiler starts and stops while backward passes are pending or their graphs are freed.
TOGGLES = """
from mxnet import profiler
from tests.test_profiling import INPUTS
profiler.set_config(filename=sys.argv[1], profile_all=True)
net = dense(prefix="toggled_")
for turn in range(50):
    with autograd.record(), gdb.batching(granularity="block", policy="depth"):
        outputs = [net(x) for x in INPUTS]
        for _ in range(8):
            outputs = [mx.nd.relu(y) for y in outputs]
    autograd.backward(outputs)
    if turn % 3:
        del outputs
    if turn % 5 == 4:
        profiler.set_config(filename=sys.argv[1], profile_all=turn % 2 == 0)
    profiler.set_state("stop" if turn % 2 else "run")
mx.nd.waitall()
print("all turns")
"""
INPUTS = [mx.nd.ones((1, 4)) * i for i in range(5)]


def run(net):
    """Run two launches forward and two backward."""
    with autograd.record(), gdb.batching(granularity="block", policy="depth"):
        outputs = [mx.nd.relu(net(x)) for x in INPUTS]
    autograd.backward(outputs)
    mx.nd.waitall()


def test_launches_appear_under_the_names_of_blocks_while_the_profiler_runs(tmp_path):
    """Their times are in the order in which the launches run."""
    path = tmp_path / "trace.json"
    output_of(PROGRAM, str(path))
    times = {}
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        if event.get("cat") == "gluon_dynbatch":
            times.setdefault(event["name"], []).append(event["ts"])
    blocks = {name for name in times if "relu" not in name}
    assert blocks == {"shown x5", "shown backward x5", "resumed x5", "resumed backward x5"}
    assert len(times["relu x5"]) == len(times["relu backward x5"]) == 4
    order = ["shown x5", "relu x5", "relu backward x5", "shown backward x5"]
    starts = [time for name in order for time in times[name][:2]]
    assert starts == sorted(starts)


def test_profiler_starts_and_stops_while_backward_passes_are_pending(tmp_path):
    """MXNet crashes if it does so within a call of MXNet in another thread, such as MXNet's own."""
    assert output_of(TOGGLES, str(tmp_path / "trace.json")) == "all turns\n"


def test_the_profiler_waits_for_calls_after_the_work():
    """A backward pass frees its arrays in a thread of MXNet when its results are computed."""
    change = PROFILER._waiting(None, lambda: 0)
    with ThreadPoolExecutor(1) as pool:
        with PROFILER.backward_pass():
            changed = pool.submit(change)
            with pytest.raises(TimeoutError):
                changed.result(0.1)
        assert changed.result(30) == 0
