"""Reports say why launches were narrow: also those of scopes whose calls all ran at once."""

import contextlib
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.report.advice import KINDS
from gluon_dynbatch.report.findings import READS as READ_KINDS
from tests.cells import attached, cell, equal, inputs
from tests.common import FIXED

# The kinds of lines that force a flush, in every scope at a place


READS = {
    "asscalar": ("value", "asscalar()", lambda y, x, net: y.sum().asscalar()),
    "asnumpy": ("value", "asnumpy()", lambda y, x, net: y.asnumpy()),
    "wait": ("value", "wait_to_read()", lambda y, x, net: y.wait_to_read()),
    "if": ("value", "if or bool()", lambda y, x, net: 1 if y.sum() > 0 else 2),
    "int": ("value", "asscalar()", lambda y, x, net: int(y.sum().asscalar())),
    "print": ("value", "print()", lambda y, x, net: f"{y}"),
    "pickle": ("value", "pickle or copy", lambda y, x, net: pickle.dumps(y)),
    "metric": ("value", "update()", lambda y, x, net: mx.metric.MSE().update([y], [y])),
    "all": ("value", "waitall()", lambda y, x, net: mx.nd.waitall()),
    "rows": ("index", "an index array", lambda y, x, net: y[0:1, mx.nd.array([0])]),
    "index": ("index", "an index array", lambda y, x, net: x[0:1, y.argmax(axis=1) * 0]),
    "loss": ("backward", "backward()", lambda y, x, net: y.sum().backward()),
    "losses": ("backward", "backward()", lambda y, x, net: autograd.backward([y.sum()])),
    "gradient": ("backward", "grad()", lambda y, x, net: autograd.grad([y.sum()], [x])),
    "elements": ("change", "an assignment to elements", lambda y, x, net: y.__setitem__(0, 1)),
    "in place": ("change", "+=", lambda y, x, net: y.__iadd__(1)),
    "attach": ("change", "attach_grad()", lambda y, x, net: y.attach_grad()),
    "parameter": ("change", "set_data()", lambda y, x, net: net.bias.set_data(mx.nd.ones(3))),
}


def scopes(net, read, records, count=3, samples=12):
    """Yield scopes, opened at one line, that read in the line "here"."""
    for _ in range(count):
        with autograd.record() if records else autograd.pause(), gdb.batching() as batch:
            for x in attached(inputs(samples)):
                read(net(x), x, net)  # here
        yield batch


def flat(report):
    """Return the text of a report without the ends of its lines."""
    return " ".join(str(report).split())


@pytest.mark.parametrize("name", READS)
def test_every_scope_at_a_place_names_the_line_its_call_and_the_remedy(net, name):
    kind, call, read = READS[name]
    for number, batch in enumerate(scopes(net, read, kind == "backward")):
        report = batch.report
        assert report.at_once == (12 if number else 0), "recording does not pay"
        ((where, times),) = report.forced.items()
        (found,) = report.found_of(*READ_KINDS)
        assert times == 12 and (found.kind, found.name, found.calls) == (kind, call, 12)
        assert where.filename == __file__
        text = flat(report)
        row = f"{KINDS[kind].label} 12 x {call} at {where} {KINDS[kind].reason} -> "
        assert row + KINDS[kind].advice in text and report.to_json()
        # Once: no fact is repeated.
        assert text.count(str(where)) == text.count(KINDS[kind].advice) == 1


def test_reads_in_map_are_normal_and_get_no_remedy(net):
    with gdb.batching(**FIXED) as batch:
        got = batch.map(lambda x: net(x).sum().asscalar(), inputs(8))
        batch.map(lambda x: net(x) if net(x).sum() > got[0] else x, inputs(8))
    text = flat(batch.report)
    assert {found.kind for found in batch.report.findings} == {"map"}
    assert [*batch.report.forced.values()] == [8, 8]
    for where, call in zip(batch.report.forced, ("asscalar()", "if or bool()")):
        assert f"read in map 8 x {call} at {where} samples wait there" in text
    assert "value read" not in text and KINDS["value"].advice not in text


def test_an_index_array_in_map_gets_its_remedy(net):
    with gdb.batching(**FIXED) as batch:
        batch.map(lambda x: net(x)[0:1, mx.nd.array([0])], inputs(8))
    text = flat(batch.report)
    assert KINDS["index"].advice in text and "read in map" not in text


def test_reasons_for_which_calls_did_not_merge_survive_in_later_scopes(net):
    """Each scope has one call that never merges, and two of different lengths."""

    def work():
        with gdb.batching() as batch:
            y = net(inputs(1)[0])
            _ = mx.nd.SoftmaxOutput(y, mx.nd.zeros(1))
            _ = [mx.nd.cumsum(x, axis=1) for x in (y, y[:, :2])]
        return batch.report

    first, *later = [work() for _ in range(3)]
    assert first.alone and first.split and not first.at_once
    for report in later:
        assert report.at_once and not report.flushes
        assert (report.alone, report.split) == (first.alone, first.split)
        for found in (*report.alone, *report.split):
            assert " ".join(found.lines()) in flat(report)
        assert "what else is said here is from the last scope here that recorded" in flat(report)


def test_a_scope_that_is_recorded_again_has_its_own_reasons(net):
    """From 200 samples on, recording pays although the first sample is read."""

    def work(count, reads):
        with gdb.batching() as batch:
            for x in inputs(count):
                y = net(x)
                if reads:
                    y.wait_to_read()
        return batch.report

    assert [work(12, True).at_once for _ in range(2)] == [0, 12]
    report = work(200, False)
    assert report.nodes and not report.forced and not report.is_from_earlier


def test_a_plan_that_is_missing_says_so(net):
    first, *later = scopes(net, lambda y, x, net: y.asnumpy(), False)
    assert first.plan and len(first.plan.launches) == 1
    for batch in later:
        text = "there is no plan: 12 calls ran at once"
        assert not batch.plan and str(batch.plan) == text
        for name in ("draw", "launches"):
            with pytest.raises(gdb.ScopeError, match=rf"{text}(.|\n)*print the report") as info:
                getattr(batch.plan, name)
            assert __file__ in str(info.value)
        assert not hasattr(batch.plan, "_repr_html_")
    assert "no recorded call has been computed" in str(gdb.batching().plan)


def test_calls_of_bfloat16_run_at_once_as_numpy_has_no_such_numbers():
    dtype = np.dtype([("bfloat16", np.uint16)])  # MXNet's name of it
    net, double = cell(lambda F, x: x * 2), cell(lambda F, x: x * 2)
    outcomes = []
    for scope in (contextlib.nullcontext(), gdb.batching(granularity="block")):
        x = attached([mx.nd.array([[1, 2, 3]])])[0]
        with autograd.record(), scope:
            y = net(double(x).astype(dtype)).astype("float32")
        y.backward()
        outcomes.append([y, x.grad])
    equal(outcomes[1], outcomes[0])
