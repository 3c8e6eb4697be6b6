"""Checkpoints: everything needed to go on, in one file that is either whole or not there.

A checkpoint is a zip archive of the parameters, the trainer's states, the vocabulary and a small
JSON state. One file, because one `os.replace` puts it in place: an interruption at any moment
leaves the previous checkpoint or the new one, never half of each.

Random numbers need no place in it: every epoch seeds its generators from (seed, epoch), so that
a resumed run draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, NamedTuple, Optional

import gluonnlp
from mxnet import gluon

FORMAT = 2
PARAMETERS, TRAINER, VOCAB, STATE = "model.params", "trainer.states", "vocab.json", "state.json"


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
    parameters, trainer : bytes
    """

    path: Path
    state: Dict[str, Any]
    vocab: gluonnlp.Vocab
    parameters: bytes
    trainer: bytes

    def restore(self, model: gluon.Block, trainer: Optional[gluon.Trainer] = None) -> None:
        """Load the parameters, and the trainer's states if a trainer is given.

        Raises
        ------
        CheckpointError
            If the model's parameters are others than the checkpoint's.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "content"
            file.write_bytes(self.parameters)
            contexts = next(iter(model.collect_params().values())).list_ctx()
            try:
                model.load_parameters(str(file), ctx=contexts)
            except (AssertionError, ValueError) as error:
                raise CheckpointError(f"{self.path}: does not fit the model: {error}") from error
            if trainer is not None:
                file.write_bytes(self.trainer)
                trainer.load_states(str(file))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of `path` when it is whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
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
    with tempfile.TemporaryDirectory() as folder:
        parameters, states = Path(folder) / PARAMETERS, Path(folder) / TRAINER
        model.save_parameters(str(parameters))
        trainer.save_states(str(states))
        content = {
            STATE: json.dumps({"format": FORMAT, **state}, indent=1).encode(),
            VOCAB: vocab.to_json().encode(),
            PARAMETERS: parameters.read_bytes(),
            TRAINER: states.read_bytes(),
        }
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, value in content.items():
            archive.writestr(zipfile.ZipInfo(name), value)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    CheckpointError
        If there is none at `path`, or it is damaged or of another format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in (STATE, VOCAB, PARAMETERS, TRAINER)}
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise CheckpointError(f"{path}: not a whole checkpoint: {error}") from error
    try:
        state = json.loads(content[STATE])
        if state.pop("format", None) != FORMAT:
            raise CheckpointError(f"{path}: written in a format that this version does not read")
        vocab = gluonnlp.Vocab.from_json(content[VOCAB].decode())
    except (AttributeError, KeyError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: not a whole checkpoint: {error}") from error
    return Checkpoint(Path(path), state, vocab, content[PARAMETERS], content[TRAINER])
