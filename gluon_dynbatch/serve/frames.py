"""Messages between a batcher and a `RemoteBatcher`, as bytes of a socket.

A *frame* is a head (size of the content, kind, number of the request) and a pickled content.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, Iterator, Tuple, Union

from .. import errors
from .clients import for_client

#: Kinds of frames to a batcher: a request; its client went away, or has taken values; a question.
ASKED, LEFT, TAKEN, STATS = range(4)
#: Kinds of frames from a batcher: what a client has to know of it; values of a stream, and its end;
#: a result, and an error; and of many streams their numbers, values, and whether they have ended.
HELLO, YIELDED, FINISHED, RESULT, FAILED, NEWS = range(4, 10)
_HEAD = struct.Struct("=QBQ")


def frame(kind: int, number: int, content: Any = None) -> bytes:
    """Return a frame; raises what pickle raises."""
    data = b"" if content is None else pickle.dumps(content, 5)
    return _HEAD.pack(len(data), kind, number) + data


def frame_of_error(number: int, error: BaseException) -> bytes:
    """Return a frame with an error; one that cannot be pickled is described by another one."""
    sent = for_client(error)
    try:
        data = pickle.dumps(sent, 5)
        pickle.loads(data)  # some can be pickled, but not made again
    except Exception:
        message = f"the function raised {type(sent).__name__}: {sent}"
        advice = "raise an exception that can be pickled"
        data = pickle.dumps(errors.RequestError(message, advice=advice), 5)
    return _HEAD.pack(len(data), FAILED, number) + data


def unpacked(data: bytes) -> Any:
    """Return the content of a frame; raises what unpickling raises."""
    return pickle.loads(data) if data else None


class Frames:
    """Cuts what comes from a socket into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: Union[bytes, memoryview]) -> Iterator[Tuple[int, int, bytes]]:
        """Yield the kind, the number and the data of each frame that is complete."""
        rest, start = self._rest, 0
        rest += data
        try:
            while len(rest) >= start + _HEAD.size:
                size, kind, number = _HEAD.unpack_from(rest, start)
                end = start + _HEAD.size + size
                if len(rest) < end:
                    break
                content, start = bytes(rest[end - size : end]), end
                yield kind, number, content
        finally:
            del rest[:start]
