"""What a convolution does last with its result is what the steps after it would do."""

import numpy as np
import pytest

from gluon_dynbatch.kernel.layout import Columns, Maps, Slot
from gluon_dynbatch.kernel.step import AS_IT_IS, RECTIFIED, RELU, Convolved
from tests.kernel.native import launch

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
