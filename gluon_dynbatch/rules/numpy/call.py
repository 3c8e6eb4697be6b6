"""The call of an operator of ``mx.np`` that is translated, and how to append operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Callable, NamedTuple, Sequence, Tuple

from ...modes import FLOATS
from ..build import Append
from ..site import Ref, Shape, Site, public_attrs, require

#: Translates a call: appends operators, and returns a reference per visible result.
Translator = Callable[["NumPyCall"], Tuple[Ref, ...]]


class NumPyArray(NamedTuple):
    """An array of a translated program."""

    ref: Ref
    #: Shape in ``mx.np``; in the translated program, no axes are one axis of extent 1.
    shape: Shape
    dtype: str

    @property
    def axed(self) -> Shape:
        """Its shape in the translated program."""
        return self.shape or (1,)


@dataclass(frozen=True)
class NumPyCall(Site):
    """One call of an operator; shapes are those of ``mx.np``."""

    arrays: Tuple[NumPyArray, ...] = field(default=(), hash=False)
    out_dtypes: Tuple[str, ...] = ()
    append: Append = field(default=lambda op, inputs, attrs: (0, 0), hash=False)

    def add(self, op: str, *inputs: Ref, **attrs: object) -> Ref:
        """Append an operator and return its first output."""
        return self.append(op, inputs, {k: str(v) for k, v in attrs.items()})

    def apply(self, op: str, *arrays: NumPyArray, shape: Shape, **attrs: object) -> NumPyArray:
        """Append an operator whose result has the dtype of its first input."""
        ref = self.add(op, *(array.ref for array in arrays), **attrs)
        return NumPyArray(ref, shape, arrays[0].dtype)

    def cast(self, array: NumPyArray, dtype: str) -> NumPyArray:
        """Convert to another dtype."""
        if array.dtype == dtype:
            return array
        return NumPyArray(self.add("Cast", array.ref, dtype=dtype), array.shape, dtype)

    def reshape(self, array: NumPyArray, shape: Shape) -> NumPyArray:
        """Reshape; if the first extent stays, the result has as many rows as the array."""
        assert prod(array.shape) == prod(shape), (array, shape)
        old, new = array.axed, shape or (1,)
        if old == new:
            return array._replace(shape=shape)
        if old[0] == new[0] and array.shape and shape:
            new = (0, *new[1:])
        return NumPyArray(self.add("Reshape", array.ref, shape=new), shape, array.dtype)

    def transpose(self, array: NumPyArray, order: Sequence[int]) -> NumPyArray:
        """Permute axes."""
        if list(order) == list(range(len(order))):
            return array
        shape = tuple(array.shape[axis] for axis in order)
        return self.apply("transpose", array, shape=shape, axes=tuple(order))

    def broadcast(self, array: NumPyArray, shape: Shape) -> NumPyArray:
        """Repeat elements along axes of extent 1, after new axes are put in front."""
        padded = (1,) * (len(shape) - len(array.shape)) + array.shape
        array = self.reshape(array, padded)
        if padded == shape:
            return array
        sizes = tuple(0 if a == b else b for a, b in zip(padded, shape))
        return NumPyArray(self.add("broadcast_to", array.ref, shape=sizes), shape, array.dtype)

    def number(self, name: str, default: float) -> float:
        """Read a number."""
        text = self.attrs.get(name, "None")
        return default if text == "None" else float(text)

    def given_axes(self, name: str = "axis") -> Tuple[int, ...]:
        """Read axes of the first input, counted from the front; all of them for None."""
        ndim = len(self.inputs[0])
        if self.attrs.get(name, "None") == "None":
            return tuple(range(ndim))
        axes = tuple(sorted(self.axes(name)))
        require(bool(axes) or not ndim, f"Operator {self.called} along no axis has no translation.")
        return axes

    def done(self, array: NumPyArray, number: int = 0) -> Tuple[Ref, ...]:
        """Return an array as the only result, in its dtype and shape."""
        array = self.cast(array, self.out_dtypes[number])
        assert array.axed == (self.outputs[number] or (1,)), (self.op, self.inputs, array)
        return (array.ref,)

    def same(self) -> Tuple[Ref, ...]:
        """Append the operator itself; if an input has no axes, results may need another shape."""
        refs = [array.ref for array in self.arrays]
        position, _ = self.append(self.op, refs, public_attrs(self.attrs))
        results = tuple((position, k) for k in range(len(self.outputs)))
        if all(self.inputs):
            return results
        return tuple(
            self.add("Reshape", ref, shape=shape or (1,))
            for ref, shape in zip(results, self.outputs)
        )


def numeric(dtype: str) -> str:
    """Return a dtype, or for booleans one that operators of ``mx.nd`` take."""
    return "float32" if dtype == "bool" else dtype


def working_dtype(call: NumPyCall) -> str:
    """Return the dtype in which to compute: that of the result, or a common one for booleans."""
    out = call.out_dtypes[0]
    if out != "bool":
        return out
    dtypes = {array.dtype for array in call.arrays}
    if dtypes == {"bool"}:
        return "float32"
    dtypes.discard("bool")
    if len(dtypes) == 1:
        return dtypes.pop()
    floats = [dtype for dtype in FLOATS if dtype in dtypes]
    return floats[-1] if floats else "int64"
