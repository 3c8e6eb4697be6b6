"""Writes the body of a function line by line, and runs every line to see whether MXNet takes it.

Shapes may hold `R`, the number of rows, which differs from sample to sample: a body is tried in
several environments with different numbers, and keeps a line that runs in all of them.
"""

import re
from typing import NamedTuple, Tuple

import mxnet as mx
import numpy as np
from hypothesis import strategies as st

from gluon_dynbatch import rules
from tests.rules.interpreter import R

from .operators import arguments, cases, spelled

Shape = Tuple[int, ...]

#: Arrays are kept small, and values where rounding stays harmless.
MOST_ELEMENTS, LARGEST = 600, 1e3

#: Results of a cell or a sample, at most.
MOST_RESULTS = 6


class Draw:
    """Draws from Hypothesis, which shrinks to the first, the lowest, and False."""

    def __init__(self, draw):
        self._draw = draw

    def pick(self, options):
        return self._draw(st.sampled_from(options))

    def count(self, low, high):
        return self._draw(st.integers(low, high))

    def flag(self):
        return self._draw(st.booleans())


class Value(NamedTuple):
    #: The expression that gives it.
    name: str
    #: Its shape in each environment.
    shapes: Tuple[Shape, ...]
    dtype: str

    @property
    def shape(self):
        return self.shapes[0]


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
        ``add_input(template, kind, bound)`` makes an external array and returns its name.
    compiled : bool
        Whether MXNet sees the body as one graph; otherwise it records line by line.
    """

    def __init__(self, choose, environments, leading, dtype, add_input, compiled):
        self.choose = choose
        self.environments = environments
        self.leading = tuple(leading)
        self.dtype = dtype
        self.lines = []
        self.values = []
        self._add_input = add_input
        self._compiled = compiled
        self._names = 0

    def know(self, name):
        """Enter what an expression gives into the values, if it gives small finite arrays."""
        found = [list(_arrays(name, eval(name, env))) for env in self.environments]
        if len({tuple(part for part, _ in parts) for parts in found}) > 1:
            return False
        if not all(_fits(array) for parts in found for _, array in parts):
            return False
        for parts in zip(*found):
            expression, first = parts[0]
            shapes = tuple(a.shape for _, a in parts)
            self.values.append(Value(expression, shapes, np.dtype(first.dtype).name))
        return True

    def add(self, expression, line="{} = {}"):
        """Append a line that gives a new name to an expression; return the name, or nothing."""
        self._names += 1
        name = f"v{self._names}"
        if not self.run(line.format(name, expression)):
            return ""
        if not self.know(name):
            self.lines.pop()
            return ""
        return name

    def run(self, line):
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

    def floats(self):
        return [v for v in self.values if v.dtype == self.dtype]

    def value(self):
        """Return some value, the latest ones first; make one if there is none."""
        if not self.floats():
            self.input((R, 3))
        return self.choose.pick(self.floats()[::-1])

    def input(self, template, kind="normal", bound=0):
        name = self._add_input(template, kind, bound)
        self.know(name)
        return name

    def need(self, template, kind="normal", bound=0):
        """Return an expression for an array of a shape: a value there is, one made fit, a new one.

        Whatever has to lie in a range comes from outside.
        """
        wanted = tuple(tuple(r if n == R else n for n in template) for r in self.leading)
        found = [] if kind != "normal" else self.floats()[::-1]
        equal = [v.name for v in found if v.shapes == wanted]
        if equal and self.choose.count(0, 3) != 3:
            return self.choose.pick(equal)
        if template[:1] == (R,):
            found = [v for v in found if all(s[:1] == (r,) for s, r in zip(v.shapes, self.leading))]
        if found and template and R not in template[1:] and self.choose.flag():
            return f"fit(F, {self.choose.pick(found).name}, {template})"
        return self.input(template, kind, bound)

    def unread(self):
        text = "\n".join(line.split(" = ", 1)[-1] for line in self.lines)
        names = [v.name for v in self.values]
        found = [n for n in names if not re.search(re.escape(n) + r"(?![\w\[])", text)]
        return found[::-1][:MOST_RESULTS] or names[-1:]

    def add_case(self, operators):
        """Append a call of one of some operators of the rule table."""
        extents = tuple(self.choose.count(2, 4) for _ in range(3))
        case = self.choose.pick(cases(extents)[self.choose.pick(operators)])
        # Recorded line by line, MXNet may not keep what an operator without a gradient reads,
        # and crashes when it asks for zeros of that shape; it keeps what comes from outside.
        outside = not (case.gradient or self._compiled)
        source = self.input if outside else self.need
        inputs = [source(a.shape, a.kind, a.bound) for a in case.inputs]
        if outside and rules.of(case.op).writes:
            inputs = [f"{text}.copy()" for text in inputs]
        attrs = {k: self.dtype if v == "float32" else v for k, v in case.attrs.items()}
        expression = f"F.{spelled(case.op)}({', '.join(inputs)}{arguments(attrs)})"
        if case.gradient and not case.random:
            return self.add(expression)
        name = self.add(f"cut(F, {expression})")
        if name and case.random:
            # What is drawn differs each time; what is left is its shape, and what it may break.
            for v in self.hide(name):
                self.add(f"F.zeros_like({v.name})")
        return name

    def hide(self, name):
        """Let nobody read what a line has made, and return it."""
        made = [v for v in self.values if re.fullmatch(rf"{name}(\[.*)?", v.name)]
        self.values = [v for v in self.values if v not in made]
        return made


def _arrays(name, value):
    """Yield all arrays inside the value of an expression, each with its own expression."""
    if isinstance(value, mx.nd.NDArray):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _arrays(f"{name}[{i}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _arrays(f"{name}[{key!r}]", item)
    else:
        assert value is None, f"{name} is {value!r}"


def _fits(array):
    if not 0 < array.size <= MOST_ELEMENTS:
        return False
    values = array.asnumpy()
    return bool(np.isfinite(values).all() and np.abs(values).max() <= LARGEST)
