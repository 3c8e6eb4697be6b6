"""What makes runs of the training program short in tests."""

import pytest

from relatedness import training
from relatedness.corpora import load_corpus


@pytest.fixture(scope="session")
def corpus():
    return load_corpus()


@pytest.fixture()
def quick(monkeypatch):
    monkeypatch.setattr(training, "draw_learning_curve", lambda *arguments: None)


@pytest.fixture()
def write_pairs():
    """Return what writes pairs as all splits of a folder, in the treelstm layout."""
    columns = {
        "a.toks": lambda pair: " ".join(pair.tokens_a),
        "b.toks": lambda pair: " ".join(pair.tokens_b),
        "a.parents": lambda pair: " ".join(str(head + 1) for head in pair.tree_a.heads),
        "b.parents": lambda pair: " ".join(str(head + 1) for head in pair.tree_b.heads),
        "sim.txt": lambda pair: pair.score,
        "id.txt": lambda pair: pair.name,
    }

    def write(folder, pairs):
        for split in ("train", "dev", "test"):
            (folder / split).mkdir(parents=True)
            for name, column in columns.items():
                text = "".join(f"{column(pair)}\n" for pair in pairs)
                (folder / split / name).write_text(text)
        return folder

    return write
