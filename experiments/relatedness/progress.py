"""How far an optimizer has come, as plain values and arrays, and back; nothing is pickled.

The optimizer itself is made from the program's options. What is kept is what its updates change:
the arrays per parameter, counts of updates, and a few numbers.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List

import mxnet as mx
import numpy as np
from mxnet import gluon

#: What optimizers of MXNet 1.9.1 keep beside the state of each parameter (Nadam, LARS). What LBSGD
#: sums up over several minibatches is left out: made by name, it takes them one by one.
NUMBERS = ("lr", "num_update", "m_schedule", "last_lr", "cur_lr")
MAX_COUNT = 1 << 31


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit; the message names the file."""


def conform(value: Any, like: Any, where: str) -> None:
    """Check the structure of what was read from JSON.

    Parameters
    ----------
    value : object
    like : type, None, tuple, list or dict
        ``int`` stands for whole numbers from 0, ``float`` for any finite number; a tuple for one of
        several; a list of one for lists; a dictionary for those that have its keys.
    where : str
        The name of the value, for the message.

    Raises
    ------
    CheckpointError
    """
    if isinstance(like, dict) and isinstance(value, dict):
        for key, item in like.items():
            if key not in value:
                raise CheckpointError(f"not a whole checkpoint: {where} has no {key}")
            conform(value[key], item, f"{where}.{key}")
    elif isinstance(like, list) and isinstance(value, list):
        for number, item in enumerate(value):
            conform(item, like[0], f"{where}[{number}]")
    elif not any(_is_a(value, one) for one in (like if type(like) is tuple else (like,))):
        raise CheckpointError(f"not a whole checkpoint: {where} is of another kind")


def _is_a(value: Any, like: Any) -> bool:
    if like is int:
        return type(value) is int and value >= 0
    if like is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    return value is None if like is None else isinstance(like, type) and type(value) is like


def _names(model: gluon.Block, trainer: gluon.Trainer) -> List[str]:
    """Name the trainer's parameters as ``save_parameters`` does: alike in every process."""
    names = {id(p): name for name, p in model._collect_params_with_prefix().items()}
    return [names[id(parameter)] for parameter in trainer._params]


def trainer_progress(model: gluon.Block, trainer: gluon.Trainer) -> Dict[str, Any]:
    """Collect what the updates so far have changed in a trainer, whose parameters are a model's."""
    names = _names(model, trainer)
    optimizer = trainer._optimizer
    schedule = optimizer.lr_scheduler
    return {
        "optimizer": type(optimizer).__name__,
        "numbers": {name: vars(optimizer)[name] for name in _numbers(optimizer)},
        "schedule": {} if schedule is None else _plain(vars(schedule)),
        "counts": {
            str(device): {names[i]: count for i, count in counts.items()}
            for device, counts in optimizer._all_index_update_counts.items()
        },
        "states": {names[i]: state for i, state in trainer._updaters[0].states.items()},
    }


def _numbers(optimizer: mx.optimizer.Optimizer) -> List[str]:
    return [name for name in NUMBERS if name in vars(optimizer)]


def _plain(values: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in values.items() if type(value) in (int, float)}


def restore_trainer(model: gluon.Block, trainer: gluon.Trainer, saved: Dict[str, Any]) -> None:
    """Put progress into a trainer with the same kind of optimizer; all of it, or nothing.

    Raises
    ------
    CheckpointError
        If it is not the progress of such a trainer.
    """
    optimizer, schedule = trainer._optimizer, trainer._optimizer.lr_scheduler
    kept = {} if schedule is None else _plain(vars(schedule))
    like = {
        "optimizer": str,
        "numbers": {name: (None, float) for name in _numbers(optimizer)},
        "schedule": dict.fromkeys(kept, float),
        "counts": dict,
        "states": dict,
    }
    conform(saved, like, "trainer")
    if saved["optimizer"] != type(optimizer).__name__:
        raise CheckpointError(f"written with the optimizer {saved['optimizer']}")
    for name in _numbers(optimizer):  # of which some are None before the first update
        if name in ("lr", "num_update", "m_schedule") or saved["states"]:
            conform(saved["numbers"][name], int if name == "num_update" else float, name)
    names = _names(model, trainer)
    trained = [i for i, p in enumerate(trainer._params) if p.grad_req != "null"]
    counts = _counts(saved["counts"], names, trained)
    if saved["states"] and set(saved["states"]) != {names[i] for i in trained}:
        raise CheckpointError("its optimizer has states of other parameters")
    if any(counts.values()) != bool(saved["states"]) or saved["numbers"]["num_update"] > MAX_COUNT:
        raise CheckpointError("its optimizer counts other updates than it made")
    states = [
        {
            i: _fitted(saved["states"][names[i]], state, names[i])
            for i in (trained if saved["states"] else [])
            for state in [_empty_state(optimizer, i, trainer._params[i].list_data()[number])]
        }
        for number in range(len(trainer._updaters))
    ]
    vars(optimizer).update({name: saved["numbers"][name] for name in _numbers(optimizer)})
    if schedule is not None:
        vars(schedule).update({name: saved["schedule"][name] for name in kept})
    optimizer._all_index_update_counts = counts
    optimizer._set_current_context(0)
    for updater, held in zip(trainer._updaters, states):
        updater.states = held
        updater.states_synced = dict.fromkeys(held, True)


def _empty_state(optimizer: mx.optimizer.Optimizer, number: int, weight: mx.nd.NDArray) -> Any:
    """Make the state that an optimizer has before the first update: its structure."""
    return optimizer.create_state_multi_precision(number, weight)


def _counts(saved: Any, names: List[str], trained: List[int]) -> Dict[int, Dict[int, int]]:
    """Read the number of updates, by device and parameter."""
    numbers = {names[i]: i for i in trained}
    counts: Dict[int, Dict[int, int]] = {}
    for device, by_name in saved.items():
        conform(by_name, dict, "counts")
        if not (device.isascii() and device.isdigit() and len(device) < 5):
            raise CheckpointError(f"its optimizer counts updates on a device {device!r}")
        conform(by_name, dict.fromkeys(by_name, int), "counts")
        if by_name and (set(by_name) != set(numbers) or max(by_name.values()) > MAX_COUNT):
            raise CheckpointError("its optimizer does not count the updates of all parameters")
        counts[int(device)] = {numbers[name]: count for name, count in by_name.items()}
    return counts


def _fitted(saved: Any, like: Any, name: str) -> Any:
    """Give a parameter's state the structure, the dtypes and the context of a new one's."""
    if isinstance(like, mx.nd.NDArray):
        if isinstance(saved, np.ndarray) and (saved.shape, saved.dtype) == (like.shape, like.dtype):
            return mx.nd.array(saved, ctx=like.context, dtype=like.dtype)
    elif isinstance(like, (tuple, list)):
        if isinstance(saved, list) and len(saved) == len(like):
            return type(like)(_fitted(one, other, name) for one, other in zip(saved, like))
    elif saved is None and like is None:
        return None
    raise CheckpointError(f"the optimizer's state of {name} is of another kind")
