"""Checkpoints: everything needed to go on, in one file that is either whole or not there.

A checkpoint is a line that names the format and a checksum, and an archive of NumPy's: all arrays,
and the rest as JSON. Nothing but numbers, texts and arrays is ever read from it, so whoever wrote
it, reading it runs no code. One file, because one `os.replace` puts it in place: an interruption at
any moment leaves the previous checkpoint or the new one, never half of each.

Of the optimizer, which is made from the program's options, it holds what updates change. Random
numbers need no place in it: every epoch seeds its generators from (seed, epoch), so that a resumed
run draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Sequence

import gluonnlp
import mxnet as mx
import numpy as np
from mxnet import gluon

FORMAT = 4
FIRST_LINE = re.compile(rb"gluon_dynbatch checkpoint ([0-9]{1,9}) ([0-9a-f]{64})\n")
OLDER = b"PK\x03\x04"  # how formats 1 and 2 begin, which are zip archives
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
        return type(value) is int and 0 <= value <= MAX_COUNT
    if like is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    return value is None if like is None else isinstance(like, type) and type(value) is like


class Checkpoint(NamedTuple):
    """A checkpoint in memory.

    Attributes
    ----------
    path : Path
        Where it was read from.
    state : dict
        What was given to `write_checkpoint`: epoch, settings, best result.
    vocab : gluonnlp.Vocab
    parameters : dict
        From the names that ``save_parameters`` uses to arrays.
    trainer : dict
        What updates have changed, see `_progress`; of states, the arrays in a row.
    """

    path: Path
    state: Dict[str, Any]
    vocab: gluonnlp.Vocab
    parameters: Dict[str, np.ndarray]
    trainer: Dict[str, Any]

    def expect(self, like: Dict[str, Any]) -> None:
        """Check what `state` holds; see `conform`."""
        with _named(self.path):
            conform(self.state, like, "state")

    def check(self, model: gluon.Block) -> None:
        """Check that a model, initialized or not, has the checkpoint's parameters.

        Raises
        ------
        CheckpointError
            If a name, a shape or a dtype differs.
        """
        wanted = model._collect_params_with_prefix()
        found = {name: _kind(p.shape, p.dtype) for name, p in wanted.items()}
        own = {name: _kind(a.shape, a.dtype) for name, a in self.parameters.items()}
        for name in sorted({*found, *own}):
            if found.get(name) != own.get(name):
                reason = f"{name} is {own.get(name, 'missing')}, in the model {found.get(name)}"
                raise CheckpointError(f"{self.path}: does not fit the model: {reason}")

    def restore(self, model: gluon.Block, trainer: Optional[gluon.Trainer] = None) -> None:
        """Load the parameters, and the trainer's progress if a trainer is given.

        Raises
        ------
        CheckpointError
            If they are not those of this model and this trainer.
        """
        self.check(model)
        for name, parameter in model._collect_params_with_prefix().items():
            array = self.parameters[name]
            parameter.set_data(mx.nd.array(array, dtype=array.dtype))
        if trainer is not None:
            with _named(self.path):
                _restore(model, trainer, self.trainer)


def _kind(shape: Sequence[int], dtype: Any) -> str:
    return f"{np.dtype(dtype).name} {tuple(shape)}"


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of `path` when it is whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # a link of this name must not be followed
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_checkpoint(
    path: Path,
    model: gluon.Block,
    trainer: gluon.Trainer,
    vocab: gluonnlp.Vocab,
    state: Dict[str, Any],
) -> None:
    """Write a checkpoint, replacing an older one at `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    progress = _progress(model, trainer)
    arrays = {
        f"state:{name}:{number}": array.asnumpy()
        for name, held in progress.pop("states").items()
        for number, array in enumerate(_leaves(held))
    }
    for name, parameter in model._collect_params_with_prefix().items():
        arrays[f"parameter:{name}"] = parameter.data(parameter.list_ctx()[0]).asnumpy()
    header = {"state": state, "vocab": list(vocab.idx_to_token), "trainer": progress}
    body = packed(header, arrays)
    with whole_file(path) as file:
        checksum = hashlib.sha256(body).hexdigest()
        file.write(f"gluon_dynbatch checkpoint {FORMAT} {checksum}\n".encode() + body)


def packed(header: Dict[str, Any], arrays: Dict[str, np.ndarray]) -> bytes:
    """Put the JSON and the arrays of a checkpoint into an archive."""
    body = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(body, header=text, **arrays)
    return body.getvalue()


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    CheckpointError
        If there is none at `path`, or it is damaged or of another format.
    """
    path = Path(path)
    if path.is_symlink() and Path(os.path.realpath(path)).parent != path.parent.resolve():
        raise CheckpointError(f"{path}: a symbolic link to another folder; name the file itself")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CheckpointError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            first, body = file.readline(200), file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    with _named(path):
        _check_first(first, body)
        try:
            with np.load(io.BytesIO(body), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            text = arrays.pop("header").tobytes()
            header = json.loads(text, parse_constant=_refuse_constant)
        except Exception as error:  # whatever an archive that is none makes its readers raise
            reason = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
            raise CheckpointError(f"not a whole checkpoint: {reason}") from None
        conform(header, {"state": dict, "vocab": [str], "trainer": dict}, "checkpoint")
        parameters: Dict[str, np.ndarray] = {}
        states: Dict[str, List[np.ndarray]] = {}
        for name, array in arrays.items():
            kind, _, rest = name.partition(":")
            if kind == "parameter":
                parameters[rest] = array
            else:
                states.setdefault(rest.rpartition(":")[0], []).append(array)
        trainer = {**header["trainer"], "states": states}
        return Checkpoint(path, header["state"], _vocab(header["vocab"]), parameters, trainer)


def _check_first(first: bytes, body: bytes) -> None:
    """Check the format and the checksum before anything else is looked at."""
    if first.startswith(OLDER):
        raise CheckpointError(
            "written by an older version, whose checkpoints could run code when they were read; "
            "train anew"
        )
    match = FIRST_LINE.fullmatch(first)
    if match is None:
        raise CheckpointError("not a whole checkpoint: its first line is another")
    number = int(match.group(1))
    if number != FORMAT:
        raise CheckpointError(f"written in format {number}; this version reads format {FORMAT}")
    if hashlib.sha256(body).hexdigest().encode() != match.group(2):
        raise CheckpointError("not a whole checkpoint: its checksum is wrong")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _vocab(tokens: List[str]) -> gluonnlp.Vocab:
    """Make the vocabulary with these words in this order, the one for unknown words first."""
    if not tokens or not tokens[0] or len(set(tokens)) != len(tokens):
        raise CheckpointError("not a whole checkpoint: its vocabulary is empty or repeats a word")
    # Words are numbered by frequency.
    counter = gluonnlp.data.Counter({word: -i for i, word in enumerate(tokens, -len(tokens))})
    return gluonnlp.Vocab(
        counter, unknown_token=tokens[0], padding_token=None, bos_token=None, eos_token=None
    )


def _names(model: gluon.Block, trainer: gluon.Trainer) -> List[str]:
    """Name the trainer's parameters as ``save_parameters`` does: alike in every process."""
    names = {id(p): name for name, p in model._collect_params_with_prefix().items()}
    return [names[id(parameter)] for parameter in trainer._params]


def _progress(model: gluon.Block, trainer: gluon.Trainer) -> Dict[str, Any]:
    """Collect what the updates so far have changed in a trainer, whose parameters are a model's."""
    names = _names(model, trainer)
    optimizer = trainer._optimizer
    return {
        "optimizer": type(optimizer).__name__,
        "numbers": {name: vars(optimizer)[name] for name in NUMBERS if name in vars(optimizer)},
        "schedule": _plain(optimizer.lr_scheduler),
        "counts": {
            str(device): {names[i]: count for i, count in counts.items()}
            for device, counts in optimizer._all_index_update_counts.items()
        },
        "states": {names[i]: state for i, state in trainer._updaters[0].states.items()},
    }


def _plain(schedule: Any) -> Dict[str, Any]:
    values = {} if schedule is None else vars(schedule)
    return {key: value for key, value in values.items() if type(value) in (int, float)}


def _restore(model: gluon.Block, trainer: gluon.Trainer, saved: Dict[str, Any]) -> None:
    """Put progress into a trainer with the same kind of optimizer; all of it, or nothing."""
    optimizer, names = trainer._optimizer, _names(model, trainer)
    now = _progress(model, trainer)
    conform(saved, {"optimizer": str, "counts": dict}, "trainer")
    if saved["optimizer"] != now["optimizer"]:
        raise CheckpointError(f"written with the optimizer {saved['optimizer']}")
    # Some numbers are None before the first update.
    always = ("lr", "num_update", "m_schedule")
    number = float if saved["states"] else (None, float)
    like = {name: float if name in always else number for name in now["numbers"]}
    conform(saved, {"numbers": {**like, "num_update": int},
                    "schedule": dict.fromkeys(now["schedule"], float)}, "trainer")  # fmt: skip
    trained = {names[i]: i for i, p in enumerate(trainer._params) if p.grad_req != "null"}
    if saved["states"] and set(saved["states"]) - set(trained):
        raise CheckpointError("its optimizer has states of other parameters")
    counts = _counts(saved["counts"], trained)
    updated = any(counts.values())
    states = [
        {
            i: _fitted(saved["states"].get(name, []), optimizer, trainer._params[i], device, i)
            for name, i in (trained.items() if updated else ())
        }
        for device in range(len(trainer._updaters))
    ]
    vars(optimizer).update({name: saved["numbers"][name] for name in now["numbers"]})
    if optimizer.lr_scheduler is not None:
        schedule = {name: saved["schedule"][name] for name in now["schedule"]}
        vars(optimizer.lr_scheduler).update(schedule)
    optimizer._all_index_update_counts = counts
    optimizer._set_current_context(0)
    for updater, held in zip(trainer._updaters, states):
        updater.states = held
        updater.states_synced = dict.fromkeys(held, True)


def _counts(saved: Dict[str, Any], trained: Dict[str, int]) -> Dict[int, Dict[int, int]]:
    """Read the number of updates, by device and parameter."""
    counts: Dict[int, Dict[int, int]] = {}
    for device, by_name in saved.items():
        conform(by_name, dict, "counts")
        conform(by_name, dict.fromkeys(by_name, int), "counts")
        if by_name and set(by_name) != set(trained) or not re.fullmatch("[0-9]{1,4}", device):
            raise CheckpointError("its optimizer does not count the updates of all parameters")
        counts[int(device)] = {trained[name]: count for name, count in by_name.items()}
    return counts


def _leaves(state: Any) -> List[mx.nd.NDArray]:
    """List the arrays of an optimizer's state, which is a nest of them."""
    if isinstance(state, (tuple, list)):
        return [leaf for part in state for leaf in _leaves(part)]
    return [] if state is None else [state]


def _fitted(
    saved: List[np.ndarray],
    optimizer: mx.optimizer.Optimizer,
    parameter: gluon.Parameter,
    device: int,
    number: int,
) -> Any:
    """Make the state of a parameter, as it is before the first update, and put arrays into it."""
    weight = parameter.list_data()[device]
    state = optimizer.create_state_multi_precision(number, weight)
    leaves = _leaves(state)
    if [_kind(a.shape, a.dtype) for a in saved] != [_kind(a.shape, a.dtype) for a in leaves]:
        raise CheckpointError(f"the optimizer's state of {parameter.name} is of another kind")
    for leaf, array in zip(leaves, saved):
        leaf[:] = mx.nd.array(array, dtype=array.dtype)
    return state
