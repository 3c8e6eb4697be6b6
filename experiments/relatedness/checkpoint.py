"""Checkpoints: everything that resuming a run needs, in one file that is replaced atomically.

A checkpoint is a line with the format and a checksum, followed by a NumPy archive of all arrays and
the rest as JSON. It contains only numbers, texts and arrays, so reading one never runs code. It is
put in place by one `os.replace`, so that an interruption leaves either the previous one or the new.

The optimizer is created from the program's options; the checkpoint has the state that updates
change. States of random generators are not needed: every epoch seeds them from (seed, epoch).
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
#: State that optimizers of MXNet 1.9.1 have in addition to that of each parameter (Nadam, LARS).
#: LBSGD can accumulate gradients of several minibatches, but not if it is created by name.
NUMBERS = ("lr", "num_update", "m_schedule", "last_lr", "cur_lr")


class Checkpoint(NamedTuple):
    """A checkpoint in memory."""

    path: Path  # of the file
    state: dict  # the argument of `write_checkpoint`: epoch, settings, best result
    vocab: gluonnlp.Vocab
    optimizer: dict  # its ``kind`` and ``numbers``, and ``counts`` of the updates of each parameter
    arrays: dict  # parameter:NAME and state:NAME:NUMBER, with the names of `save_parameters`

    @contextlib.contextmanager
    def validation(self):
        """Turn errors from unexpected contents into `UsageError`."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = f"not a checkpoint of this program ({type(error).__name__}: {error})"
            raise UsageError(f"{self.path}: {reason}") from None

    def check(self, model):
        """Check that a model, initialized or not, has the checkpoint's parameters."""
        parameters = model._collect_params_with_prefix()
        expected = {f"parameter:{name}": _type_of(p) for name, p in parameters.items()}
        actual = {k: _type_of(a) for k, a in self.arrays.items() if k.startswith("parameter:")}
        for name in sorted({*expected, *actual}):
            if expected.get(name) != actual.get(name):
                sides = f"{actual.get(name, 'missing')}, in the model {expected.get(name)}"
                raise UsageError(f"{self.path}: does not fit the model: {name} is {sides}")

    def restore(self, model, trainer=None):
        """Load parameters, and the state of the trainer's optimizer, which must be of one kind."""
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
        with self.validation():
            if self.optimizer["kind"] != type(optimizer).__name__:
                raise ValueError(f"written with the optimizer {self.optimizer['kind']}")
            for name, count in self.optimizer["counts"].items():
                number = numbers[name]
                state = optimizer.create_state_multi_precision(number, parameters[name].data())
                for i, leaf in enumerate(_leaves(state)):
                    array = self.arrays.get(f"state:{name}:{i}")
                    if array is None or _type_of(array) != _type_of(leaf):
                        raise ValueError(f"the optimizer's state of {name} does not match")
                    leaf[:] = mx.nd.array(array, dtype=array.dtype)
                updater.states[number], updater.states_synced[number] = state, True
                optimizer._index_update_count[number] = int(count)
            vars(optimizer).update(self.optimizer["numbers"])


def _type_of(array):
    return f"{np.dtype(array.dtype).name} {tuple(array.shape)}"


@contextlib.contextmanager
def whole_file(path):
    """Open a temporary file for writing that replaces `path` once it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # if it is a link, do not follow it
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_checkpoint(path, model, trainer, vocab, state):
    """Write a checkpoint; replace an older one at `path` atomically."""
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
    progress = {"kind": type(optimizer).__name__, "numbers": numbers, "counts": counts}
    header = {"state": state, "vocab": list(vocab.idx_to_token), "optimizer": progress}
    body = io.BytesIO()
    np.savez(body, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    with whole_file(path) as file:
        file.write(first_line(body.getvalue()) + body.getvalue())


def first_line(body):
    """Return the line with the format and the checksum of the body."""
    return f"gluon_dynbatch checkpoint {FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode()


def read_checkpoint(path):
    """Read a checkpoint; raise `UsageError` if it is missing, damaged or of another format."""
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path}: a folder; name a file in it, such as {path / 'best'}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            first, body = file.readline(200), file.read()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    if first != first_line(body):
        ours = first.startswith(b"gluon_dynbatch checkpoint ")
        reason = "damaged: the first line or the checksum is wrong"
        if ours and first.split()[2:3] != [str(FORMAT).encode()]:
            reason = f"written by another version, whose format is not {FORMAT}; train again"
        raise UsageError(f"{path}: {reason}")
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop("header").tobytes())
        vocab = _vocab(header["vocab"])
        return Checkpoint(path, dict(header["state"]), vocab, dict(header["optimizer"]), arrays)
    except Exception as error:  # readers of archives raise many types
        reason = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        raise UsageError(f"{path}: damaged: {reason}") from None


def _vocab(tokens):
    """Make the vocabulary with these words in this order; the first is the unknown word."""
    if len(set(tokens)) != len(tokens):
        raise ValueError("its vocabulary repeats a word")
    # A vocabulary sorts its words by frequency.
    counter = gluonnlp.data.Counter({word: -i for i, word in enumerate(tokens, -len(tokens))})
    return gluonnlp.Vocab(
        counter, unknown_token=tokens[0], padding_token=None, bos_token=None, eos_token=None
    )


def _numbers(parameters, trainer):
    """Return the numbers of trained parameters by name; names are the same in every process."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {names[id(p)]: i for i, p in enumerate(trainer._params) if p.grad_req != "null"}


def _leaves(state):
    """List the arrays of an optimizer's state, which is nested."""
    if isinstance(state, (tuple, list)):
        return [leaf for part in state for leaf in _leaves(part)]
    return [] if state is None else [state]
