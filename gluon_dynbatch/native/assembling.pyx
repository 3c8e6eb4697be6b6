# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""From plans to programs: the records that `executing` runs.

`executing.pxd` says what they are.  What each base stands for is known to who runs the program.
"""

cimport cython
from cpython.array cimport array, resize
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

import numpy

from . import executing
from .executing cimport (
    DISTINCT, LAUNCH, PACK, PICK, ROWS, TOTAL, Chunk, DistinctRecord, Key, Moved, PackRecord, Piece,
    RowsRecord, Spot, SumRecord,
)

cpdef enum:
    #: Memory of one flush, by use: of a launch, of the pass, of both passes.
    TEMPORARY, KEPT, SAVED

cdef enum:
    # Of pieces and of places, as `resolving` names them.
    COPY = 0, ZERO = 2
    NOTHING = 0, WHOLE, SLICE
    ALIGNMENT = 64
    #: Rows for which it takes longer to pack a matrix than to multiply with it as it is.
    FEW = 8
    #: Operations that the engine gets in one piece: other work of its waits for a piece, not for all.
    AT_A_TIME = 400000000

#: Names of uses, which those of bases begin with.
MEMORY = ("temporary", "kept", "saved")

#: What native code does with arrays, by kind of base: see `recording.places`.  MXNet may not have
#: given parameters and gradients memory yet.  All else it writes.
cdef dict USES = {
    "parameter": ord("R"), "external": ord("a"), "gradient": ord("W"), "external gradient": ord("W"),
}


cdef dict SIZES = {}


def itemsize(str dtype not None):
    """Return the bytes of a number."""
    if dtype not in SIZES:
        SIZES[dtype] = numpy.dtype(dtype).itemsize
    return SIZES[dtype]


def kind_of(str dtype not None):
    """Return the number of a type, one for all types that native code does not compute with."""
    return executing.DTYPES.get(dtype, len(executing.DTYPES))


cdef struct Arena:
    # The bytes of an element, and the elements of a row.
    int64_t base, size, row_size


cdef struct TableRow:
    # A place, see `plan.plan.Plan`.
    int64_t what, first, second, rows, row_size


#: A block of scratch.
cdef Spot NOWHERE = Spot(-1, 0)


cdef inline int64_t numbers_in(int64_t bytes) noexcept:
    return bytes // sizeof(int64_t)


include "recipes.pxi"


cdef class Assembler:
    """A program in the making.

    Parameters
    ----------
    plan : Plan
        What is run.
    first : int
        Number of its first base: those of the forward program are known to the backward one.
    """

    #: What each base is: a kind of array, and all that tells which; and what is done with it.
    cdef readonly list bases
    cdef readonly bytearray uses
    #: Where code of each launch ends, the launch, whether MXNet's operators run it, and whether the
    #: engine gets all up to here in one piece.
    cdef readonly list items
    #: Per launch that runs on rows that differ, where it is kept which are equal.
    cdef readonly dict distinct
    cdef readonly int64_t scratch
    cdef readonly object plan
    cdef Code code
    #: Tables of the plan.
    cdef const int64_t[:, ::1] operands, regions
    cdef const int64_t[::1] operand0, output0
    #: The segments of all launches, and where the parts of each begin: their numbers and rows.
    cdef list segments
    cdef const int64_t[::1] part0, part_segment, part_rows
    cdef dict kernels
    cdef dict numbers
    cdef int64_t first
    #: Entries of `Arena`.
    cdef array arenas
    cdef const int64_t[:, ::1] pieces
    #: Of memory by use: its base, or -1; bytes that are reserved now, and the most that ever were.
    cdef int64_t[3] memory, used, most
    #: Operations of the piece at hand.
    cdef int64_t work

    def __init__(self, plan, int64_t first=0):
        cdef int64_t use
        self.plan, self.operands, self.regions = plan, plan.operands, plan.regions
        self.operand0, self.output0 = plan.inputs.first, plan.outputs.first
        self.segments, self.part0 = plan.graph.segments, plan.members.part0
        self.part_segment, self.part_rows = plan.members.segment, plan.members.rows
        self.bases, self.items, self.numbers, self.kernels, self.distinct = [], [], {}, {}, {}
        self.code, self.first, self.pieces, self.uses = Code(), first, plan.pieces, bytearray()
        self.arenas = array("q")
        for number, arena in enumerate(plan.arenas):
            base, size = self.base(("arena", number)), itemsize(arena.dtype)
            self.arenas.extend(array("q", (base, size, arena.row_size)))
        for use in range(3):
            self.memory[use], self.used[use], self.most[use] = -1, 0, 0

    @property
    def stop(self):
        """The number behind those of all bases."""
        return self.first + len(self.bases)

    @property
    def sizes(self):
        """Bytes of memory by use."""
        return {name: self.most[use] for use, name in enumerate(MEMORY)}

    def spot_of_fill(self, int64_t number):
        """Return where rows of an arena are that are filled: a base, and an offset in bytes."""
        cdef Spot found = self.region(self.output_of(self.output0.shape[0] - 1, number))
        return found.base, found.offset

    cdef inline const TableRow *operand_of(self, int64_t launch, int64_t number) noexcept:
        """Return an operand of a launch."""
        return <const TableRow *>&self.operands[self.operand0[launch] + number, 0]

    cdef inline const TableRow *output_of(self, int64_t launch, int64_t number) noexcept:
        """Return what a launch writes."""
        return <const TableRow *>&self.regions[self.output0[launch] + number, 0]

    cdef segment(self, int64_t launch):
        """Return the segment of the first part of a launch."""
        return self.segments[self.part_segment[self.part0[launch]]]

    cdef int64_t base(self, tuple what, object name=None) except -1:
        """Return the number of a base, which may be looked up by a name that is faster to compare."""
        name = what if name is None else name
        known = self.numbers.get(name)
        if known is None:
            known = self.numbers[name] = self.first + len(self.bases)
            self.bases.append(what)
            self.uses.append(USES.get(what[0], ord("w")))
        return known

    cdef int64_t held(self, str kind, thing, context) except -1:
        """Return the number of an array that a parameter has on a device."""
        # The hash of a context is a function in Python.
        name = kind, id(thing), context.device_typeid, context.device_id
        known = self.numbers.get(name)
        return self.base((kind, thing, context), name) if known is None else known

    cdef Spot reserve(self, int64_t use, int64_t count) except *:
        """Reserve bytes."""
        if self.memory[use] < 0:
            self.memory[use] = self.base((MEMORY[use],))
        cdef Spot found = Spot(self.memory[use], self.used[use])
        self.used[use] = (found.offset + count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.most[use] = max(self.most[use], self.used[use])
        return found

    cdef inline Arena *arena(self, int64_t number) noexcept:
        return <Arena *>of(self.arenas) + number

    cdef Spot region(self, const TableRow *region) noexcept:
        """Return where rows of an arena are."""
        cdef Arena *arena = self.arena(region.first)
        return Spot(arena.base, region.second * arena.size * arena.row_size)

    cdef Spot operand(
        self, const TableRow *operand, int64_t kind, int64_t size, int64_t use
    ) except *:
        """Return where an operand is, put together if need be, given the type of its elements."""
        cdef Arena *arena
        cdef const int64_t *own
        cdef Piece *piece
        cdef Spot target
        cdef int64_t i
        if operand.what == SLICE:
            arena = self.arena(operand.first)
            return Spot(arena.base, operand.second * arena.size)
        if operand.what == WHOLE:
            return Spot(self.base(("external", operand.first)), 0)
        target = self.reserve(use, operand.rows * operand.row_size * size)
        piece = self.rows(kind, size, operand.second, target)
        for i in range(operand.second):
            own = &self.pieces[operand.first + i, 0]
            arena = self.arena(own[2])
            piece[i] = Piece(own[0], own[1], Spot(arena.base, own[3] * arena.size), own[4])
        return target

    cdef Piece *rows(self, int64_t kind, int64_t size, int64_t count, Spot target) except NULL:
        """Add a record that copies, adds up or zeroes; return where its pieces go."""
        cdef RowsRecord *record = <RowsRecord *>self.code.more(
            numbers_in(sizeof(RowsRecord) + count * sizeof(Piece)))
        record[0] = RowsRecord(ROWS, kind, size, count, target)
        return <Piece *>(record + 1)

    cdef int move(
        self, int64_t what, int64_t kind, int64_t size, int64_t count, Spot target, Spot source
    ) except -1:
        """Copy elements, or set them to zero."""
        self.rows(kind, size, 1, target)[0] = Piece(what, 0, source, count)
        return 0

    cdef Run place(self, list runs, int64_t launch, int backward):
        """Say where operands and results are, those of one part behind those of another.

        Returns
        -------
        Run
            The first part.
        """
        cdef Run first = runs[0], run
        cdef array operands = first.recipe.operands[backward], placed = array("q")
        cdef array results = first.recipe.results[backward]
        cdef const Operand *own
        cdef const TableRow *place
        cdef int64_t k, number, use
        for k in range(entries(operands, sizeof(Operand))):
            place, own = self.operand_of(launch, k), <const Operand *>of(operands) + k
            if place.what == NOTHING:
                continue
            use = own.use
            for run in runs[1:]:
                use = max(use, (<const Operand *>of(run.recipe.operands[backward]))[k].use)
            first.spots[own.number] = self.operand(place, own.kind, own.size, use)
            placed.append(own.number)
        for k in range(len(results)):
            place, number = self.output_of(launch, k), of(results)[k]
            if place.what != NOTHING and number >= 0:
                first.spots[number] = self.region(place)
                placed.append(number)
        place_parts(runs, placed)
        return first

    cdef int run(self, list runs, int backward) except -1:
        """Run a kernel for each part; what has no spot stands in scratch."""
        cdef Run run
        cdef Recipe recipe
        cdef array order
        cdef int64_t i
        cdef int64_t *code = self.code.more(2)
        code[0], code[1] = LAUNCH, len(runs)
        for run in runs:
            recipe = run.recipe
            order = recipe.orders[backward]
            self.kernels[recipe.address[backward]] = recipe.natives[backward]
            self.work += run.rows * recipe.work[backward]
            code = self.code.more(2 + 2 * len(order))
            code[0], code[1] = recipe.address[backward], run.rows
            for i in range(len(order)):
                (<Spot *>(code + 2))[i] = run.spots[of(order)[i]]
        return 0

    cdef int tell_apart(
        self, Run run, int64_t launch, Spot kept, Code keys, int backward
    ) except -1:
        """Let the launch that follows run on rows that differ, by keys or as it was kept in a spot."""
        cdef array moved = run.recipe.apart[backward]
        cdef int64_t number = self.code.size + numbers_in(sizeof(DistinctRecord)), count = 0, i
        cdef const Apart *own
        cdef Spot source
        self.code.more(numbers_in(sizeof(DistinctRecord)))
        if keys is not None:
            self.code.copy(keys.numbers, keys.size)
        for i in range(entries(moved, sizeof(Apart))):
            own = <const Apart *>of(moved) + i
            source = run.spots[own.number]
            if source.base < 0:
                continue
            # Totals of rows that were put together may stand where these are.
            if own.what == PICK or (
                own.what == TOTAL and self.operand_of(launch, own.port).what == SLICE
            ):
                run.spots[own.number] = self.reserve(own.use, run.size(own.number))
            (<Moved *>self.code.more(numbers_in(sizeof(Moved))))[0] = Moved(
                own.what, own.kind, own.width, run.spots[own.number], source)
            count += 1
        (<DistinctRecord *>(self.code.numbers + number) - 1)[0] = DistinctRecord(
            DISTINCT, kept, run.rows, 0 if keys is None else keys.count(sizeof(Key)), count)
        return 0

    def assemble(self):
        """Add all launches."""
        cdef bint native, ends
        cdef int64_t number
        for number in self.plan.order:
            native = self.is_native(number)
            if native:
                self.launch(number)
            ends = not native or self.work > AT_A_TIME
            self.work = 0 if ends else self.work
            self.items.append((self.code.size, number, not native, ends))
            self.used[TEMPORARY] = 0
        self.finish()
        self.items.append((self.code.size, None, False, True))

    def program(self, array code not None):
        """Return the program, given the code that comes first, to which the rest is added."""
        cdef Py_ssize_t first = len(code)
        resize(code, first + self.code.size)
        memcpy(of(code) + first, self.code.numbers, self.code.size * sizeof(int64_t))
        return executing.Program(code, self.kernels.values(), self.scratch)

    cdef bint is_native(self, int64_t number) except -1:
        """Whether native code runs a launch."""
        raise NotImplementedError

    cdef int launch(self, int64_t number) except -1:
        """Add a launch that native code runs."""
        raise NotImplementedError

    cdef int finish(self) except -1:
        """Add what comes after all launches."""
        return 0


cdef int place_parts(list runs, array numbers) except -1:
    """Let arrays of each part begin where those of the part before end."""
    cdef Run before = runs[0], run
    cdef int64_t number
    for run in runs[1:]:
        for number in numbers:
            run.spots[number] = before.spots[number]
            run.spots[number].offset += before.size(number)
        before = run
    return 0


include "forward.pxi"
include "backward.pxi"
