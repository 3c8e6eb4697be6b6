"""Buffers are used again once nobody holds them, and never before."""

import mxnet as mx
import numpy as np
import pytest

from gluon_dynbatch.run import pool
from gluon_dynbatch.run.buffers import address_of, allocate

SHAPE = (512, 200)


@pytest.fixture
def take():
    buffers = pool.Pool(allocate)
    return lambda shape=SHAPE, dtype="float32": buffers.take(shape, dtype, mx.cpu())


def test_what_is_held_is_not_used_again(take):
    first = take()
    first[:] = 1
    view = first[3:5]
    second = take()
    second[:] = 2
    assert first.asnumpy().max() == 1
    del first, second
    third, fourth = take(), take()
    third[:], fourth[:] = 3, 4
    np.testing.assert_array_equal(view.asnumpy(), np.ones((2, 200)))
    assert third.asnumpy().max() == 3


def test_what_the_engine_still_reads_comes_first(take):
    sums = []
    for number in range(50):
        array = take()
        array[:] = number
        for _ in range(3):
            array += 1
        sums.append(array.sum())
        del array
    assert [one.asscalar() / (512 * 200) for one in sums] == [n + 3 for n in range(50)]


def test_what_is_free_is_used_again_if_it_fits(take):
    array = take()
    place = address_of(array)
    del array
    assert address_of(take((500, 200))) == place
    assert take((500, 200)).shape == (500, 200)
    assert address_of(take((5000, 200))) != place
    assert address_of(take(dtype="float64")) != place


def test_little_is_kept(take, monkeypatch):
    monkeypatch.setattr(pool, "MOST_BYTES", 4 * 512 * 200 * 2)
    buffers = take.__closure__[0].cell_contents
    held = [take() for _ in range(5)]
    assert len(buffers._buffers) == 1 and len({address_of(one) for one in held}) == 5
    monkeypatch.setattr(pool, "MOST_IDLE", 3)
    for _ in range(9):
        take(dtype="float16")
    assert {buffer.key[0] for buffer in buffers._buffers} == {"float16"}
    buffers.clear()
    assert not buffers._buffers


def test_what_is_larger_than_all_that_may_stay_does_not(take, monkeypatch):
    monkeypatch.setattr(pool, "MOST_BYTES", 4 * 512 * 200 - 1)
    assert take().shape == SHAPE
    assert not take.__closure__[0].cell_contents._buffers
