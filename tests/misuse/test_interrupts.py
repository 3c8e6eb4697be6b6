"""An interrupt may come at any instruction: what follows starts clean."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional

import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch import auto, flush
from gluon_dynbatch import scope as batch
from gluon_dynbatch.record import hazards, hooks, intercept, lazy, tape
from gluon_dynbatch.record import recorder as record
from gluon_dynbatch.run import chain, keep
from tests.cells import inputs
from tests.common import FIXED, assert_nothing_is_left, works

#: Every how many instructions there is an interrupt.
EVERY = 5
SAMPLES = inputs(3)


class Interrupt:
    """Raises ``KeyboardInterrupt`` at one instruction of some files; 0: only counts them."""

    def __init__(self, instruction: int, files: Any):
        self._instruction = instruction
        self._files = {module.__file__ for module in files}
        self.seen = 0

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self._before)

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.seen += 1
            if self.seen == self._instruction:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._step


def plain(net: Any) -> None:
    with gdb.batching(**FIXED):
        for x in SAMPLES:
            net(x)


def automatic(net: Any) -> None:
    with gdb.batching():
        for x in SAMPLES:
            net(x)


def training(net: Any) -> None:
    mode = autograd.record()
    mode.__enter__()
    try:
        with gdb.batching(**FIXED):
            losses = [net(x) for x in SAMPLES]
    finally:
        # MXNet's own, which does not outlive an interrupt of its beginning or end.
        autograd.set_recording(False)
        autograd.set_training(False)
    autograd.backward(losses)


def nested(net: Any) -> None:
    scope = gdb.batching(**FIXED)
    with scope:
        net(SAMPLES[0])
        with gdb.batching(), scope:
            net(SAMPLES[1])


@contextlib.contextmanager
def batched() -> Iterator[Any]:
    with gdb.batching(**FIXED) as scope:
        yield scope


def managed(net: Any) -> None:
    with batched():
        net(SAMPLES[0])
        gdb.map(net, SAMPLES[1:])


PROGRAMS = [plain, automatic, training, nested, managed]


def interrupted(
    program: Callable[[Any], None], net: Any, instruction: int, files: Any
) -> Optional[BaseException]:
    try:
        with Interrupt(instruction, files):
            program(net)
    except KeyboardInterrupt as error:
        # With its traceback, and the frames and scopes in it.
        return error
    return None


def sweep(program: Any, net: Any, files: Any, first: int, every: int) -> None:
    """Interrupt a program at instructions of some files, and look at what follows."""
    program(net)
    with Interrupt(0, files) as counter:
        program(net)
    struck = 0
    for instruction in range(first, counter.seen + 1, every):
        error = interrupted(program, net, instruction, files)
        struck += error is not None
        assert_nothing_is_left()
        if not struck % 4:
            works(net)
        del error
    works(net)
    # "auto" may choose another setting meanwhile, which takes fewer instructions.
    assert struck > 0.8 * (counter.seen // every) > 30 or program is automatic and struck > 10


@pytest.mark.parametrize("program", PROGRAMS)
def test_interrupts_as_a_scope_begins_and_ends(net, program):
    """Every fifth instruction, another one for each program; with an `EVERY` of 1, all."""
    sweep(program, net, (batch, intercept, hooks), 1 + PROGRAMS.index(program) % EVERY, EVERY)


@pytest.mark.parametrize("program", PROGRAMS)
def test_interrupts_in_mid_scope(net, program):
    """Not where a lock is held: Python takes no interrupt where ``with lock`` would not free it."""
    sweep(
        program,
        net,
        (auto, chain, flush, hazards, keep, lazy, record, tape),
        3,
        2 * EVERY - 1,
    )
