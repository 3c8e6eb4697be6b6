"""Each advice leads to a program that runs, gives the loop's values, and no longer gets the advice.

A case is a program that makes a list from samples in three scopes, the advice of `explain` and of
the report, and the program changed as the advice says.
"""

import runpy
import sys
import textwrap

import pytest
from mxnet import gluon

import gluon_dynbatch as gdb
from gluon_dynbatch.explain.pages import run_script
from tests.cells import cell, equal, inputs
from tests.common import check, host

PRELUDE = """
import contextlib
import mxnet as mx
import gluon_dynbatch as gdb
from mxnet import autograd, gluon
from mxnet.gluon import nn

mx.random.seed(3)
cell = gdb.convert(nn.Dense(4, in_units=4, flatten=False))
cell.initialize(mx.init.Normal(0.5))
cell.hybridize()
idle = nn.Dense(4, in_units=4, flatten=False)
idle.initialize(mx.init.Normal(0.5))
head = gdb.convert(nn.Dense(1, in_units=4, flatten=False))
head.initialize(mx.init.Normal(0.5))
head.hybridize()
xs = [mx.nd.random.normal(shape=(1, 4)) for _ in range(12)]
rows = [mx.nd.random.normal(shape=(n, 4)) for n in (2, 3, 4, 5) * 3]
index = mx.nd.array([1, 0, 1])
matrix = mx.nd.random.normal(shape=(4, 4))
seen = []

def gradients():
    return [p.grad().copy() for p in cell.collect_params().values()]
"""

#: How a program runs `work` for each sample: in a scope, mapped, and in the loop of the oracle.
SCOPE = "with gdb.batching() as batch:\n    results = [work(x) for x in {}]"
MAP = "with gdb.batching() as batch:\n    results = batch.map(work, {})"
LOOP = "results = [work(x) for x in {}]"


def program(body, way, samples, scopes=3):
    run = textwrap.indent(way.format(samples), "    ")
    return f"{textwrap.dedent(body)}\nfor _ in range({scopes}):\n{run}\n"


def script(body, way=SCOPE, samples="xs", **kwargs):
    """Return a program, and the same as a loop."""
    return program(body, way, samples, **kwargs), program(body, LOOP, samples, **kwargs)


def whole(body):
    """Return a program that has its own scope in a `with scope() as batch`; and as a loop."""
    body = textwrap.dedent(body)
    return (
        f"scope = gdb.batching\nfor _ in range(3):\n{textwrap.indent(body, '    ')}",
        f"scope = contextlib.nullcontext\nfor _ in range(3):\n{textwrap.indent(body, '    ')}",
    )


def numpy(text):
    """Return a program under NumPy's semantics, with a cell and arrays that were made there."""
    made = PRELUDE[PRELUDE.index("cell =") : PRELUDE.index("idle =")]
    made += "arrays = [x.as_np_ndarray() for x in rows]\n"
    body = textwrap.indent(text, "    ")
    return f"mx.npx.set_np()\n{made}try:\n{body}finally:\n    mx.npx.reset_np()\n"


CRF = """
def log_sum_exp(vec):
    largest = {}
    return mx.nd.log(mx.nd.sum(mx.nd.exp(vec - largest))) + largest

def work(x):
    alpha = mx.nd.zeros((1, 4))
    for i in range(x.shape[0]):
        alpha = alpha + log_sum_exp(alpha + cell(x[i : i + 1]))
    return alpha
"""
BACKWARD = """
cell.collect_params().setattr("grad_req", "{}")
for p in cell.collect_params().values():
    p.zero_grad()
with autograd.record(), scope() as batch:
    {}
    for x in xs:
        loss = (cell(x) ** 2).sum()
        {}
{}
results = gradients()
"""
#: Per case: program, text of the advice, changed program.  A pair of texts is one for `explain`,
#: and one for the report of each scope.
CASES = {
    "backward": (
        whole(BACKWARD.format("add", "pass", "loss.backward()", "")),
        "ollect the losses in a list, and call autograd.backward(losses) once",
        whole(BACKWARD.format(
            "add", "losses = []", "losses.append(loss)", "autograd.backward(losses)")),
    ),
    "backward of a list": (
        whole(BACKWARD.format("add", "pass", "autograd.backward([loss])", "")),
        "ollect the losses in a list, and call autograd.backward(losses) once",
        whole(BACKWARD.format(
            "write", "losses = []", "losses.append(loss)", "autograd.backward(losses)")),
    ),
    "asscalar": (
        script("work = lambda x: cell(x).sum().asscalar()"),
        "ead values after the scope",
        whole("""
            with scope() as batch:
                results = [cell(x).sum() for x in xs]
            results = [y.asscalar() for y in results]
        """),
    ),
    "if": (
        script("work = lambda x: head(cell(x) if cell(x).sum() > 0 else x)"),
        "use gdb.map",
        script("work = lambda x: head(cell(x) if cell(x).sum() > 0 else x)", MAP),
    ),
    "float in arithmetic": (
        script("work = lambda x: head(cell(x) * float(cell(x).sum().asscalar()))"),
        ("enters arithmetic at", "keep the array instead"),
        script("work = lambda x: head(cell(x) * cell(x).sum())"),
    ),
    "a log-sum-exp in map": (
        script(CRF.format("mx.nd.max(vec).asscalar()"), MAP, "rows"),
        ("enters arithmetic at", None),
        script(CRF.format("mx.nd.max(vec)"), MAP, "rows"),
    ),
    "print": (
        script("work = lambda x: seen.append(str(cell(x))) or cell(x)"),
        "ead values after the scope",
        script("work = lambda x: cell(x)"),
    ),
    "an index array": (
        script("work = lambda x: head(cell(x)[0:2, [1, 0, 1, 2]])", samples="rows"),
        "use take(array, index, axis)",
        script("""
            chosen = mx.nd.array([1, 0, 1, 2])
            work = lambda x: head(mx.nd.take(cell(x)[0:2], chosen, axis=1))
        """, samples="rows"),
    ),
    "an index that is computed": (
        script("work = lambda x: head(rows[3][cell(x).argmax(axis=1), 0:4])", samples="rows"),
        "use take(array, index, axis)",
        script("work = lambda x: head(mx.nd.take(rows[3], cell(x).argmax(axis=1)))",
               samples="rows"),
    ),
    "a parameter that is set": (
        whole("""
            with scope() as batch:
                results = []
                for x in xs:
                    cell.bias.set_data(mx.nd.ones(4))
                    results.append(cell(x))
        """),
        "hange arrays and parameters before or after the scope",
        whole("""
            cell.bias.set_data(mx.nd.ones(4))
            with scope() as batch:
                results = [cell(x) for x in xs]
        """),
    ),
    "functions of mx.nd": (
        script("work = lambda x: mx.nd.tanh(mx.nd.dot(x, matrix))"),
        "put others into hybrid_forward of a HybridBlock, hybridize it, and call it in the scope",
        script("""
            class Cell(gluon.HybridBlock):
                def hybrid_forward(self, F, x, w):
                    return F.tanh(F.dot(x, w))
            block = Cell()
            block.hybridize()
            work = lambda x: block(x, matrix)
        """),
    ),
    "a block that is not hybridized": (
        script("work = lambda x: idle(x)"),
        " is not hybridized: it runs at once -> call hybridize() on the outermost block",
        script("idle.hybridize()\nwork = lambda x: idle(x)"),
    ),
    "layers in a Python list of a dynamic block": (
        script("""
            class Net(gdb.DynamicHybridBlock):
                def __init__(self):
                    super().__init__()
                    self.layers = [idle]
                def forward(self, x):
                    return self.layers[0](x)
            net = Net()
            net.hybridize()
            work = net
        """),
        "does not reach blocks in Python lists and dictionaries: hold these in nn.HybridSequential",
        script("""
            class Net(gdb.DynamicHybridBlock):
                def __init__(self):
                    super().__init__()
                    self.layers = nn.HybridSequential()
                    self.layers.add(idle)
                def forward(self, x):
                    return self.layers[0](x)
            net = Net()
            net.hybridize()
            work = net
        """),
    ),
    "an output layer": (
        script("work = lambda x: mx.nd.SoftmaxOutput(cell(x), mx.nd.zeros(1))"),
        ("on the concatenated inputs of all samples", "its gradient ignores the head gradient"),
        whole("""
            with scope() as batch:
                hidden = [cell(x) for x in xs]
            whole = mx.nd.SoftmaxOutput(mx.nd.concat(*hidden, dim=0), mx.nd.zeros(12))
            results = [whole[i : i + 1] for i in range(12)]
        """),
    ),
    "few calls in each scope": (
        whole("""
            results = []
            for x in xs:
                with scope() as batch:
                    results.append(cell(x))
        """),
        "put more samples into one scope",
        whole("""
            with scope() as batch:
                results = [cell(x) for x in xs]
        """),
    ),
    "map of one sample": (
        whole("""
            results = []
            for x in xs:
                with scope() as batch:
                    read = lambda x: cell(x).sum().asscalar() + head(cell(x)).sum().asscalar()
                    mapped = map if batch is None else batch.map
                    results += mapped(read, [x])
        """),
        ("map more samples at a time", None),
        script("work = lambda x: cell(x).sum().asscalar() + head(cell(x)).sum().asscalar()", MAP),
    ),
    "a sum of losses": (
        whole("""
            with scope() as batch:
                results = [sum([(cell(x) ** 2).sum() for x in xs])]
        """),
        "each waits for the one before, so each is a launch of its own -> if they add up arrays, "
        "call mx.nd.add_n(*arrays) once",
        whole("""
            with scope() as batch:
                results = [mx.nd.add_n(*[(cell(x) ** 2).sum() for x in xs])]
        """),
    ),
    "a sum of many losses of few launches": (
        whole("""
            with scope() as batch:
                losses = [cell(x).sum() for x in xs * 5]
                results = [sum(losses[1:], losses[0])]
        """),
        "in a row",
        whole("""
            with scope() as batch:
                losses = [cell(x).sum() for x in xs * 5]
                results = [mx.nd.add_n(*losses)]
        """),
    ),
    "a block that overrides forward": (
        script("""
            class Gate(gluon.HybridBlock):
                def forward(self, x, h):
                    gate = mx.nd.sigmoid(x + h)
                    return gate * x + (1 - gate) * h
            gate = Gate()
            gate.hybridize()
            work = lambda x: head(gate(cell(x), x))
        """),
        "it overrides forward, so its 6 operators are calls of their own; each call of Gate makes "
        "the same ones -> if it needs neither shapes nor values, override hybrid_forward",
        script("""
            class Gate(gluon.HybridBlock):
                def hybrid_forward(self, F, x, h):
                    gate = F.sigmoid(x + h)
                    return gate * x + (1 - gate) * h
            gate = Gate()
            gate.hybridize()
            work = lambda x: head(gate(cell(x), x))
        """),
    ),
    "a plain block": (
        script("""
            class Gate(gluon.Block):
                def forward(self, x, h):
                    return mx.nd.tanh(x) * h
            gate = Gate()
            work = lambda x: head(gate(cell(x), x))
        """, samples="rows"),
        "override hybrid_forward(self, F, ...) of a HybridBlock instead",
        script("""
            class Gate(gluon.HybridBlock):
                def hybrid_forward(self, F, x, h):
                    return F.tanh(x) * h
            gate = Gate()
            gate.hybridize()
            work = lambda x: head(gate(cell(x), x))
        """, samples="rows"),
    ),
    "a fused layer of one length that is not hybridized": (
        script("""
            gru = gluon.rnn.GRU(4, input_size=4)
            gru.initialize(mx.init.Constant(0.3))
            def work(x):
                y = cell(x)
                return head(gru(y.expand_dims(1), [mx.nd.zeros((1, 1, 4))])[0])
        """, samples="rows"),
        " is not hybridized: its operators are",
        script("""
            gru = gluon.rnn.GRU(4, input_size=4)
            gru.initialize(mx.init.Constant(0.3))
            gru.hybridize()
            def work(x):
                y = cell(x)
                return head(gru(y.expand_dims(1), [mx.nd.zeros((1, 1, 4))])[0])
        """, samples="rows"),
    ),
    "a fused layer that is not hybridized": (
        script("""
            gru = gluon.rnn.GRU(4, input_size=4)
            gru.initialize(mx.init.Constant(0.3))
            work = lambda x: head(gru(cell(x).expand_dims(1)))
        """),
        " is not hybridized: its operators are",
        script("""
            gru = gluon.rnn.GRU(4, input_size=4)
            gru.initialize(mx.init.Constant(0.3))
            gru.hybridize()
            work = lambda x: head(gru(cell(x).expand_dims(1)))
        """),
    ),
    "a fused layer on several lengths": (
        script("""
            gru = gluon.rnn.GRU(4, input_size=4, prefix="gru_")
            gru.initialize(mx.init.Constant(0.3))
            gru.hybridize()
            work = lambda x: gru(cell(x).expand_dims(1))[-1]
        """, samples="rows"),
        "operator RNN has no native steps -> call a cell for each step of a sequence",
        script("""
            step = gluon.rnn.GRUCell(4, input_size=4)
            step.initialize(mx.init.Constant(0.3))
            step.hybridize()
            def work(x):
                x, state = cell(x), [mx.nd.zeros((1, 4))]
                for i in range(len(x)):
                    y, state = step(x[i : i + 1], state)
                return y
        """, samples="rows"),
    ),
    "samples of one shape": (
        script("work = lambda x: head(cell(x))"),
        ("give the model one array of them instead", None),
        whole("""
            with contextlib.nullcontext():
                whole = head(cell(mx.nd.concat(*xs, dim=0)))
                results = [whole[i : i + 1] for i in range(12)]
        """),
    ),
}  # fmt: skip
for shape, old, new in (
    ("(1, -1)", "concat(*parts, dim=1)", "concat(*[x.reshape(-1) for x in parts], dim=0)"),
    ("(2, -1)", "concat(*parts)",
     "concat(*[x.swapaxes(0, 1) for x in parts], dim=0).swapaxes(0, 1)"),
    ("(2, -1)", "stack(*parts, axis=-1)", "moveaxis(mx.nd.stack(*parts, axis=0), 0, 2)"),
):  # fmt: skip
    body = "work = lambda x: mx.nd.{}".format
    parts = f"[cell(x[i : i + 1]).reshape({shape}) for i in range(len(x))]"
    if shape == "(1, -1)":
        new += ".reshape((1, -1))"
    CASES[f"{old} of several numbers"] = (
        script(body(old.replace("*parts", f"*{parts}")), samples="rows"),
        f"use mx.nd.{new.replace('parts', 'arrays')}",
        script(body(new.replace("*parts", f"*{parts}").replace("in parts", f"in {parts}")),
               samples="rows"),
    )  # fmt: skip

for shape, old, new in (
    ("(1, -1)", "concatenate(parts, axis=1)",
     "concatenate([x.reshape(-1) for x in parts], axis=0).reshape((1, -1))"),
    ("(2, -1)", "concatenate(parts, axis=1)",
     "concatenate([x.swapaxes(0, 1) for x in parts], axis=0).swapaxes(0, 1)"),
    ("(2, -1)", "stack(parts, axis=-1)", "moveaxis(mx.np.stack(parts, axis=0), 0, 2)"),
):  # fmt: skip
    parts = f"[cell(x[i : i + 1]).reshape({shape}) for i in range(len(x))]"
    before, after = (
        tuple(map(numpy, script(f"work = lambda x: mx.np.{text}", samples="arrays")))
        for text in (old.replace("parts", parts), new.replace("parts", parts))
    )
    CASES[f"{old} of several numbers, {shape}"] = (
        before, f"use mx.np.{new.replace('parts', 'arrays')}", after
    )  # fmt: skip

total = "with scope() as batch:\n    results = [{}]\n"
CASES["a sum of losses in mx.np"] = (
    tuple(map(numpy, whole(total.format("sum([cell(x).sum() for x in arrays])")))),
    "or mx.np.stack(arrays).sum(axis=0)",
    tuple(map(numpy, whole(
        total.format("mx.np.stack([cell(x).sum() for x in arrays]).sum(axis=0)")
    ))),
)  # fmt: skip


@pytest.fixture
def explained(tmp_path, monkeypatch, capsys):
    """Return a function that explains a program; it returns the page, reports and results."""
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def run(text):
        path, names = tmp_path / "advised.py", {}
        path.write_text(PRELUDE + text)
        real = runpy.run_path
        with monkeypatch.context() as patch:
            patch.setattr(runpy, "run_path", lambda *args, **kw: names.update(real(*args, **kw)))
            run_script("advised.py", [])
        return " ".join(capsys.readouterr().out.split()), names

    return run


@pytest.mark.parametrize("name", CASES)
def test_advice_is_given_and_can_be_followed(explained, name):
    before, advice, after = CASES[name]
    advice, reported = advice if isinstance(advice, tuple) else (advice, advice)
    results, pages, names = [], [], []
    for text in (*before, *after):
        page, namespace = explained(text)
        pages.append(page)
        names.append(namespace)
        results.append([host(value) for value in namespace["results"]])
    assert advice in pages[0] and advice not in pages[2], pages
    if name != "samples of one shape":
        assert "=== scope" in pages[2]
    for got in results:
        equal(got, results[1], 1e-4, 1e-5)
    if reported is not None:
        # The last of three scopes, whose calls may all have run at once.
        shown = " ".join(str(names[0]["batch"].report).split())
        assert reported in shown, shown
        assert reported not in " ".join(str(names[2]["batch"].report).split())


# Cells


class InList(gluon.HybridBlock):
    def __init__(self, hold):
        super().__init__()
        self.layers = hold([gluon.nn.Dense(3, in_units=4) for _ in range(2)], self)

    def hybrid_forward(self, F, x):
        return self.layers[0](x) + self.layers[1](x)


def sequential(layers, owner):
    held = gluon.nn.HybridSequential()
    held.add(*layers)
    return held


def registered(layers, owner):
    for layer in layers:
        owner.register_child(layer)
    return layers


@pytest.mark.filterwarnings("ignore:.*is an unregistered container with Blocks:UserWarning")
@pytest.mark.parametrize("kind", [list, tuple, dict])
@pytest.mark.parametrize("nested", [False, True])
def test_layers_that_a_cell_holds_in_a_list(kind, nested):
    """They have to be held in a block, or registered."""

    def hold(layers, owner):
        for layer in layers:
            layer.initialize()
        return dict(enumerate(layers)) if kind is dict else kind(layers)

    for holds in (hold, sequential, registered):
        inner = InList(holds)
        net = sequential([inner], None) if nested else inner
        net = gdb.convert(net)
        net.initialize()
        net.hybridize()
        if holds is not hold:
            check(net, inputs(4), net)
            continue
        with gdb.batching(), pytest.raises(gdb.CellError) as info:
            net(inputs(1)[0])
        text = str(info.value)
        assert f"is in the {kind.__name__} 'layers' of {inner.name}" in text
        assert "hold such blocks in nn.HybridSequential, or call register_child" in text


@pytest.mark.parametrize("sign", "+-*/")
def test_assignments_in_place_in_a_cell(sign):
    names = {}
    exec(f"def wrong(F, x):\n    x {sign}= 2\n    return x\n"
         f"def right(F, x):\n    x = x {sign} 2\n    return x\n", names)  # fmt: skip
    with gdb.batching(), pytest.raises(gdb.CellError) as info:
        cell(names["wrong"])(inputs(1)[0])
    assert f"write x = x {sign} y instead of x {sign}= y" in str(info.value)
    net = cell(names["right"])
    check(net, inputs(4), net)
