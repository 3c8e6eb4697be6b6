"""Check values and gradients of an installed package; print its path and that of native code."""

import contextlib
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb

cell = gdb.convert(mx.gluon.nn.Dense(2, in_units=2, flatten=False))
cell.initialize()
cell.hybridize()
xs = [mx.nd.array([[i, 1.0]]) for i in range(8)]


def run(scope):
    """Return the losses and the gradient of the weight."""
    with mx.autograd.record(), scope:
        losses = [cell(cell(x) + x[0:1]).sum() for x in xs]
    mx.autograd.backward(losses)
    return np.array([float(loss.asscalar()) for loss in losses]), cell.weight.grad().asnumpy()


batch = gdb.batching(granularity="operator", policy="agenda")
for batched, loop in zip(run(batch), run(contextlib.nullcontext())):
    np.testing.assert_allclose(batched, loop, rtol=1e-5)
program = Path(sys.executable).with_name("gluon-dynbatch")
printed = subprocess.run([program, "--version"], check=True, stdout=subprocess.PIPE, text=True)
assert printed.stdout == f"gluon_dynbatch {gdb.__version__}\n", printed.stdout
print(gdb.__file__, gdb.native.recording.__file__, sep="\n")
