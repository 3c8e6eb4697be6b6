"""Each step that random programs take in functions of samples, by itself."""

import pytest

from gluon_dynbatch import rules
from tests.rules import attributes

from . import steps
from .harness import Setting, compare
from .programs import run
from .test_fuzz import wrong_rule

PROGRAM = """
class Cell(gdb.DynamicHybridBlock):
    def hybrid_forward(self, F, x):
        return F.tanh(x) * 2

class Net(gdb.DynamicHybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.cell = Cell()

def run0(net, shared, s):
    F = mx.nd
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
OPTIONS = {"granularity": "operator", "policy": "depth", "analysis_budget": None}
WAYS = [("train", "scope"), ("train", "map"), ("infer", "threads")]


def check(*lines, mode="train", dtype="float32", **fields):
    text = "\n".join(f"    {line}" for line in lines)
    make = run(PROGRAM.format(lines=text, dtype=dtype))["make"]
    return compare(make, Setting(mode, options=OPTIONS, **fields))


@pytest.mark.parametrize("mode, way", WAYS)
@pytest.mark.parametrize("text", steps.READS)
def test_values_that_are_read(text, mode, way):
    z = "z = net.cell(x)"
    check(z, f"y = {text.format('x', 'z', dtype='float32')}", mode=mode, way=way)


@pytest.mark.parametrize("mode, way", WAYS)
@pytest.mark.parametrize("text", steps.WRITES)
def test_arrays_that_are_written_to(text, mode, way):
    line = f"with autograd.pause(): y = 2 * x; z = F.tanh(y); {text.format('y', 'x')}"
    check(line, "y = y * x + z", mode=mode, way=way)


@pytest.mark.parametrize("way", ["scope", "map"])
@pytest.mark.parametrize(
    "read, change", [(read, change) for read, changes in steps.STATES for change in changes]
)
def test_state_that_samples_share(read, change, way):
    """The values that decide make samples of a map wait."""
    decide = "x = x * 2 if float(x.sum().asscalar()) > 0 else x"
    y = f"y = {read.format(dtype='float32')} * x[0:1]"
    check(decide, y, change.format("F.tanh(x[0:1])"), way=way)


@pytest.mark.parametrize("dtype", steps.OTHERS)
def test_arrays_of_other_types(dtype):
    """All expressions in one program; MXNet does not sort half precision."""
    texts = [t for t in (*steps.TYPED, *steps.PAIRS) if dtype != "float16" or "sort" not in t]
    cast = f"z = F.cast(F.clip(x * 4, 0, 100), dtype={dtype!r})"
    y = f"y = [{', '.join(text.format('z', 'w') for text in texts)}]"
    check(cast, "w = F.clip(z * 2, 1, 3)", y)


@pytest.mark.parametrize("backward", ["once", "twice", "each"])
@pytest.mark.parametrize("device", [("cpu", 0), ("cpu", 1)])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_gradients_that_are_attached_late(grad_req, device, backward):
    if backward == "each" and grad_req == "write":
        pytest.skip("the last loss alone would count")
    lines = ["z = late(s, 2 * x)", "z.attach_grad()", "y = F.tanh(z) + z.grad", "y = net.cell(y)"]
    check(*lines, grad_req=grad_req, device=device, backward=backward)


@pytest.mark.parametrize("device", ["mx.cpu(1)", "mx.cpu(2)"])
def test_work_on_another_device(device):
    check(f"y = F.tanh(x.as_in_context({device})) * 2", "y = y.as_in_context(mx.cpu(0)) + x")


def test_the_survey_finds_a_wrong_rule(monkeypatch):
    calls = [c for c in attributes.changed("Activation") if c[1].get("act_type") == "tanh"]
    assert [attributes.compare(*call) for call in calls] == [None] * len(calls)
    wrong = wrong_rule(rules.merge, "Activation", {"act_type": "relu"})
    monkeypatch.setattr(rules, "merge", wrong)
    assert any(attributes.compare(*call) for call in calls)
