"""Steps in which each row reads other numbers than the next: a part of `executing.pyx`."""


cdef inline int64_t clipped(double place, int64_t rows) noexcept nogil:
    """Return a place among some rows; the first for what is no number."""
    if not place > 0:
        return 0
    return <int64_t>place if place < rows else rows - 1


cdef inline int64_t place_of(int dtype, const void *places, int64_t i, int64_t rows) noexcept nogil:
    if dtype == 0:
        return clipped((<const float *>places)[i], rows)
    if dtype == 1:
        return clipped((<const double *>places)[i], rows)
    cdef int64_t place = (<const int32_t *>places)[i] if dtype == 2 else (<const int64_t *>places)[i]
    return max(0, min(place, rows - 1))


ctypedef fused Number:
    float
    double
    int32_t
    int64_t


cdef inline void add(Number *target, const Number *source, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        target[i] += source[i]


cdef void add_row(int64_t dtype, char *target, const char *source, int64_t count) noexcept nogil:
    if dtype == 0:
        add(<float *>target, <const float *>source, count)
    elif dtype == 1:
        add(<double *>target, <const double *>source, count)
    elif dtype == 2:
        add(<int32_t *>target, <const int32_t *>source, count)
    else:
        add(<int64_t *>target, <const int64_t *>source, count)


cdef void run_chosen(
    const Step *step, const gdb_array *slots, int64_t rows, char *scratch) noexcept nogil:
    """Copy or add the rows of a table that stand at the places in some columns of each row."""
    cdef const Product *product = &step.product
    cdef int64_t row, part, place, size = product.units * SIZES[step.dtype]
    cdef int place_dtype = slots[step.left.slot].dtype
    cdef const char *source
    cdef char *target
    for row in range(rows):
        target = at(slots, &step.result, row)
        for part in range(product.parts):
            place = place_of(place_dtype, at(slots, &step.left, row), part, product.table_rows)
            source = at(slots, &product.matrix, 0) + place * size
            if product.adds:
                add_row(step.dtype, target, source, product.units)
            else:
                memcpy(target, source, size)
            target += size


cdef void add_to_chosen(
    int dtype, char *table, int64_t table_rows, int64_t units, const gdb_chunk *chunk,
    int place_dtype,
) noexcept nogil:
    """Add rows to those of a table at one place for each."""
    cdef int64_t row, place
    for row in range(chunk.rows):
        place = place_of(place_dtype, chunk.x, row * chunk.x_row, table_rows)
        add_row(
            dtype, table + place * units * SIZES[dtype],
            <const char *>chunk.dy + row * chunk.dy_row * SIZES[dtype], units)


cdef inline bint is_zero(int dtype, const char *matrix, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        if ((<const double *>matrix)[i] if dtype else (<const float *>matrix)[i]) != 0:
            return False
    return True


cdef void run_dots(
    const Step *step, const gdb_array *slots, int64_t rows, char *scratch) noexcept nogil:
    """Multiply matrices of which each row has its own."""
    cdef const Dots *dots = &step.dots
    cdef const gdb_kernels *kernels = gdb_kernels_of(step.dtype)
    cdef int64_t m = dots.m, k = dots.k, n = dots.n, size = SIZES[step.dtype], row, i
    cdef char *packed = scratch + -<int64_t><size_t>scratch % 64
    cdef const char *left
    cdef const char *right
    cdef char *result
    for row in range(rows):
        left = at(slots, &step.left, row)
        right = at(slots, &step.right, row)
        result = at(slots, &step.result, row)
        for i in range(dots.matrices):
            if (dots.gradient == 0 and is_zero(step.dtype, left, m * k)) or (
                dots.gradient == 1 and is_zero(step.dtype, right, k * n)
            ):
                memset(result, 0, m * n * size)
            else:
                kernels.pack(
                    right, 1 if dots.turn_right else n, k if dots.turn_right else 1, k, n, packed)
                kernels.multiply(
                    m, n, k, left, 1 if dots.turn_left else k, m if dots.turn_left else 1, packed,
                    result, n, NULL, 0)
            left += m * k * size
            right += k * n * size
            result += m * n * size
