# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Steps in which each row reads other numbers than the next.

Types are 0 for float, 1 for double, 2 for int32, 3 for int64; `row` is what rows are apart, in elements.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from .products cimport packed_elements, run_multiply, run_pack

cdef int64_t *SIZES = [4, 8, 4, 8]

ctypedef fused Float:
    float
    double


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


cdef inline void add(Float *target, const Float *source, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        target[i] += source[i]


cdef inline void add_row(int dtype, char *target, const char *source, int64_t count) noexcept nogil:
    if dtype:
        add[double](<double *>target, <const double *>source, count)
    else:
        add[float](<float *>target, <const float *>source, count)


cdef void choose_rows(
    int dtype, int64_t rows, int64_t parts, int64_t units, const char *table, int64_t table_rows,
    int place_dtype, const char *places, int64_t places_row, int64_t column, char *result,
    int64_t result_row, bint adds,
) noexcept nogil:
    """Copy or add the rows of a table that stand at the places in some columns of each row."""
    cdef int64_t row, part, place, size = units * SIZES[dtype]
    cdef const char *source
    cdef char *target
    for row in range(rows):
        target = result + row * result_row * SIZES[dtype]
        for part in range(parts):
            place = place_of(place_dtype, places, row * places_row + column + part, table_rows)
            source = table + place * size
            if adds:
                add_row(dtype, target, source, units)
            else:
                memcpy(target, source, size)
            target += size


cdef void add_to_chosen(
    int dtype, char *table, int64_t table_rows, int64_t units, int64_t rows, const void *gradient,
    int64_t gradient_row, int place_dtype, const void *places, int64_t places_row,
) noexcept nogil:
    """Add rows to those of a table at one place for each."""
    cdef int64_t row, place
    for row in range(rows):
        place = place_of(place_dtype, places, row * places_row, table_rows)
        add_row(
            dtype, table + place * units * SIZES[dtype],
            <const char *>gradient + row * gradient_row * SIZES[dtype], units)


cdef inline bint is_zero(int dtype, const char *matrix, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        if ((<const double *>matrix)[i] if dtype else (<const float *>matrix)[i]) != 0:
            return False
    return True


cdef void turn(int64_t size, char *to, const char *matrix, int64_t rows, int64_t columns) noexcept nogil:
    """Write a matrix the other way round."""
    cdef int64_t row, column
    for row in range(rows):
        for column in range(columns):
            memcpy(to + (column * rows + row) * size, matrix + (row * columns + column) * size, size)


cdef inline int64_t packed_bytes(const Dots *step) noexcept nogil:
    return (packed_elements(step.dtype, step.k, step.n) * SIZES[step.dtype] + 63) // 64 * 64


cdef int64_t dots_scratch(const Dots *step) noexcept nogil:
    """Return how many bytes of scratch `run_dots` takes."""
    return 64 + packed_bytes(step) + step.m * step.k * SIZES[step.dtype] * step.turn_left


cdef void run_dots(
    const Dots *step, char **slots, const int64_t *pitch, int64_t rows, char *scratch
) noexcept nogil:
    """Multiply matrices of which each row has its own."""
    cdef int64_t m = step.m, k = step.k, n = step.n, size = SIZES[step.dtype], row, i
    cdef char *packed = scratch + -<int64_t><size_t>scratch % 64
    cdef char *turned = packed + packed_bytes(step)
    cdef const char *left
    cdef const char *right
    cdef char *result
    for row in range(rows):
        left = slots[step.left] + (row * pitch[step.left] + step.left_column) * size
        right = slots[step.right] + (row * pitch[step.right] + step.right_column) * size
        result = slots[step.result] + (row * pitch[step.result] + step.result_column) * size
        for i in range(step.count):
            if (step.gradient == 0 and is_zero(step.dtype, left, m * k)) or (
                step.gradient == 1 and is_zero(step.dtype, right, k * n)
            ):
                memset(result, 0, m * n * size)
            else:
                run_pack(
                    step.dtype, right, 1 if step.turn_right else n, k if step.turn_right else 1,
                    k, n, packed)
                if step.turn_left:
                    turn(size, turned, left, k, m)
                run_multiply(
                    step.dtype, m, n, k, turned if step.turn_left else <char *>left, k, packed,
                    result, n, NULL, 0)
            left += m * k * size
            right += k * n * size
            result += m * n * size
