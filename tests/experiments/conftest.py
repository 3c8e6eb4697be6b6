"""What makes runs of the training program short in tests."""

import pytest

from relatedness import assembly, training
from relatedness.grammar import make_corpus
from workloads import pairs


@pytest.fixture(scope="session")
def corpus():
    return make_corpus()


@pytest.fixture()
def quick(monkeypatch, corpus):
    """Make the corpus once, and draw no pictures."""
    monkeypatch.setattr(assembly, "make_corpus", lambda: corpus)
    monkeypatch.setattr(training, "draw_learning_curve", lambda *arguments: None)


@pytest.fixture()
def corpus_once(monkeypatch, corpus):
    """Make the corpus once for all workloads."""
    monkeypatch.setattr(pairs, "make_corpus", lambda: corpus)
