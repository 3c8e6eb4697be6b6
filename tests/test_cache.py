"""The plan cache: by value, bounded by bytes, the least recently used forgotten first."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from gluon_dynbatch.cache import PlanCache

STEPS = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([0, 20, 30, 40, 90, 101])))


@given(STEPS, st.booleans())
def test_it_is_an_ordered_dictionary_of_so_many_bytes(steps, again):
    """What is made twice counts once; what is not worth it or too large is not kept."""
    cache, model = PlanCache(capacity=100), OrderedDict()
    for number, (key, size) in enumerate(steps):
        known = cache.find(key)
        assert known == (model[key][0] if key in model else None)
        if key in model:
            model.move_to_end(key)
        if known is None or again:
            cache.keep(key, f"made {number}", size)
            if 0 < size <= 100:
                model.pop(key, None)
                model[key] = f"made {number}", size
        while sum(size for _, size in model.values()) > 100:
            model.popitem(last=False)
        assert len(cache) == len(model)
        assert cache.bytes == sum(size for _, size in model.values())
    cache.clear()
    assert len(cache) == cache.bytes == 0 and cache.find("a") is None
