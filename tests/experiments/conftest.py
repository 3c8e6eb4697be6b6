"""Fixtures that make runs of the training program short."""

import pytest

from relatedness import training
from relatedness.corpora import load_corpus


@pytest.fixture(scope="session")
def corpus():
    return load_corpus()


@pytest.fixture()
def quick(monkeypatch):
    monkeypatch.setattr(training, "draw_learning_curve", lambda *arguments: None)
