"""What tests ask of the inside of the package, each in one function: only here by private names.

A redesign that keeps the contracts changes this file, and no test.  Each function is for a promise
that nobody can see from outside: what is freed, how much is held, what MXNet still knows.
"""

import gc

from gluon_dynbatch.cache import SizedCache
from gluon_dynbatch.run import buffers, direct, gradient
from gluon_dynbatch.run.engine import FLIGHT
from gluon_dynbatch.scope import RUNTIME
from gluon_dynbatch.trace.entry import Entry


def forget_plans():
    """Forget all plans, and with them the cells that they run."""
    RUNTIME.plans.clear()


def nodes_of_mxnets_tape():
    """Return the numbers of the nodes that the package has on MXNet's tape and are not freed."""
    return set(gradient._ALIVE)


def as_before_the_first_scope(monkeypatch):
    """Let a test run as if no node was on MXNet's tape; return what puts the others back."""
    alive = gradient._ALIVE
    monkeypatch.setattr(gradient, "_ALIVE", {})
    return lambda: alive.update(gradient._ALIVE)  # MXNet still has the addresses of both


def unfinished_flushes():
    """Return per flush that a thread counts as unfinished the number of its notices."""
    return list(map(len, FLIGHT._flushes))


def owner_of(lazy):
    """Return what has the value of a lazy array: a tape, a constant, or arenas."""
    return lazy._owner


def arenas_of(scope):
    """Return the arenas of which an open scope still holds values."""
    return scope._still_kept()


def run_ahead(scope):
    """Compute the pending calls of an open scope."""
    scope.unrecorded(scope._compute)


def kept_heads():
    """Return how many arrays of ones are kept for backward passes."""
    return len(direct._ONES)


def pieces_of(block):
    """Return the cache of the pieces of a block that is traced once; None without."""
    return None if block._pieces is None else block._pieces.held


def limit_pieces(block, capacity):
    """Give a block that is traced once a cache of so many bytes."""
    block._pieces.held = SizedCache(capacity)


def limit_entries(monkeypatch, most):
    """Let the process keep at most twice so many entries of calls."""
    monkeypatch.setattr(RUNTIME.library, "_most", most)


def known_operators():
    """Return how many operators are known, each with its attributes; and all entries of calls."""
    gc.collect()
    return len(RUNTIME.library.operators), sum(type(each) is Entry for each in gc.get_objects())


def gather(target, arrays, pieces):
    """Write pieces of arrays as on a device whose memory native code cannot reach."""
    buffers._write_by_operators(target, arrays, pieces)
