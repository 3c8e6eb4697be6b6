"""A cost model of a minibatch: what a call, a node, a visit, a launch and a gathered row take.

Each phase is linear in counts that are known before anything runs, with coefficients that cannot be
negative, since nothing gives time back:

    recording   = flush + calls
    analysis    = flush + nodes * (per granularity) + visits + launches
    execution   = flush + nodes * (per granularity) + launches * (per granularity) + rows gathered

Execution is dispatch and running taken together: the engine works while Python dispatches, so that
only their sum is a sum of costs. ``a + b * rows`` for a launch is in it, as ``launches`` and
``nodes``: over a whole minibatch, the rows of all launches are its nodes whatever the groups are.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from scipy.optimize import nnls

from .curve import NEW, CurveRun, Point, cases_of
from .results import Column, Table, grouped

MODELLED = ("recording", "analysis", "execution")

#: (phase, what is counted, granularity or "" for all)
Term = Tuple[str, str, str]


class Fitted(NamedTuple):
    """A coefficient: milliseconds per one of what is counted, for one workload and kind."""

    workload: str
    kind: str
    phase: str
    counted: str
    granularity: str
    milliseconds: float

    @property
    def term(self) -> Term:
        """The key of the coefficient in a model."""
        return (self.phase, self.counted, self.granularity)


def counts(point: Point, phase: str) -> Dict[Term, float]:
    """Count what a phase's time depends on, at a point of a curve."""
    # Without any analysis, calls are not taken apart, whatever the granularity.
    own = "block" if point.budget == 0 else point.granularity
    found: Dict[Term, float] = {(phase, "flush", ""): 1.0}
    if phase == "recording":
        found[phase, "call", ""] = point.calls
    elif phase == "analysis":
        found[phase, "visit", ""] = point.visits
        found[phase, "launch", ""] = point.launches
        found[phase, "node", own] = point.units
    else:
        found[phase, "row gathered", ""] = point.gathered
        found[phase, "launch", own] = point.launches
        found[phase, "node", own] = point.units
    return found


def measured(point: Point, phase: str) -> float:
    """Give what a phase took, in milliseconds."""
    if phase == "execution":
        return point.dispatch + point.running
    return float(getattr(point, phase))


def fit(points: Sequence[Point]) -> Dict[Term, float]:
    """Fit the coefficients to points by least squares.

    Errors count relative to the total of each point, so that large minibatches do not drown small
    ones.

    Returns
    -------
    dict
        Milliseconds per one of what is counted.
    """
    model: Dict[Term, float] = {}
    for phase in MODELLED:
        counted = [counts(point, phase) for point in points]
        terms = sorted({term for row in counted for term in row})
        weights = np.array([1 / point.total.median for point in points])
        matrix = np.array([[row.get(term, 0.0) for term in terms] for row in counted])
        wanted = np.array([measured(point, phase) for point in points])
        matrix, wanted = matrix * weights[:, None], wanted * weights
        scale = np.abs(matrix).max(axis=0, initial=0) + 1e-300  # else counts dwarf constants
        solution, _ = nnls(matrix / scale, wanted)
        model.update(zip(terms, (solution / scale).tolist()))
    return model


def predict(model: Dict[Term, float], point: Point) -> float:
    """Give the time of a minibatch in milliseconds, from counts alone."""
    return sum(
        model.get(term, 0.0) * count
        for phase in MODELLED
        for term, count in counts(point, phase).items()
    )


def split_sizes(sizes: Sequence[int]) -> Tuple[List[int], List[int]]:
    """Deal batch sizes out: every other one to fit on, the rest to predict."""
    ordered = sorted(set(sizes))
    return ordered[::2], ordered[1::2]


class Prediction(NamedTuple):
    """A point of a curve that the model has not seen; times in milliseconds."""

    workload: str
    kind: str
    batch_size: int
    granularity: str
    budget: Any
    launches: float
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """What the prediction is off by, relative to the measurement."""
        return self.predicted / self.measured - 1


def judge(runs: Sequence[CurveRun]) -> Tuple[List[Fitted], List[Prediction]]:
    """Fit a model to half the batch sizes of a workload, and predict the others."""
    fitted: List[Fitted] = []
    predictions: List[Prediction] = []
    name = runs[0].workload
    for kind, own in grouped(runs, lambda run: run.kind).items():
        sizes = {size: [p for p in points if p.role == NEW] for _, size, points in cases_of(own)}
        known, unknown = split_sizes(list(sizes))
        model = fit([point for size in known for point in sizes[size]])
        fitted += [Fitted(name, kind, *term, ms) for term, ms in sorted(model.items())]
        predictions += [
            Prediction(name, kind, size, p.granularity, p.budget, p.launches, predict(model, p),
                       p.total.median)
            for size in unknown
            for p in sizes[size]
        ]  # fmt: skip
    return fitted, predictions


class Regret(NamedTuple):
    """What following the model would have cost: its best setting against the best measured."""

    workload: str
    kind: str
    batch_size: int
    chosen: str
    best: str
    ratio: float
    mean_error: float


def regrets(predictions: Sequence[Prediction]) -> List[Regret]:
    """Compare, per case, the minimum that the model predicts with the measured one."""
    found = []
    keys = dict.fromkeys((p.workload, p.kind, p.batch_size) for p in predictions)
    for key in keys:
        group = [p for p in predictions if p[:3] == key]
        chosen = min(group, key=lambda p: p.predicted)
        best = min(group, key=lambda p: p.measured)
        error = float(np.mean([abs(p.error) for p in group]))
        ratio = chosen.measured / best.measured
        found.append(Regret(*key, _name(chosen), _name(best), ratio, error))
    return found


def _name(p: Prediction) -> str:
    return f"{p.granularity}, {'no limit' if p.budget is None else format(p.budget, ',.0f')}"


def coefficient_table(fitted: Sequence[Fitted], title: str) -> Table:
    """Lay the coefficients out for people, in microseconds."""
    columns = (Column("kind"), Column("phase"), Column("per"), Column("granularity"),
               Column("microseconds", ",.3f"))  # fmt: skip
    rows = [(f.kind, f.phase, f.counted, f.granularity or "all", 1e3 * f.milliseconds)
            for f in fitted]  # fmt: skip
    return Table(f"Cost model: {title}", columns, rows)


def prediction_table(predictions: Sequence[Prediction], title: str) -> Table:
    """Lay predictions for batch sizes that the model has not seen beside measurements."""
    columns = (
        Column("kind"),
        Column("batch", "d"),
        Column("granularity"),
        Column("budget, visits"),
        Column("launches", ",.0f"),
        Column("predicted, ms", ",.1f"),
        Column("measured, ms", ",.1f"),
        Column("error", "+.0%"),
    )
    rows = [
        (p.kind, p.batch_size, p.granularity,
         "no limit" if p.budget is None else f"{p.budget:,.0f}", p.launches, p.predicted,
         p.measured, p.error)
        for p in predictions
    ]  # fmt: skip
    return Table(f"Prediction against measurement: {title}", columns, rows)


def regret_table(found: Sequence[Regret], title: str) -> Table:
    """Lay out what following the model would have cost."""
    columns = (
        Column("kind"),
        Column("batch", "d"),
        Column("predicted minimum"),
        Column("measured minimum"),
        Column("time at the former / at the latter", ".2f"),
        Column("mean error", ".0%"),
    )
    rows = [(r.kind, r.batch_size, r.chosen, r.best, r.ratio, r.mean_error) for r in found]
    return Table(f"Where the minimum is: {title}", columns, rows)
