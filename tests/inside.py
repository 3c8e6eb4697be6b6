"""What tests ask of the inside of the package, each in one function: only here by private names.

A redesign that keeps the contracts changes this file, and no test.  Each function is for a promise
that nobody can see from outside: what is freed, how much is held, what MXNet still knows.
"""

import gc
import time
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from gluon_dynbatch import auto, flush, handle, rules
from gluon_dynbatch import scope as scopes
from gluon_dynbatch.cache import SizedCache
from gluon_dynbatch.kernel import express
from gluon_dynbatch.lower import expand
from gluon_dynbatch.native import assembling, executing, recording
from gluon_dynbatch.record import constants, pieces
from gluon_dynbatch.run import buffers, direct, execute, gradient, keep, prepare
from gluon_dynbatch.run.engine import FLIGHT, Flight
from gluon_dynbatch.scope import RUNTIME
from gluon_dynbatch.serve import wires, worker
from gluon_dynbatch.trace import entry
from gluon_dynbatch.trace.entry import Entry


def forget_plans():
    """Forget all plans, and with them the cells that they run."""
    RUNTIME.plans.clear()


def bytes_of_plans():
    """Return how many bytes the cache counts for the plans that it keeps."""
    return RUNTIME.plans.bytes


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


def allocated_arenas(monkeypatch):
    """Return a list that gets the shapes of arenas which are allocated until the test ends."""
    shapes, take = [], buffers.POOL.take

    def noted(shape, *others):
        shapes.append(shape)
        return take(shape, *others)

    monkeypatch.setattr(buffers.POOL, "take", noted)
    return shapes


def bytes_of_spare_arenas():
    """Return the bytes of arenas that later flushes with the same plans use again."""
    return recording.spare_arena_bytes()


def free_spare_arenas():
    """Free these, and lazy arrays that are used again."""
    recording.free_spares()


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


def limit_results(monkeypatch, most):
    """Let calls run at once whose results have more bytes."""
    monkeypatch.setattr(entry, "MOST_RESULT_BYTES", most)


def change_reference(monkeypatch, change):
    """Add a number to all values that ``debug=True`` compares those of launches with."""
    original = flush.run_alone

    def run_alone(*args, **options):
        execution = original(*args, **options)
        for arena in execution.arenas.arrays:
            arena[:] += change
        return execution

    monkeypatch.setattr(flush, "run_alone", run_alone)


def known_operators():
    """Return how many operators are known, each with its attributes; and all entries of calls."""
    gc.collect()
    return len(RUNTIME.library.operators), sum(type(each) is Entry for each in gc.get_objects())


def gather(target, arrays, pieces):
    """Write pieces of arrays as on a device whose memory native code cannot reach."""
    buffers._write_by_operators(target, arrays, pieces)


#: Limits that tests change, so that few calls reach them; and where they are.
LIMITS = {
    "bytes of kept values": (scopes, "MOST_KEPT"),
    "bytes of arenas of earlier scopes": (scopes, "MOST_WAITING"),
    "edges between callees": (expand, "MOST_EDGES"),
    "elements of a small chunk": (recording, "SMALLEST_CHUNK"),
    "elements of a large chunk": (recording, "LARGEST_CHUNK"),
    "units of a plan with a bound": (handle, "MANY_UNITS"),
    "work that runs ahead": (auto, "WORK_AHEAD"),
    "runs that may be lost by traces": (pieces, "MOST_LOST"),
    "seconds for slow readers": (wires, "PATIENCE_S"),
}
#: What copies and computes values in ways of its own in memory that native code cannot reach: what
#: it asks, and the answer there.
READERS_OF_MEMORY = {
    "constants": (constants, "in_host_memory", False),
    "kernels": (express, "in_host_memory", False),
    "programs": (prepare, "in_host_memory", False),
    "buffers": (buffers, "in_host_memory", False),
    "results": (keep, "elements_in", None),
}


def limit(monkeypatch, name, value):
    """Change a limit."""
    monkeypatch.setattr(*LIMITS[name], value)


def without_host_memory(monkeypatch, *readers):
    """Let these readers run as on a device whose memory native code cannot reach."""
    for reader in readers:
        module, asked, answer = READERS_OF_MEMORY[reader]
        monkeypatch.setattr(module, asked, lambda *_, answer=answer: answer)


def with_new_plans(monkeypatch, native=True):
    """Use no known plan, and keep none; only MXNet's operators if not `native`."""
    monkeypatch.setattr(RUNTIME, "plans", SizedCache(1 << 20))
    monkeypatch.setattr(RUNTIME.dispatcher.kernels, "native", native)


def without_reports_of_failures(monkeypatch):
    """Run as if native code had no way to report a failure to the engine."""
    monkeypatch.setattr(executing, "can_fail", lambda: False)


def with_earlier_work(monkeypatch, notices):
    """Run as if the last flush of each thread had these notices."""
    monkeypatch.setattr(Flight, "last", notices)


def pushes_here(monkeypatch):
    """Return a list that collects, per push of a forward program, whether the thread runs it."""
    pushed, push = [], execute.push

    def noting(program, bases, name, low, high, forward, notice, here):
        if forward:
            pushed.append(here)
        push(program, bases, name, low, high, forward, notice, here)

    monkeypatch.setattr(execute, "push", noting)
    return pushed


def interrupt_after_flush(monkeypatch):
    """Let an interrupt come when a flush under ``record`` has just ended."""
    set_mode = scopes.set_mode

    def interrupted(mode):
        set_mode(mode)
        if mode:
            monkeypatch.setattr(scopes, "set_mode", set_mode)
            raise KeyboardInterrupt

    monkeypatch.setattr(scopes, "set_mode", interrupted)


def with_wrong_rule(monkeypatch, op, wrong_attrs):
    """Let rules append one operator with wrong attributes."""
    merge = rules.merge

    def merge_wrongly(site, stacked, inputs, append):
        def append_wrongly(name, refs, attrs):
            return append(name, refs, {**attrs, **wrong_attrs} if name == op else attrs)

        return merge(site, stacked, inputs, append_wrongly)

    monkeypatch.setattr(rules, "merge", merge_wrongly)


class EqualRows(NamedTuple):
    """What a program does with rows that are known to be equal."""

    forward: bool
    #: Per launch on distinct rows of its input, the keys that tell which rows are equal.
    keys: list
    #: Number of launches on distinct rows, and of those of which only the products are.
    launches: int
    products: int
    #: Number of operands whose distinct rows are looked up in a table; of rows not gathered at all.
    looked_up: int
    not_gathered: int


def equal_rows_of_programs(monkeypatch):
    """Return a list that collects what each program that is made does with equal rows."""
    assemble, found = prepare.assemble, []

    def noting(assembler):
        program = assemble(assembler)
        if isinstance(assembler, assembling.Forward):
            distinct = assembler.distinct
            keys = [np.reshape(assembler.keys_of(number, 0), (-1, 5)) for number in distinct]
            counts = (distinct, assembler.apart, assembler.looked_up, assembler.unneeded)
            found.append(EqualRows(True, keys, *map(len, counts)))
        else:
            found.append(EqualRows(False, [], len(assembler.distinct), 0, 0, 0))
        return program

    monkeypatch.setattr(prepare, "assemble", noting)
    return found


def clock_of_batchers(monkeypatch):
    """Return a list with the seconds by which the clock of batchers' workers is ahead."""
    ahead = [0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(worker, "time", clock)
    return ahead


def break_connection(remote):
    """Break the connection of a remote batcher, as the end of its process would."""
    remote._transport.abort()
