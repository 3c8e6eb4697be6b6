"""Layers and cells of GluonNLP."""

from __future__ import annotations

import mxnet as mx
import pytest

from tests.models.common import WIDTH, check, ragged, ready


def test_gluonnlp_highway_and_convolutional_encoder():
    nlp = pytest.importorskip("gluonnlp")
    highway = ready(nlp.model.Highway(WIDTH, 2))
    assert check(highway, ragged(), highway).report.alone == []
    encoder = ready(
        nlp.model.ConvolutionalEncoder(
            embed_size=WIDTH,
            num_filters=(3, 2),
            ngram_filter_sizes=(1, 2),
            output_size=None,
            num_highway=None,
        )
    )
    samples = [x.reshape((-1, 1, WIDTH)) for x in ragged(lengths=(3, 5, 3, 4))]

    def fn(x):
        return encoder(x, mx.nd.ones((len(x), 1)))

    check(fn, samples, encoder)


@pytest.mark.parametrize("kind", ["dot", "mlp"])
def test_gluonnlp_attention_cells(kind):
    nlp = pytest.importorskip("gluonnlp")
    cells = {
        "dot": lambda: nlp.model.DotProductAttentionCell(scaled=True),
        "mlp": lambda: nlp.model.MLPAttentionCell(units=3),
    }
    cell = ready(cells[kind]())
    samples = []
    for memory in ragged(lengths=(2, 4, 2)):
        query = mx.nd.random.uniform(-1, 1, (1, 1, WIDTH))
        query.attach_grad()
        samples.append((query, memory.reshape((1, -1, WIDTH))))
    cell(*samples[0])
    check(lambda s: cell(*s)[0], samples, cell)
