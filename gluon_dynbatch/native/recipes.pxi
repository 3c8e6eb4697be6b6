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

    cdef int copy(self, const int64_t *numbers, int64_t count) except -1:
        memcpy(self.more(count), numbers, count * sizeof(int64_t))
        return 0


cdef class Recipe:
    """What programs need to know of a kernel, of both directions if it is trained, to run it.

    All that it works on is numbered: its arrays, inputs first, and the matrices that are packed.
    A table has entry after entry; use is that of memory, and type a number of `DTYPES`.

    Parameters
    ----------
    tables : dict of str to array
        See below.
    natives : tuple of executing.Kernel
        Forward, and maybe backward.
    orders : tuple of array
        The numbers of what each works on.
    chooses : bool
        Whether rows of the first parameter, chosen by the first input, are all there is.
    single : int
        The only input that differs from row to row, if rows are worth comparing, or -1.

    Notes
    -----
    These tables are of both directions; the last ones are there for what is trained only.

    bytes
        Per number, what each row adds.
    inputs
        Type, bytes of an element, and use where rows are put together.
    outputs, saved
        Numbers of results, and of what steps leave for the backward pass.
    parameters
        Number of each parameter.
    packs, operand_packs
        Number, number of the source, first byte there, type, strides, rows and columns of the
        matrix, use; of parameters, and of operands.
    copied
        What all rows share and the backward pass reads: number, input or -1, type, bytes of an
        element, elements.
    repeated
        What is written for each row: number, type, elements.
    heads
        Gradients of results: number or -1, type, bytes of an element, use.
    gradients
        Number of the gradient of each input, or -1.
    unequal
        What is read or written backward for each row: what is done with it where rows are equal,
        number, type, elements, use, and if it is the gradient of a result, which.
    added
        Numbers of what adds up to gradients, if steps leave it.
    sums
        What is trained: parameter or -1, or else input, and first byte; record, type, rows and
        columns, its last number; rows per row; then number, first byte and elements from row to row
        of both arrays.
    trained, reached
        Parameters, and inputs, that get a gradient, each with its bytes.
    """

    cdef array bytes, inputs, outputs, saved, parameters, packs, operand_packs, copied, repeated
    cdef array heads, gradients, unequal, added, sums, trained, reached
    cdef tuple natives, orders
    cdef bint chooses
    cdef int64_t single
    #: Addresses and operations per row of the kernels.
    cdef int64_t[2] address, work

    def __init__(
        self, dict tables not None, tuple natives not None, tuple orders, bint chooses,
        int64_t single,
    ):
        self.bytes, self.inputs, self.outputs = map(tables.get, ("bytes", "inputs", "outputs"))
        self.saved, self.parameters = tables["saved"], tables["parameters"]
        self.packs, self.operand_packs = tables["packs"], tables["operand_packs"]
        self.copied, self.repeated = tables["copied"], tables["repeated"]
        if len(natives) > 1:
            self.heads, self.gradients = tables["heads"], tables["gradients"]
            self.unequal, self.added, self.sums = map(tables.get, ("unequal", "added", "sums"))
            self.trained, self.reached = tables["trained"], tables["reached"]
        self.natives, self.orders, self.chooses, self.single = natives, orders, chooses, single
        for i, native in enumerate(natives):
            self.address[i], self.work[i] = native.address, native.work


cdef inline int64_t *of(array numbers) noexcept:
    return <int64_t *>numbers.data.as_longlongs


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
