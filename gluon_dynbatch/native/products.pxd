"""The C interface of matrix products, for other modules; c/products.h says what each part means."""

from libc.stdint cimport int64_t

cdef int64_t packed_elements(int dtype, int64_t k, int64_t n) noexcept nogil
cdef void run_pack(
    int dtype, const void *b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
    void *packed) noexcept nogil
cdef void run_multiply(
    int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, const void *packed,
    void *c, int64_t c_row, const void *bias, int accumulate) noexcept nogil
cdef void run_multiply_few(
    int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, const void *w,
    int64_t w_row, void *c, int64_t c_row, const void *bias, int accumulate) noexcept nogil
cdef int64_t weight_gradient_scratch(int dtype, int64_t n, int64_t k) noexcept nogil
cdef void run_weight_gradient(
    int dtype, int64_t n, int64_t k, int64_t first, int64_t last, int64_t chunks,
    const int64_t *rows, const void **dy, const int64_t *dy_row, const void **x,
    const int64_t *x_row, void *dw, int64_t dw_row, int how, void *scratch) noexcept nogil
cdef void run_bias_gradient(
    int dtype, int64_t n, int64_t chunks, const int64_t *rows, const void **dy,
    const int64_t *dy_row, void *db, int accumulate) noexcept nogil
