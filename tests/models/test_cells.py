"""Recurrent cells of gluon.rnn over sequences of different lengths."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet.gluon import rnn

import gluon_dynbatch as gdb
from tests.models.common import LENGTHS, WIDTH, check, ragged, ready
from tests.test_launches import widths

CELLS = {
    "rnn": lambda: rnn.RNNCell(WIDTH, input_size=WIDTH),
    "lstm": lambda: rnn.LSTMCell(WIDTH, input_size=WIDTH),
    "gru": lambda: rnn.GRUCell(WIDTH, input_size=WIDTH),
    "two layers": lambda: stacked(
        rnn.LSTMCell(WIDTH, input_size=WIDTH), rnn.GRUCell(WIDTH, input_size=WIDTH)
    ),
    "residual": lambda: rnn.ResidualCell(rnn.GRUCell(WIDTH, input_size=WIDTH)),
    "zoneout": lambda: rnn.ZoneoutCell(rnn.RNNCell(WIDTH, input_size=WIDTH), 0.0, 0.0),
}


def stacked(*parts):
    cell = rnn.HybridSequentialRNNCell()
    for part in parts:
        cell.add(part)
    return cell


@pytest.mark.parametrize("name", CELLS)
def test_recurrent_cells_step_by_step(name):
    """Ragged sequences, states from begin_state inside the scope."""
    cell = ready(CELLS[name]())

    def fn(x):
        cell.reset()
        states = cell.begin_state(batch_size=1, func=mx.nd.zeros)
        outputs = []
        for i in range(len(x)):
            out, states = cell(x[i : i + 1], states)
            outputs.append(out)
        return mx.nd.concat(*outputs, dim=0), states

    batch = check(fn, ragged(), cell)
    assert batch.report.alone == []


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_unroll(name):
    cell = ready(CELLS[name]())

    def fn(x):
        outputs, states = cell.unroll(
            len(x), x.reshape((1, -1, WIDTH)), layout="NTC", merge_outputs=True
        )
        return outputs, states

    batch = check(fn, ragged(), cell)
    assert batch.report.alone == []
    steps = max(LENGTHS)
    with gdb.batching(granularity="block", policy="depth") as batch:
        results = [fn(x) for x in ragged()]
    assert sum(1 for w in widths(batch) if w > 1) >= steps - 1
    assert len(results) == len(LENGTHS)


def test_bidirectional_cell():
    left, right = rnn.LSTMCell(WIDTH, input_size=WIDTH), rnn.LSTMCell(WIDTH, input_size=WIDTH)
    cell = ready(rnn.BidirectionalCell(left, right))

    def fn(x):
        return cell.unroll(len(x), x.reshape((1, -1, WIDTH)), layout="NTC", merge_outputs=True)[0]

    check(fn, ragged(), cell)
