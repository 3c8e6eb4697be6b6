"""Checkpoints: everything needed to go on, in one file that is either whole or not there.

A checkpoint is a line that names the format and a checksum, a line of JSON, and the bytes of all
arrays end to end. Nothing but numbers, texts and arrays is ever read from it, so whoever wrote it,
reading it runs no code. One file, because one `os.replace` puts it in place: an interruption at any
moment leaves the previous checkpoint or the new one, never half of each.

Random numbers need no place in it: every epoch seeds its generators from (seed, epoch), so that
a resumed run draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Tuple

import gluonnlp
import mxnet as mx
import numpy as np
from mxnet import gluon

from .progress import CheckpointError, conform, restore_trainer, trainer_progress

FORMAT = 3
FIRST_LINE = re.compile(rb"gluon_dynbatch checkpoint ([0-9]{1,9}) ([0-9a-f]{64})\n")
OLDER = b"PK\x03\x04"  # how formats 1 and 2 begin, which are zip archives
MAX_HEADER = 1 << 28  # bytes
DTYPES = ("float16", "float32", "float64", "int32", "int64")
HEADER = {
    "state": dict,
    "vocab": [str],
    "parameters": dict,
    "trainer": dict,
    "arrays": [{"dtype": str, "shape": [int]}],
    "sha256": str,
}


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
        What `trainer_progress` made.
    """

    path: Path
    state: Dict[str, Any]
    vocab: gluonnlp.Vocab
    parameters: Dict[str, np.ndarray]
    trainer: Dict[str, Any]

    def expect(self, like: Dict[str, Any]) -> None:
        """Check what `state` holds; see `conform`.

        Raises
        ------
        CheckpointError
        """
        with self._named():
            conform(self.state, like, "state")

    def check(self, model: gluon.Block) -> None:
        """Check that a model, initialized or not, has the checkpoint's parameters.

        Raises
        ------
        CheckpointError
            If a name, a shape or a dtype differs.
        """
        wanted = model._collect_params_with_prefix()
        for name in sorted({*wanted, *self.parameters}):
            parameter, array = wanted.get(name), self.parameters.get(name)
            if parameter is None or array is None:
                whose = "the model" if array is None else "the checkpoint"
                raise self._misfit(f"only {whose} has a parameter {name}")
            there = (tuple(parameter.shape), np.dtype(parameter.dtype).name)
            if (array.shape, array.dtype.name) != there:
                raise self._misfit(
                    f"{name} is {array.dtype} {array.shape}, in the model {there[1]} {there[0]}"
                )

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
            with self._named():
                restore_trainer(model, trainer, self.trainer)

    def _misfit(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: does not fit the model: {reason}")

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from None


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
    parameters = model._collect_params_with_prefix()
    arrays: List[np.ndarray] = []
    content = {
        "state": state,
        "vocab": list(vocab.idx_to_token),
        "parameters": _packed({n: p.data(p.list_ctx()[0]) for n, p in parameters.items()}, arrays),
        "trainer": _packed(trainer_progress(model, trainer), arrays),
    }
    write_content(path, content, arrays)


def write_content(path: Path, content: Dict[str, Any], arrays: List[np.ndarray]) -> None:
    """Write the JSON and the arrays of a checkpoint, with their checksums."""
    data = b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)
    content = {
        **content,
        "arrays": [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays],
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    header = json.dumps(content).encode() + b"\n"
    checksum = hashlib.sha256(header).hexdigest()
    with whole_file(path) as file:
        file.write(f"gluon_dynbatch checkpoint {FORMAT} {checksum}\n".encode())
        file.write(header)
        file.write(data)


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
            content, arrays = _read(file)
        parameters, trainer = (_unpacked(content[key], arrays) for key in ("parameters", "trainer"))
        if not all(isinstance(array, np.ndarray) for array in parameters.values()):
            raise CheckpointError("not a whole checkpoint: a parameter is no array")
        return Checkpoint(path, content["state"], _vocab(content["vocab"]), parameters, trainer)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (RecursionError, MemoryError) as error:
        reason = type(error).__name__
        raise CheckpointError(f"{path}: not a whole checkpoint: {reason}") from None


def _read(file: BinaryIO) -> Tuple[Dict[str, Any], List[np.ndarray]]:
    """Read header and arrays, no part of them before its checksum and its size are right."""
    first = file.readline(200)
    if first.startswith(OLDER):
        raise CheckpointError(
            "written by an older version, whose checkpoints could run code when they were read; "
            "train anew"
        )
    match = FIRST_LINE.fullmatch(first)
    if match is None:
        raise CheckpointError("not a whole checkpoint: its first line is another")
    if int(match.group(1)) != FORMAT:
        number = int(match.group(1))
        raise CheckpointError(f"written in format {number}; this version reads format {FORMAT}")
    header = file.readline(MAX_HEADER)
    if hashlib.sha256(header).hexdigest().encode() != match.group(2):
        raise CheckpointError("not a whole checkpoint: the checksum of its second line is wrong")
    try:
        content = json.loads(header, parse_constant=_refuse_constant)
    except ValueError as error:
        raise CheckpointError(f"not a whole checkpoint: {error}") from None
    conform(content, HEADER, "checkpoint")
    sizes = [_size(array) for array in content["arrays"]]
    if sum(sizes) != os.fstat(file.fileno()).st_size - file.tell():
        raise CheckpointError("not a whole checkpoint: its size is not that of its arrays")
    data = file.read()
    if hashlib.sha256(data).hexdigest() != content["sha256"]:
        raise CheckpointError("not a whole checkpoint: the checksum of its arrays is wrong")
    arrays, end = [], 0
    for array, size in zip(content["arrays"], sizes):
        start, end = end, end + size
        dtype = np.dtype(array["dtype"])
        stored = np.frombuffer(data[start:end], dtype.newbyteorder("<")).astype(dtype)
        arrays.append(stored.reshape(array["shape"]))
    return content, arrays


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _size(array: Dict[str, Any]) -> int:
    """Return the number of bytes of an array as the header describes it."""
    if array["dtype"] not in DTYPES:
        raise CheckpointError(f"not a whole checkpoint: an array of {array['dtype']!r}")
    if not array["shape"] or 0 in array["shape"] or len(array["shape"]) > 32:
        raise CheckpointError("not a whole checkpoint: an array of no size")
    return int(np.dtype(array["dtype"]).itemsize * math.prod(array["shape"]))


def _packed(value: Any, arrays: List[np.ndarray]) -> Any:
    """Give a tree as JSON takes it; its arrays go into the list, their numbers into the tree."""
    if isinstance(value, mx.nd.NDArray):
        arrays.append(value.asnumpy())
        return {"array": len(arrays) - 1}
    if isinstance(value, dict):
        return {key: _packed(item, arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(item, arrays) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _unpacked(value: Any, arrays: List[np.ndarray]) -> Any:
    """Put the arrays back into a tree."""
    if isinstance(value, list):
        return [_unpacked(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if list(value) == ["array"] and type(value["array"]) is int:
        if not 0 <= value["array"] < len(arrays):
            raise CheckpointError(f"not a whole checkpoint: it has no array {value['array']}")
        return arrays[value["array"]]
    return {key: _unpacked(item, arrays) for key, item in value.items()}


def _vocab(tokens: List[str]) -> gluonnlp.Vocab:
    """Make the vocabulary with these words in this order, the one for unknown words first."""
    if not tokens or not tokens[0] or len(set(tokens)) != len(tokens):
        raise CheckpointError("not a whole checkpoint: its vocabulary is empty or repeats a word")
    # Words are numbered by frequency.
    counter = gluonnlp.data.Counter({word: -i for i, word in enumerate(tokens, -len(tokens))})
    return gluonnlp.Vocab(
        counter,
        unknown_token=tokens[0],
        padding_token=None,
        bos_token=None,
        eos_token=None,
    )
