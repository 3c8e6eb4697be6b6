"""Writes the body of a function line by line, and keeps the lines that MXNet can run.

Shapes may contain `R`, the number of rows, which differs between samples.  A body has several
environments with different numbers of rows, and keeps a line if it runs in all of them.
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

#: Limits of arrays, and of values, such that rounding stays harmless.
MOST_ELEMENTS, LARGEST = 600, 1e3

#: The limit of results of a cell or a sample.
MOST_RESULTS = 6


class Draw:
    """Draws from Hypothesis, which shrinks towards the first option, the lowest, and False."""

    def __init__(self, draw):
        self._draw = draw

    def pick(self, options):
        return self._draw(st.sampled_from(options))

    def count(self, low, high):
        return self._draw(st.integers(low, high))

    def flag(self):
        return self._draw(st.booleans())


class Value(NamedTuple):
    #: An expression of this value: a name, or a part of a named value.
    name: str
    #: Its shape in each environment.
    shapes: Tuple[Shape, ...]
    dtype: str

    @property
    def shape(self):
        return self.shapes[0]


class Body:
    """The body of a function, built line by line.

    Parameters
    ----------
    choose : Draw
        Makes all choices.
    environments : list of dict
        The variables that lines may use, one dictionary for each number of rows.
    leading : sequence of int
        The number of rows in each environment.
    dtype : str
        The dtype of all floating-point arrays.
    front : Front
        How to spell expressions.
    add_input : callable
        ``add_input(template, kind, bound)`` creates an input and returns its name.
    compiled : bool
        Whether MXNet compiles the body as one graph; otherwise it records line by line.
    """

    def __init__(self, choose, environments, leading, dtype, front, add_input, compiled):
        self.choose = choose
        self.environments = environments
        self.leading = tuple(leading)
        self.dtype = dtype
        self.front = front
        self.lines = []
        self.values = []
        #: In functions of samples: whether nothing is recorded, and the text of a new array.
        self.inference, self.fresh = False, None
        #: Expressions of parameters.
        self.parameters = []
        self._add_input = add_input
        self._compiled = compiled
        self._names = 0

    def add_values(self, name):
        """Add the arrays in a variable to the values, if all are small and finite."""
        nests = [list(_arrays(name, eval(name, env))) for env in self.environments]
        if len({tuple(part for part, _ in nest) for nest in nests}) > 1:
            return False
        if not all(_fits(array) for nest in nests for _, array in nest):
            return False
        for parts in zip(*nests):
            expression, first = parts[0]
            shapes = tuple(a.shape for _, a in parts)
            self.values.append(Value(expression, shapes, np.dtype(first.dtype).name))
        return True

    def add(self, expression, line="{} = {}"):
        """Append an assignment of an expression to a new name; return the name, "" on failure."""
        self._names += 1
        name = f"v{self._names}"
        if not self.run(line.format(name, expression)):
            return ""
        if not self.add_values(name):
            self.lines.pop()
            return ""
        return name

    def run(self, line):
        """Append a line if it runs in every environment; return whether it does."""
        code = compile(line, "line", "exec")
        for env in self.environments:
            try:
                exec(code, env)
                mx.nd.waitall()
            except Exception:  # MXNet and NumPy raise errors of many classes.
                return False
        self.lines.append(line)
        return True

    def floats(self):
        return [v for v in self.values if v.dtype == self.dtype]

    def value(self):
        """Return some value, the latest if shrunk; create one if there is none."""
        if not self.floats():
            self.input((R, 3))
        return self.choose.pick(self.floats()[::-1])

    def input(self, template, kind="normal", bound=0, *dtype):
        name = self._add_input(template, kind, bound, *dtype)
        self.add_values(name)
        return name

    def need(self, template, kind="normal", bound=0):
        """Return an expression of a shape: an existing value, one made to fit, or a new input.

        Values that must lie in a range are new inputs.
        """
        shapes = tuple(tuple(r if n == R else n for n in template) for r in self.leading)
        values = [] if kind != "normal" else self.floats()[::-1]
        equal = [v.name for v in values if v.shapes == shapes]
        if equal and self.choose.count(0, 3) != 3:
            return self.choose.pick(equal)
        if template[:1] == (R,):
            rows = tuple((r,) for r in self.leading)
            values = [v for v in values if tuple(s[:1] for s in v.shapes) == rows]
        if values and template and R not in template[1:] and self.choose.flag():
            return f"fit(F, {self.choose.pick(values).name}, {template})"
        return self.input(template, kind, bound)

    def unread(self):
        text = "\n".join(line.split(" = ", 1)[-1] for line in self.lines)
        names = [v.name for v in self.values]
        unread = [n for n in names if not re.search(re.escape(n) + r"(?![\w\[])", text)]
        return unread[::-1][:MOST_RESULTS] or names[-1:]

    def add_case(self, operators):
        """Append a call of one of some operators of the rule table."""
        extents = tuple(self.choose.count(2, 4) for _ in range(3))
        case = self.choose.pick(cases(extents, self.front.name)[self.choose.pick(operators)])
        # Recorded line by line, MXNet may drop a computed operand of an operator without a
        # gradient, and crashes when it needs zeros of its shape; inputs are never dropped.
        inputs_only = not (case.gradient or self._compiled)
        source = self.input if inputs_only else self.need
        inputs = [source(a.shape, a.kind, a.bound) for a in case.inputs]
        if inputs_only and rules.of(case.op).writes:
            inputs = [f"{text}.copy()" for text in inputs]
        attrs = {k: self.dtype if v == "float32" else v for k, v in case.attrs.items()}
        called = spelled(case.op, self.front.name)
        expression = f"F.{called}({', '.join(inputs)}{arguments(attrs)})"
        if case.gradient and not case.random:
            return self.add(expression)
        name = self.add(f"cut(F, {expression})")
        if name and case.random:
            # Random values cannot be compared, so later lines read only their shape.
            for v in self.hide(name):
                self.add(self.front.forms["zeros_like"].format(v.name))
        return name

    def hide(self, name):
        """Remove the values of a line, so that no later line reads them, and return them."""
        hidden = [v for v in self.values if re.fullmatch(rf"{name}(\[.*)?", v.name)]
        self.values = [v for v in self.values if v not in hidden]
        return hidden


def _arrays(name, value):
    """Yield all arrays in the value of an expression, each with its own expression."""
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
