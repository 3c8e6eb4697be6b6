import json
import math

import numpy as np
import pytest

from relatedness.metrics import measure


def test_a_perfect_and_a_reversed_prediction():
    true = np.array([1.0, 2.0, 4.0, 5.0])
    perfect, reversed_ = measure(true, true), measure(6 - true, true)
    assert (perfect.pearson, perfect.spearman, perfect.mse) == (pytest.approx(1), 1, 0)
    assert (reversed_.pearson, reversed_.spearman) == (pytest.approx(-1), pytest.approx(-1))


def test_a_monotone_prediction_has_the_ranks_but_not_the_line():
    """1, 4, 9 against 1, 2, 3: products of deviations sum to 8, squares to 98/3 and 2."""
    found = measure(np.array([1.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0]))
    assert found.spearman == pytest.approx(1)
    assert found.pearson == pytest.approx(8 / math.sqrt(2 * 98 / 3))
    assert found.mse == pytest.approx((0 + 4 + 36) / 3)


@pytest.mark.parametrize("predicted", [[3.0, 3.0], [2.0]])
def test_an_undefined_correlation_is_nan_and_null_in_json(predicted):
    found = measure(np.array(predicted), np.arange(1.0, 1.0 + len(predicted)))
    assert math.isnan(found.pearson) and math.isnan(found.spearman)
    assert json.loads(json.dumps(found.as_json()))["pearson"] is None


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((0,), (0,)), ((2, 2), (2, 2))])
def test_scores_that_do_not_belong_together_are_refused(shapes):
    with pytest.raises(ValueError, match="cannot compare scores of shapes"):
        measure(np.ones(shapes[0]), np.ones(shapes[1]))
