"""Code, and what programs need to know of each kernel: a part of `assembling.pyx`."""


cdef inline int64_t numbers_in(int64_t bytes) noexcept:
    return bytes // sizeof(int64_t)


cdef inline int64_t *data_of(array numbers) noexcept:
    return <int64_t *>numbers.data.as_longlongs


cdef inline int64_t entries(array table, int64_t size) noexcept:
    """Return the number of entries of `size` bytes in a table."""
    return len(table) // numbers_in(size)


@cython.final
cdef class Code:
    """A growing array of integers, which records are written to."""

    cdef int64_t *numbers
    cdef readonly int64_t size
    cdef int64_t capacity

    def __dealloc__(self):
        free(self.numbers)

    cdef void *grow(self, int64_t bytes) except NULL:
        """Append uninitialized bytes; return their address, which is valid until the next call."""
        cdef int64_t count = numbers_in(bytes), capacity = 2 * (self.size + count) + 64
        cdef int64_t *moved
        if self.size + count > self.capacity:
            moved = <int64_t *>realloc(self.numbers, capacity * sizeof(int64_t))
            if moved == NULL:
                raise MemoryError("no memory for a program")
            self.numbers, self.capacity = moved, capacity
        self.size += count
        return self.numbers + self.size - count

    cdef int append(self, Code code) except -1:
        cdef int64_t bytes = code.size * sizeof(int64_t)
        if bytes:
            memcpy(self.grow(bytes), code.numbers, bytes)
        return 0

    cdef int64_t count(self, int64_t size) noexcept:
        """Return the number of entries of `size` bytes."""
        return self.size // numbers_in(size)


# Entries of the tables of a recipe.  Everything that a kernel works on has a number: its arrays,
# inputs first, and its packed matrices.  A kind is the number of a type, a size the bytes of an
# element, a width the elements of a row, a use one of TEMPORARY, KEPT and SAVED.

cdef struct Operand:
    # An operand of a launch: its number, or -1 if it is a gradient that the kernel does not read,
    # and the memory for its rows, if they have to be put together.
    int64_t number, kind, size, use


cdef struct Pack:
    # A packed matrix: its source, the first byte and the strides there, and the memory for it.
    int64_t number, source, first, kind
    int64_t[2] strides
    int64_t rows, columns, use


cdef struct Shared:
    # An array that all rows share and the backward pass reads: which input it is, or -1 for a
    # parameter.
    int64_t number, input, bytes


cdef struct Apart:
    # An array that has rows of its own: what DISTINCT does with equal rows of it, and the number of
    # the input or result that it is.
    int64_t what, number, kind, width, use, port


cdef struct Read:
    # Rows of an array: the first byte, and the elements from row to row.
    int64_t number, first, pitch


cdef struct Sum:
    # A sum over rows, which is added to the gradient of a parameter or, if that is -1, of an input,
    # from a byte on: the type of its record and the last number of that, and how many rows of
    # `reads` a row of the launch has.
    int64_t parameter, input, first, record, kind, rows, columns, last, parts
    Read[2] reads


cdef class Recipe:
    """What programs need to know of a kernel, and of its backward kernel if it is trained.

    `tables` has integers, or entries as above, by the names that `make_recipe` gives them.
    """

    #: By number, the bytes of a row.
    cdef array row_bytes
    #: Numbers of parameters; of arrays that the backward pass reads; and, backward, of arrays that
    #: are added up after the launch.
    cdef array parameters, saved, added
    #: Entries of `Pack`, for parameters and for operands, and of `Shared`.
    cdef array packs, operand_packs, shared
    #: Nothing, or the numbers of the key of random numbers and of what identifies rows.
    cdef array draws
    #: Backward: entries of `Sum`; and pairs of a trained parameter, or of an input that all rows
    #: share and that gets a gradient, and the bytes of the gradient.
    cdef array sums, trained, reached
    #: Per direction: entries of `Operand`; numbers of results, or -1; and entries of `Apart`.
    cdef tuple operands, results, apart
    #: The kernel that runs forward and, if there is one, that which runs backward; and per kernel,
    #: the numbers of its slots.
    cdef tuple natives, orders
    #: Whether the kernel does nothing but choose rows of its first parameter by its first input.
    cdef bint gathers
    #: The only input with rows of its own, if equal rows are worth finding, or -1.
    cdef int64_t single
    #: Per direction: the address of the kernel, and its operations per row.
    cdef int64_t[2] address, work

    def __init__(
        self, dict tables not None, tuple natives not None, tuple orders, bint gathers,
        int64_t single,
    ):
        self.row_bytes, self.parameters = tables["bytes"], tables["parameters"]
        self.packs, self.operand_packs = tables["packs"], tables["operand_packs"]
        self.saved, self.shared = tables["saved"], tables["shared"]
        self.draws = tables["draws"]
        self.added, self.sums = tables.get("added"), tables.get("sums")
        self.trained, self.reached = tables.get("trained"), tables.get("reached")
        self.operands, self.results, self.apart = (
            tuple([tables[name, i] for i in range(len(natives))])
            for name in ("operands", "results", "apart")
        )
        self.natives, self.orders, self.gathers, self.single = natives, orders, gathers, single
        for i, native in enumerate(natives):
            self.address[i], self.work[i] = native.address, native.work


@cython.final
cdef class Run:
    """A part of a launch that native code runs, with the spot of each number of its recipe."""

    cdef int64_t rows
    cdef Recipe recipe
    cdef Spot *spots

    def __cinit__(self, Recipe recipe not None, int64_t rows):
        cdef int64_t i, count = len(recipe.row_bytes)
        self.recipe, self.rows = recipe, rows
        self.spots = <Spot *>malloc(max(count, 1) * sizeof(Spot))
        if self.spots == NULL:
            raise MemoryError("no memory for a launch")
        for i in range(count):
            self.spots[i] = NOWHERE

    def __dealloc__(self):
        free(self.spots)

    cdef int64_t bytes_of(self, int64_t number) noexcept:
        """Return the bytes of an array in this run."""
        return self.rows * data_of(self.recipe.row_bytes)[number]

    cdef Run resized(self, int64_t rows):
        """Return a run on as many rows, with the same spots."""
        cdef Run run = Run(self.recipe, rows)
        memcpy(run.spots, self.spots, len(self.recipe.row_bytes) * sizeof(Spot))
        return run
