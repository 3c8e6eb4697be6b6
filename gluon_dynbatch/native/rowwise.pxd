"""Steps in which each row reads other numbers than the next; rowwise.pyx says what each does."""

from libc.stdint cimport int32_t, int64_t

cdef struct Dots:
    int32_t dtype
    # Slots and columns of the matrices; as `kernel.expression.Dot` says.
    int64_t left, left_column, right, right_column, result, result_column
    int64_t count, m, k, n, turn_left, turn_right, gradient

cdef int64_t dots_scratch(const Dots *step) noexcept nogil
cdef void run_dots(
    const Dots *step, char **slots, const int64_t *pitch, int64_t rows, char *scratch
) noexcept nogil
cdef void choose_rows(
    int dtype, int64_t rows, int64_t parts, int64_t units, const char *table, int64_t table_rows,
    int place_dtype, const char *places, int64_t places_row, int64_t column, char *result,
    int64_t result_row, bint adds) noexcept nogil
cdef void add_to_chosen(
    int dtype, char *table, int64_t table_rows, int64_t units, int64_t rows, const void *gradient,
    int64_t gradient_row, int place_dtype, const void *places, int64_t places_row) noexcept nogil
