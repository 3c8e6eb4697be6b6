"""Functions of one element (and its partners), by name, with their derivatives.

The derivatives are those of MXNet 1.9.1 also where there are several to choose from: at a kink, at
the ends of a range, and where two arguments are equal.
"""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple, Union

from .expression import Node, Operand

#: What a gradient is multiplied with: a node, or a number; 0 where no gradient flows.
Factor = Union[Node, float]


class Function(NamedTuple):
    """A function that pointwise programs know."""

    arguments: int
    #: ``derivative(result, *arguments, *numbers)`` returns per argument what a gradient is
    #: multiplied with: a node, or a number; 0 where no gradient flows.
    derivative: Callable[..., Sequence[Factor]]


FUNCTIONS: Dict[str, Function] = {}


def _f(name: str, *args: Operand, values: Tuple[float, ...] = ()) -> Node:
    owner = next(a.owner for a in args if isinstance(a, Node))
    return owner.function(name, *args, values=values)


def _zero(*_: Node) -> Factor:
    return 0


def _hard_sigmoid(y: Node, x: Node, alpha: float, beta: float) -> Factor:
    return _f("greater", y, 0) * _f("lesser", y, 1) * alpha


def _smooth_l1(y: Node, x: Node, scalar: float) -> Factor:
    return _f("clip", x * scalar**2, values=(-1, 1))


def _clip(y: Node, x: Node, low: float, high: float) -> Factor:
    return 1 - _f("greater", x, high) - _f("lesser", x, low)


def _gelu(y: Node, x: Node) -> Factor:
    below = 0.5 + 0.5 * _f("erf", x * sqrt(0.5))
    return below + x * (_f("exp", x * x * -0.5) * (1 / sqrt(2 * pi)))


#: Of functions of one argument, from the result y, the argument x and numbers.
_ONE: Dict[str, Callable[..., Factor]] = {
    # A copy; gradients that come back are multiplied with its value, which may be 0.
    "multiplier": lambda y, x, factor: factor,
    "negative": lambda y, x: -1,
    "reciprocal": lambda y, x: -(y * y),
    "square": lambda y, x: x * 2,
    "sqrt": lambda y, x: 0.5 / y,
    "rsqrt": lambda y, x: y / x * -0.5,
    "cbrt": lambda y, x: 1 / (y * y * 3),
    "rcbrt": lambda y, x: y / x * (-1 / 3),
    "abs": lambda y, x: _f("sign", x),
    "sign": _zero,
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
    # No number is passed on as such.
    "relu": lambda y, x: _f("select", _f("equal", y, y), _f("greater", y, 0), y),
    "hard_sigmoid": _hard_sigmoid,
    "erf": lambda y, x: _f("exp", -(x * x)) * (2 / sqrt(pi)),
    "erfinv": lambda y, x: _f("exp", y * y) * (sqrt(pi) / 2),
    "gamma": lambda y, x: y * _f("digamma", x),
    "gammaln": lambda y, x: _f("digamma", x),
    "degrees": lambda y, x: 180 / pi,
    "radians": lambda y, x: pi / 180,
    **dict.fromkeys(["ceil", "floor", "rint", "round", "fix", "trunc", "logical_not"], _zero),
    "clip": _clip,
    "smooth_l1": _smooth_l1,
    "gelu": _gelu,
}

_COMPARE = (
    "equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or logical_xor"
)
#: Of functions of two arguments, from the result y and the arguments a and b.
_TWO: Dict[str, Callable[[Node, Node, Node], Tuple[Factor, Factor]]] = {
    "add": lambda y, a, b: (1, 1),
    "sub": lambda y, a, b: (1, -1),
    "mul": lambda y, a, b: (b, a),
    "div": lambda y, a, b: (1 / b, -(y / b)),
    "power": lambda y, a, b: (_f("power", a, b - 1) * b, y * _f("log", a)),
    "mod": lambda y, a, b: (1, -_f("floor", a / b)),
    "hypot": lambda y, a, b: (a / y, b / y),
    "maximum": lambda y, a, b: (_f("greater_equal", a, b), _f("lesser", a, b)),
    # As MXNet does where a maximum is at several places.
    "greatest": lambda y, a, b: (_f("equal", a, y), _f("equal", b, y)),
    "minimum": lambda y, a, b: (_f("lesser_equal", a, b), _f("greater", a, b)),
    **dict.fromkeys(_COMPARE.split(), lambda y, a, b: (0, 0)),
}


def _select(y: Node, condition: Node, a: Node, b: Node) -> Tuple[Factor, ...]:
    return 0, _f("not_equal", condition, 0), _f("equal", condition, 0)


def _never(*_: Any) -> Tuple[Factor, ...]:
    raise NotImplementedError("gradients are not differentiated")


def _only(factor: Callable[..., Factor]) -> Callable[..., Sequence[Factor]]:
    return lambda y, x, *values: (factor(y, x, *values),)


FUNCTIONS.update((name, Function(1, _only(factor))) for name, factor in _ONE.items())
FUNCTIONS.update((name, Function(2, factors)) for name, factors in _TWO.items())
FUNCTIONS["select"] = Function(3, _select)
# These are part of gradients only.
FUNCTIONS["digamma"] = Function(1, _never)
FUNCTIONS["gate"] = Function(2, _never)
