"""Kernels in the form in which they are run, a block of rows at a time: a part of `executing.pyx`.

Types of numbers are 0 for float, 1 for double, and for places that are only read 2 for int32, 3 for
int64.
"""

cdef extern from "c/kernels.h" nogil:
    ctypedef struct gdb_chunk:
        int64_t rows
        const void *dy
        int64_t dy_row
        const void *x
        int64_t x_row

    ctypedef struct gdb_kernels:
        int64_t (*packed_elements)(int64_t k, int64_t n) noexcept nogil
        void (*pack)(
            const void *b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
            void *packed) noexcept nogil
        void (*multiply)(
            int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, int64_t a_column,
            const void *packed, void *c, int64_t c_row, const void *bias,
            int accumulate) noexcept nogil
        void (*multiply_few)(
            int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, const void *w,
            int64_t w_row, void *c, int64_t c_row, const void *bias, int accumulate) noexcept nogil
        int64_t (*gradient_scratch)(int64_t n, int64_t k) noexcept nogil
        void (*weight_gradient)(
            int64_t n, int64_t k, int64_t first, int64_t last, const gdb_chunk *chunks,
            int64_t count, void *dw, int64_t dw_row, int skip_x, void *scratch) noexcept nogil
        void (*bias_gradient)(
            int64_t n, const gdb_chunk *chunks, int64_t count, void *db) noexcept nogil

    const gdb_kernels *gdb_kernels_of(int dtype)
    const char *gdb_instruction_set(int i)
    int gdb_use_instruction_set(const char *name)

cdef extern from "c/pointwise.h" nogil:
    const char *gdb_code_names[]
    const int32_t gdb_code_arity[]
    int GDB_N_CODES

    ctypedef struct gdb_array:
        char *data
        int64_t pitch
        int32_t dtype

    ctypedef struct gdb_instruction:
        int32_t code, target, a, b, c
        double value, value2

    ctypedef struct gdb_access:
        int32_t reg, slot, column, how
        int32_t *order

    ctypedef struct gdb_loop:
        int32_t dtype, n_registers
        int64_t width
        int32_t n_loads, n_instructions, n_stores
        const gdb_access *loads
        const gdb_instruction *instructions
        const gdb_access *stores

    int64_t gdb_loop_scratch(const gdb_loop *loop)
    void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch)

#: Numbers of types.
DTYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
#: By name of each function: its code and how many registers it reads.
CODES = {
    gdb_code_names[code].decode(): (code, gdb_code_arity[code]) for code in range(GDB_N_CODES)
}
cdef dict HOW = {"row": 0, "spread": 1, "moved": 2, "total": 3, "top": 4}
cdef int64_t *SIZES = [4, 8, 4, 8]

cdef enum:
    #: Rows of a launch are run in blocks whose values stay in a cache of about this size, but of no
    #: fewer rows than products need to be fast, unless that were too much memory.
    CACHE = 1 << 19
    ROWS_AT_ONCE = 24
    MOST_BYTES = 1 << 26
    #: What a function of an element takes, in operations of products.
    FUNCTION = 16


def instruction_sets():
    """Return the names of the instruction sets that this processor can run, the best first."""
    names = []
    while gdb_instruction_set(len(names)):
        names.append(gdb_instruction_set(len(names)).decode())
    return names


def use_instruction_set(str name=None):
    """Run all kernels with an instruction set from now on, by default the best; for tests."""
    encoded = name.encode() if name is not None else None
    if not gdb_use_instruction_set(<const char *>encoded if encoded is not None else NULL):
        raise ValueError(f"This processor can't run instruction set {name!r}.")


cdef inline int64_t lines(int64_t count) noexcept nogil:
    """Return so many bytes in whole lines of the cache."""
    return (count + 63) // 64 * 64


cdef struct Place:
    int64_t slot, column


cdef struct Product:
    # Of a chosen product the matrix is a table, which has rows.
    Place matrix, bias
    int64_t table_rows, inputs, units, parts
    bint adds, unpacked


cdef struct Dots:
    # As `kernel.expression.Dot` says.
    int64_t matrices, m, k, n, turn_left, turn_right, gradient


ctypedef void (*Run)(
    const Step *step, const gdb_array *slots, int64_t rows, char *scratch) noexcept nogil


cdef struct Step:
    Run run
    int32_t dtype
    #: Of all but loops; the right factor of products is a parameter.
    Place left, right, result
    Product product
    Dots dots
    gdb_loop loop


cdef struct Kernel_:
    int64_t references
    int64_t steps_count, slots_count
    Step *steps
    #: Without addresses.
    gdb_array *slots
    #: Per slot where a block of its rows stands in scratch if it is nowhere else.
    int64_t *local
    int64_t block
    #: Operations of a row, about.
    int64_t work
    #: Where slots with addresses stand in scratch, and how much of that is needed.
    int64_t found
    int64_t scratch


cdef void release_kernel(Kernel_ *kernel) noexcept nogil:
    cdef int64_t i, k
    if RELEASE(&kernel.references):
        return
    for i in range(kernel.steps_count):
        for k in range(kernel.steps[i].loop.n_loads):
            free(kernel.steps[i].loop.loads[k].order)
        free(<void *>kernel.steps[i].loop.loads)
        free(<void *>kernel.steps[i].loop.instructions)
        free(<void *>kernel.steps[i].loop.stores)
    free(kernel.steps)
    free(kernel.slots)
    free(kernel.local)
    free(kernel)


cdef void *room(int64_t count, int64_t size) except NULL:
    cdef void *found = calloc(max(count, 1), size)
    if found == NULL:
        raise MemoryError()
    return found


cdef class Kernel:
    """A kernel (`gluon_dynbatch.kernel.step.Kernel`) in the form in which it is run."""

    cdef Kernel_ *kernel
    #: What programs say the places of: slots, and matrices that are packed.
    cdef readonly tuple slots, packs
    #: Whether matrices are read as they are, which takes longer for more than a few rows.
    cdef bint few
    cdef dict numbers

    def __cinit__(self, given, bint few=False):
        cdef int64_t i, scratch = 0
        self.few, self.numbers = few, {}
        self.kernel = kernel = <Kernel_ *>room(1, sizeof(Kernel_))
        kernel.references = 1
        kernel.steps_count = len(given.steps)
        kernel.steps = <Step *>room(kernel.steps_count, sizeof(Step))
        for i, step in enumerate(given.steps):
            kernel.steps[i].dtype = DTYPES[step.dtype]
            scratch = max(scratch, self.add(&kernel.steps[i], step))
        self.lay_out(given.arrays, lines(scratch))

    cdef int64_t add(self, Step *step, given) except -1:
        """Take over a step; return how much scratch it needs."""
        if hasattr(given, "instructions"):
            return self.add_loop(&step.loop, step, given)
        step.left, step.result = self.place(given.left), self.place(given.result)
        if hasattr(given, "how"):
            return self.add_dots(&step.dots, step, given)
        return self.add_product(&step.product, step, given)

    cdef int64_t add_product(self, Product *product, Step *step, given) except -1:
        weight = given.weight
        step.run = run_chosen if weight.chosen else run_product
        product.unpacked = self.few and weight.transposed
        matrix = given.matrix(self.few)
        # What is packed begins with the first row.
        product.matrix = Place(
            self.number(matrix), weight.place.column if matrix == weight.place.slot else 0)
        product.table_rows = weight.rows
        product.inputs, product.units = weight.inputs, weight.units
        product.bias = Place(-1, 0) if given.bias is None else self.place(given.bias)
        product.adds, product.parts = given.adds, given.parts
        self.kernel.work += 2 * product.inputs * product.units * product.parts
        return 0

    cdef int64_t add_dots(self, Dots *dots, Step *step, given) except -1:
        step.run = run_dots
        step.right = self.place(given.right)
        (dots.matrices, dots.m, dots.k, dots.n, (dots.turn_left, dots.turn_right),
         dots.gradient) = given.how
        self.kernel.work += 2 * dots.matrices * dots.m * dots.k * dots.n
        return 64 + gdb_kernels_of(step.dtype).packed_elements(dots.k, dots.n) * SIZES[step.dtype]

    cdef int64_t add_loop(self, gdb_loop *loop, Step *step, given) except -1:
        cdef gdb_instruction *found
        step.run = run_loop
        loop.dtype, loop.width, loop.n_registers = step.dtype, given.width, given.registers
        loop.loads, loop.stores = self.accesses(given.loads), self.accesses(given.stores)
        loop.n_loads, loop.n_stores = len(given.loads), len(given.stores)
        loop.n_instructions = len(given.instructions)
        found = <gdb_instruction *>room(loop.n_instructions, sizeof(gdb_instruction))
        loop.instructions = found
        for i, (name, target, arguments, values) in enumerate(given.instructions):
            a, b, c = (*arguments, 0, 0, 0)[:3]
            value, value2 = (*values, 0.0, 0.0)[:2]
            found[i] = gdb_instruction(CODES[name][0], target, a, b, c, value, value2)
        self.kernel.work += FUNCTION * loop.width * loop.n_instructions
        return gdb_loop_scratch(loop)

    cdef gdb_access *accesses(self, given) except NULL:
        cdef gdb_access *found = <gdb_access *>room(len(given), sizeof(gdb_access))
        for i, (register, place, how) in enumerate(given):
            order = how if isinstance(how, tuple) else ()
            how = HOW["moved" if order else how]
            found[i] = gdb_access(register, self.number(place.slot), place.column, how, NULL)
            if order:
                found[i].order = <int32_t *>room(len(order), sizeof(int32_t))
                for k, column in enumerate(order):
                    found[i].order[k] = column
        return found

    cdef int64_t number(self, slot) except -1:
        return self.numbers.setdefault(slot, len(self.numbers))

    cdef Place place(self, given):
        return Place(self.number(given.slot), given.column)

    cdef lay_out(self, arrays, int64_t at):
        """Say of what type and how wide slots are, and where they are in scratch."""
        cdef Kernel_ *kernel = self.kernel
        cdef int64_t i, row = 0
        self.slots = tuple(self.numbers)
        self.packs = tuple(slot for slot in self.slots if slot not in arrays)
        kernel.slots_count = len(self.slots)
        kernel.slots = <gdb_array *>room(kernel.slots_count, sizeof(gdb_array))
        kernel.local = <int64_t *>room(kernel.slots_count, 8)
        for i, slot in enumerate(self.slots):
            array = arrays.get(slot)
            if array is not None:
                kernel.slots[i].dtype = DTYPES[array.dtype]
                kernel.slots[i].pitch = 0 if array.every else array.width
            row += kernel.slots[i].pitch * SIZES[kernel.slots[i].dtype]
        kernel.block = max(ROWS_AT_ONCE, CACHE // max(row, 1))
        kernel.block -= kernel.block % ROWS_AT_ONCE
        kernel.block = max(min(kernel.block, MOST_BYTES // max(row, 1)), 1)
        for i, slot in enumerate(self.slots):
            kernel.local[i] = at
            if slot in arrays and slot.kind == "work":
                at += lines(kernel.slots[i].pitch * SIZES[kernel.slots[i].dtype] * kernel.block)
        kernel.found = at
        kernel.scratch = at + sizeof(gdb_array) * kernel.slots_count

    def __dealloc__(self):
        if self.kernel != NULL:
            release_kernel(self.kernel)

    @property
    def address(self):
        return <uintptr_t>self.kernel

    @property
    def work(self):
        return self.kernel.work


cdef void run_block(
    const Kernel_ *kernel, const int64_t *places, char **bases, char *scratch, int64_t low,
    int64_t high,
) noexcept nogil:
    """Run a kernel on some rows; places are a base and an offset in bytes per slot."""
    cdef gdb_array *slots = <gdb_array *>(scratch + kernel.found)
    cdef Step *step
    cdef int64_t s
    for s in range(kernel.slots_count):
        slots[s] = kernel.slots[s]
        if places[2 * s] < 0:
            slots[s].data = scratch + kernel.local[s]
        else:
            slots[s].data = bases[places[2 * s]] + places[2 * s + 1]
            slots[s].data += low * slots[s].pitch * SIZES[slots[s].dtype]
    for s in range(kernel.steps_count):
        step = &kernel.steps[s]
        step.run(step, slots, high - low, scratch)


cdef inline char *at(const gdb_array *slots, const Place *place, int64_t row) noexcept nogil:
    cdef const gdb_array *found = &slots[place.slot]
    return found.data + (row * found.pitch + place.column) * SIZES[found.dtype]


cdef void run_loop(
    const Step *step, const gdb_array *slots, int64_t rows, char *scratch) noexcept nogil:
    gdb_run_loop(&step.loop, slots, rows, scratch)


cdef void run_product(
    const Step *step, const gdb_array *slots, int64_t rows, char *scratch) noexcept nogil:
    """Multiply rows with a matrix; where rows have several parts, these stand side by side."""
    cdef const Product *product = &step.product
    cdef const gdb_kernels *kernels = gdb_kernels_of(step.dtype)
    cdef int64_t m = rows * product.parts, n = product.units, k = product.inputs
    cdef int64_t a_row = k if product.parts > 1 else slots[step.left.slot].pitch
    cdef int64_t c_row = n if product.parts > 1 else slots[step.result.slot].pitch
    cdef char *a = at(slots, &step.left, 0)
    cdef char *c = at(slots, &step.result, 0)
    cdef char *matrix = at(slots, &product.matrix, 0)
    cdef char *bias = NULL if product.bias.slot < 0 else at(slots, &product.bias, 0)
    if product.unpacked:
        kernels.multiply_few(m, n, k, a, a_row, matrix, k, c, c_row, bias, product.adds)
    else:
        kernels.multiply(m, n, k, a, a_row, 1, matrix, c, c_row, bias, product.adds)
