"""What programs are made of, and what is known of each kernel: a part of `assembling.pyx`."""


@cython.final
cdef class Code:
    """Numbers, to which more can be added."""

    cdef int64_t *numbers
    cdef readonly int64_t size
    cdef int64_t room

    def __dealloc__(self):
        free(self.numbers)

    cdef int64_t *more(self, int64_t count) except NULL:
        """Make room for so many numbers more, and return where they go."""
        cdef int64_t *moved
        if self.size + count > self.room:
            self.room = 2 * (self.size + count) + 64
            moved = <int64_t *>realloc(self.numbers, self.room * sizeof(int64_t))
            if moved == NULL:
                raise MemoryError("no memory for a program")
            self.numbers = moved
        self.size += count
        return self.numbers + self.size - count

    cdef int64_t count(self, int64_t size) noexcept:
        """Return how many entries of so many bytes there are."""
        return self.size // numbers_in(size)

    cdef int copy(self, const int64_t *numbers, int64_t count) except -1:
        memcpy(self.more(count), numbers, count * sizeof(int64_t))
        return 0


# Entries of the tables of a recipe.  All that a kernel works on has a number: arrays, inputs first,
# and matrices that are packed.  Kinds are numbers of types, sizes bytes of an element, widths
# elements of a row, uses those of memory.

cdef struct Operand:
    # What a launch reads, or -1 backward, and the memory for rows of it that are put together.
    int64_t number, kind, size, use


cdef struct Pack:
    # A matrix: where it is found, from which byte on, how it is read, and the memory for it.
    int64_t number, source, first, kind
    int64_t[2] strides
    int64_t rows, columns, use


cdef struct Shared:
    # What all rows share and the backward pass reads: an input, or -1.
    int64_t number, input, kind, size, width


cdef struct Apart:
    # What is read or written for each row, what is done with it where rows are equal, and of which
    # result or input it is.
    int64_t what, number, kind, width, use, port


cdef struct Read:
    # An array, its first byte, and how many elements it is from row to row.
    int64_t number, first, pitch


cdef struct Sum:
    # What adds up to the gradient of a parameter, if it is not -1, or else of an input, from a byte
    # on: which record does it, its last number, and how many rows one row of the launch has.
    int64_t parameter, input, first, record, kind, rows, columns, last, parts
    Read[2] reads


cdef inline int64_t *of(array numbers) noexcept:
    return <int64_t *>numbers.data.as_longlongs


cdef inline int64_t entries(array table, int64_t size) noexcept:
    """Return how many entries of so many bytes a table has."""
    return len(table) // numbers_in(size)


cdef class Recipe:
    """What programs need to know of a kernel, of both directions if it is trained, to run it.

    Parameters
    ----------
    tables : dict of str to array
        Numbers, and entries as above, for which `make_recipe` has the names: the attributes.
    natives : tuple of executing.Kernel
        Forward, and maybe backward.
    orders : tuple of array
        The numbers of what each works on.
    chooses : bool
        Whether rows of the first parameter, chosen by the first input, are all there is.
    single : int
        The only input that differs from row to row, if rows are worth comparing, or -1.
    """

    #: Per number, what each row adds in bytes.
    cdef array bytes
    #: Numbers of parameters, and of what steps leave for the backward pass, or to be added up there.
    cdef array parameters, saved, added
    #: Of `Pack` for parameters and for operands, and of `Shared`.
    cdef array packs, operand_packs, shared
    #: For what is trained only: of `Sum`, and numbers of parameters, and inputs, that get a gradient,
    #: each with the bytes of that.
    cdef array sums, trained, reached
    #: Per direction: of `Operand`, the numbers of results, or -1, and of `Apart`.
    cdef tuple operands, results, apart
    cdef tuple natives, orders
    cdef bint chooses
    cdef int64_t single
    #: Addresses and operations per row of the kernels.
    cdef int64_t[2] address, work

    def __init__(
        self, dict tables not None, tuple natives not None, tuple orders, bint chooses,
        int64_t single,
    ):
        self.bytes, self.parameters, self.saved = map(tables.get, ("bytes", "parameters", "saved"))
        self.packs, self.operand_packs = tables["packs"], tables["operand_packs"]
        self.shared, self.added, self.sums = map(tables.get, ("shared", "added", "sums"))
        self.trained, self.reached = tables.get("trained"), tables.get("reached")
        self.operands, self.results, self.apart = (
            tuple([tables[name, i] for i in range(len(natives))])
            for name in ("operands", "results", "apart")
        )
        self.natives, self.orders, self.chooses, self.single = natives, orders, chooses, single
        for i, native in enumerate(natives):
            self.address[i], self.work[i] = native.address, native.work


@cython.final
cdef class Run:
    """A part of a launch that native code runs, with the spots of all that is numbered."""

    cdef int64_t rows
    cdef Recipe recipe
    cdef Spot *spots

    def __cinit__(self, Recipe recipe not None, int64_t rows):
        cdef int64_t i, count = len(recipe.bytes)
        self.recipe, self.rows = recipe, rows
        self.spots = <Spot *>malloc(max(count, 1) * sizeof(Spot))
        if self.spots == NULL:
            raise MemoryError("no memory for a launch")
        for i in range(count):
            self.spots[i] = NOWHERE

    def __dealloc__(self):
        free(self.spots)

    cdef int64_t size(self, int64_t number) noexcept:
        """Return the bytes of an array."""
        return self.rows * of(self.recipe.bytes)[number]

    cdef Run again(self, int64_t rows):
        """Return a run with the same spots."""
        cdef Run made = Run(self.recipe, rows)
        memcpy(made.spots, self.spots, len(self.recipe.bytes) * sizeof(Spot))
        return made
