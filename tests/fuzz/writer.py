"""Writes the body of a function line by line, and runs every line to see whether MXNet takes it.

Shapes may hold `R`, the number of rows, which differs from sample to sample: a body is tried in
several environments with different numbers, and keeps a line that runs in all of them.
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from gluon_dynbatch import rules
from tests.rules.drawn import Draw
from tests.rules.interpreter import Case, R

from .harness import FLATTENER
from .operators import arguments, cases, generated, spelling

Shape = Tuple[int, ...]

#: Arrays are kept small, and values where rounding stays harmless.
MOST_ELEMENTS, LARGEST = 600, 1e3

#: Results of a cell or a sample, at most.
MOST_RESULTS = 6

#: How a value gets into the range that some operators ask for.
RANGES = {
    "normal": "{}",
    "positive": "F.exp(0.5 * F.tanh({}))",
    "above": "1.2 + F.sigmoid({})",
    "unit": "0.9 * F.tanh({})",
    "small": "0.5 * F.tanh({})",
    "fraction": "0.1 + 0.8 * F.sigmoid({})",
    "probability": "F.softmax({}, axis=-1)",
}


class Value(NamedTuple):
    #: The expression that gives it.
    name: str
    #: Its shape in each environment.
    shapes: Tuple[Shape, ...]
    dtype: str

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def ndim(self) -> int:
        return len(self.shapes[0])


class Body:
    """The body of a function that grows.

    Parameters
    ----------
    choose : Draw
        Makes all choices.
    environments : list of dict
        Names that lines may use, once for each number of rows.
    leading : sequence of int
        The number of rows in each environment.
    dtype : str
        Of all floating-point arrays.
    add_input : callable
        ``add_input(template, kind, bound)`` makes an array from outside and returns its name.
    wanted : sequence of str
        Operators that are called more often than others.
    compiled : bool
        Whether MXNet sees the body as one graph; otherwise it records line by line.
    """

    def __init__(
        self,
        choose: Draw,
        environments: List[Dict[str, Any]],
        leading: Sequence[int],
        dtype: str,
        add_input: Callable[[Shape, str, int], str],
        wanted: Sequence[str],
        compiled: bool,
    ):
        self.choose = choose
        self.environments = environments
        self.leading = tuple(leading)
        self.dtype = dtype
        self.lines: List[str] = []
        self.values: List[Value] = []
        self._add_input = add_input
        self._wanted = wanted
        self._compiled = compiled
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def shapes(self, template: Shape) -> Tuple[Shape, ...]:
        return tuple(tuple(r if n == R else n for n in template) for r in self.leading)

    def know(self, name: str) -> bool:
        """Enter what an expression gives into the values, if it gives small finite arrays."""
        found = [_parts(name, env) for env in self.environments]
        if any([n for n, _ in part] != [n for n, _ in found[0]] for part in found):
            return False
        if not all(_fits(array) for part in found for _, array in part):
            return False
        for parts in zip(*found):
            expression, first = parts[0]
            self.values.append(
                Value(expression, tuple(a.shape for _, a in parts), np.dtype(first.dtype).name)
            )
        return True

    def add(self, expression: str) -> bool:
        name = self.name()
        return self.run(f"{name} = {expression}") and (self.know(name) or self._take_back())

    def run(self, line: str) -> bool:
        """Append a line, if it runs in every environment."""
        code = compile(line, "line", "exec")
        for env in self.environments:
            try:
                exec(code, env)
                mx.nd.waitall()
            except Exception:  # MXNet and NumPy refuse in many ways.
                return False
        self.lines.append(line)
        return True

    def _take_back(self) -> bool:
        self.lines.pop()
        return False

    def floats(self) -> List[Value]:
        return [v for v in self.values if v.dtype == self.dtype]

    def value(self) -> Value:
        """Return some value, the latest ones first; make one if there is none."""
        found = self.floats()
        if not found:
            self.input((R, 3))
            found = self.floats()
        return self.choose.pick(found[::-1])  # type: ignore[no-any-return]

    def input(self, template: Shape, kind: str = "normal", bound: int = 0) -> str:
        name = self._add_input(template, kind, bound)
        self.know(name)
        return name

    def need(self, template: Shape, kind: str = "normal", bound: int = 0) -> str:
        """Return an expression for an array of a shape: a value there is, one made fit, a new one.

        Kinds that cannot be computed, such as indices, come from outside.
        """
        if kind not in RANGES:
            return self.input(template, kind, bound)
        wanted = self.shapes(template)
        equal = [v.name for v in self.floats() if v.shapes == wanted]
        if equal and self.choose.count(0, 3) != 3:
            return RANGES[kind].format(self.choose.pick(equal[::-1]))
        fitted = [f for f in (self._fit(v, template) for v in self.floats()) if f]
        if fitted and self.choose.flag():
            return RANGES[kind].format(self.choose.pick(fitted[::-1]))
        return RANGES[kind].format(self.input(template))

    def _fit(self, value: Value, template: Shape) -> Optional[str]:
        """Bring a value into another shape, row by row if both have rows; None if it cannot be."""
        rows = bool(template) and template[0] == R and R not in template[1:]
        if rows and value.ndim and tuple(s[0] for s in value.shapes) == self.leading:
            tails = {s[1:] for s in value.shapes}
            if len(tails) == 1:
                made = f"F.reshape({value.name}, shape=(0, -1))"
                made = _resized(made, math.prod(tails.pop()), math.prod(template[1:]), 1)
                return f"F.reshape({made}, shape={(0, *template[1:]) if template[1:] else (-1,)})"
        if R not in template and len(set(value.shapes)) == 1 and template and value.ndim:
            made = f"F.reshape({value.name}, shape=(-1,))"
            made = _resized(made, math.prod(value.shape), math.prod(template), 0)
            return f"F.reshape({made}, shape={template})"
        return None

    def unread(self) -> List[str]:
        text = "\n".join(line.split(" = ", 1)[-1] for line in self.lines)
        names = [v.name for v in self.values]
        found = [n for n in names if not re.search(re.escape(n) + r"(?![\w\[])", text)]
        return found[::-1][:MOST_RESULTS] or names[-1:]

    def add_case(self) -> bool:
        """Append a call of any operator of the rule table."""
        wanted = self._wanted if self._wanted and self.choose.count(0, 3) else generated()
        op = self.choose.pick(wanted)
        extents = tuple(self.choose.count(2, 4) for _ in range(3))
        known = cases(extents)[op]  # type: ignore[index]
        return self.call(known[self.choose.count(0, len(known) - 1)])

    def call(self, case: Case) -> bool:
        if case.op == "RNN" and self.dtype != "float32" and case.attrs["num_layers"] != "1":
            return False
        # Recorded line by line, MXNet may not keep what an operator without a gradient reads,
        # and crashes when it asks for zeros of that shape; it keeps what comes from outside.
        outside = not (case.gradient or self._compiled)
        source = self.input if outside else self.need
        inputs = [source(a.shape, a.kind, a.bound) for a in case.inputs]
        if outside and rules.of(case.op).writes:
            inputs = [f"{text}.copy()" for text in inputs]
        if case.op in ("_linalg_det", "_linalg_slogdet"):
            inputs = [f"1 * {text}" for text in inputs]
        if case.op == "RNN":
            inputs[2:] = [f"F.BlockGrad({text})" for text in inputs[2:]]
        attrs = {k: self.dtype if v == "float32" else v for k, v in case.attrs.items()}
        expression = f"F.{spelling(case.op)}({', '.join(inputs)}{arguments(attrs)})"
        if case.random:
            # What is drawn differs each time; what is left is its shape, and what it may break.
            return self.add(expression) and self._silence()
        if not case.gradient:
            return self.add(f"cut(F, {expression})")
        return self.add(expression)

    def _silence(self) -> bool:
        return all([self.add(f"F.zeros_like({v.name})") for v in self.drop_last()])

    def drop_last(self) -> List[Value]:
        """Let nobody read what the last line has made, and return it."""
        last = self.lines[-1].split(" = ")[0]
        made = [v for v in self.values if v.name == last or v.name.startswith(f"{last}[")]
        self.values = [v for v in self.values if v not in made]
        return made

    def add_dead(self, add: Callable[[], Any]) -> None:
        """Append a line with `add`, and let nobody read what it makes."""
        before = len(self.lines)
        add()
        if len(self.lines) > before and " = " in self.lines[-1]:
            self.drop_last()


def _parts(name: str, env: Dict[str, Any]) -> List[Tuple[str, Any]]:
    """Return all arrays inside the value of an expression, each with its own expression."""
    return list(_walk(name, eval(name, env)))


def _walk(name: str, value: Any) -> Any:
    if isinstance(value, mx.nd.NDArray):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _walk(f"{name}[{i}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(f"{name}[{key!r}]", item)
    else:
        assert value is None, f"{name} is {value!r}"


def _fits(array: Any) -> bool:
    if not 0 < array.size <= MOST_ELEMENTS:
        return False
    values = array.asnumpy()
    return bool(np.isfinite(values).all() and np.abs(values).max() <= LARGEST)


def _resized(text: str, have: int, want: int, axis: int) -> str:
    if want > have:
        reps = (1,) * axis + (-(-want // have),)
        text = f"F.tile({text}, reps={reps})"
    return text if want == have else f"F.slice_axis({text}, axis={axis}, begin=0, end={want})"


def leaves(value: Any) -> List[Any]:
    return FLATTENER.flatten(value)[0]  # type: ignore[no-any-return]
