"""The plan cache: by value, bounded by bytes, the least recently used forgotten first."""

import pytest

from gluon_dynbatch.cache import PlanCache


@pytest.fixture
def cache():
    return PlanCache(capacity=100)


def put(cache, key, size=30):
    return cache.get(key, lambda: f"made for {key}", lambda made: size)


def test_what_was_made_is_kept(cache):
    assert put(cache, "a") == ("made for a", False)
    assert cache.get("a", pytest.fail, pytest.fail) == ("made for a", True)
    assert len(cache) == 1 and cache.bytes == 30


def test_the_least_recently_used_is_forgotten_first(cache):
    for key in "abc":
        put(cache, key)
    put(cache, "a")
    put(cache, "d")
    assert [put(cache, key)[1] for key in "acd"] == [True, True, True]
    assert cache.bytes == 90
    assert put(cache, "b")[1] is False


@pytest.mark.parametrize("size", [0, 101])
def test_what_is_not_worth_it_or_too_large_is_not_kept(cache, size):
    put(cache, "a")
    assert put(cache, "b", size)[1] is put(cache, "b", size)[1] is False
    assert put(cache, "a")[1] is True and cache.bytes == 30


def test_one_large_thing_takes_the_place_of_several_small_ones(cache):
    for key in "abc":
        put(cache, key)
    put(cache, "d", 90)
    assert len(cache) == 1 and cache.bytes == 90


def test_two_threads_that_make_the_same_count_once(cache):
    def make():
        put(cache, "a")
        return "again"

    assert cache.get("a", make, lambda made: 30) == ("again", False)
    assert cache.bytes == 30 and put(cache, "a") == ("again", True)


def test_clear(cache):
    put(cache, "a")
    cache.clear()
    assert len(cache) == cache.bytes == 0 and put(cache, "a")[1] is False
