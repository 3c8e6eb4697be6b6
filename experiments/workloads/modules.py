"""A module network with 40 kinds of modules (Johnson et al. 2017, arXiv:1705.03633).

Programs and answers are CLEVR's, from a folder with ``CLEVR_train_1_*.json``. Without a folder,
they are random: the r-th kind is called in proportion to 1 / r^2, so that a minibatch has half of
the kinds, and minibatches differ in them. Scenes are random, because only speed is measured.

A question is a program and its answer. A step of a program is the name of a module and the numbers
of earlier steps that are its inputs, none for the scene. The last step is the result.
"""

import json
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import Sample, labelling, new_trainer
from .text import DataError

KINDS, KINDS_OF_TWO = 40, 4
SIDE = 14  # of a feature map


def read_clevr(directory, limit=None):
    """Read the first `limit` questions of ``CLEVR_train_1_*.json``."""
    paths = sorted(Path(directory).rglob("CLEVR_train_1_*.json"))
    if not paths:
        raise DataError(Path(directory), 0, "has no CLEVR_train_1_*.json")
    questions = []
    for path in paths:
        try:
            for record in json.loads(path.read_text(encoding="utf-8"))["questions"]:
                questions += map(_question, record["program"], record["answers"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(path, 0, f"is not a file of CLEVR's questions ({error!r})") from None
    return questions[:limit]


def _question(steps, answer):
    program = [(" ".join([s["type"], *s["value_inputs"]]), tuple(s["inputs"])) for s in steps]
    return tuple(program), str(answer)


def random_questions(limit, seed):
    """Draw programs: a chain of 2 to 7 modules, or two chains that a module of two inputs joins."""
    rng = np.random.RandomState(seed)

    def draw(first, kinds):
        weights = np.arange(1.0, kinds + 1) ** -2
        return f"module {first + rng.choice(kinds, p=weights / weights.sum())}"

    def chain(start):
        yield "scene", ()
        for i in range(rng.randint(2, 8)):
            yield draw(KINDS_OF_TWO, KINDS - KINDS_OF_TWO), (start + i,)

    questions = []
    for _ in range(limit or 1024):
        steps = list(chain(0))
        if rng.rand() < 0.3:
            end = len(steps) - 1
            steps += chain(len(steps))
            steps.append((draw(0, KINDS_OF_TWO), (end, len(steps) - 1)))
        questions.append((tuple(steps), str(rng.randint(28))))
    return questions


class Module(nn.HybridBlock):
    """A residual block of two convolutions on a feature map, or on two, which it joins first."""

    def __init__(self, channels, inputs):
        super().__init__()
        self.join = None
        if inputs == 2:
            self.join = nn.Conv2D(channels, 1, in_channels=2 * channels, activation="relu")
        self.first = nn.Conv2D(channels, 3, 1, 1, in_channels=channels, activation="relu")
        self.second = nn.Conv2D(channels, 3, 1, 1, in_channels=channels)

    def hybrid_forward(self, F, x, *other):  # noqa: D102
        if self.join is not None:
            x = self.join(F.concat(x, *other, dim=1))
        return F.relu(x + self.second(self.first(x)))  # (1, channels, SIDE, SIDE)


class ModuleNetwork(gdb.DynamicHybridBlock):
    """Scores of all answers for one scene and the program of a question about it."""

    def __init__(self, inputs, answers, embedding_size=16, hidden_size=16):
        super().__init__()
        self.scene = nn.Conv2D(hidden_size, 1, in_channels=embedding_size, activation="relu")
        self.modules = {name: Module(hidden_size, n) for name, n in inputs.items() if n}
        self.score = nn.Dense(answers, in_units=hidden_size * SIDE**2)
        for name, module in self.modules.items():
            self.register_child(module, name)

    def forward(self, scene, program):
        """Map a scene, shape (1, embedding_size, SIDE, SIDE), to scores, shape (1, answers)."""
        features = self.scene(scene)
        results = []
        for name, inputs in program:
            arrays = [results[i] for i in inputs]
            results.append(self.modules[name](*arrays) if inputs else features)
        return self.score(results[-1])


def answering(clevr=None, limit=None, seed=1, embedding_size=16, **sizes):
    """Make the network with CLEVR's questions, or with random ones."""
    questions = random_questions(limit, seed) if clevr is None else read_clevr(clevr, limit)
    inputs = {name: len(steps) for program, _ in questions for name, steps in program}
    answers = sorted({answer for _, answer in questions})
    model = ModuleNetwork(inputs, len(answers), embedding_size, **sizes)
    rng, shape = np.random.RandomState(seed), (1, embedding_size, SIDE, SIDE)
    samples = [
        Sample((mx.nd.array(rng.normal(size=shape)), program), mx.nd.array([answers.index(answer)]))
        for program, answer in questions
    ]
    # With a larger rate, two steps make losses and rounding errors a hundred times as large.
    trainer = new_trainer(gdb.convert(model), learning_rate=0.003)
    return labelling("modules", "module network", "questions", samples, model, trainer=trainer)
