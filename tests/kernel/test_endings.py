"""What a convolution does last with its result, or passes on, is what steps one by one would do."""

import numpy as np
import pytest

from gluon_dynbatch.kernel.endings import with_endings
from gluon_dynbatch.kernel.layout import Columns, Maps, Slot
from gluon_dynbatch.kernel.step import AS_IT_IS, RECTIFIED, RELU, Convolved, Kernel, SlotArray
from tests.kernel.native import launch

MXNET_DRAWS = False

#: By tiles, directly with maps as lanes, and with positions as lanes.
MAPS = (
    Maps.of_sizes(1, 1, 16, 17, (9, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    Maps.of_sizes(2, 2, 6, 34, (5, 4), (2, 2), (2, 1), (1, 1), (0, 1)),
    Maps.of_sizes(2, 1, 3, 4, (11, 9), (1, 1), (1, 1), (1, 1), (0, 0)),
)
RESULTS = {
    AS_IT_IS: lambda x: x,
    RELU: lambda x: np.where(x <= 0, 0, x),
    RECTIFIED: lambda x: np.where(x > 0, x, 0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", RESULTS)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.usefixtures("instruction_set")
def test_endings_equal_numpy(maps, adds, function, dtype):
    """To the last bit, and for numbers that are not finite."""
    rng, rows = np.random.default_rng(1), 3
    sizes = (
        (rows, maps.images * maps.groups * maps.channels * int(np.prod(maps.data))),
        (maps.groups * maps.filters * maps.channels * int(np.prod(maps.kernel)),),
        (maps.groups * maps.filters,),
        (rows, maps.width),
    )
    data, kernel, bias, added = (rng.standard_normal(size).astype(dtype) for size in sizes)
    data[1, ::7], added[2, ::5], added[2, 1::5] = np.nan, np.inf, np.nan
    slots = [Slot("in", i) for i in range(4)]
    x, w, b, a = map(Columns, slots)

    def run(*ending):
        result = np.full((rows, maps.width), np.nan, dtype)
        step = Convolved(x, w, Columns(Slot("out", 0)), b, maps, dtype, *ending)
        arrays = dict(zip((*slots, Slot("out", 0)), (data, kernel, bias, added, result)))
        launch([step], {slot: array for slot, array in arrays.items() if adds or slot != slots[3]},
               rows)  # fmt: skip
        return result

    plain = run()
    wanted = RESULTS[function](plain + added if adds else plain).astype(dtype)
    np.testing.assert_array_equal(run(a if adds else None, function), wanted)


def of_maps(*counts, data=(14, 14), kernel=(3, 3), images=1, groups=1):
    """Return the sizes of convolutions that keep the sizes of maps, from one number to the next."""
    reach = kernel[0] // 2, kernel[1] // 2
    return [
        Maps.of_sizes(images, groups, before, after, data, kernel, (1, 1), (1, 1), reach)
        for before, after in zip(counts, counts[1:])
    ]


#: Chains by tiles, of several vectors of maps, of odd sizes, of several images, longer than one may
#: be, and with a convolution that is none: of other sizes, or of other maps than those before it.
CHAINS = {
    "module": of_maps(16, 16, 16),
    "wide": of_maps(19, 37, 18, 20, data=(9, 11)),
    "images": of_maps(16, 17, 16, data=(8, 13), images=2),
    "long": of_maps(*[16] * 12, data=(6, 8)),
    "mixed": of_maps(16, 16, data=(9, 9)) + of_maps(16, 16, data=(9, 9), kernel=(5, 5)),
    "groups": of_maps(16, 16, data=(8, 8)) + of_maps(16, 16, data=(8, 8), groups=2),
    "seen otherwise": of_maps(16, 16, data=(8, 8)) + of_maps(4, 16, data=(16, 16)),
}


def chain_of(maps, function, adds):
    """Return the convolutions of a chain, of which the last may add the data, and their arrays.

    It adds the data only if these are as wide as the result.
    """
    rng, steps, arrays = np.random.default_rng(2), [], {}
    x = Slot("in", 0)
    width = maps[0].images * maps[0].groups * maps[0].channels * int(np.prod(maps[0].data))
    arrays[x] = rng.standard_normal((3, width))
    for number, each in enumerate(maps):
        right, bias = Slot("in", 2 * number + 1), Slot("in", 2 * number + 2)
        is_last = number == len(maps) - 1
        result = Slot("out", 0) if is_last else Slot("work", number)
        size = each.groups * each.filters * each.channels * int(np.prod(each.kernel))
        arrays[right] = rng.standard_normal(size) / np.sqrt(9 * each.channels)
        arrays[bias] = rng.standard_normal(each.groups * each.filters)
        arrays[result] = np.full((3, each.width), np.nan)
        places = Columns(x), Columns(right), Columns(result), Columns(bias)
        added = Columns(Slot("in", 0)) if adds and is_last and each.width == width else None
        steps.append(Convolved(*places, each, "", added, function))
        x = result
    return steps, arrays


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", RESULTS)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.usefixtures("instruction_set")
def test_chains_equal_convolutions_one_by_one(name, adds, function, dtype):
    """To the last bit, and for numbers that are not finite."""
    maps = CHAINS[name]
    steps, arrays = chain_of(maps, function, adds)
    steps = [step._replace(dtype=dtype) for step in steps]
    arrays = {slot: array.astype(dtype) for slot, array in arrays.items()}
    arrays[Slot("in", 0)][1, ::7], arrays[Slot("in", 0)][2, 5] = np.nan, np.inf
    sizes = {
        slot: SlotArray(array.shape[-1], dtype, array.ndim == 1) for slot, array in arrays.items()
    }
    passing = with_endings(Kernel(tuple(steps), sizes), frozenset()).steps
    assert [step.passes_on for step in passing] == [True] * (len(steps) - 1) + [False]
    results = []
    for each in (steps, passing):
        own = {slot: array.copy() for slot, array in arrays.items()}
        launch(each, own, 3)
        results.append(own[Slot("out", 0)])
    np.testing.assert_array_equal(*results)
    assert np.isfinite(results[0][0]).all()


def test_what_others_read_is_not_passed_on():
    """Neither what is saved for the backward pass, nor what a later step reads."""
    steps, arrays = chain_of(CHAINS["wide"], RELU, adds=False)
    steps = [step._replace(dtype="float32") for step in steps]
    sizes = {
        slot: SlotArray(array.shape[-1], "float32", array.ndim == 1)
        for slot, array in arrays.items()
    }

    def passes(steps, used=frozenset()):
        return [s.passes_on for s in with_endings(Kernel(tuple(steps), sizes), used).steps]

    work = [Slot("work", 0), Slot("work", 1)]
    assert passes(steps) == [True, True, False]
    assert passes(steps, frozenset(work[:1])) == [False, True, False]
    later = [*steps[:2], steps[2]._replace(added=Columns(work[0]))]
    assert passes(later) == [False, True, False]
