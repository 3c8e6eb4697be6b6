"""Whole programs as text: cells, functions of a sample that call them, and the setting."""

import linecache
import zlib
from contextlib import suppress
from typing import NamedTuple, Tuple

import mxnet as mx
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from tests.common import semantics
from tests.rules.interpreter import R

from . import harness, steps
from .fronts import FRONTS
from .operators import generated
from .recipes import add_call
from .steps import WIDTH
from .writer import Body, Draw, Shape

#: The last line of a script, and one that only runs the loops.
CALL, LOOPS = "compare(make, setting)", "loops(make, setting)"
#: Devices of whole programs.
DEVICES = [("cpu", 0)] * 4 + [("cpu", 1)] * 2


class Input(NamedTuple):
    """An array that is an argument of a cell, or belongs to a sample."""

    template: Shape
    kind: str
    bound: int
    #: Whether it may have a gradient.
    trained: bool = False
    #: Its dtype, if not that of the program.
    dtype: str = ""

    def text(self, seed, rows, dtype):
        shape = tuple(rows if n == R else n for n in self.template)
        dtype, grad_req = self.dtype or dtype, ", grad_req" * self.trained
        return f"draw({seed}, {self.kind!r}, {shape}, {self.bound}, {dtype!r}{grad_req})"


class Cell(NamedTuple):
    name: str
    text: str
    inputs: Tuple[Input, ...]
    #: Whether its last argument is a list of states, and its result a state.
    recursive: bool
    #: The names of its parameters.
    parameters: Tuple[str, ...] = ()


class Program(NamedTuple):
    """A generated program, which is its text."""

    body: str

    @property
    def script(self):
        """The program as a script, to be run in the folder that contains ``tests``."""
        return f"from tests.fuzz.harness import *\n\n{self.body}\n{CALL}\n"

    def case(self):
        return run(self.body)["make"]("write")

    def compare(self, *scopes):
        """Compare the loop with two scopes of the program's options and one of each of `scopes`."""
        names = run(self.body)
        return harness.compare(names["make"], names["setting"], *scopes)

    def __repr__(self):
        return self.body


def run(text, **names):
    """Run a part of a program; return its global variables.

    `map` reads the source, which the module `linecache` gets.
    """
    names = {**vars(harness), "grad_req": "write", **names}
    filename = f"<program {zlib.crc32(text.encode())}>"
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    exec(compile(text, filename, "exec"), names)
    return names


def evaluate(text):
    return run(f"value = {text}")["value"]


class Author:
    """Draws one program.

    A `tame` program avoids half precision and the operators on which MXNet may crash.
    """

    def __init__(self, draw, tame, front):
        self._tame, self.front = tame, FRONTS[front]
        choose = self.choose = Draw(draw)
        self.dtype = choose.pick(["float32", "float64", "float64", "float16"][: 3 if tame else 4])
        self.mode = choose.pick(["train", "train", "infer", "predict"])
        self.setting = self._setting()
        self._traced = not tame and choose.count(0, 5) == 5
        self.cells = []
        self.shared = []
        self._seed = 0

    def program(self):
        with suppress(mx.MXNetError):  # of pending work of an earlier program
            mx.nd.waitall()
        where = semantics(self.front.name), mx.Context(*self.setting.device)
        with where[0], where[1], harness.autograd_mode(self.mode):
            for _ in range(self.choose.count(1, 3)):
                self.cells.append(self._cell(self.choose.count(0, 3) == 3))
            attributes = [f"self.{cell.name.lower()} = {cell.name}()" for cell in self.cells]
            classes = "\n\n".join([cell.text for cell in self.cells] + [_class("Net", attributes)])
            names = run(classes)
            functions = [self._function(i, names) for i in range(self.choose.count(1, 2))]
        parts = [classes, *(text for text, _ in functions)]
        fields = ", ".join(f"{name}={value!r}" for name, value in self.setting._asdict().items())
        parts += [self._make([inputs for _, inputs in functions]), f"setting = Setting({fields})"]
        return Program("\n\n".join(parts) + "\n")

    def _text(self, array, rows=0):
        self._seed += 1
        return array.text(self._seed, rows, self.dtype)

    def _add_any(self, body, eager):
        """Append a call of any operator of the rule table, or an expression as users write it."""
        if self._tame or self.choose.flag():
            return add_call(body, eager)
        return body.add_case(generated(self.front.name))

    # Cells

    def _cell(self, recursive):
        """Write a cell, and try every line with two numbers of rows."""
        name, choose, leading = f"Cell{len(self.cells)}", self.choose, (2, 3)
        inputs = []
        attributes = []
        parameters = []
        environments = [run("", F=mx.nd, children=[]) for _ in leading]

        def add_input(template, kind, bound):
            array = Input(template, kind, bound)
            if inputs and kind == "normal" and R not in template and choose.flag():
                variable = f"w{len(parameters)}"
                frozen = choose.pick(["", "", ", grad_req='null'"])
                parameter = f"self.params.get({variable!r}, shape={template}{frozen})"
                attributes.append(f"self.{variable} = {parameter}")
                parameters.append(variable)
            else:
                variable = f"a{len(inputs)}"
                inputs.append(array)
            for rows, env in zip(leading, environments):
                env[variable] = evaluate(self._text(array, rows))
            return variable

        body = Body(choose, environments, leading, self.dtype, self.front, add_input, True)
        body.input((1, WIDTH) if recursive else choose.pick([(R, 3), (R, 4), (R, 2, 4), (2, 4)]))
        if recursive:
            for env in environments:
                ones = harness.module().ones((1, WIDTH), dtype=self.dtype)
                env["children"] += [ones * 0.1, ones * 0.2]
            no_children = self.front.forms["zeros_like"].format("a0")
            body.add(f"{choose.pick(self.front.joined)} if children else {no_children}")
        for _ in range(choose.count(1, 8)):
            result = self._add_any(body, eager=False)
            if result and choose.count(0, 7) == 7:
                body.hide(result)
        last = recursive and self.front.forms["tanh"].format(body.need((1, WIDTH)))
        results = last if recursive else ", ".join(body.unread())
        if not recursive and choose.flag():
            results = f"dict(all=[{results}, None])"
        arguments = [f"a{i}" for i in range(len(inputs))] + ["children"] * recursive + parameters
        return Cell(name, _class(name, attributes, arguments, [*body.lines, f"return {results}"]),
                    tuple(inputs), recursive, tuple(parameters))  # fmt: skip

    # Functions of a sample

    def _function(self, number, names):
        """Write a function of a sample, and try every line with two numbers of rows."""
        inputs = []
        leading, shared = (1, 3), [evaluate(text) for text in self.shared]
        net = harness.remember(harness.build(names["Net"], self.dtype), WIDTH, self.dtype)
        sample, setting = {"name": 0, "tree": [0, [1, 2]], "number": 0.5}, self.setting
        names = {
            **names,
            "F": evaluate(self.front.F),
            "shared": shared,
            "net": net,
            "setting": setting,
        }
        environments = [{**names, "s": dict(sample)} for _ in leading]

        def add_input(template, kind, bound, dtype=""):
            trained = self.choose.pick([True, True, False])
            # A second pass would overflow integers.
            trained &= not dtype or setting.backward == "once"
            array = Input(template, kind, bound, trained, dtype)
            if inputs and R not in template and self.choose.flag():
                self.shared.append(self._text(array))
                shared.append(evaluate(self.shared[-1]))
                return f"shared[{len(shared) - 1}]"
            key = f"x{len(inputs)}"
            inputs.append(array)
            for rows, env in zip(leading, environments):
                env["s"][key] = evaluate(self._text(array, rows))
            return f's["{key}"]'

        body = Body(
            self.choose, environments, leading, self.dtype, self.front, add_input, compiled=False
        )
        body.inference = self.mode == "infer"
        body.parameters = [
            f"net.{cell.name.lower()}.{name}" for cell in self.cells for name in cell.parameters
        ]
        body.fresh = lambda: self._text(Input((self.choose.count(1, 2), 3), "normal", 0))
        body.input(self.choose.pick([(R, 3), (R, 4), (1, 3), (2, 4)]))
        for _ in range(self.choose.count(1, 10)):
            self._add_step(body)
        results = body.unread() + [body.value().name] * self.choose.flag()
        lines = [f"F = {self.front.F}", *body.lines, f"return [{', '.join(results)}]"]
        return _function(f"run{number}(net, shared, s)", lines), inputs

    def _add_step(self, body):
        choice, twice = self.choose.count(0, 12 if self._tame else 17), f"2 * {body.value().name}"
        if not self._tame and self.choose.count(0, 4) == 4:
            self.choose.pick(
                [steps.typed, steps.typed, steps.read, steps.hop, steps.made]
                + [steps.descend, steps.part] * (not self._traced)
            )(body)
        elif self.choose.count(0, 13) == 13:
            body.add(f"{body.value().name} {self.choose.pick(['+', '*', '-', '/'])} s['number']")
        elif choice < 9:
            name = self._add_cell_call(body) if choice < 5 else self._add_any(body, eager=True)
            if name and choice in (4, 8):
                body.hide(name)
        elif choice < 10:
            body.run(f"({twice}).asnumpy()")
        elif choice < 11:
            body.add(twice, "with autograd.pause(): {} = {}")
        elif choice < 14:
            name = body.add(twice)
            detached = name and body.add(f"{name}.detach()")
            if detached and self.choose.flag():
                body.run(f"{detached}[:] = {self.choose.pick(['0.5', f'2 * {detached}'])}")
        elif not self._traced:
            self.choose.pick([steps.attach, steps.write, steps.remember, steps.remember])(body)

    def _add_cell_call(self, body):
        cell = self.choose.pick(self.cells)
        target, rows = f"net.{cell.name.lower()}", self.choose.pick([R, 1, 2])
        first, *rest = (
            body.need(tuple(rows if n == R else n for n in i.template), i.kind, i.bound)
            for i in cell.inputs
        )
        if not cell.recursive:
            return body.add(f"{target}({', '.join([first, *rest])})")
        more = "".join(f", {a}" for a in rest)
        driver = self.choose.pick(["walk", "scan", "list"])
        if driver == "list":
            states = [body.need((1, WIDTH)) for _ in range(self.choose.count(0, 2))]
            return body.add(f"{target}({first}{more}, [{', '.join(states)}])")
        last = 's["tree"]' if driver == "walk" else first
        return body.add(
            f"{driver}(lambda x, cs: {target}(x{more}, cs), {body.need((R, WIDTH))}, {last})"
        )

    # Samples and settings

    def _make(self, inputs):
        device = f"with mx.Context(*{self.setting.device!r}):"
        lines = [f"shared = [{', '.join(self.shared)}]", "samples = ["]
        for name in range(self.choose.count(1, 5)):
            index = self.choose.count(0, len(inputs) - 1)
            rows = self.choose.pick([1, 3, 3, 2])
            tree = self.choose.pick([[0, [1, 2]], 0, [[[0], 1]], [0, 1, 2], []])
            arrays = "".join(
                f', "x{i}": {self._text(array, rows)}' for i, array in enumerate(inputs[index])
            )
            number = self.choose.pick([0.5, 1.5, -2.0])
            names = f'"run": {index}, "name": {0 if self._traced else name}, "tree": {tree}'
            lines.append(f'    {{{names}, "number": {number}{arrays}}},')
        functions = "".join(f"run{i}, " for i in range(len(inputs)))
        lines += ["]", f"net = net or build(lambda: Net(prefix='net_'), {self.dtype!r}, grad_req)"]
        lines.append(f"remember(net, {WIDTH}, {self.dtype!r})")
        if self._traced:
            lines.append(f"traced = [Traced(fn, net, shared) for fn in ({functions})]")
            lines.append('return Case(lambda s: traced[s["run"]](s), samples, shared, net, traced)')
        else:
            call = f'({functions})[s["run"]](net, shared, s)'
            lines.append(f"return Case(lambda s: {call}, samples, shared, net)")
        return _function("make(grad_req, net=None)", [device, *(f"    {line}" for line in lines)])

    def _setting(self):
        choose = self.choose
        budget = choose.pick([None, "auto", 0, 0.05, gdb.Budget(visits=12)])
        values = {
            "granularity": [*GRANULARITIES, "auto"],
            "policy": [*POLICIES, "auto"],
            "max_rows": [None, None, 1, 3],
            "debug": [False, False, True],
        }
        options = {"analysis_budget": budget, **{n: choose.pick(v) for n, v in values.items()}}
        grad_req = choose.pick(["write", "add"])
        setting = harness.Setting(self.mode, grad_req, options, front=self.front.name)
        if self._tame:
            return setting
        passes = ["once", "once", "twice", "each"]
        return setting._replace(
            device=choose.pick(DEVICES),
            backward=choose.pick(passes[: 4 if setting.grad_req == "add" else 3]),
            way=choose.pick(
                ["scope", "scope", "scope", "map", "map", "threads", "nested", "nested", "scopes"]
            ),
        )


def _class(name, attributes, arguments=(), lines=()):
    head = [
        f"class {name}(gdb.DynamicHybridBlock):",
        "    def __init__(self, **kwargs):",
        "        super().__init__(**kwargs)",
    ]
    if attributes:
        head += ["        with self.name_scope():"] + [f"            {line}" for line in attributes]
    if lines:
        method = _function(f"hybrid_forward(self, F, {', '.join(arguments)})", lines)
        head += [""] + [f"    {line}" for line in method.splitlines()]
    return "\n".join(head)


def _function(head, lines):
    return "\n".join([f"def {head}:"] + [f"    {line}" for line in lines])


@st.composite
def programs(draw, tame=False, front="nd"):
    return Author(draw, tame, front).program()
