"""Each step that random programs take in functions of samples, by itself."""

import contextlib

import mxnet as mx
import pytest
from mxnet import autograd

from tests import inside
from tests.common import semantics
from tests.depth import rotate
from tests.rules import attributes
from tests.rules.interpreter import is_float

from . import harness, steps
from .fronts import FRONTS
from .harness import Setting, compare
from .programs import run

PROGRAM = """
class Cell(gdb.DynamicHybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.w = self.params.get("w", shape=(2, 3))

    def hybrid_forward(self, F, x, w):
        return {cell}

class Net(gdb.DynamicHybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.cell = Cell()

def run0(net, shared, s):
    F = {F}
    x = net.cell(s["x"])
{lines}
    return [x, y]

def make(grad_req, net=None):
    samples = [
        dict(name=k, x=draw(k + 1, "normal", (k % 2 + 1, 3), 0, {dtype!r}, grad_req))
        for k in range(4)
    ]
    net = remember(net or build(lambda: Net(prefix="net_"), {dtype!r}, grad_req), 3, {dtype!r})
    return Case(lambda s: run0(net, [], s), samples, [], net)
"""
#: MXNet's own indexing of arrays of `mx.np` uses deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore:.*(np.bool|as_in_context):DeprecationWarning")
OPTIONS = {"granularity": "operator", "policy": "depth", "analysis_budget": None}
WAYS = [
    {"mode": "train", "way": "map"},
    {"mode": "train", "way": "scope"},
    {"mode": "infer", "way": "threads"},
]


def check(front, *lines, mode="train", dtype="float32", **fields):
    text, forms = "\n".join(f"    {line}" for line in lines), FRONTS[front].forms
    tanh = forms["tanh"].format("x")
    cell = f"F.broadcast_add({tanh} * 2, F.sum(w, axis=0, keepdims=True))"
    cell = cell if front == "nd" else f"{tanh} * 2 + F.np.sum(w, axis=0)"
    names = {"F": FRONTS[front].F, "cell": cell, "dtype": dtype}
    with semantics(front):
        make = run(PROGRAM.format(lines=text, **names))["make"]
    return compare(make, Setting(mode, options=OPTIONS, front=front, **fields))


def both(texts):
    """Return pairs of a front end and one of its expressions."""
    return [(name, text) for name, front in FRONTS.items() for text in texts(front)]


@pytest.mark.parametrize("case, way", rotate(both(lambda front: front.reads), WAYS))
def test_values_that_are_read(case, way):
    front, text = case
    z = "z = net.cell(x)"
    check(front, z, f"y = {text.format('x', 'z', dtype='float32')}", **way)


@pytest.mark.parametrize("case, way", rotate(both(lambda front: steps.MADE), WAYS))
def test_blocks_that_samples_make(case, way):
    front, text = case
    s = "s = dict(s, number=s['name'] * 0.4)"
    check(front, s, "z = net.cell(x)", f"y = {text.format('x', 'z')}", **way)


@pytest.mark.parametrize("case, way", rotate(both(lambda front: steps.SLOPES), WAYS))
def test_gradients_that_samples_compute(case, way):
    front, text = case
    check(front, f"y = {steps.slope_text(FRONTS[front], text, 'x')} + x[0:1]", **way)


@pytest.mark.parametrize("case, way", rotate(both(lambda front: steps.PARTS), WAYS))
def test_parts_of_parameters(case, way):
    front, text = case
    check(front, f"y = {text.format('net.cell.w')}", "y = [y * 2, net.cell(x), y]", **way)


@pytest.mark.parametrize("case, way", rotate(both(lambda front: front.writes), WAYS))
def test_arrays_that_are_written_to(case, way):
    front, text = case
    z = FRONTS[front].forms["tanh"].format("y")
    line = f"with autograd.pause(): y = 2 * x; z = {z}; {text.format('y', 'x')}"
    check(front, line, "y = y * x + z", **way)


STATES = both(
    lambda front: [(read, change) for read, changes in front.states for change in changes]
)


@pytest.mark.parametrize("case, way", rotate(STATES, ["map", "scope"]))
def test_state_that_samples_share(case, way):
    """The values that decide make samples of a map wait."""
    front, (read, change) = case
    decide = "x = x * 2 if x.sum().asnumpy().item() > 0 else x"
    y = f"y = {read.format(dtype='float32')} * x[0:1]"
    value = FRONTS[front].forms["tanh"].format("x[0:1]")
    check(front, decide, y, change.format(value), way=way)


@pytest.mark.parametrize("dtype", steps.OTHERS)
@pytest.mark.parametrize("front", FRONTS)
def test_arrays_of_other_types(front, dtype):
    """All expressions in one program, without those that MXNet refuses for the type."""
    own, texts = FRONTS[front], []
    cast = f"z = {own.forms['to integers'].format('x', dtype)}"
    w = f"w = {own.forms['clip'].format('z * 2')}"
    names = {**vars(harness), "F": eval(own.F, vars(harness))}
    with semantics(front):
        x = names["x"] = harness.module().array([[0.3, 0.6, 0.9]])
        x.attach_grad()
        for text in (*own.typed, *own.pairs):
            with contextlib.suppress(mx.MXNetError, TypeError):
                with autograd.record():
                    exec(f"{cast}; {w}; y = {text.format('z', 'w')}", names)
                    if is_float(names["y"]):
                        harness.loss_of(names["y"]).backward()
                mx.nd.waitall()
                texts.append(text)
    assert len(texts) > 0.6 * len(own.typed + own.pairs)
    check(front, cast, w, f"y = [{', '.join(text.format('z', 'w') for text in texts)}]")


@pytest.mark.parametrize("backward", ["once", "twice", "each"])
@pytest.mark.parametrize("device", [("cpu", 0), ("cpu", 1)])
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("front", FRONTS)
def test_gradients_that_are_attached_late(front, grad_req, device, backward):
    if backward == "each" and grad_req == "write":
        pytest.skip("the last loss alone would count")
    y = f"y = {FRONTS[front].forms['tanh'].format('z')} + z.grad"
    lines = ["z = late(s, 2 * x)", "z.attach_grad()", y, "y = net.cell(y)"]
    check(front, *lines, grad_req=grad_req, device=device, backward=backward)


@pytest.mark.parametrize("device", ["mx.cpu(1)", "mx.cpu(2)"])
@pytest.mark.parametrize("front", FRONTS)
def test_work_on_another_device(front, device):
    forms = FRONTS[front].forms
    there = forms["tanh"].format(forms["to device"].format("x", device))
    check(front, f"y = {there} * 2", f"y = {forms['to device'].format('y', 'mx.cpu(0)')} + x")


def test_the_survey_finds_a_wrong_rule(monkeypatch):
    calls = [c for c in attributes.changed("Activation") if c[1].get("act_type") == "tanh"]
    assert [attributes.compare(*call) for call in calls] == [None] * len(calls)
    inside.with_wrong_rule(monkeypatch, "Activation", {"act_type": "relu"})
    assert any(attributes.compare(*call) for call in calls)
