"""Runs merged calls in MXNet and compares them with the per-sample loop."""

import ctypes
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Dict, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.ndarray import CachedOp
from mxnet.ndarray.register import _imperative_invoke

from gluon_dynbatch import rules
from gluon_dynbatch.trace.symbols import SymbolBuilder, make_symbol

#: The number of rows in shapes of a case: any in the rows layout, `STACK_ROWS` in the stack layout.
R = 0
STACK_ROWS = 2
#: A number of rows larger than any extent of a case.
MORE = 211
#: Fields of a case that merges in no layout.
NEVER = {"rows": "", "stack": ""}


def made_array(values, dtype):
    """Return an array of ``mx.np`` under NumPy's semantics, and else one of ``mx.nd``.

    ``mx.nd.array`` goes through an assignment, which takes several times as long.
    """
    made = (mx.np if mx.util.is_np_array() else mx.nd).empty(np.shape(values), dtype=dtype)
    made._sync_copyfrom(values)
    return made


@dataclass(frozen=True)
class Array:
    """An input of a case: its shape, and the kind of its random values."""

    shape: Tuple[int, ...]
    kind: str = "normal"
    bound: int = 0

    def fix(self, leading):
        return tuple(leading if extent == R else extent for extent in self.shape)

    def draw(self, rng, leading):
        shape, bound = self.fix(leading), self.bound

        def symmetric():
            half = rng.normal(size=shape)
            return half @ np.swapaxes(half, -1, -2) + 2 * np.eye(shape[-1])

        def corners():
            least = rng.uniform(0, 0.5, size=(*shape[:-1], 2))
            return np.concatenate([least, least + rng.uniform(0.1, 0.5, size=least.shape)], -1)

        def regions(least):
            """Draw an image number, or -1 for none, and left, top, right and bottom."""
            values = rng.integers(least, bound, size=shape)
            values[..., 1:] = rng.integers([0, 0, 2, 2], [3, 3, 6, 6], size=(*shape[:-1], 4))
            return values

        draws = {
            "normal": lambda: rng.normal(size=shape),
            "positive": lambda: rng.uniform(0.3, 2.0, size=shape),
            "above": lambda: rng.uniform(1.2, 2.0, size=shape),
            "unit": lambda: rng.uniform(-0.9, 0.9, size=shape),
            "fraction": lambda: rng.uniform(0.1, 0.9, size=shape),
            "halves": lambda: rng.integers(-9, 10, size=shape) / 4,  # and numbers between them
            "small": lambda: rng.uniform(-0.5, 0.5, size=shape),
            "probability": lambda: rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]),
            "distinct": lambda: rng.permutation(int(np.prod(shape))).reshape(shape) - 2.5,
            "spd": symmetric,
            "triangle": lambda: np.tril(rng.uniform(0.1, 0.5, size=shape)) + np.eye(shape[-1]),
            "corners": corners,
            "region": lambda: regions(0),
            "region or none": lambda: regions(-1),
            "full": lambda: np.full(shape, bound),
            "bit": lambda: rng.integers(0, 2, size=shape),
            "length": lambda: rng.integers(1, bound + 1, size=shape),
            "index": lambda: rng.integers(0, bound, size=shape),
            "place": lambda: rng.permutation(bound)[: shape[-1]].reshape(shape),
            "wild": lambda: rng.integers(-3, bound + 3, size=shape),
        }
        values = np.asarray(draws[self.kind.replace("32", "").replace(" bool", "")]())
        dtypes = {"32": "int32", "ol": "bool"}
        return made_array(values, dtypes.get(self.kind[-2:], "float32"))


@dataclass(frozen=True)
class Case:
    """An operator call, and the patterns of shared inputs that merge in each layout.

    `rows` and `stack` list patterns, one letter per input: B for batched, S for shared.  Other
    patterns must be refused, except for samples of one row that share an input of one row.
    """

    op: str
    inputs: Tuple[Array, ...]
    attrs: Dict[str, str]
    rows: str = ""
    stack: str = ""
    training: bool = True
    gradient: bool = True
    random: bool = False

    def patterns(self):
        patterns = ["".join(letters) for letters in product("BS", repeat=len(self.inputs))]
        return [pattern for pattern in patterns if "B" in pattern]

    def has_rows(self, pattern):
        return all(a.shape[0] == R for p, a in zip(pattern, self.inputs) if p == "B")

    def shares_rows(self, pattern):
        return any(p == "S" and R in a.shape for p, a in zip(pattern, self.inputs))


def case(op, *inputs, shared=(), **attrs):
    """Return a case; keywords are fields of `Case`, or attributes as users write them.

    By default, the rows layout merges if exactly the inputs with rows are batched, and the stack
    layout with every pattern in which the inputs in `shared` are shared.
    """
    options = {field.name: attrs.pop(field.name) for field in fields(Case) if field.name in attrs}
    call = Case(op, inputs, {name: str(value) for name, value in attrs.items()}, **options)
    stack = [p for p in call.patterns() if all(p[k] == "S" for k in shared)]
    by_row = "".join("B" if a.shape[:1] == (R,) else "S" for a in inputs)
    default = {"rows": by_row if "B" in by_row else "", "stack": " ".join(stack)}
    return replace(call, **{**default, **options})


def merged(site, stacked):
    """Return the merged call of variables ``in0``, ``in1``, ..., or None if the rule refuses."""
    if rules.why_not(site, stacked):
        return None
    builder = SymbolBuilder()
    inputs = [builder.variable(f"in{k}") for k in range(len(site.inputs))]
    outputs = rules.merge(site, stacked, inputs, builder.add)
    return builder.ops, outputs


def call_symbol(symbol, arrays):
    outputs = CachedOp(symbol)(*[arrays[int(name[2:])] for name in symbol.list_inputs()])
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def call_operator(c, arrays):
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(c.op.encode(), ctypes.byref(handle)))
    attrs = {k: v for k, v in c.attrs.items() if not k.startswith("__")}
    outputs = _imperative_invoke(
        handle.value, list(arrays), list(attrs), list(attrs.values()), None, False, False
    )
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def mode_of(c, recording):
    if recording:
        return autograd.record(train_mode=c.training)
    return autograd.train_mode() if c.training else autograd.predict_mode()


def is_float(array):
    return np.dtype(array.dtype).kind == "f"


def start_of(op):
    """Return the initial gradients in the loop, to which some operators add."""
    return 0.25 if rules.of(op).adds_to_gradients and not rules.of(op).writes else 0


def attach(op, arrays, start=0):
    """Attach gradients, but not to inputs without one, as MXNet may refuse these."""
    for k, array in enumerate(arrays):
        if is_float(array) and k not in rules.of(op).no_gradient and array.grad is None:
            array.attach_grad("add" if start else "write")
            if start:
                array.grad._sync_copyfrom(np.full(array.shape, start, array.dtype))


def differentiate(outputs, heads, training):
    pairs = [(o, made_array(h, h.dtype)) for o, h in zip(outputs, heads) if is_float(o)]
    autograd.backward([o for o, _ in pairs], [h for _, h in pairs], train_mode=training)


@dataclass
class Loop:
    """The per-sample loop: the arrays and outputs of samples, and how a layout joins them."""

    case: Case
    pattern: str
    stacked: bool
    leading: Sequence[int]
    rng: np.random.Generator

    def __post_init__(self):
        inputs = [*zip(self.pattern, self.case.inputs)]
        shared = [a.draw(self.rng, self.leading[0]) if x == "S" else None for x, a in inputs]
        self.samples = [
            [
                # Copies, as Deconvolution of MXNet 1.9.1 fails if two calls train one weight.
                same.copy() if letter == "S" else a.draw(self.rng, r)
                for (letter, a), same in zip(inputs, shared)
            ]
            for r in self.leading
        ]
        for sample in self.samples:
            attach(self.case.op, sample, start_of(self.case.op))
        # Some operators can't be recorded, although their merged calls can.
        with mode_of(self.case, recording=self.case.gradient):
            self.outputs = [call_operator(self.case, sample) for sample in self.samples]

    def join(self, arrays):
        return np.stack(arrays) if self.stacked else np.concatenate(arrays)

    def check(self, symbol):
        """Compare values and gradients of the merged call with the loop's."""
        inputs = []
        for k, letter in enumerate(self.pattern):
            arrays = [sample[k].asnumpy() for sample in self.samples]
            values = self.join(arrays) if letter == "B" else arrays[0]
            inputs.append(made_array(values, values.dtype))
        attach(self.case.op, inputs)
        with mode_of(self.case, recording=True):
            outputs = call_symbol(symbol, inputs)
        for got, *parts in zip(outputs, *self.outputs):
            want = self.join([part.asnumpy() for part in parts])
            assert got.shape == want.shape and np.dtype(got.dtype) == want.dtype
            if not self.case.random:
                np.testing.assert_allclose(got.asnumpy(), want, rtol=2e-4, atol=2e-5)
        trained = any(array.grad is not None for array in inputs)
        if self.case.gradient and trained and any(is_float(out) for out in outputs):
            self._check_gradients(inputs, outputs)

    def _check_gradients(self, inputs, outputs):
        heads = [
            [self.rng.normal(size=o.shape).astype(o.dtype) for o in outs] for outs in self.outputs
        ]
        flat = [(o, h) for outs, hs in zip(self.outputs, heads) for o, h in zip(outs, hs)]
        training = self.case.training
        differentiate([o for o, _ in flat], [h for _, h in flat], training)
        differentiate(outputs, [self.join(part) for part in zip(*heads)], training)
        for k, merged in enumerate(inputs):
            if merged.grad is None:
                continue
            grads = [sample[k].grad.asnumpy() - start_of(self.case.op) for sample in self.samples]
            want = self.join(grads) if self.pattern[k] == "B" else sum(grads)
            np.testing.assert_allclose(
                merged.grad.asnumpy(), want, rtol=1e-3, atol=1e-4, err_msg=f"gradient of input {k}"
            )


class Checker:
    """Asks the rules about a case, with several numbers of rows, and runs the merged calls."""

    def __init__(self, c, seed=0):
        self._case, self._rng = c, np.random.default_rng(seed)
        self._shapes, self._has_rows = {}, {}

    def loop(self, leading):
        """Run the loop of the case with all inputs batched."""
        return Loop(self._case, "B" * len(self._case.inputs), False, leading, self._rng)

    def _ask(self, stacked, pattern, leading):
        """Return the merged call, or None if the rule refuses it, or results lack rows."""
        c = self._case
        if leading not in self._shapes:
            inputs = [array.draw(self._rng, leading) for array in c.inputs]
            with mode_of(c, recording=False):
                parts = inputs, call_operator(c, inputs)
            self._shapes[leading] = [tuple(array.shape for array in part) for part in parts]
        batched = tuple(letter == "B" for letter in pattern)
        shapes = self._shapes[leading]
        if not stacked:
            inputs = {}
            for k, (letter, shape) in enumerate(zip(pattern, shapes[0])):
                inputs[f"in{k}"] = (MORE, *shape[1:]) if letter == "B" else shape
            results = tuple((MORE, *shape[1:]) for shape in shapes[1])
            asked = *inputs.values(), results
            if asked not in self._has_rows:
                self._has_rows[asked] = self._infers(inputs, results)
            if not self._has_rows[asked]:
                return None
        return merged(rules.Site(c.op, c.attrs, *shapes, batched, c.training), stacked)

    def _infers(self, shapes, results):
        """Whether MXNet infers these shapes of results from shapes of inputs."""
        c = self._case
        builder = SymbolBuilder()
        row, _ = builder.add(c.op, [builder.variable(name) for name in shapes], c.attrs)
        try:
            symbol = make_symbol(builder.ops, [(row, k) for k in range(len(results))])
            _, inferred, _ = symbol._infer_shape_impl(False, **shapes)
        except MXNetError:
            return False
        return inferred == [*results]

    def merges(self, stacked, pattern, leading):
        """Return whether the call merges; if it does, compare it with the loop."""
        answers = [self._ask(stacked, pattern, n) for n in dict.fromkeys(leading)]
        assert answers.count(answers[0]) == len(answers), (self._case, pattern, answers)
        if answers[0]:
            loop = Loop(self._case, pattern, stacked, list(leading), self._rng)
            loop.check(make_symbol(*answers[0]))
        return answers[0] is not None

    def check(self, samples=2, stack=True, rows=True):
        """Compare all patterns that merge with the loop; `stack` and `rows` check the lists."""
        c = self._case
        for pattern in c.patterns():
            merges = self.merges(True, pattern, [STACK_ROWS] * samples)
            assert not stack or merges == (pattern in c.stack.split()), (c, pattern)
            if not c.has_rows(pattern):
                # A batched input has a fixed leading size: the rules may merge or refuse.
                decided, free = [], [[n, n] for n in (1, 2, 3)]
            elif c.shares_rows(pattern):
                decided, free = [[2, 2]], [[1, 1, 1]]
            else:
                decided, free = [list(self._rng.permutation([1, 2, 3]))], []
            merges = any([self.merges(False, pattern, leading) for leading in decided])
            assert not rows or merges == (pattern in c.rows.split()), (c, pattern)
            for leading in free:
                self.merges(False, pattern, leading)
