"""Steps in which each row reads other numbers than the next; rowwise.pyx says what each does."""

from libc.stdint cimport int64_t

cdef void choose_rows(
    int dtype, int64_t rows, int64_t parts, int64_t units, const char *table, int64_t table_rows,
    int place_dtype, const char *places, int64_t places_row, int64_t column, char *result,
    int64_t result_row, bint adds) noexcept nogil
cdef void add_to_chosen(
    int dtype, char *table, int64_t table_rows, int64_t units, int64_t rows, const void *gradient,
    int64_t gradient_row, int place_dtype, const void *places, int64_t places_row) noexcept nogil
