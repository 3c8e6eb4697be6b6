"""What the tests of models share: making them ready, samples, and the comparison with the loop."""

from __future__ import annotations

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb
from gluon_dynbatch.scope import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop

WIDTH = 4
LENGTHS = (1, 3, 2, 5, 3)


def ready(block, convert=True, scale=0.6):
    """Convert, initialise with repeatable values, and hybridize."""
    mx.random.seed(5)
    if convert:
        gdb.convert(block)
    block.initialize(mx.init.Uniform(scale))
    block.hybridize()
    return block


def check(fn, samples, block, launches=None, **options):
    """Compare with the loop at every granularity; return the last scope.

    With `launches`, everything must have merged, into this many launches each time.
    """
    params = list(block.collect_params().values())
    for granularity in GRANULARITIES:
        batch = check_against_loop(
            fn, samples, params, granularity=granularity, analysis_budget=None, **options
        )
        if launches is not None:
            assert batch.report.alone == []
            assert batch.report.launches == launches, granularity
    return batch


def arrays(*shapes, dtype="float32"):
    """Arrays of these shapes, each with a gradient."""
    random = np.random.RandomState(2)
    made = [mx.nd.array(random.uniform(-1, 1, shape), dtype=dtype) for shape in shapes]
    for x in made:
        x.attach_grad()
    return made


def ragged(width=WIDTH, lengths=LENGTHS):
    """Sequences of different lengths, (steps, width) each, with gradients."""
    return arrays(*[(n, width) for n in lengths])
