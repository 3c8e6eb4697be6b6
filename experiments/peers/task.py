"""What all children are given: samples, first parameters and hyperparameters, as files.

Needs NumPy alone, as the peers' environment has no MXNet.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import numpy as np

Sample = Dict[str, Any]


class Task(NamedTuple):
    """A workload in plain data.

    Attributes
    ----------
    workload : str
        "sick", "tagger" or "sst".
    learning_rate, weight_decay : float
        Of AdaGrad as MXNet has it: ``history += grad ** 2``, then ``weight -= learning_rate *
        (grad / sqrt(history + 1e-7) + weight_decay * weight)``.
    samples : list of dict
        - sick: ``words`` and ``heads`` of both sentences, ``target`` over the scores;
        - tagger: ``words``, ``tags``;
        - sst: ``words``; of all phrases, those within first, ``left`` and ``right`` (numbers of
          phrases, -1 for a word) and ``labels``.
    parameters : dict
        float32, by Gluon's structural names. ``embedding.weight`` is not trained.
    """

    workload: str
    learning_rate: float
    weight_decay: float
    samples: List[Sample]
    parameters: Dict[str, np.ndarray]


def plain(workload: Any) -> Task:
    """Turn a workload into plain data."""
    optimizer = workload.trainer.optimizer
    named = workload.model._collect_params_with_prefix().items()
    return Task(
        workload.name,
        optimizer.learning_rate,
        optimizer.wd,
        list(map(_PLAIN[workload.name], workload.samples)),
        {name: parameter.data().asnumpy() for name, parameter in named},
    )


def _pair(sample: Any) -> Sample:
    return {
        "words": [sample.tokens_a.asnumpy().tolist(), sample.tokens_b.asnumpy().tolist()],
        "heads": [list(sample.tree_a.heads), list(sample.tree_b.heads)],
        "target": sample.target.asnumpy()[0].tolist(),
    }


def _tagged(sample: Any) -> Sample:
    tags = sample.tags.asnumpy().astype(int)
    return {"words": sample.words.asnumpy().tolist(), "tags": tags.tolist()}


def _phrases(sample: Any) -> Sample:
    left: List[int] = []
    right: List[int] = []

    def visit(shape: Any) -> int:
        parts = (-1, -1) if isinstance(shape, int) else [visit(part) for part in shape]
        left.append(parts[0])
        right.append(parts[1])
        return len(left) - 1

    visit(sample.shape)
    labels = sample.labels.asnumpy().astype(int).tolist()
    words = sample.words.asnumpy().tolist()
    return {"words": words, "left": left, "right": right, "labels": labels}


_PLAIN = {"sick": _pair, "tagger": _tagged, "sst": _phrases}


def write(task: Task, folder: Path) -> None:
    """Write a task into a folder."""
    rest = {name: value for name, value in task._asdict().items() if name != "parameters"}
    (folder / "task.json").write_text(json.dumps(rest), encoding="utf-8")
    np.savez(folder / "parameters.npz", **task.parameters)


def read(folder: Path) -> Task:
    """Read what `write` wrote."""
    rest = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    with np.load(folder / "parameters.npz") as arrays:
        return Task(**rest, parameters={name: arrays[name] for name in arrays.files})
