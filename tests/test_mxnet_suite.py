"""`make mxnet-tests` tells what passes, what is refused, what fails, what crashes and what hangs.

It runs here on a checkout of one module.
"""

import os
import subprocess
import sys

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from tests.cells import cell
from tests.common import PATIENCE, ROOT
from tests.mxnet_suite.pool import Worker
from tests.mxnet_suite.refusals import REFUSALS, documented

MXNET_DRAWS = False

MODULE = """
import os, signal, time
import mxnet as mx
from nose.tools import assert_raises, raises
from gluon_dynbatch.record.state import STATE

def test_recorded():
    assert_raises(ValueError, int, "x")
    assert (mx.nd.array([1, 2]) + 1).asnumpy().tolist() == [2, 3]

@raises(ValueError)
def test_wrong_plain():
    pass

def test_wrong_in_a_scope():
    assert STATE.batch is None

def test_refused():
    mx.nd.array([[1, 2]]) + mx.nd.array([[1, 2]]).tostype("csr")

def test_crashes():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_hangs():
    time.sleep(1000)
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "tests" / "python" / "unittest"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(MODULE)
    return tmp_path


def test_results_per_way(checkout):
    arguments = f"{checkout} --modules test_some --ways lazy --tests recorded|wrong|refused"
    process = subprocess.run(
        [sys.executable, "-m", "tests.mxnet_suite", *arguments.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    table = [line.split() for line in process.stdout.splitlines()[-4:]]
    assert table[:2] == [["test_some", "plain", "3", "0", "1", "0"], ["lazy", "1", "1", "1", "4"]]
    assert "test_some.test_wrong_in_a_scope, lazy: fails\n  AssertionError" in process.stdout
    assert process.returncode == 1


def test_a_process_that_crashes_or_hangs_is_replaced(checkout):
    with Worker(checkout, "test_some", "plain", seed=1) as worker:
        assert worker.run("test_crashes", 300)["result"].startswith("crashes")
        assert worker.run("test_recorded", 300)["result"] == "passes"
        hang = worker.run("test_hangs", 0.1)
        assert hang["result"] == "hangs" and "most recent call first" in hang["message"]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.error)
def test_pages_document_refusals(refusal):
    assert refusal.section in (ROOT / refusal.page).read_text(encoding="utf-8")


def test_a_backward_pass_for_each_loss_is_refused_as_the_pages_say():
    x = mx.nd.ones((1, 2))
    x.attach_grad()
    with mx.autograd.record(), gdb.batching(granularity="block", policy="depth"):
        y = cell(lambda F, x: x * x)(x)
        losses = [y.sum(), (y + 1).sum()]
    losses[0].backward()
    with pytest.raises(gdb.GradientError) as caught:
        losses[1].backward()
    assert documented("test", {"kind": "GradientError", "message": str(caught.value)})
