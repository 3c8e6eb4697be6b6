"""Text files of samples: their lines, and errors that name file, line and reason."""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple


class DataError(ValueError):
    """A file that cannot be used; the message names file, line and reason.

    Attributes
    ----------
    path : Path
    line : int
        1-based; 0 where the whole file is meant.
    reason : str
    """

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{Place(path, line)}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class Place(NamedTuple):
    """A line of a file, from 1; line 0 is the whole file."""

    path: Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    def error(self, reason: str) -> DataError:
        """Make the error that names this place."""
        return DataError(self.path, self.line, reason)


def read_lines(path: Path) -> List[str]:
    """Read the lines of a UTF-8 file, whichever system's line ends it has.

    Raises
    ------
    DataError
        If it cannot be read, or is not UTF-8 (naming the line).
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(path, 0, error.strerror or str(error)) from error
    return split_lines(content, path)


def split_lines(content: bytes, path: Path) -> List[str]:
    """Decode UTF-8 and cut it into lines; `path` is for the error's message."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "not UTF-8") from error
    # Not splitlines(): it also breaks at characters such as U+0085 that may stand in a word.
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines
