"""Runs cells in scopes, launch by launch as kernels, and compares them with MXNet's operators."""

from mxnet import autograd

from gluon_dynbatch.testing import check_against_loop
from tests.cells import cell


def run(fn, samples, training=True, **options):
    """Compare a cell with the loop, in which MXNet runs it; return the segments of its launches.

    Arrays that several samples bring are weights; others are no variables, so that they batch.
    """
    net, count = cell(fn), {}
    for array in sum(map(list, samples), []):
        count[id(array)] = count.get(id(array), 0) + 1

    def call(sample):
        arrays = [x if x.grad is None or count[id(x)] > 1 else x * 1 for x in sample]
        with autograd.train_mode() if training else autograd.predict_mode():
            return net(*arrays)

    options = {"granularity": "block", "policy": "depth", "analysis_budget": None, **options}
    return [launch.segment for launch in check_against_loop(call, samples, **options).plan.launches]


def outcomes(segments):
    """Return how many of some segments kernels ran, and why others were left to MXNet."""
    told = [segment.kernels for segment in segments]
    reasons = {kernels for kernels in told if isinstance(kernels, str)}
    assert all(kernels is not None for kernels in told)
    return sum(not isinstance(kernels, str) for kernels in told), reasons
