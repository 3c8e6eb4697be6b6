"""The models of two examples with `mx.np`, on the data of the examples.

`inference` is decomposable attention (Parikh et al. 2016, arXiv:1606.01933), `sentiment` a
bidirectional LSTM. As programs do that learned from MXNet's book, they call ``mx.np`` and
``mx.npx`` themselves, so they have only this interface.
"""

import sys
from pathlib import Path

import numpy as np

from .base import Sample, labelling

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
import numpy_inference  # noqa: E402
import numpy_sentiment  # noqa: E402

#: By name of the workload: the example, its model and what a sample is.
EXAMPLES = {
    "inference": (numpy_inference, numpy_inference.Inference, "pairs"),
    "sentiment": (numpy_sentiment, numpy_sentiment.Sentiment, "sentences"),
}


def example(name, limit=None, seed=1, embedding_size=64, hidden_size=64):
    """Make the model of an example on samples of its own."""
    module, model, unit = EXAMPLES[name]
    rng = np.random.RandomState(seed)
    drawn = (module.make_sample(rng) for _ in range(limit or 1024))
    samples = [Sample(inputs, label, sum(map(len, inputs))) for inputs, label in drawn]
    title = module.__doc__.splitlines()[0].split(" in mx.np")[0]
    return labelling(name, title, unit, samples, model(embedding_size, hidden_size),
                     counted="words")  # fmt: skip
