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
import os
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Sequence

import gluonnlp
import mxnet as mx
import numpy as np
from mxnet import gluon

FORMAT = 5
#: What optimizers of MXNet 1.9.1 keep beside the state of each parameter (Nadam, LARS). What LBSGD
#: sums up over several minibatches is left out: made by name, it takes them one by one.
NUMBERS = ("lr", "num_update", "m_schedule", "last_lr", "cur_lr")


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit; the message names the file."""


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

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Say that this checkpoint is another program's if something is not where it is sought."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, CheckpointError):
                raise
            reason = f"not a checkpoint of this program ({type(error).__name__}: {error})"
            raise CheckpointError(f"{self.path}: {reason}") from None

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
            with self.understood():
                _restore(model, trainer, self.trainer)


def _kind(shape: Sequence[int], dtype: Any) -> str:
    return f"{np.dtype(dtype).name} {tuple(shape)}"


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
    body = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(body, header=text, **arrays)
    with whole_file(path) as file:
        file.write(first_line(body.getvalue()) + body.getvalue())


def first_line(body: bytes) -> bytes:
    """Name the format and the checksum of what follows."""
    return f"gluon_dynbatch checkpoint {FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode()


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    CheckpointError
        If there is none at `path`, or it is damaged or of another format.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CheckpointError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            first, body = file.readline(200), file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    if first != first_line(body):
        old = first.split()[:2] == [b"gluon_dynbatch", b"checkpoint"] and first.split()[2:3]
        reason = "not a whole checkpoint: its first line or its checksum is wrong"
        if old and old != [str(FORMAT).encode()]:
            reason = f"written by another version, whose format is not {FORMAT}; train anew"
        raise CheckpointError(f"{path}: {reason}")
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop("header").tobytes())
        vocab = _vocab(header["vocab"])
        trainer = {**header["trainer"], "states": {}}
        checkpoint = Checkpoint(path, dict(header["state"]), vocab, {}, trainer)
    except Exception as error:  # whatever an archive that is none makes its readers raise
        reason = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        raise CheckpointError(f"{path}: not a whole checkpoint: {reason}") from None
    for name, array in arrays.items():
        kind, _, rest = name.partition(":")
        if kind == "parameter":
            checkpoint.parameters[rest] = array
        else:
            trainer["states"].setdefault(rest.rpartition(":")[0], []).append(array)
    return checkpoint


def _vocab(tokens: List[str]) -> gluonnlp.Vocab:
    """Make the vocabulary with these words in this order, the one for unknown words first."""
    if len(set(tokens)) != len(tokens):
        raise ValueError("its vocabulary repeats a word")
    # Words are numbered by frequency.
    counter = gluonnlp.data.Counter({word: -i for i, word in enumerate(tokens, -len(tokens))})
    return gluonnlp.Vocab(
        counter, unknown_token=tokens[0], padding_token=None, bos_token=None, eos_token=None
    )


def _trained(model: gluon.Block, trainer: gluon.Trainer) -> Dict[str, int]:
    """Give the numbers of trained parameters by name; names are equal in every process."""
    names = {id(p): name for name, p in model._collect_params_with_prefix().items()}
    return {names[id(p)]: i for i, p in enumerate(trainer._params) if p.grad_req != "null"}


def _progress(model: gluon.Block, trainer: gluon.Trainer) -> Dict[str, Any]:
    """Collect what the updates so far have changed in a trainer, whose parameters are a model's."""
    optimizer, states = trainer._optimizer, trainer._updaters[0].states
    trained = _trained(model, trainer)
    counts = optimizer._all_index_update_counts[0]  # those of other devices are the same
    return {
        "optimizer": type(optimizer).__name__,
        "numbers": {name: vars(optimizer)[name] for name in NUMBERS if name in vars(optimizer)},
        "counts": {name: counts[i] for name, i in trained.items() if i in counts},
        "states": {name: states[i] for name, i in trained.items() if i in states},
    }


def _restore(model: gluon.Block, trainer: gluon.Trainer, saved: Dict[str, Any]) -> None:
    """Put progress into a trainer with the same kind of optimizer."""
    optimizer, trained = trainer._optimizer, _trained(model, trainer)
    if saved["optimizer"] != type(optimizer).__name__:
        raise ValueError(f"written with the optimizer {saved['optimizer']}")
    counts = {trained[name]: int(count) for name, count in saved["counts"].items()}
    for device, updater in enumerate(trainer._updaters):
        optimizer._all_index_update_counts[device] = dict(counts)
        for name, number in trained.items():
            if number in counts:
                weight = trainer._params[number].list_data()[device]
                state = optimizer.create_state_multi_precision(number, weight)
                _fill(_leaves(state), saved["states"].get(name, []), name)
                updater.states[number] = state
                updater.states_synced[number] = True
    optimizer._set_current_context(0)
    vars(optimizer).update({name: saved["numbers"][name] for name in saved["numbers"]})


def _leaves(state: Any) -> List[mx.nd.NDArray]:
    """List the arrays of an optimizer's state, which is a nest of them."""
    if isinstance(state, (tuple, list)):
        return [leaf for part in state for leaf in _leaves(part)]
    return [] if state is None else [state]


def _fill(state: List[mx.nd.NDArray], saved: List[np.ndarray], name: str) -> None:
    """Put arrays into the state of a parameter as it is before the first update."""
    if [_kind(a.shape, a.dtype) for a in saved] != [_kind(a.shape, a.dtype) for a in state]:
        raise ValueError(f"the optimizer's state of {name} is of another kind")
    for leaf, array in zip(state, saved):
        leaf[:] = mx.nd.array(array, dtype=array.dtype)
