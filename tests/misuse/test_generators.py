"""Scopes in generators, and generators in scopes."""

from __future__ import annotations

import gc

from mxnet.ndarray import register

import gluon_dynbatch as gdb
from gluon_dynbatch.record import STATE
from tests.misuse.common import array, equal

SAMPLES = [array(1, 4) * i for i in range(1, 6)]


INVOKE = register._imperative_invoke


def originals_are_back() -> bool:
    return register._imperative_invoke is INVOKE


def test_closing_a_generator_keeps_what_it_yielded(net):
    def outputs():
        with gdb.batching():
            for x in SAMPLES:
                yield net(x)

    wanted = [net(x) for x in SAMPLES]
    equal(list(outputs()), wanted)
    got = []
    generator = outputs()
    for y in generator:
        got.append(y)
        if len(got) == 2:
            break
    generator.close()
    assert STATE.batch is None and originals_are_back()
    equal(got, wanted[:2])


def test_dropping_a_generator_closes_its_scope(net):
    def outputs():
        with gdb.batching():
            for x in SAMPLES:
                yield net(x)

    generator = outputs()
    next(generator)
    del generator
    gc.collect()
    assert STATE.batch is None and originals_are_back()


def test_calls_beside_a_suspended_generator(net):
    """Recorded or not, their values are not lost with the generator's scope."""

    def outputs():
        with gdb.batching():
            yield net(SAMPLES[0])

    generator = outputs()
    next(generator)
    beside = net(SAMPLES[1])
    generator.close()
    equal([beside], [net(SAMPLES[1])])


def test_samples_from_a_generator(net):
    wanted = [net(x) for x in SAMPLES]
    equal(gdb.map(net, (x for x in SAMPLES)), wanted)
    with gdb.batching(granularity="block") as batch:
        got = list(map(net, (x for x in SAMPLES)))
    assert batch.report.launches == 1
    equal(got, wanted)
