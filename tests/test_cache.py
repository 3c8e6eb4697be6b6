"""The plan cache: by value, bounded by bytes, the least recently used forgotten first."""

import pytest

from gluon_dynbatch.cache import PlanCache


@pytest.fixture
def cache():
    return PlanCache(capacity=100)


def put(cache, key, size=30):
    known = cache.find(key)
    if known is None:
        cache.keep(key, f"made for {key}", size)
    return known or f"made for {key}", known is not None


def test_what_was_made_is_kept(cache):
    assert put(cache, "a") == ("made for a", False)
    assert cache.find("a") == "made for a" and cache.find("b") is None
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


def test_what_is_made_twice_counts_once(cache):
    put(cache, "a")
    cache.keep("a", "again", 40)
    assert cache.bytes == 40 and put(cache, "a") == ("again", True)


def test_clear(cache):
    put(cache, "a")
    cache.clear()
    assert len(cache) == cache.bytes == 0 and put(cache, "a")[1] is False
