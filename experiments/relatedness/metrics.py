"""How good predicted scores are: Pearson's r, Spearman's rho, mean squared error."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

import numpy as np
from scipy.stats import pearsonr, spearmanr


class Metrics(NamedTuple):
    """Agreement of predicted with true scores; NaN for a correlation that is not defined."""

    pearson: float
    spearman: float
    mse: float
    count: int

    def __str__(self) -> str:
        return (
            f"pearson {self.pearson:.4f}  spearman {self.spearman:.4f}  mse {self.mse:.4f}"
            f"  ({self.count} pairs)"
        )

    def as_json(self) -> Dict[str, Optional[float]]:
        """Give the figures as JSON takes them: null where a correlation is not defined."""
        return {k: None if np.isnan(v) else v for k, v in self._asdict().items()}


def measure(predicted: np.ndarray, true: np.ndarray) -> Metrics:
    """Compare predicted with true scores, shape (N,) each, N at least 1.

    The correlations are NaN if there are fewer than two pairs, or all scores are equal.
    """
    predicted, true = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    if predicted.shape != true.shape or predicted.ndim != 1 or not len(true):
        raise ValueError(f"cannot compare scores of shapes {predicted.shape} and {true.shape}")
    pearson = spearman = float("nan")
    if np.ptp(predicted) > 0 and np.ptp(true) > 0:
        pearson = float(pearsonr(predicted, true)[0])
        spearman = float(spearmanr(predicted, true)[0])
    return Metrics(pearson, spearman, float(np.mean((predicted - true) ** 2)), len(true))
