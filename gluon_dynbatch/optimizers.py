"""Optimizers of MXNet whose step is one operation of the engine.

MXNet's AdaGrad runs ten operators for each parameter, and its Adam one.  An operator takes some
20 us in the thread that trains, and reads and writes whole arrays.  Here, an update is an
expression, compiled to a native kernel, and a step is a program with a launch per parameter.
"""

from __future__ import annotations

import functools
import math
from itertools import chain
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .kernel.compile import Compiler
from .kernel.expression import Expressions, Node
from .kernel.layout import Columns, Slot
from .kernel.step import Kernel, SlotArray
from .native import executing
from .native.assembling import itemsize
from .native.recording import addresses_and_handles
from .record.hazards import before_unknown_write
from .record.state import STATE
from .record.types import in_host_memory, name_of
from .run.buffers import push
from .run.pool import copy_of_numpy

#: A weight, its gradient, and the arrays of its state; for half precision, these may be nested.
Arrays = Tuple[Any, ...]
#: Numbers that a kernel is compiled for.
Constants = Tuple[Optional[float], ...]
#: The numbers of each parameter that a step reads from an array: learning rate, weight decay, and
#: the factor of gradients.
NUMBERS = 3
#: The most parameters of a step: MXNet passes more of them in several steps.
MOST = 1 << 30


class KnownParameter(NamedTuple):
    """A parameter as it was updated last, and whether a kernel can update it."""

    weight: NDArray
    gradient: NDArray
    state: Any
    #: All of them.
    arrays: Arrays
    #: Empty if MXNet updates it.
    dtype: str
    size: int


class JointUpdate(NamedTuple):
    """How parameters of some sizes are updated together."""

    #: Their sizes, and the constants of the kernel.
    key: Tuple[List[int], Constants]
    program: executing.Program


class FusedOptimizer(mx.optimizer.Optimizer):
    """Updates all parameters at once, if they and their gradients are dense and in host memory.

    The other base of a subclass is an optimizer of MXNet.  That makes the states, and updates what
    is sparse, of half precision, or on a GPU.  The subclass has the formula.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aggregate_num = MOST
        #: By device, and by index; and those of the present device.
        self._known: Dict[int, Dict[Any, KnownParameter]] = {}
        self._present: Dict[Any, KnownParameter] = {}
        #: The last one, by dtype.
        self._last: Dict[str, JointUpdate] = {}

    def __getstate__(self) -> Dict[str, Any]:
        return {**super().__getstate__(), "_known": {}, "_present": {}, "_last": {}}

    def _set_current_context(self, device_id: int) -> None:
        super()._set_current_context(device_id)
        self._present = self._known.setdefault(device_id, {})

    @property
    def constants(self) -> Constants:
        """What the kernel is compiled for."""
        raise NotImplementedError

    @staticmethod
    def updated(
        arrays: Sequence[Node], rate: Node, decay: Node, scale: Node, constants: Any
    ) -> List[Node]:
        """Return the new weight and the new arrays of its state, given all `Arrays`."""
        raise NotImplementedError

    def rates(self, indices: Sequence[int]) -> List[float]:
        """Return the learning rates of parameters in this step."""
        return self._get_lrs(indices)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update parameters, given by lists, or one of them."""
        if not isinstance(index, (list, tuple)):
            super().update_multi_precision(index, weight, grad, state)
            return
        if STATE.recorder is not None:
            before_unknown_write(STATE.recorder)
        known = self._find_known(index, weight, grad, state)
        dtype = next((each.dtype for each in known if each.dtype), "")
        fused = [i for i, each in enumerate(known) if each.dtype == dtype != ""]
        for i in sorted({*range(len(known))}.difference(fused)):
            super().update_multi_precision(index[i], weight[i], grad[i], state[i])
        if fused:
            self._update_together([index[i] for i in fused], [known[i] for i in fused])

    def _update_together(self, indices: List[Any], known: List[KnownParameter]) -> None:
        """Update parameters of one dtype by one program."""
        self._update_count(indices)
        # MXNet's operators take them in single precision, whatever the type of the arrays.
        numbers = np.full((len(indices), NUMBERS), self.rescale_grad, np.float32)
        numbers[:, 0], numbers[:, 1] = self.rates(indices), self._get_wds(indices)
        dtype, count = known[0].dtype, len(known[0].arrays)
        last = copy_of_numpy(numbers.astype(dtype))
        operands = [*chain.from_iterable([each.arrays for each in known]), last]
        uses = (b"WR" + b"W" * (count - 2)) * len(indices) + b"r"
        key = [each.size for each in known], self.constants
        update = self._last.get(dtype)
        if update is None or update.key != key:
            kernel = _kernel(self.updated, dtype, count, self.constants)
            update = self._last[dtype] = JointUpdate(key, _program(kernel, count, key[0], dtype))
        bases = executing.Bases(operands, *addresses_and_handles(operands, uses), uses)
        push(update.program, bases, f" {type(self).__name__}", 0, -1, False)

    def _find_known(
        self, indices: Any, weights: Any, gradients: Any, states: Any
    ) -> List[KnownParameter]:
        """Return parameters as they were the last time, if their arrays are the same."""
        known, found = self._present, []
        for index, weight, gradient, state in zip(indices, weights, gradients, states):
            each = known.get(index)
            if (
                each is None
                or each.weight is not weight
                or each.gradient is not gradient
                or each.state is not state
            ):
                each = known[index] = _known_parameter(weight, gradient, state)
            found.append(each)
        return found


def _known_parameter(weight: NDArray, gradient: NDArray, state: Any) -> KnownParameter:
    arrays = weight, gradient, *(state if isinstance(state, (list, tuple)) else (state,))
    dtype = name_of(weight.dtype)
    if not _has_kernel(arrays, dtype):
        return KnownParameter(weight, gradient, state, arrays, "", 0)
    return KnownParameter(weight, gradient, state, arrays, dtype, weight.size)


def _has_kernel(arrays: Arrays, dtype: str) -> bool:
    """Return whether a kernel can update a parameter."""
    weight = arrays[0]
    # States that were made in a scope are lazy; to ask for their handles computes them.
    handles = [array.handle for array in arrays if isinstance(array, NDArray)]
    return (
        dtype in ("float32", "float64")
        and in_host_memory(weight.context)
        and len(handles) == len(arrays)
        and all(array.stype == "default" for array in arrays)
        and {(x.shape, name_of(x.dtype), x.context) for x in arrays}
        == {(weight.shape, dtype, weight.context)}
    )


@functools.lru_cache(maxsize=64)
def _kernel(
    updated: Callable[..., List[Node]], dtype: str, count: int, constants: Constants
) -> executing.NativeKernel:
    """Return the kernel that updates one element of a parameter, which has so many arrays."""
    build, slots = Expressions(), {}

    def read(slot: Slot, every: bool) -> Node:
        slots[slot] = SlotArray(1, dtype, every)
        return build.read(slot, 1, dtype, every)

    arrays = [read(Slot("in", i), False) for i in range(count)]
    numbers = [read(Slot("param", i), True) for i in range(NUMBERS)]
    results = updated(arrays, *numbers, constants)
    targets = [Slot("out", i) for i in (0, *range(2, count))]
    slots.update({target: SlotArray(1, dtype) for target in targets})
    steps = Compiler(slots).steps(list(zip(map(Columns, targets), results)))
    return Kernel(steps, slots).native()


def _program(
    kernel: executing.NativeKernel, count: int, sizes: List[int], dtype: str
) -> executing.Program:
    """Return the program that updates parameters with so many arrays, of these sizes.

    Its bases are the arrays of one parameter after another, and the array of numbers.
    """
    head = executing.LAUNCH, 1, kernel.address
    numbers, width = np.arange(len(sizes)), len(head) + 1
    code = np.empty((len(sizes), width + 2 * len(kernel.slots)), np.int64)
    code[:, : len(head)], code[:, len(head)] = head, sizes
    operands, offsets = code[:, width::2], code[:, width + 1 :: 2]
    for column, slot in enumerate(kernel.slots):
        if slot.kind == "param":
            operands[:, column] = count * len(sizes)
            offsets[:, column] = (NUMBERS * numbers + slot.number) * itemsize(dtype)
        else:
            operands[:, column], offsets[:, column] = count * numbers + slot.number, 0
    return executing.Program(code.ravel(), [kernel])


def _clipped(gradient: Node, bound: Optional[float]) -> Node:
    return gradient if bound is None else gradient.apply("clip", gradient, values=(-bound, bound))


@mx.optimizer.register
class FusedAdaGrad(FusedOptimizer, mx.optimizer.AdaGrad):
    """MXNet's AdaGrad, with all parameters updated in one operation of the engine.

    Use it as any optimizer, also by its name: ``gluon.Trainer(parameters, "fusedadagrad",
    {"learning_rate": 0.05})``.  Updates, options and states are those of `mxnet.optimizer.AdaGrad`
    (Duchi, Hazan, Singer 2011).  A file of states holds the optimizer, too: the page on training
    shows how to go on from one that the other has saved.
    It is worthwhile for small minibatches and for models with many parameters: MXNet's own takes
    some 0.2 ms for each.

    Parameters
    ----------
    eps : float, default 1e-7
        Is added to the sum of squared gradients.
    **kwargs
        Those of `mxnet.optimizer.Optimizer`, such as `learning_rate`, `wd`, `clip_gradient` and
        `lr_scheduler`.

    Notes
    -----
    Weights, gradients and states have to be dense and float32 in host memory (``cpu``,
    ``cpu_pinned``, ``cpu_shared``).  Others are updated by MXNet's optimizer, one by one.
    """

    @property
    def constants(self) -> Constants:
        """What the kernel is compiled for."""
        return self.float_stable_eps, self.clip_gradient

    @staticmethod
    def updated(
        arrays: Sequence[Node], rate: Node, decay: Node, scale: Node, constants: Any
    ) -> List[Node]:
        """Return the new weight and history."""
        (weight, gradient, history), (epsilon, bound) = arrays, constants
        gradient = _clipped(gradient * scale, bound)
        history = history + gradient.apply("square", gradient)
        shifted = history + epsilon
        step = gradient / shifted.apply("sqrt", shifted)
        return [weight - (step + weight * decay) * rate, history]


@mx.optimizer.register
class FusedAdam(FusedOptimizer, mx.optimizer.Adam):
    """MXNet's Adam, with all parameters updated in one operation of the engine.

    Use it as any optimizer, also by its name: ``gluon.Trainer(parameters, "fusedadam")``.  Updates,
    options and states are those of `mxnet.optimizer.Adam` (Kingma, Ba 2014, arXiv:1412.6980).  A
    file of states holds the optimizer, too: the page on training shows how to go on from one that
    the other has saved.

    Parameters
    ----------
    learning_rate : float, default 0.001
        The step size.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the means of gradients and of their squares.
    epsilon : float, default 1e-8
        Is added to the root of the mean of squares.
    lazy_update : bool, default True
        Whether sparse gradients update only their rows.
    **kwargs
        Those of `mxnet.optimizer.Optimizer`, such as `wd`, `clip_gradient` and `lr_scheduler`.

    Notes
    -----
    Weights, gradients and states have to be dense, of one type, float32 or float64, and in host
    memory (``cpu``, ``cpu_pinned``, ``cpu_shared``).  Others are updated by MXNet's optimizer, one
    by one.
    """

    @property
    def constants(self) -> Constants:
        """What the kernel is compiled for."""
        bound = self.clip_gradient
        return self.beta1, self.beta2, self.epsilon, bound if bound and bound > 0 else None

    def rates(self, indices: Sequence[int]) -> List[float]:
        """Return the learning rates, corrected for means that began at zero."""
        counts = (self._index_update_count[index] for index in indices)
        return [
            rate * math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
            for rate, count in zip(super().rates(indices), counts)
        ]

    @staticmethod
    def updated(
        arrays: Sequence[Node], rate: Node, decay: Node, scale: Node, constants: Any
    ) -> List[Node]:
        """Return the new weight, mean, and mean of squares."""
        (weight, gradient, mean, squares), (*betas, epsilon, bound) = arrays, constants
        beta1, beta2 = map(np.float32, betas)  # as MXNet's: 1 - 0.999 differs in the fifth digit
        gradient = _clipped(gradient * scale + weight * decay, bound)
        mean = mean * float(beta1) + gradient * float(1 - beta1)
        squares = squares * float(beta2)
        squares = squares + gradient.apply("square", gradient) * float(1 - beta2)
        return [weight - mean * rate / (squares.apply("sqrt", squares) + epsilon), mean, squares]
