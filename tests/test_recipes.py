"""Each recipe is short, runs, merges, and gives the values and gradients of the loop."""

import itertools
import runpy

import mxnet as mx
import numpy as np
import pytest
from mxnet import npx

import gluon_dynbatch as gdb
from tests.common import ROOT

PROGRAMS = {path.stem: path for path in sorted((ROOT / "examples" / "recipes").glob("*.py"))}
#: How many launches the calls of the last scope, named `batch`, need at most.
LAUNCHES = {
    "beam_search": 40,
    "crf": 57,
    "decoder": 27,
    "graph_network": 2,
    "hierarchy": 21,
    "numpy_program": 2,
    "pointer_network": 25,
    "reinforcement": 60,
}


@pytest.fixture
def run(capsys):
    """Run a recipe and return its names; afterwards, numbers have the semantics of `mx.nd`."""

    def run_recipe(name):
        mx.random.seed(1)
        names = runpy.run_path(str(PROGRAMS[name]))
        assert "launch" in capsys.readouterr().out
        return names

    yield run_recipe
    npx.reset_np()


def test_every_recipe_has_a_page_and_a_number_of_launches():
    assert PROGRAMS.keys() == LAUNCHES.keys()
    pages = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs/recipes").glob("*.md")}
    assert pages.keys() == {name.replace("_", "-") for name in PROGRAMS}
    for name, path in PROGRAMS.items():
        assert f"```{{recipe}} {name}\n" in pages[name.replace("_", "-")]
        assert path.read_text("utf-8").count("\n") <= 60


def programs_of(of):
    """Return pairs of a function that a recipe runs for each sample, and of its samples."""
    if "episode" in of:
        return [(of["episode"], range(8))]
    net = of["net"]
    if "sentences" in of:
        return [(net, list(of["sentences"])[:8])]
    samples = of["samples"][:8]
    if "loss_fn" not in of or "decoding" in of:  # the net takes what is known in training
        alone = [(net, [sample for sample, _ in samples])] * ("decoding" in of)
        return [(lambda sample, known: net(sample, known), samples), *alone]

    def loss_of(inputs, label):
        return of["loss_fn"](net(*inputs) if isinstance(inputs, tuple) else net(inputs), label)

    return [(loss_of, samples)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recipe_is_short_merges_and_equals_the_loop(name, run):
    of = run(name)
    report = of["batch"].report
    assert report.launches <= LAUNCHES[name]
    assert not report.alone and not report.split and not report.unrecorded
    params = of.get("net", of.get("policy")).collect_params()
    # Of the pointer network, gradients of MXNet's loop differ by up to 3.1e-5 from those in double
    # precision, and those of the scope by 7e-7.
    tolerance = (1e-4, 5e-5) if name == "pointer_network" else None
    for fn, samples in programs_of(of):
        gdb.testing.check_against_loop(fn, samples, params, tolerance)


def test_the_recipe_of_crfs_sums_and_maximizes_over_all_paths(run):
    of = run("crf")
    net = of["net"]
    moves = net.moves.data().asnumpy()
    for words, tags in [sample for sample in of["samples"] if len(sample[0]) < 6]:
        scores = net.scores(words).asnumpy()

        def score(path, scores=scores):
            steps = sum(moves[i, j] for i, j in zip(path, path[1:]))
            return steps + sum(row[tag] for row, tag in zip(scores, path))

        paths = list(itertools.product(range(3), repeat=len(words)))
        every = np.array([score(path) for path in paths])
        loss = net(words, tags).asscalar()
        assert loss == pytest.approx(np.log(np.exp(every).sum()) - score(tags), abs=1e-4)
        assert tuple(net.best_tags(words)) == paths[every.argmax()]
