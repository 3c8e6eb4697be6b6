"""Derivatives of elementwise functions, by name.

They equal those of MXNet 1.9.1 even where the derivative is a matter of convention: at a kink, at
the ends of a range, and where two arguments are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt
from typing import Callable, Dict, Tuple, Union

from .expression import Node, NodeOrNumber
from .recognize import COMPARISONS


def _f(name: str, x: Node, *more: NodeOrNumber, values: Tuple[float, ...] = ()) -> Node:
    return x.apply(name, x, *more, values=values)


@dataclass(frozen=True)
class Conditional:
    """A derivative that is a number where a condition holds, and else stops any gradient.

    A derivative of 0 would not stop one that is not finite.
    """

    condition: Node
    factor: float


Derivative = Union[NodeOrNumber, Conditional]

#: ``DERIVATIVES[name](result, *arguments, *numbers)`` returns the derivative, or a tuple with one
#: per argument; the number 0 if no gradient flows.  "gate" has none, because only gradients use it;
#: `derivative` handles "select".
DERIVATIVES: Dict[str, Callable[..., Union[Derivative, Tuple[Derivative, ...]]]] = {
    # The identity, except that its gradient is multiplied with `factor`, which may be 0.
    "multiplier": lambda y, x, factor: factor,
    # The first value, with the gradient of the second.
    "as_if": lambda y, x, like: (0, 1),
    "negative": lambda y, x: -1,
    "reciprocal": lambda y, x: -(y * y),
    "square": lambda y, x: x * 2,
    "sqrt": lambda y, x: 0.5 / y,
    "rsqrt": lambda y, x: y / x * -0.5,
    "cbrt": lambda y, x: 1 / (y * y * 3),
    "abs": lambda y, x: _f("sign", x),
    "sign": lambda y, x: 0,
    # The second number where the first one is greater, else 0: masks of dropout.
    "keep": lambda y, x, bound, kept: 0,
    "exp": lambda y, x: y,
    "expm1": lambda y, x: _f("exp", x),
    "log": lambda y, x: 1 / x,
    "log1p": lambda y, x: 1 / (x + 1),
    "log2": lambda y, x: (1 / log(2)) / x,
    "log10": lambda y, x: (1 / log(10)) / x,
    "sin": lambda y, x: _f("cos", x),
    "cos": lambda y, x: -_f("sin", x),
    "tan": lambda y, x: y * y + 1,
    "arcsin": lambda y, x: _f("rsqrt", 1 - x * x),
    "arccos": lambda y, x: -_f("rsqrt", 1 - x * x),
    "arctan": lambda y, x: 1 / (x * x + 1),
    "sinh": lambda y, x: _f("cosh", x),
    "cosh": lambda y, x: _f("sinh", x),
    "tanh": lambda y, x: 1 - y * y,
    "arcsinh": lambda y, x: 1 / _f("hypot", x, 1),
    "arccosh": lambda y, x: _f("rsqrt", x * x - 1),
    "arctanh": lambda y, x: 1 / (1 - x * x),
    "sigmoid": lambda y, x: y * (1 - y),
    "softrelu": lambda y, x: -_f("expm1", -y),
    "softsign": lambda y, x: 1 / _f("square", _f("abs", x) + 1),
    # NaN where the result is.
    "relu": lambda y, x: _f("select", _f("equal", y, y), _f("greater", y, 0), y),
    "hard_sigmoid": lambda y, x, alpha, beta: Conditional(
        _f("greater", y, 0) * _f("lesser", y, 1), alpha
    ),
    "erf": lambda y, x: _f("exp", -(x * x)) * (2 / sqrt(pi)),
    "degrees": lambda y, x: 180 / pi,
    "radians": lambda y, x: pi / 180,
    "clip": lambda y, x, low, high: Conditional(
        (1 - _f("greater", x, high)) * (1 - _f("lesser", x, low)), 1
    ),
    "smooth_l1": lambda y, x, scalar: _f("clip", x * scalar**2, values=(-1, 1)),
    "add": lambda y, a, b: (1, 1),
    "sub": lambda y, a, b: (1, -1),
    "mul": lambda y, a, b: (b, a),
    "div": lambda y, a, b: (1 / b, -(y / b)),
    "power": lambda y, a, b: (_f("power", a, b - 1) * b, y * _f("log", a)),
    "mod": lambda y, a, b: (1, -_f("floor", a / b)),
    "hypot": lambda y, a, b: (a / y, b / y),
    "maximum": lambda y, a, b: (_f("greater_equal", a, b), _f("lesser", a, b)),
    # In MXNet's reductions, equal maxima each get the whole gradient.
    "greatest": lambda y, a, b: (_f("equal", a, y), _f("equal", b, y)),
    "minimum": lambda y, a, b: (_f("lesser_equal", a, b), _f("greater", a, b)),
}
_STEPS = "ceil floor rint round fix trunc logical_not"
DERIVATIVES.update(dict.fromkeys(_STEPS.split(), lambda y, x: 0))
DERIVATIVES.update(dict.fromkeys(COMPARISONS, lambda y, a, b: (0, 0)))
