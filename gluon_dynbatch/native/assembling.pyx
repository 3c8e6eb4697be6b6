# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Assemble plans into programs: the records that `executing` runs.

`executing.pxd` describes the records.  `run/execute.py` finds the array of each base.
"""

cimport cython
from cpython.array cimport array, clone, resize_smart
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

import numpy

from . import executing
from .executing cimport (
    DISTINCT, LAUNCH, LOOK_UP, PACK, PICK, ROWS, TOTAL, Code, SumChunk, DistinctRecord, RowKey, Moved,
    PackRecord, gdb_piece, numbers_in, RowsRecord, Spot, SumRecord,
)
from .lowering cimport SegmentBrief
from .tables cimport ADD, COPY, NOTHING, SLICE, TOGETHER, WHOLE, ZERO, PieceRow, TableRow

cpdef enum:
    #: Uses of memory, by lifetime: a launch, one pass, and both passes of a flush.
    TEMPORARY, KEPT, SAVED

cdef enum:
    #: The kind of rows that native code copies and clears, but cannot add.
    COPIED = -1
    #: The number of kinds.
    TYPES = 4
    ALIGNMENT = 64
    #: What matrices are when a product begins: see `kernel.step.PACKED`.
    PACKED = 0
    PANELS = 1
    FEW = 2
    #: Up to so many rows, dot products with a matrix as it is take less time than packing it.
    FEW_ROWS = 8
    #: Up to so many rows of one launch, packing a matrix panel by panel takes less time than packing
    #: it before: the panels stay in the cache.
    MOST_ROWS_BY_PANELS = 64
    #: Operations that are pushed to the engine at once; its other work waits until they are done.
    MOST_PUSHED = 1000000000
    #: Bytes of an external array that are copied in the time in which the engine is told of one; and
    #: the most arrays that it is told of in the time in which memory for a copy is allocated.
    FEW_BYTES = 512
    FEW_ARRAYS = 16
    #: Bytes of temporary memory after which launches use it again from the beginning.
    MOST_TEMPORARY = 1 << 18

cdef array LONG = array("q")
cdef dict SIZES = {}


def itemsize(str dtype not None):
    """Return the bytes of an element."""
    if dtype not in SIZES:
        SIZES[dtype] = numpy.dtype(dtype).itemsize
    return SIZES[dtype]


def kind_of(str dtype not None):
    """Return the number of a dtype, COPIED for dtypes that native code only copies."""
    return executing.DTYPES.get(dtype, COPIED)


# Plain values, in tables that the `Assembler` holds.

cdef struct ArenaRows:
    # A base, the bytes of an element, and the elements of a row.
    int64_t base, size, row_size


#: No spot; in a LAUNCH record, it means scratch for the rows at hand.
cdef Spot NOWHERE = Spot(-1, 0)


include "addressing.pxi"
include "recipes.pxi"
include "copying.pxi"
include "equal.pxi"


cdef class Assembler(Addressing):
    """Assembles the program of one pass.

    Owned by the function that assembles it, until both programs of a flush are; it holds the plan,
    which it does not change.  A `Program`
    copies its code; an address in the code is valid until the code grows.
    """

    #: Per launch: where its code ends, its number, whether MXNet's operators run it, and whether
    #: all code up to there is pushed to the engine at once.
    cdef readonly list items
    #: Per launch that runs on distinct rows only, the spot that keeps which rows are equal.
    cdef readonly dict distinct
    #: Those of them that look up these rows in a table by themselves.
    cdef readonly set looked_up
    cdef readonly object plan
    #: The external arrays that the program copies into arenas; the fills whose arrays are gathered
    #: for it, and those of arenas that it cannot write.  Backward, fills are sums of head
    #: gradients, which are added up before.
    cdef readonly list externals, gathered_fills, device_fills
    #: Bytes of scratch that sums need.
    cdef int64_t scratch
    cdef Code code
    #: Tables of the plan, and the first row of each launch in them.
    cdef const int64_t[:, ::1] operands, regions, pieces
    cdef const int64_t[::1] operand0, output0
    #: The `SegmentBrief` of each segment; per launch its first part; per part, the number of its
    #: segment, and its rows.
    cdef list briefs
    cdef const int64_t[::1] part0, part_segment, part_rows
    #: The kernels of the program, by address, and the last one.
    cdef dict natives
    cdef Direction added
    #: Entries of `ArenaRows`.
    cdef array arenas
    #: Operations since the end of the last push.
    cdef int64_t work

    def __init__(self, plan, list briefs not None, int64_t first=0):
        super().__init__(first)
        self.plan, self.operands, self.regions = plan, plan.operands, plan.regions
        self.operand0, self.output0 = plan.inputs.first, plan.outputs.first
        self.briefs, self.part0 = briefs, plan.members.part0
        self.part_segment, self.part_rows = plan.members.segment, plan.members.rows
        self.items, self.natives, self.distinct, self.looked_up = [], {}, {}, set()
        self.externals, self.gathered_fills, self.device_fills = [], [], []
        self.code, self.pieces = Code(), plan.pieces
        self.code.reserve(self.pieces.shape[0] * sizeof(gdb_piece))
        self.arenas = array("q")
        for number, arena in enumerate(plan.arenas):
            base, size = self.base(("arena", number)), itemsize(arena.dtype)
            self.arenas.extend(array("q", (base, size, arena.row_size)))

    cdef inline const TableRow *operand_of(self, int64_t launch, int64_t number) noexcept:
        """Return the place of an operand of a launch."""
        return <const TableRow *>&self.operands[self.operand0[launch] + number, 0]

    cdef inline const TableRow *output_of(self, int64_t launch, int64_t number) noexcept:
        """Return the place of a result of a launch."""
        return <const TableRow *>&self.regions[self.output0[launch] + number, 0]

    cdef inline const PieceRow *piece(self, int64_t number) noexcept:
        """Return a piece of the plan."""
        return <const PieceRow *>&self.pieces[number, 0]

    cdef SegmentBrief segment(self, int64_t launch):
        """Return what is known of the segment of a launch's first part."""
        return self.briefs[self.part_segment[self.part0[launch]]]

    cdef inline ArenaRows *arena(self, int64_t number) noexcept:
        return <ArenaRows *>data_of(self.arenas) + number

    cdef Spot spot_of_region(self, const TableRow *region) noexcept:
        """Return the spot of the first row of a region."""
        cdef ArenaRows *arena = self.arena(region.first)
        return Spot(arena.base, region.second * arena.size * arena.row_size)

    cdef Spot spot_of_operand(
        self, const TableRow *operand, int64_t kind, int64_t size, int64_t use
    ) except *:
        """Return the spot of an operand; if it is not in one place, add code that puts it together.

        Kind and size are those of its elements; use is that of the memory for its rows.
        """
        cdef ArenaRows *arena
        cdef const PieceRow *piece
        cdef gdb_piece *pieces
        cdef Spot target
        cdef int64_t i
        if operand.what == SLICE:
            arena = self.arena(operand.first)
            return Spot(arena.base, operand.second * arena.size)
        if operand.what == WHOLE:
            return Spot(self.base(("external", operand.first)), 0)
        target = self.reserve(use, operand.rows * operand.row_size * size)
        pieces = self.add_pieces(kind, size, operand.second, target)
        for i in range(operand.second):
            piece = self.piece(operand.first + i)
            if piece.action == ADD and kind == COPIED:
                raise TypeError("native code cannot add rows of this type")
            arena = self.arena(piece.arena)
            pieces[i] = gdb_piece(
                piece.action, piece.target, Spot(arena.base, piece.element * arena.size), piece.length)
        return target

    cdef gdb_piece *add_pieces(
        self, int64_t kind, int64_t size, int64_t count, Spot target
    ) except NULL:
        """Add a ROWS record with room for its pieces; return the address of these."""
        cdef RowsRecord *record = <RowsRecord *>self.code.grow(
            sizeof(RowsRecord) + count * sizeof(gdb_piece))
        record[0] = RowsRecord(ROWS, kind, size, count, target, 0, 0, 0)
        return <gdb_piece *>(record + 1)

    cdef int add_bytes(self, int64_t what, int64_t count, Spot target, Spot source) except -1:
        """Add a ROWS record of one piece, which copies bytes or sets them to zero."""
        self.add_pieces(COPIED, 1, 1, target)[0] = gdb_piece(what, 0, source, count)
        return 0

    cdef Run place(self, list runs, int64_t launch, int backward):
        """Set the spots of operands and results, in which the rows of parts follow each other.

        An operand that has been placed stays there.  Returns the first part.
        """
        cdef Run first = runs[0], before = first, run
        cdef Direction direction = first.recipe.direction(backward)
        cdef array operands = direction.operands, results = direction.results, others
        cdef list placed = None if len(runs) == 1 else []
        cdef const OperandEntry *operand
        cdef const TableRow *place
        cdef int64_t k, number, use
        for k in range(entries(operands, sizeof(OperandEntry))):
            place, operand = self.operand_of(launch, k), <const OperandEntry *>data_of(operands) + k
            if place.what == NOTHING or first.is_placed(operand.number):
                continue
            use = operand.use
            if placed is not None:
                for run in runs:
                    others = run.recipe.direction(backward).operands
                    use = max(use, (<const OperandEntry *>data_of(others))[k].use)
                placed.append(operand.number)
            first.spots[operand.number] = self.spot_of_operand(
                place, operand.kind, operand.size, use)
        for k in range(len(results)):
            place, number = self.output_of(launch, k), data_of(results)[k]
            if place.what != NOTHING and number >= 0:
                first.spots[number] = self.spot_of_region(place)
                if placed is not None:
                    placed.append(number)
        for run in () if placed is None else runs[1:]:
            for number in placed:
                run.spots[number] = before.spots[number]
                run.spots[number].offset += before.bytes_of(number)
            before = run
        return first

    cdef int add_runs(self, list runs, int backward) except -1:
        """Add a LAUNCH record that runs the kernel of each part."""
        cdef Run run
        self.begin_launch(len(runs))
        for run in runs:
            self.add_part(run, run.recipe.direction(backward))
        return 0

    cdef int begin_launch(self, int64_t parts) except -1:
        """Add the head of a LAUNCH record; its parts follow."""
        cdef int64_t *code = <int64_t *>self.code.grow(2 * sizeof(int64_t))
        code[0], code[1] = LAUNCH, parts
        return 0

    cdef int add_part(self, Run run, Direction direction) except -1:
        """Add a part of a LAUNCH record, which runs a kernel."""
        cdef array order = direction.order
        cdef int64_t i
        cdef int64_t *code
        if direction is not self.added:
            self.added = direction
            self.natives[direction.address] = direction.kernel
        self.work += run.rows * direction.work
        code = <int64_t *>self.code.grow(2 * sizeof(int64_t) + len(order) * sizeof(Spot))
        code[0], code[1] = direction.address, run.rows
        for i in range(len(order)):
            (<Spot *>(code + 2))[i] = run.spots[data_of(order)[i]]
        return 0

    cdef int place_in_memory(self, Run run, array numbers) except -1:
        """Reserve memory for the arrays that one LAUNCH record leaves to the next."""
        cdef int64_t number
        for number in numbers:
            if not run.is_placed(number):
                run.spots[number] = self.reserve(TEMPORARY, run.bytes_of(number))
        return 0

    cdef int add_distinct(
        self, Run run, int64_t launch, Spot kept, Code keys, Direction direction
    ) except -1:
        """Add a DISTINCT record, after which a LAUNCH record runs on distinct rows only.

        Which rows are equal is stored at `kept`.  Forward, it is found by keys; backward, keys are
        None, and it is read.
        """
        cdef array moved = direction.apart
        cdef int64_t start = self.code.size, count = 0, i
        cdef const Apart *apart
        cdef Spot source
        self.code.grow(sizeof(DistinctRecord))
        if keys is not None:
            self.code.append(keys)
        for i in range(entries(moved, sizeof(Apart))):
            apart = <const Apart *>data_of(moved) + i
            source = run.spots[apart.number]
            if source.base < 0:
                continue
            if launch in self.looked_up and apart.number == run.recipe.single:
                count += self.add_looked_up(apart, source)
                continue
            # Rows that were put together are a copy, which totals may overwrite.
            if apart.what == PICK or apart.what == TOTAL and (
                apart.port < 0 or self.operand_of(launch, apart.port).what == SLICE
            ):
                run.spots[apart.number] = self.reserve(apart.use, run.bytes_of(apart.number))
            (<Moved *>self.code.grow(sizeof(Moved)))[0] = Moved(
                apart.what, apart.kind, apart.width, run.spots[apart.number], source, 0, 0)
            count += 1
        # Written last, because the code may move as it grows.
        (<DistinctRecord *>(self.code.numbers + start))[0] = DistinctRecord(
            DISTINCT, kept, run.rows, 0 if keys is None else keys.count(sizeof(RowKey)), count)
        return 0

    cdef int add_looked_up(self, const Apart *apart, Spot target) except -1:
        """Let a DISTINCT record look up distinct rows, once; return how many arrays it moves more."""
        return 0

    def assemble(self):
        """Add the code of all launches."""
        cdef bint native, ends
        cdef int64_t number, i
        cdef const int64_t[:] order = self.plan.order
        self.begin_fills()
        for i in range(order.shape[0]):
            number = order[i]
            native = self.is_native(number)
            if native:
                self.add_launch(number)
            ends = not native or self.work > MOST_PUSHED
            self.work = 0 if ends else self.work
            self.items.append((self.code.size, number, not native, ends))
            # Launches may run at the same time if they use different memory.
            if self.used[TEMPORARY] > MOST_TEMPORARY:
                self.used[TEMPORARY] = 0
        self.finish()
        self.items.append((self.code.size, None, False, True))

    def program(self):
        """Return the program, which takes the code."""
        return executing.Program(self.code, self.natives.values(), self.scratch)

    @property
    def identities(self):
        """What identifies rows that draw random numbers."""
        return b""

    cdef bint is_native(self, int64_t launch) except -1:
        """Return whether native code runs a launch."""
        raise NotImplementedError

    cdef int add_launch(self, int64_t launch) except -1:
        """Add the code of a launch that native code runs."""
        raise NotImplementedError

    cdef int begin_fills(self) except -1:
        """Make room for the code that fills arenas, before that of all launches."""
        return 0

    cdef int finish(self) except -1:
        """Add the code that follows all launches."""
        return 0


include "fills.pxi"
include "stretches.pxi"
include "distinct.pxi"
include "forward.pxi"
include "collecting.pxi"
include "backward.pxi"
