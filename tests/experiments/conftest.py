"""Fixtures of tests of the training program."""

import pytest

from relatedness import training
from relatedness.corpora import load_corpus


@pytest.fixture(scope="session")
def corpus():
    return load_corpus()


@pytest.fixture()
def quick(monkeypatch):
    """Do not draw the learning curve, so that runs are short."""
    monkeypatch.setattr(training, "draw_learning_curve", lambda *arguments: None)
