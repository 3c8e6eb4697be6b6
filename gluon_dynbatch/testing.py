"""A check of a program against the oracle: the same program, sample by sample, without a scope."""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter, ParameterDict
from mxnet.ndarray import NDArray

from .block import batching
from .errors import ArgumentError, OptionError
from .handle import Batch
from .native import recording
from .options import check_names
from .oracle.results import TOLERANCES, Tolerance, Values, find_difference, to_numpy, values_of
from .oracle.snapshot import Snapshot
from .record.where import user_line
from .samples.arguments import applier, iterator_of

__all__ = ["TOLERANCES", "check_against_loop"]

RANDOM = (
    "two runs of the plain loop differ as well: if the program draws random numbers, compare a "
    "model without them, such as one with Dropout(0)"
)

ROUNDING = (
    "two runs of the plain loop are equal; if it may be rounding, see which of the two is closer "
    "to a run in float64, before you pass another tolerance"
)


class Outcome(NamedTuple):
    """What a run returned, and the gradients of a weighted sum of it."""

    values: Values
    gradients: Values

    def difference(self, other: Outcome, tolerance: Tolerance) -> Optional[str]:
        """Return a sentence about the first value or gradient that differs; None if none does."""
        found = find_difference(self.values, other.values, tolerance)
        return found or find_difference(self.gradients, other.gradients, tolerance, are_sums=True)


def check_against_loop(
    fn: Callable[[Any], Any],
    samples: Iterable[Any],
    params: Union[ParameterDict, Iterable[Parameter], None] = None,
    tolerance: Tolerance = None,
    **scope_options: Any,
) -> Batch:
    """Compare values and gradients of `fn` over `samples` in a scope with those of the plain loop.

    Both runs are recorded with ``autograd.record()``.  The gradients are those of a weighted sum of
    all floating-point arrays among the results, with the same random weights in both runs.  If the
    program changes attributes of objects, the second run begins with the values of the first one.

    Parameters
    ----------
    fn : callable
        The program for one sample.  It returns arrays, numbers, strings, None, or containers and
        objects of these, which are compared attribute by attribute.  Tuples are passed as by
        :func:`gluon_dynbatch.map`.
    samples : iterable
        The minibatch.  Gradients of arrays in it are compared if they have one (``attach_grad``).
    params : ParameterDict or iterable of Parameter, optional
        Parameters whose gradients are compared, for example ``net.collect_params()``.
    tolerance : tuple of float, optional
        Relative and absolute tolerance.  By default (1e-4, 1e-5) for float32 and for numbers that
        are no arrays, (1e-8, 1e-9) for float64 and (2e-2, 2e-2) for float16.  For a gradient, the
        absolute tolerance of float32 is at least a millionth of its largest value: it is a sum,
        whose terms have rounding errors.
    **scope_options
        Options of :func:`gluon_dynbatch.batching`.

    Returns
    -------
    Batch
        The scope, for further checks of its report and plan.

    Raises
    ------
    AssertionError
        A value or a gradient differs; the message says which one.  Programs that draw random
        numbers, as by Dropout, differ in any two runs; the message says so, too.  If it may be
        rounding, because both numbers are close, compare both with a run in float64.
    ArgumentError
        A result holds an object that cannot be compared, such as a generator; or `params` holds
        something else than parameters.
    BudgetError, OptionError
        The tolerance or an option of the scope has a value that it cannot have.

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
    apply, samples, before = applier(fn), list(iterator_of(samples)), Snapshot()
    before.add(fn, samples)
    params = _parameters(params)
    _check_tolerance(tolerance)
    if any(p._deferred_init for p in params):  # the first call finds their shapes
        list(map(apply, samples[:1]))
        before.restore()
    variables = _variables(samples, params)
    batch, heads = batching(**check_names(scope_options, "check_against_loop")), WeightedHeads()

    def scope() -> Any:
        with batch:
            return batch.map(apply, samples)

    expected = _run(lambda: list(map(apply, samples)), variables, heads)
    before.restore()
    difference = expected.difference(_run(scope, variables, heads), tolerance)
    if difference is not None:
        before.restore()
        again = _run(lambda: list(map(apply, samples)), variables, heads)
        is_random = expected.difference(again, tolerance) is not None
        difference += f"; {RANDOM if is_random else ROUNDING}"
    assert difference is None, difference
    return batch


def _parameters(params: Any) -> List[Parameter]:
    """Return the parameters as a list; raise if there is anything else, such as a block."""
    params = params.values() if isinstance(params, ParameterDict) else params
    params = () if params is None else params
    found = list(params) if isinstance(params, Iterable) else [params]
    for one in found:
        if not isinstance(one, Parameter):
            raise ArgumentError(
                f"params holds an object of type {type(one).__name__}",
                user_line(),
                advice="pass parameters, such as net.collect_params()",
            )
    return found


def _check_tolerance(tolerance: Any) -> None:
    """Raise unless this is None or two numbers, neither of them negative."""
    numbers = tolerance if isinstance(tolerance, (tuple, list)) else ()
    are_numbers = [isinstance(n, (int, float, np.number)) and n >= 0 for n in numbers]
    if tolerance is not None and are_numbers != [True, True]:
        expected = "None, or a relative and an absolute one, such as (1e-4, 1e-5)"
        raise OptionError(f"tolerance must be {expected}, not {tolerance!r}")


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


class WeightedHeads:
    """Makes heads of results, and their weights, which are equal in all runs."""

    def __init__(self) -> None:
        self._draw = np.random.RandomState(1).uniform
        self._made: Dict[Any, NDArray] = {}

    def anchored(self, array: NDArray) -> NDArray:
        """Add a zero that has a gradient, so that a result without variables can be one, too."""
        is_numpy = isinstance(array, mx.np.ndarray)
        axes = max(not is_numpy, array.ndim)
        key = is_numpy, axes, str(array.dtype), array.ctx
        if key not in self._made:
            self._made[key] = _array_like(array, np.zeros((1,) * axes))
            self._made[key].attach_grad()
        return array + self._made[key]

    def weight(self, number: int, head: NDArray) -> NDArray:
        """Return random weights for the elements of a head."""
        key = number, isinstance(head, mx.np.ndarray), head.shape, str(head.dtype), head.ctx
        if key not in self._made:
            self._made[key] = _array_like(head, self._draw(0.5, 1.5, head.shape))
        return self._made[key]


def _run(
    run: Callable[[], Any], variables: List[Tuple[str, NDArray]], heads: WeightedHeads
) -> Outcome:
    """Return the results of a run and the gradients of their weighted sum, with their names."""
    for _, array in variables:
        if array.grad is not None:
            _clear(array.grad)
    with mx.autograd.record():
        values: Values = []
        for number, result in enumerate(run()):
            values += values_of(result, f"result {number}")
        arrays = [value for _, value in values if isinstance(value, NDArray)]
        anchored = [heads.anchored(a) for a in arrays if np.dtype(a.dtype).kind == "f"]
    if anchored:
        weights = [heads.weight(number, head) for number, head in enumerate(anchored)]
        mx.autograd.backward(anchored, weights)
    # MXNet drops the gradient of an array with ``attach_grad("null")`` in a backward pass.
    gradients = [
        (f"the gradient of {name}", mx.nd.zeros(x.shape) if x.grad is None else x.grad)
        for name, x in variables
    ]
    return Outcome(to_numpy(values), to_numpy(gradients))


def _clear(gradient: NDArray) -> None:
    """Write zeros: by an operator in a fifth of the time, if there are axes and elements."""
    if gradient.ndim and gradient.size:
        array = gradient.as_nd_ndarray()
        mx.nd.zeros_like(array, out=array)
    else:
        gradient[()] = 0


def _array_like(array: NDArray, values: np.ndarray[Any, Any]) -> NDArray:
    """Return an array of the class, dtype and context of another one."""
    create: Any = mx.np.array if isinstance(array, mx.np.ndarray) else mx.nd.array
    created: NDArray = create(values, ctx=array.ctx, dtype=array.dtype)
    return created
