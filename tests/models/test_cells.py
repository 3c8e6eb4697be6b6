"""Recurrent cells and layers of Gluon and ``gluon.contrib``, over ragged sequences."""

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import contrib, rnn

import gluon_dynbatch as gdb
from tests import cells
from tests.cells import WIDTH, widths
from tests.common import LENGTHS, check, prepared, ragged, several

PROJECTED = 5


def lstm(width=WIDTH):
    return rnn.LSTMCell(width, input_size=WIDTH)


def gru(width=WIDTH):
    return rnn.GRUCell(WIDTH, input_size=width)


STEPPED = {
    "RNNCell": lambda: rnn.RNNCell(WIDTH, activation="relu", input_size=WIDTH),
    "LSTMCell": lstm,
    "GRUCell": gru,
    "SequentialRNNCell": lambda: several(rnn.SequentialRNNCell, lstm(), gru()),
    "HybridSequentialRNNCell": lambda: several(rnn.HybridSequentialRNNCell, lstm(), gru()),
    "DropoutCell": lambda: several(rnn.SequentialRNNCell, lstm(), rnn.DropoutCell(0.0), gru()),
    "ResidualCell": lambda: rnn.ResidualCell(gru()),
    "ZoneoutCell": lambda: rnn.ZoneoutCell(lstm(), 0.0, 0.0),
    "VariationalDropoutCell": lambda: contrib.rnn.VariationalDropoutCell(lstm(), 0.0, 0.0, 0.0),
    "LSTMPCell": lambda: contrib.rnn.LSTMPCell(PROJECTED, WIDTH, input_size=WIDTH),
}
UNROLLED = {
    **STEPPED,
    "BidirectionalCell": lambda: rnn.BidirectionalCell(lstm(), gru()),
    "bidirectional layers": lambda: several(
        rnn.SequentialRNNCell, rnn.BidirectionalCell(lstm(), lstm()), gru(2 * WIDTH)
    ),
    "residual around both directions": lambda: rnn.ResidualCell(
        rnn.BidirectionalCell(lstm(2), lstm(2))
    ),
}


def step_by_step(cell):
    def run(x):
        cell.reset()
        states = cell.begin_state(batch_size=1, func=mx.nd.zeros)
        outputs = []
        for i in range(len(x)):
            out, states = cell(x[i : i + 1], states)
            outputs.append(out)
        return mx.nd.concat(*outputs, dim=0), states

    return run


def unrolled(cell, merge_outputs=True, with_length=False):
    def run(x):
        length = mx.nd.array([len(x)]) if with_length else None
        return cell.unroll(
            len(x), x.reshape((1, -1, WIDTH)), layout="NTC", merge_outputs=merge_outputs,
            valid_length=length,
        )  # fmt: skip

    return run


#: Cells that are tested with a list of outputs.
LISTED = ("GRUCell", "residual around both directions")
RUNS = [
    *[(name, step_by_step) for name in STEPPED],
    *[(name, unrolled) for name in UNROLLED if name not in LISTED],
    *[(name, partial(unrolled, merge_outputs=None)) for name in LISTED],
    # A valid length masks the end and reverses the sequence for the second direction.  Gluon's
    # loop fails with a length for a bidirectional cell under another layer.
    *[(name, partial(unrolled, with_length=True)) for name in UNROLLED if "layers" not in name],
]


@pytest.mark.parametrize("name, run", RUNS)
def test_cells_equal_the_loop(name, run):
    """Samples that are long enough share the launch of a step."""
    cell = prepared(UNROLLED[name]())
    order = "graph", "operator", "block"  # as in the last, a launch is a step
    batch = check(run(cell), ragged(), cell, granularities=order, policy="depth")
    assert batch.report.alone == [] and batch.report.forced == {}
    assert batch.report.launches < batch.report.nodes
    if "with_length" not in getattr(run, "keywords", {}):
        assert sum(n > 1 for n in widths(batch)) >= sorted(LENGTHS)[-2]


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_fused_layers_equal_the_loop(kind, bidirectional, layout):
    """One launch for each of the four lengths, also with states as arguments and results."""
    options = {"num_layers": 2, "bidirectional": bidirectional, "input_size": WIDTH}
    layer = prepared(getattr(rnn, kind)(3, layout=layout, **options))
    shape = (-1, 1, WIDTH) if layout == "TNC" else (1, -1, WIDTH)
    for states in (lambda: (), lambda: (layer.begin_state(1),)):
        check(lambda x: layer(x.reshape(shape), *states()), ragged(), layer, launches=4)  # noqa: B023


@pytest.mark.parametrize("kind", ["fused", "unrolled", "one step"])
def test_states_of_inferred_sizes_equal_the_loop(kind):
    """In a graph, initial states have a size of 0, which is inferred from the other arrays."""
    layer = rnn.LSTM(3, input_size=WIDTH) if kind == "fused" else lstm()
    run = {
        "fused": lambda F, x: layer(F.reshape(x, shape=(0, 1, -1))),
        "unrolled": lambda F, x: layer.unroll(2, F.stack(x, x, axis=1), merge_outputs=True),
        "one step": lambda F, x: layer(x, layer.begin_state(func=F.zeros)),
    }[kind]
    launches = len(set(LENGTHS)) if kind == "fused" else None
    batch = check(prepared(cells.cell(run, layer)), ragged(), layer, launches=launches)
    assert kind == "fused" or batch.report.launches <= 2


@pytest.mark.parametrize("run", [step_by_step, unrolled])
def test_variational_dropout_draws_a_mask_per_sequence(run):
    """The cell keeps it in an attribute; its output is its masked input."""
    base = rnn.RNNCell(WIDTH, input_size=WIDTH, activation="relu")
    cell = contrib.rnn.VariationalDropoutCell(base, drop_inputs=0.5)
    gdb.convert(cell).initialize()
    base.i2h_weight.set_data(mx.nd.eye(WIDTH))
    base.h2h_weight.set_data(mx.nd.zeros((WIDTH, WIDTH)))
    cell.hybridize(False)
    base.hybridize()
    steps = [np.repeat(np.arange(1, n + 1), WIDTH).reshape((-1, WIDTH)) for n in (2, 3, 4) * 4]
    with autograd.record(), gdb.batching() as batch:
        outputs = [run(cell)(mx.nd.array(x))[0] for x in steps]
    assert batch.report.launches < batch.report.nodes
    values = [y.reshape((-1, WIDTH)).asnumpy() for y in outputs]
    assert all((y == y[0] * x).all() for x, y in zip(steps, values))
    masks = [y[0] for y in values]
    assert np.unique(masks).tolist() == [0, 2] and len({mask.tobytes() for mask in masks}) > 1
