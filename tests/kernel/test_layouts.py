"""Steps, records and tables are written as words where native code has their members."""

import numpy as np
import pytest

from gluon_dynbatch.kernel.layout import (
    CHECKED,
    DESCENDING,
    OF_DATA,
    WRAP,
    Columns,
    Dot,
    Index,
    Maps,
    Order,
    Ranking,
    Slot,
    Weight,
)
from gluon_dynbatch.kernel.step import (
    PACKED,
    RECTIFIED,
    Access,
    Convolved,
    Dots,
    Indexed,
    Instruction,
    Pointwise,
    Product,
    Ranked,
    Slots,
)
from gluon_dynbatch.native import assembling, executing, planning
from gluon_dynbatch.native.executing import CODES, DTYPES, LAYOUTS
from gluon_dynbatch.plan import launch

LEFT, RIGHT, RESULT, BIAS = (Columns(Slot("in", n), 10 + n) for n in range(4))
PLACES = {LEFT: (0, 10), RIGHT: (1, 11), RESULT: (2, 12), BIAS: (3, 13)}
WEIGHT = Weight(BIAS, 31, 32, transposed=True)
TABLE = Weight(RIGHT, 33, 34, transposed=False, gathered=WRAP)
MAPS = Maps(OF_DATA, 21, 22, 23, 24, (25, 26), (27, 28), (29, 30), (31, 32), (33, 34), (35, 36))

#: A step, its struct, and the value of each member; places by what they are places of.
STEPS = [
    (
        Product(LEFT, WEIGHT, RESULT, BIAS, adds=True, parts=7, dtype="float64"),
        "product",
        dict(left=LEFT, matrix=(4, 0), result=RESULT, bias=BIAS, table_rows=31, inputs=32, units=31,
             parts=7, accumulate=1, matrix_is=0, transposed=1, mode=0),
    ),
    (
        Product(LEFT, TABLE, RESULT, None, adds=False, parts=5, dtype="float32"),
        "product",
        dict(left=LEFT, matrix=RIGHT, result=RESULT, bias=(-1, 0), table_rows=33, inputs=1,
             units=34, parts=5, accumulate=0, matrix_is=0, transposed=0, mode=1),
    ),
    (
        Dots(LEFT, RIGHT, RESULT, Dot(41, 42, 43, 44, (True, False), 1), "float32"),
        "dots",
        dict(left=LEFT, right=RIGHT, result=RESULT, matrices=41, m=42, k=43, n=44, transpose_left=1,
             transpose_right=0, gradient=1),
    ),
    (
        Convolved(LEFT, RIGHT, RESULT, BIAS, MAPS, "float32", BIAS, RECTIFIED, True),
        "convolved",
        dict(left=LEFT, right=RIGHT, result=RESULT, bias=BIAS, added=BIAS, function=2,
             passes_on=1, kept=0,
             **{f"maps.{name}": value for name, value in MAPS._asdict().items()}),
    ),
    (
        Indexed(LEFT, RIGHT, RESULT, Index(51, (52, 53), 54, 55, CHECKED, False, True), 2, "int64"),
        "indexed",
        dict(source=LEFT, index=RIGHT, result=RESULT, operation=2, mode=2, outer=51, number=54,
             inner=55, each=0, lenient=1, axes=2),
    ),
    (
        Ranked(LEFT, RESULT, Ranking(61, 62, 63, 64, DESCENDING), "float64"),
        "ranked",
        dict(source=LEFT, result=RESULT, order=DESCENDING, outer=61, count=62, inner=63, number=64),
    ),
]  # fmt: skip


def numbered():
    """Return slots with the numbers of `PLACES`."""
    slots = Slots()
    for place in PLACES:
        slots.encode(place)
    return slots


def read(words, struct, start=0):
    """Return the members of a struct in some words: numbers, or tuples of several."""
    members = {}
    for name, (offset, size) in LAYOUTS[struct].items():
        first = start + offset
        members[name] = words[first] if size == 1 else tuple(words[first : first + size])
    return members


def end_of(struct):
    return max(offset + size for offset, size in LAYOUTS[struct].values())


@pytest.mark.parametrize(("step", "struct", "values"), STEPS)
def test_members_of_steps_are_where_c_has_them(step, struct, values):
    words = step.words(numbered(), matrices=PACKED)
    assert read(words, struct) == {name: PLACES.get(x, x) for name, x in values.items()}
    head = read(words, "step")
    assert (head["words"], head["dtype"]) == (len(words), DTYPES[step.dtype])
    rest = (52, 53) if struct == "indexed" else ()  # the sizes of the axes follow
    assert tuple(words[end_of(struct) :]) == rest


def test_the_parts_of_a_loop_are_where_c_has_them():
    loads = Access(5, LEFT, "broadcast", step=4), Access(6, None, "row", 1.5)
    stores = (Access(7, RESULT, Order([2, 0, 1])),)
    instructions = (Instruction("clip", 7, (5,), (-1.0, 1.0)),)
    step = Pointwise(3, "float32", 8, loads, instructions, stores, parts=2)
    words = step.words(numbered(), matrices=PACKED)
    counts = dict(width=3, parts=2, registers=8, n_loads=2, n_stores=1, n_instructions=1)
    assert read(words, "loop") == counts
    at = end_of("loop")
    for register, place, mode in ((5, PLACES[LEFT], 1), (6, (-1, 0), 0), (7, PLACES[RESULT], 2)):
        access = read(words, "access", at)
        assert (access["reg"], access["place"], access["mode"]) == (register, place, mode)
        assert access["step"] == (4 if register == 5 else 0)
        at += end_of("access")
    order = access["order"]
    instruction = read(words, "instruction", at)
    members = [instruction[name] for name in ("code", "target", "a")]
    assert members == [CODES["clip"][0], 7, 5]
    assert order == at + end_of("instruction") == len(words) - 2


def test_members_of_records_are_where_c_has_them():
    """Cython writes them by the names of their members."""
    table = np.array([[planning.ADD, 4, 5, 6, 7], [planning.ZERO, 8, 9, 10, 11]])
    words = assembling.code_of_pieces("float64", table, 100, 2, 3).words
    found = dict(record=executing.ROWS, dtype=DTYPES["float64"], element_size=8)
    unknown = dict(in_order=0, elements=0, end=0)  # until the program is made
    assert read(words, "rows_record") == dict(found, count=2, target=(2, 3), **unknown)
    first, second = end_of("rows_record"), end_of("rows_record") + end_of("piece")
    assert read(words, "piece", first) == dict(
        operation=planning.ADD, target=4, source=(105, 48), count=7
    )
    assert read(words, "piece", second) == dict(
        operation=planning.ZERO, target=8, source=(109, 80), count=11
    )
    assert len(words) == second + end_of("piece")


def test_columns_of_tables_are_where_native_code_has_them():
    columns = launch.TYPE, launch.FIRST, launch.SECOND, launch.ROWS, launch.ROW_SIZE
    assert dict(zip(planning.PLACE, columns)) == dict(what=0, first=1, second=2, rows=3, row_size=4)
    assert launch.CopiedPiece._fields == planning.PIECE
    assert len(launch.empty_places([1], [1])[0]) == len(planning.PLACE)
