"""Streams of samples: a minibatch is recorded while the engine runs the previous one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Callable, Deque, Iterable, Iterator, List, Optional, Sized

from .block import batching
from .errors import Where
from .handle import Batch
from .options import check_count, check_names
from .record.where import user_line
from .samples.arguments import applier, iterator_of
from .samples.fibers import name_sample


def imap(
    fn: Callable[..., Any],
    samples: Iterable[Any],
    batch_size: int = 64,
    prefetch: int = 1,
    **scope_options: Any,
) -> Stream:
    """Apply a function to the samples of a stream, minibatch by minibatch.

    One minibatch is recorded while the previous one is computed.

    Parameters
    ----------
    fn : callable
        A block or a function of one sample, as for :func:`map`.
    samples : iterable
        A list, a file, a ``DataLoader`` of single samples, or an endless stream.
    batch_size : int or None, optional
        Number of samples in a minibatch; with None, all samples are one.
    prefetch : int, optional
        Number of minibatches, 0 or more, that are recorded ahead of the one whose results are
        being read.  ``prefetch + 1`` minibatches are in memory.
    **scope_options
        Options of :func:`batching`.

    Returns
    -------
    iterator
        Results in the order of the samples.  Reading an array waits until it is computed.  The
        iterator has a ``len`` if `samples` has one.  If a sample raises an exception, ``next``
        raises it in place of the result, with the number of the sample in its ``__cause__``.  The
        following ``next`` gives the next result.

    Raises
    ------
    ArgumentError, BudgetError, OptionError
        `fn` or an option cannot be used.

    Examples
    --------
    >>> numbers = (mx.nd.array([i]) for i in range(5))
    >>> [int(y.asscalar()) for y in gdb.imap(lambda x: x * x, numbers, batch_size=2)]
    [0, 1, 4, 9, 16]
    """
    check_count("batch_size", batch_size)
    check_count("prefetch", prefetch, minimum=0, or_none=False)
    apply, scope = applier(fn), batching(**check_names(scope_options, "imap"))
    length = len(samples) if isinstance(samples, Sized) else None
    return Stream(apply, iterator_of(samples), length, batch_size, prefetch, scope, user_line())


@dataclass(eq=False, repr=False)
class Stream:
    """The iterator that :func:`imap` returns."""

    _apply: Callable[[Any], Any]
    _samples: Iterator[Any]
    _length: Optional[int]
    _batch_size: int
    _prefetch: int
    _scope: Batch
    _place: Where
    #: Per minibatch, oldest first, the results not yet returned, in reverse order.
    _batches: Deque[List[Any]] = field(default_factory=deque)
    _next_number: int = 0
    #: The exception that ended the samples.
    _end: Optional[Exception] = None

    def __iter__(self) -> Stream:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the samples of this stream have no length")
        return self._length

    def __next__(self) -> Any:
        while len(self._batches) <= self._prefetch and self._end is None:
            self._run_minibatch()
        if not self._batches:
            assert self._end is not None
            raise self._end
        results = self._batches[0]
        result = results.pop()
        number, self._next_number = self._next_number, self._next_number + 1
        if not results:
            self._batches.popleft()
        if isinstance(result, Exception):
            name_sample(result, f"{number} of imap", self._place)
            raise result
        return result

    def _run_minibatch(self) -> None:
        """Record the next minibatch, and hand it to the engine."""
        minibatch: List[Any] = []
        try:
            # One by one: samples before an exception are not lost.
            for sample in islice(self._samples, self._batch_size):
                minibatch.append(sample)
            if len(minibatch) != self._batch_size:
                self._end = StopIteration()
        except Exception as error:
            self._end = error
        if minibatch:
            with self._scope as batch:
                outcomes = batch.map(self._apply, minibatch, on_error="return")
            self._batches.append(outcomes[::-1])
