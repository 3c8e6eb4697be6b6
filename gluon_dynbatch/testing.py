"""A check of a program against the oracle: the same program, sample by sample, without a scope."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter, ParameterDict
from mxnet.ndarray import NDArray

from .block import batching
from .native import recording
from .samples import applier
from .scope import Batch

#: Relative and absolute tolerance by dtype.
TOLERANCES = {"float16": (2e-2, 2e-2), "float32": (1e-4, 1e-5), "float64": (1e-8, 1e-9)}


def check_against_loop(
    fn: Callable[[Any], Any],
    samples: Iterable[Any],
    params: Union[ParameterDict, Iterable[Parameter], None] = None,
    tolerance: Optional[Tuple[float, float]] = None,
    **scope_options: Any,
) -> Batch:
    """Compare values and gradients of `fn` over `samples` in a scope with those of the plain loop.

    Both runs are recorded with ``autograd.record()``.  The gradients are those of a weighted sum of
    all floating-point results, with the same random weights in both runs.

    Parameters
    ----------
    fn : callable
        The program for one sample.  It returns an array, or nested lists of arrays.  Tuples are
        passed as by :func:`gluon_dynbatch.map`.
    samples : iterable
        The minibatch.  Gradients of arrays in it are compared if they have one (``attach_grad``).
    params : ParameterDict or iterable of Parameter, optional
        Parameters whose gradients are compared, for example ``net.collect_params()``.
    tolerance : tuple of float, optional
        Relative and absolute tolerance.  By default (1e-4, 1e-5) for float32, (1e-8, 1e-9) for
        float64 and (2e-2, 2e-2) for float16.
    **scope_options
        Options of :func:`gluon_dynbatch.batching`.

    Returns
    -------
    Batch
        The scope, for further checks of its report and plan.

    Raises
    ------
    AssertionError
        A value or a gradient differs; the message says which one.

    Examples
    --------
    >>> net = gdb.convert(mx.gluon.nn.Dense(2, in_units=3))
    >>> net.initialize()
    >>> net.hybridize()
    >>> samples = [mx.nd.ones((1, 3)), mx.nd.zeros((1, 3))]
    >>> batch = gdb.testing.check_against_loop(net, samples, net.collect_params())
    >>> batch.report.nodes >= 2
    True
    """
    fn, samples = applier(fn), list(samples)
    params = params.values() if isinstance(params, ParameterDict) else params or ()
    variables = _variables(samples, list(params))
    batch = batching(**scope_options)

    def scope() -> Any:
        with batch:
            return batch.map(fn, samples)

    expected = _run(lambda: list(map(fn, samples)), variables)
    actual = _run(scope, variables)
    assert len(expected) == len(actual), "the scope changes the number of results"
    for (name, a), (_, b) in zip(expected, actual):
        _compare(name, a, b, tolerance)
    return batch


def _variables(samples: Sequence[Any], params: List[Parameter]) -> List[Tuple[str, NDArray]]:
    """Return the arrays whose gradients are compared, with their names."""
    variables = [(p.name, data) for p in params if p.grad_req != "null" for data in p.list_data()]
    for i, sample in enumerate(samples):
        try:
            leaves, _ = recording.flatten(sample)
        except TypeError:
            continue
        variables += [
            (f"array {k} of sample {i}", a) for k, a in enumerate(leaves) if a.grad is not None
        ]
    return variables


def _run(
    run: Callable[[], Any], variables: List[Tuple[str, NDArray]]
) -> List[Tuple[str, np.ndarray]]:
    """Return the results of a run and the gradients of their weighted sum, with their names."""
    for _, array in variables:
        array.grad[:] = 0
    with mx.autograd.record():
        results = run()
        leaves = recording.flatten(results)[0]
        heads = [_anchored(leaf) for leaf in leaves if np.dtype(leaf.dtype).kind == "f"]
    if heads:
        draw = np.random.RandomState(1).uniform
        weights = [mx.nd.array(draw(0.5, 1.5, h.shape), h.context, h.dtype) for h in heads]
        mx.autograd.backward(heads, weights)
    values = [(f"result {i}", leaf.asnumpy()) for i, leaf in enumerate(leaves)]
    return values + [(f"the gradient of {name}", x.grad.asnumpy()) for name, x in variables]


def _anchored(array: NDArray) -> NDArray:
    """Add a zero that has a gradient, so that a result without variables can be a head, too."""
    anchor = mx.nd.zeros((1,) * max(1, array.ndim), ctx=array.context, dtype=array.dtype)
    anchor.attach_grad()
    return mx.nd.broadcast_add(array, anchor)


def _compare(
    name: str, expected: np.ndarray, actual: np.ndarray, tolerance: Optional[Tuple[float, float]]
) -> None:
    relative, absolute = tolerance or TOLERANCES.get(expected.dtype.name, (0, 0))
    dtypes = f"{actual.dtype} in the scope and {expected.dtype} in the loop"
    assert expected.dtype == actual.dtype, f"{name} is {dtypes}"
    message = f"{name} differs between scope and loop"
    np.testing.assert_allclose(actual, expected, relative, absolute, err_msg=message)
