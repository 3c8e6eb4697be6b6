"""Checkpoints: everything needed to go on, in one file that is either whole or not there.

A checkpoint is a line that names the format and a checksum, and an archive of NumPy's: all arrays,
and the rest as JSON. Nothing but numbers, texts and arrays is ever read from it, so whoever wrote
it, reading it runs no code. One file, because one `os.replace` puts it in place: an interruption at
any moment leaves the previous checkpoint or the new one, never half of each.

Of the optimizer, which is made from the program's options, it holds what updates change. Random
numbers need no place in it: every epoch seeds its generators from (seed, epoch), so that a resumed
run draws what an uninterrupted one would have drawn.
"""

import contextlib
import hashlib
import io
import json
import os
from pathlib import Path
from typing import NamedTuple

import gluonnlp
import mxnet as mx
import numpy as np

from command import UsageError

FORMAT = 6
#: What optimizers of MXNet 1.9.1 keep beside the state of each parameter (Nadam, LARS). What LBSGD
#: sums up over several minibatches is left out: made by name, it takes them one by one.
NUMBERS = ("lr", "num_update", "m_schedule", "last_lr", "cur_lr")


class CheckpointError(UsageError):
    """A checkpoint that is missing, damaged, or does not fit; the message names the file."""


class Checkpoint(NamedTuple):
    """A checkpoint in memory."""

    path: Path  # where it was read from
    state: dict  # what was given to `write_checkpoint`: epoch, settings, best result
    vocab: gluonnlp.Vocab
    optimizer: dict  # its ``kind`` and ``numbers``, and ``counts`` of the updates of each parameter
    arrays: dict  # parameter:NAME and state:NAME:NUMBER, by the names that `save_parameters` uses

    @contextlib.contextmanager
    def understood(self):
        """Say that this checkpoint is another program's if something is not where it is sought."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = f"not a checkpoint of this program ({type(error).__name__}: {error})"
            raise CheckpointError(f"{self.path}: {reason}") from None

    def check(self, model):
        """Check that a model, initialized or not, has the checkpoint's parameters."""
        parameters = model._collect_params_with_prefix()
        wanted = {f"parameter:{name}": _kind(p) for name, p in parameters.items()}
        own = {name: _kind(a) for name, a in self.arrays.items() if name.startswith("parameter:")}
        for name in sorted({*wanted, *own}):
            if wanted.get(name) != own.get(name):
                reason = f"{name} is {own.get(name, 'missing')}, in the model {wanted.get(name)}"
                raise CheckpointError(f"{self.path}: does not fit the model: {reason}")

    def restore(self, model, trainer=None):
        """Load the parameters, and the progress of a trainer with the same kind of optimizer."""
        self.check(model)
        parameters = model._collect_params_with_prefix()
        for name, parameter in parameters.items():
            array = self.arrays[f"parameter:{name}"]
            parameter.set_data(mx.nd.array(array, dtype=array.dtype))
        if trainer is None:
            return
        optimizer, updater = trainer._optimizer, trainer._updaters[0]
        optimizer._set_current_context(next(iter(parameters.values())).list_ctx()[0].device_id)
        numbers = _numbers(parameters, trainer)
        with self.understood():
            if self.optimizer["kind"] != type(optimizer).__name__:
                raise ValueError(f"written with the optimizer {self.optimizer['kind']}")
            for name, count in self.optimizer["counts"].items():
                number = numbers[name]
                state = optimizer.create_state_multi_precision(number, parameters[name].data())
                for i, leaf in enumerate(_leaves(state)):
                    array = self.arrays.get(f"state:{name}:{i}")
                    if array is None or _kind(array) != _kind(leaf):
                        raise ValueError(f"the optimizer's state of {name} is of another kind")
                    leaf[:] = mx.nd.array(array, dtype=array.dtype)
                updater.states[number], updater.states_synced[number] = state, True
                optimizer._index_update_count[number] = int(count)
            vars(optimizer).update(self.optimizer["numbers"])


def _kind(array):
    return f"{np.dtype(array.dtype).name} {tuple(array.shape)}"


@contextlib.contextmanager
def whole_file(path):
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


def write_checkpoint(path, model, trainer, vocab, state):
    """Write a checkpoint, replacing an older one at `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = model._collect_params_with_prefix()
    arrays = {f"parameter:{name}": p.data().asnumpy() for name, p in parameters.items()}
    optimizer, states = trainer._optimizer, trainer._updaters[0].states
    counts = {}
    for name, number in _numbers(parameters, trainer).items():
        if number in states:
            counts[name] = optimizer._index_update_count[number]
            for i, leaf in enumerate(_leaves(states[number])):
                arrays[f"state:{name}:{i}"] = leaf.asnumpy()
    numbers = {name: vars(optimizer)[name] for name in NUMBERS if name in vars(optimizer)}
    made_by = {"kind": type(optimizer).__name__, "numbers": numbers, "counts": counts}
    header = {"state": state, "vocab": list(vocab.idx_to_token), "optimizer": made_by}
    body = io.BytesIO()
    np.savez(body, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    with whole_file(path) as file:
        file.write(first_line(body.getvalue()) + body.getvalue())


def first_line(body):
    """Name the format and the checksum of what follows."""
    return f"gluon_dynbatch checkpoint {FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode()


def read_checkpoint(path):
    """Read a checkpoint; what is missing, damaged, or of another format is a `CheckpointError`."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CheckpointError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            first, body = file.readline(200), file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    if first != first_line(body):
        own = first.startswith(b"gluon_dynbatch checkpoint ")
        reason = "not a whole checkpoint: its first line or its checksum is wrong"
        if own and first.split()[2:3] != [str(FORMAT).encode()]:
            reason = f"written by another version, whose format is not {FORMAT}; train anew"
        raise CheckpointError(f"{path}: {reason}")
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop("header").tobytes())
        vocab = _vocab(header["vocab"])
        return Checkpoint(path, dict(header["state"]), vocab, dict(header["optimizer"]), arrays)
    except Exception as error:  # whatever an archive that is none makes its readers raise
        reason = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        raise CheckpointError(f"{path}: not a whole checkpoint: {reason}") from None


def _vocab(tokens):
    """Make the vocabulary with these words in this order, the one for unknown words first."""
    if len(set(tokens)) != len(tokens):
        raise ValueError("its vocabulary repeats a word")
    # Words are numbered by frequency.
    counter = gluonnlp.data.Counter({word: -i for i, word in enumerate(tokens, -len(tokens))})
    return gluonnlp.Vocab(
        counter, unknown_token=tokens[0], padding_token=None, bos_token=None, eos_token=None
    )


def _numbers(parameters, trainer):
    """Give the numbers of trained parameters by name; names are equal in every process."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {names[id(p)]: i for i, p in enumerate(trainer._params) if p.grad_req != "null"}


def _leaves(state):
    """List the arrays of an optimizer's state, which is a nest of them."""
    if isinstance(state, (tuple, list)):
        return [leaf for part in state for leaf in _leaves(part)]
    return [] if state is None else [state]
