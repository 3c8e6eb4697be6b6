"""What programs need to know of each kernel: a part of `assembling.pyx`."""


cdef inline int64_t *data_of(array numbers) noexcept:
    return <int64_t *>numbers.data.as_longlongs


cdef inline int append_to(array numbers, int64_t number) except -1:
    """Append a number to an array."""
    resize_smart(numbers, len(numbers) + 1)
    data_of(numbers)[len(numbers) - 1] = number
    return 0


cdef inline int64_t entries(array table, int64_t size) noexcept:
    """Return the number of entries of `size` bytes in a table."""
    return len(table) // numbers_in(size)


# Entries of a recipe: plain values in its tables, which never change, and which `kernel.recipe` gives as dictionaries with these names.  Everything that
# a kernel works on has a number: its arrays, inputs first, and its packed matrices.  A kind is the
# number of a type, a size the bytes of an element, a width the elements of a row, a use one of
# TEMPORARY, KEPT and SAVED.

cdef struct OperandEntry:
    # An operand of a launch: its number, or -1 if it is a gradient that the kernel does not read,
    # and the memory for its rows, if they have to be put together.
    int64_t number, kind, size, use


cdef struct Pack:
    # A packed matrix: its source, the first byte and the elements from one row and from one column
    # to the next there, and the memory for it.
    int64_t number, source, first, kind, row_stride, column_stride, rows, columns, use


cdef struct Shared:
    # An array that all rows share and the backward pass reads: which input it is, or -1 for a
    # parameter.
    int64_t number, input, bytes


cdef struct Apart:
    # An array that has rows of its own: what DISTINCT does with equal rows of it, and the number of
    # the input or result that it is, or -1 for intermediate results and their gradients.
    int64_t what, number, kind, width, use, port


cdef struct Read:
    # Rows of an array: the first byte, and the elements from row to row.
    int64_t number, first, pitch


cdef struct SumEntry:
    # A sum over rows, which is added to the gradient of a parameter or, if that is -1, of an input,
    # from a byte on: the type of its record and the last number of that, and how many rows of
    # each read a row of the launch has.
    int64_t parameter, input, first, record, kind, rows, columns, last, parts
    Read left, right


cdef struct Gradient:
    # A trained parameter, or an input that all rows share and that gets a gradient: its number
    # among these, and the bytes of the gradient.
    int64_t number, bytes


ctypedef fused RecipeEntry:
    OperandEntry
    Pack
    Shared
    Apart
    SumEntry
    Gradient


cdef array table_of(list items, RecipeEntry *_):
    """Return a table of entries of the type of the second argument, given as dictionaries."""
    cdef array table = clone(LONG, len(items) * numbers_in(sizeof(RecipeEntry)), False)
    cdef RecipeEntry *entry = <RecipeEntry *>data_of(table)
    for item in items:
        entry[0] = item
        entry += 1
    return table


@cython.final
cdef class Direction:
    """What a recipe says of one direction, with the kernel that runs in it.

    Owned by its recipe; it never changes.
    """

    cdef object kernel
    #: The numbers of the kernel's slots.
    cdef array order
    #: Entries of `OperandEntry`; numbers of results, or -1; and entries of `Apart`.
    cdef array operands, results, apart
    #: The address of the kernel, and its operations per row.
    cdef int64_t address, work

    def __init__(
        self, kernel, *, order, list operands not None, results, list apart not None,
    ):
        self.kernel, self.address, self.work = kernel, kernel.address, kernel.work
        self.order, self.results = array("q", order), array("q", results)
        self.operands = table_of(operands, <OperandEntry *>NULL)
        self.apart = table_of(apart, <Apart *>NULL)


@cython.final
cdef class Products:
    """What a recipe says of the products of one input, see `kernel.products`.

    Owned by its recipe; it never changes.
    """

    #: The number of the input, numbers of results, and of their gradients.
    cdef int64_t input
    cdef array results, gradients
    #: Forward, the products and the rest; backward, if the kernel is trained, the rest and the
    #: products.
    cdef Direction products, rest, rest_backward, products_backward

    def __init__(
        self, Direction products not None, Direction rest not None, Direction rest_backward,
        Direction products_backward, *, int64_t input, results, gradients,
    ):
        self.products, self.rest = products, rest
        self.rest_backward, self.products_backward = rest_backward, products_backward
        self.input, self.results, self.gradients = input, array("q", results), array("q", gradients)


@cython.final
cdef class Recipe:
    """What programs need to know of a kernel, and of its backward kernel if it is trained.

    Owned by the kernels of a segment (`kernel.kernels`), and by each `Run`; it never changes.
    """

    #: One or two of `Direction`: forward, and backward.
    cdef list directions
    #: By number, the bytes of a row.
    cdef array row_bytes
    #: Numbers of parameters; of arrays that the backward pass reads; and, backward, of arrays that
    #: are added up after the launch.
    cdef array parameters, saved, added
    #: Entries of `Pack`, for parameters and for operands, and of `Shared`.
    cdef array packs, operand_packs, shared
    #: Numbers of operands whose rows the kernel reads where they are, even if they lie apart.
    cdef array far
    #: Nothing, or the numbers of the key of random numbers and of what identifies rows.
    cdef array draws
    #: Backward: entries of `SumEntry`, and of `Gradient`, for parameters and for inputs.
    cdef array sums, trained, reached
    #: Whether the kernel does nothing but choose rows of its first parameter by its first input; and
    #: the number of these rows, 0 if indices that do not fit are errors.
    cdef bint gathers
    cdef int64_t table_rows
    #: The only input with rows of its own, if equal rows are worth finding, or -1; else, the products
    #: of an input of which they are, or None.
    cdef int64_t single
    cdef Products products

    def __init__(
        self, Direction forward not None, Direction backward, *, row_bytes, parameters, saved,
        added, list packs not None, list operand_packs not None, list shared not None,
        list sums not None, list trained not None, list reached not None, far, draws, bint gathers,
        int64_t table_rows, int64_t single, Products products,
    ):
        self.directions = [forward] if backward is None else [forward, backward]
        self.row_bytes, self.parameters = array("q", row_bytes), array("q", parameters)
        self.saved, self.added = array("q", saved), array("q", added)
        self.packs = table_of(packs, <Pack *>NULL)
        self.operand_packs = table_of(operand_packs, <Pack *>NULL)
        self.shared = table_of(shared, <Shared *>NULL)
        self.sums = table_of(sums, <SumEntry *>NULL)
        self.trained = table_of(trained, <Gradient *>NULL)
        self.reached = table_of(reached, <Gradient *>NULL)
        self.far, self.draws = array("q", far), array("q", draws)
        self.gathers, self.table_rows, self.single = gathers, table_rows, single
        self.products = products

    cdef inline Direction direction(self, int backward):
        return <Direction>self.directions[backward]


@cython.final
cdef class Run:
    """A part of a launch that native code runs, with the spot of each number of its recipe.

    Owned by the `Forward` that makes it, for which `Backward` fills in more spots.
    """

    cdef int64_t rows
    cdef Recipe recipe
    #: Owned by this object, of a fixed size; only the thread that assembles a program has it.
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

    cdef inline bint is_placed(self, int64_t number) noexcept:
        """Return whether an array has a spot."""
        return number >= 0 and self.spots[number].base >= 0

    cdef int64_t bytes_of(self, int64_t number) noexcept:
        """Return the bytes of an array in this run."""
        return self.rows * data_of(self.recipe.row_bytes)[number]

    cdef Run resized(self, int64_t rows):
        """Return a run on as many rows, with the same spots."""
        cdef Run run = Run(self.recipe, rows)
        memcpy(run.spots, self.spots, len(self.recipe.row_bytes) * sizeof(Spot))
        return run

    cdef int move(self, int64_t rows) noexcept:
        """Move the spots of arrays in memory by so many rows."""
        cdef int64_t number
        for number in range(len(self.recipe.row_bytes)):
            if self.is_placed(number):
                self.spots[number].offset += rows * data_of(self.recipe.row_bytes)[number]
        return 0
