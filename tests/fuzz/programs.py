"""Whole programs as text: cells, what each sample does with them, and how it is run."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from tests.rules.drawn import Draw
from tests.rules.interpreter import Array, R

from . import harness
from .recipes import LAYERS, add_call
from .writer import Body, Shape

FUTURE = "from __future__ import annotations\n"
#: What scripts hold the source of instead.
BORROWED = "from tests.rules.interpreter import Array\n"
IMPORTS = """\
from dataclasses import dataclass
from typing import Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
"""
#: The last line of a script, and the one that runs the loops alone.
CALL, LOOPS = "compare(case)", "loops_only(case)"
#: Features of a state, of trees and sequences.
WIDTH = 3


class Input(NamedTuple):
    """An array from outside: an argument of a cell, or what a sample brings along."""

    template: Shape
    kind: str
    bound: int
    grad_req: str = "null"

    def text(self, seed: int, rows: int, dtype: str) -> str:
        shape = tuple(rows if n == R else n for n in self.template)
        return f"draw({seed}, {self.kind!r}, {shape}, {self.bound}, {dtype!r}, {self.grad_req!r})"


class Cell(NamedTuple):
    name: str
    text: str
    inputs: Tuple[Input, ...]
    #: Whether it takes a list of states as last argument, and returns one.
    recursive: bool


class Program(NamedTuple):
    """A generated program, which is its text."""

    body: str

    @property
    def script(self) -> str:
        """The program as a file that runs by itself."""
        arrays = inspect.getsource(Array)
        if not arrays.startswith("@"):  # Python 3.8 leaves the decorator out.
            arrays = "@dataclass(frozen=True)\n" + arrays
        source = inspect.getsource(harness).replace(FUTURE, "").replace(BORROWED, "")
        return "\n".join([FUTURE, IMPORTS, f"R = {R}", arrays, source, self.body, CALL])

    def case(self) -> harness.Case:
        names = namespace()
        exec(compile(self.body, "program", "exec"), names)
        return names["case"]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self.body


def namespace() -> Dict[str, Any]:
    return {**vars(harness), "mx": mx, "autograd": autograd, "nn": nn, "gdb": gdb}


class Author:
    """Draws one program, in which some operators are `wanted` more than others.

    A `tame` one leaves out what needs half precision or many operators: it is no danger to its
    process, as MXNet crashes on some.
    """

    def __init__(self, draw: Any, wanted: Sequence[str], tame: bool):
        self._wanted, self._tame = wanted, tame
        choose = self.choose = Draw(draw)
        self.dtype = choose.pick(["float32", "float64", "float64", "float16"][: 3 if tame else 4])
        self.mode = choose.pick(["train", "train", "infer", "predict"])
        self.grad_req = choose.pick(["write", "add"])
        self.cells: List[Cell] = []
        self.shared: List[Tuple[Input, int]] = []
        self.shared_arrays: List[Any] = []
        self._seed = 0

    def program(self) -> Program:
        with harness.entered(self.mode):
            for _ in range(self.choose.count(1, 3)):
                self.cells.append(self._cell(self.choose.count(0, 3) == 3))
            net_text = self._net()
            names = namespace()
            exec("\n".join([cell.text for cell in self.cells] + [net_text]), names)
            functions = [self._function(i, names) for i in range(self.choose.count(1, 2))]
        samples = self._samples([inputs for _, inputs in functions])
        parts = [cell.text for cell in self.cells] + [net_text]
        parts += [text for text, _ in functions] + [samples, self._setting()]
        return Program("\n\n".join(parts) + "\n")

    def seed(self) -> int:
        self._seed += 1
        return self._seed

    def _body(
        self, environments: List[Dict[str, Any]], leading: Any, add_input: Any, compiled: bool
    ) -> Body:
        return Body(
            self.choose, environments, leading, self.dtype, add_input, self._wanted, compiled
        )

    def _wish(self) -> str:
        return self.choose.pick([self.grad_req, self.grad_req, "null"])  # type: ignore[no-any-return]

    def _cell(self, recursive: bool) -> Cell:
        """Write a cell and try every line of it with two numbers of rows."""
        name, choose, leading = f"Cell{len(self.cells)}", self.choose, (2, 3)
        inputs: List[Input] = []
        made, parameters = [], []
        selves = [SimpleNamespace() for _ in leading]
        environments = [{**namespace(), "F": mx.nd, "self": one} for one in selves]

        def add_input(template: Shape, kind: str, bound: int) -> str:
            parameter = inputs and kind == "normal" and R not in template and choose.flag()
            title = f"w{len(parameters)}" if parameter else f"a{len(inputs)}"
            given = Input(template, kind, bound, self._wish() if parameter else "null")
            if parameter:
                made.append(
                    f"self.{title} = self.params.get({title!r}, shape={template}, "
                    f"grad_req={given.grad_req!r})"
                )
                parameters.append(title)
            else:
                inputs.append(given)
            for rows, env in zip(leading, environments):
                env[title] = eval(given.text(self.seed(), rows, self.dtype), namespace())
            return title

        body = self._body(environments, leading, add_input, compiled=True)
        body.input((1, WIDTH) if recursive else choose.pick([(R, 3), (R, 4), (R, 2, 4), (2, 4)]))
        if recursive:
            self._add_children(body, environments)
        for _ in range(choose.count(1, 8)):
            what = choose.count(0, 7)
            if what == 0:
                self._add_layer(body, made, selves)
            elif what < 4 and not self._tame:
                body.add_case()
            elif what < 7 or self._tame:
                add_call(body, eager=False)
            else:
                body.add_dead(body.add_case)
        results = f"F.tanh({body.need((1, WIDTH))})" if recursive else self._results(body)
        heads = [f"a{i}" for i in range(len(inputs))] + ["children"] * recursive
        text = _class_text(name, made, heads + parameters, [*body.lines, f"return {results}"])
        return Cell(name, text, tuple(inputs), recursive)

    def _add_children(self, body: Body, environments: List[Dict[str, Any]]) -> None:
        for env in environments:
            env["children"] = [mx.nd.ones((1, WIDTH), dtype=self.dtype) * k for k in (0.1, 0.2)]
        joined = self.choose.pick(
            ["F.add_n(*[F.tanh(c) for c in children])", "F.max(F.stack(*children), axis=0)",
             "F.mean(F.concat(*children, dim=0), axis=0, keepdims=True)",
             "F.add_n(*[F.sigmoid(a0 + c) * c for c in children])",
             "F.add_n(F.add_n(*[F.tanh(c) for c in children]), a0)",
             "F.tanh(F.add_n(*children, F.add_n(*children), F.add_n(a0, children[0])))"]
        )  # fmt: skip
        body.add(f"{joined} if children else F.zeros_like(a0)")

    def _add_layer(self, body: Body, made: List[str], selves: Sequence[Any]) -> None:
        v = body.value()
        if v.ndim < 2:
            return
        kind = self.choose.pick(sorted(LAYERS))
        title, maker = f"{kind}{len(made)}", LAYERS[kind](self.choose, v)
        for one in selves:
            layer = harness.build(lambda: eval(maker, namespace()), self.dtype)  # noqa: B023
            setattr(one, title, layer)
        if body.add(f"self.{title}({v.name})"):
            made.append(f"self.{title} = {maker}")

    def _results(self, body: Body) -> str:
        some = body.unread()
        if len(some) > 1 and self.choose.flag():
            return "{" + f"'first': {some[0]}, 'rest': [{', '.join(some[1:])}, None]" + "}"
        return ", ".join(some)

    def _net(self) -> str:
        names = [cell.name for cell in self.cells]
        return _class_text("Net", [f"self.{n.lower()} = {n}()" for n in names], [], [])

    def _function(self, number: int, names: Dict[str, Any]) -> Tuple[str, List[Input]]:
        """Write what samples of one kind do, and try it with two numbers of rows."""
        inputs: List[Input] = []
        leading = (1, 3)
        environments = [
            {**names, "F": mx.nd, "s": {"tree": [0, [1, 2]]}, "shared": self.shared_arrays}
            for _ in leading
        ]
        net = harness.build(names["Net"], self.dtype)
        for env in environments:
            env["net"] = net

        def add_input(template: Shape, kind: str, bound: int) -> str:
            given = Input(template, kind, bound, self._wish())
            if inputs and R not in template and self.choose.flag():
                seed = self.seed()
                self.shared.append((given, seed))
                self.shared_arrays.append(eval(given.text(seed, 0, self.dtype), namespace()))
                return f"shared[{len(self.shared) - 1}]"
            inputs.append(given)
            title = f"x{len(inputs) - 1}"
            for rows, env in zip(leading, environments):
                env["s"][title] = eval(given.text(self.seed(), rows, self.dtype), namespace())
            return f's["{title}"]'

        body = self._body(environments, leading, add_input, compiled=False)
        body.input(self.choose.pick([(R, 3), (R, 4), (1, 3), (2, 4)]))
        for _ in range(self.choose.count(1, 10)):
            self._add_step(body)
        some = body.unread() + [body.value().name] * self.choose.flag()
        lines = ["F = mx.nd", *body.lines, f"return [{', '.join(some)}]"]
        return _function_text(f"run{number}(net, s)", lines), inputs

    def _add_step(self, body: Body) -> None:
        what = self.choose.count(0, 13)
        if what < 5:
            self._add_cell_call(body, self.choose.pick(self.cells))
        elif what < 7:
            add_call(body, eager=True)
        elif what < 8:
            (add_call(body, eager=False) if self._tame else body.add_case())
        elif what < 9:
            body.run(f"{body.value().name}.asnumpy()")
        elif what < 10:
            name = body.name()
            line = f"with autograd.pause(): {name} = 2 * {body.value().name}"
            if body.run(line):
                body.know(name)
        elif what < 11:
            body.add_dead(lambda: self._add_cell_call(body, self.choose.pick(self.cells)))
        elif what < 12:
            body.add_dead(lambda: add_call(body, True) if self._tame else body.add_case())
        elif what < 13:
            self._add_late_gradient(body)
        else:
            self._add_detached(body)

    def _add_late_gradient(self, body: Body) -> None:
        """Attach a gradient between two uses of an array, or to a result that may be pending."""
        if self.choose.flag():
            given = Input((self.choose.count(1, 2), 3), "normal", 0)
            array = given.text(self.seed(), 0, self.dtype)
        else:
            array = f"2 * {body.value().name}"
        if body.add(array):
            name = body.lines[-1].split(" = ")[0]
            body.add(f"F.tanh({name})")
            body.run(f"late({name}).attach_grad({self.grad_req!r})")

    def _add_detached(self, body: Body) -> None:
        """Detach a result, and perhaps write to what was detached."""
        if body.add(f"2 * {body.value().name}"):
            name = body.lines[-1].split(" = ")[0]
            if body.add(f"{name}.detach()") and self.choose.flag():
                detached = body.lines[-1].split(" = ")[0]
                body.run(f"{detached}[:] = {self.choose.pick(['0.5', f'2 * {detached}'])}")

    def _add_cell_call(self, body: Body, cell: Cell) -> None:
        target = f"net.{cell.name.lower()}"
        rows = self.choose.pick([R, 1, 2])
        arguments = [
            body.need(tuple(rows if n == R else n for n in i.template), i.kind, i.bound)
            for i in cell.inputs
        ]
        if not cell.recursive:
            body.add(f"{target}({', '.join(arguments)})")
            return
        walk = self.choose.pick(["walk", "scan", "list"])
        first, rest = arguments[0], "".join(f", {a}" for a in arguments[1:])
        if walk == "list":
            others = [body.need((1, WIDTH)) for _ in range(self.choose.count(0, 2))]
            body.add(f"{target}({first}{rest}, [{', '.join(others)}])")
        else:
            data = body.need((R, WIDTH))
            about = 's["tree"]' if walk == "walk" else first
            body.add(f"{walk}(lambda x, cs: {target}(x{rest}, cs), {data}, {about})")

    def _samples(self, inputs: List[List[Input]]) -> str:
        shared = ", ".join(given.text(seed, 0, self.dtype) for given, seed in self.shared)
        lines = [f"shared = [{shared}]", "samples = ["]
        for _ in range(self.choose.count(1, 5)):
            kind = self.choose.count(0, len(inputs) - 1)
            rows = self.choose.pick([1, 3, 3, 2])
            tree = self.choose.pick([[0, [1, 2]], 0, [[[0], 1]], [0, 1, 2], []])
            arrays = "".join(
                f', "x{i}": {given.text(self.seed(), rows, self.dtype)}'
                for i, given in enumerate(inputs[kind])
            )
            lines.append(f'    {{"run": run{kind}, "tree": {tree}{arrays}}},')
        return "\n".join([*lines, "]"])

    def _setting(self) -> str:
        choose = self.choose
        options = {
            "granularity": choose.pick([*GRANULARITIES, "auto"]),
            "policy": choose.pick([*POLICIES, "auto"]),
            "max_rows": choose.pick([None, None, 1, 3]),
            "debug": choose.pick([False, False, True]),
        }
        budget = choose.pick(["None", '"auto"', "0", "0.05", "gdb.Budget(visits=12)"])
        forms = ["list", "sum", "concat", "add_n"] + ["each"] * (self.grad_req == "add")
        text = ", ".join(f'"{k}": {v!r}' for k, v in options.items())
        return "\n".join(
            [
                f'options = {{"analysis_budget": {budget}, {text}}}',
                f"setting = Setting({self.mode!r}, {choose.pick(forms)!r}, {choose.flag()}, "
                f"{self.grad_req!r}, options)",
                f"net = build(Net, {self.dtype!r}, {self.grad_req!r})",
                'case = Case(lambda s: s["run"](net, s), samples, shared, net, setting)',
            ]
        )


def _class_text(name: str, made: List[str], arguments: List[str], lines: List[str]) -> str:
    head = [
        f"class {name}(gdb.DynamicHybridBlock):",
        "    def __init__(self, **kwargs):",
        "        super().__init__(**kwargs)",
    ]
    if made:
        head += ["        with self.name_scope():"] + [f"            {line}" for line in made]
    if not lines:
        return "\n".join(head)
    method = _function_text(f"hybrid_forward(self, F, {', '.join(arguments)})", lines)
    return "\n".join(head + [""] + [f"    {line}" for line in method.splitlines()])


def _function_text(head: str, lines: List[str]) -> str:
    return "\n".join([f"def {head}:"] + [f"    {line}" for line in lines])


@st.composite
def programs(draw: Any, wanted: Sequence[str] = (), tame: bool = False) -> Program:
    """Draw whole programs, in which some operators are `wanted` more than others."""
    return Author(draw, wanted, tame).program()
