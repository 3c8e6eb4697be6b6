# cython: language_level=3, binding=False
"""The matrix products of `c/products.h` for arrays; what runs launches calls them in C."""

from libc.stdint cimport int64_t

import numpy as np

cdef extern from "c/products.h" nogil:
    int gdb_products_isa(int most)
    int64_t gdb_packed_elements(int dtype, int64_t k, int64_t n)
    void gdb_pack(
        int dtype, const void *b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
        void *packed)
    void gdb_multiply(
        int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
        const void *packed, void *c, int64_t c_row, const void *bias, int accumulate)
    void gdb_multiply_few(
        int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, const void *w,
        int64_t w_row, void *c, int64_t c_row, const void *bias, int accumulate)
    int64_t gdb_weight_gradient_scratch(int dtype, int64_t n, int64_t k)
    void gdb_weight_gradient(
        int dtype, int64_t n, int64_t k, int64_t first, int64_t last, int64_t chunks,
        const int64_t *rows, const void **dy, const int64_t *dy_row, const void **x,
        const int64_t *x_row, void *dw, int64_t dw_row, int accumulate, void *scratch)
    void gdb_bias_gradient(
        int dtype, int64_t n, int64_t chunks, const int64_t *rows, const void **dy,
        const int64_t *dy_row, void *db, int accumulate)

cdef int64_t packed_elements(int dtype, int64_t k, int64_t n) noexcept nogil:
    return gdb_packed_elements(dtype, k, n)


cdef void run_pack(
    int dtype, const void *b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
    void *packed,
) noexcept nogil:
    gdb_pack(dtype, b, row_stride, column_stride, k, n, packed)


cdef void run_multiply(
    int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, const void *packed,
    void *c, int64_t c_row, const void *bias, int accumulate,
) noexcept nogil:
    gdb_multiply(dtype, m, n, k, a, a_row, packed, c, c_row, bias, accumulate)


cdef void run_multiply_few(
    int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, const void *w,
    int64_t w_row, void *c, int64_t c_row, const void *bias, int accumulate,
) noexcept nogil:
    gdb_multiply_few(dtype, m, n, k, a, a_row, w, w_row, c, c_row, bias, accumulate)


cdef int64_t weight_gradient_scratch(int dtype, int64_t n, int64_t k) noexcept nogil:
    return gdb_weight_gradient_scratch(dtype, n, k)


cdef void run_weight_gradient(
    int dtype, int64_t n, int64_t k, int64_t first, int64_t last, int64_t chunks,
    const int64_t *rows, const void **dy, const int64_t *dy_row, const void **x,
    const int64_t *x_row, void *dw, int64_t dw_row, int how, void *scratch,
) noexcept nogil:
    gdb_weight_gradient(
        dtype, n, k, first, last, chunks, rows, dy, dy_row, x, x_row, dw, dw_row, how, scratch)


cdef void run_bias_gradient(
    int dtype, int64_t n, int64_t chunks, const int64_t *rows, const void **dy,
    const int64_t *dy_row, void *db, int accumulate,
) noexcept nogil:
    gdb_bias_gradient(dtype, n, chunks, rows, dy, dy_row, db, accumulate)


cdef int type_of(array) except -1:
    """Return the number of an array's type; its rows must be contiguous."""
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"{array.dtype} is neither float32 nor float64")
    if array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        raise ValueError("rows are not contiguous")
    return array.dtype == np.float64


cdef void *address(array) except? NULL:
    return <void *><size_t>array.ctypes.data


cdef int64_t stride(array, int axis=0) except? -1:
    return array.strides[axis] // array.itemsize


cdef describe(matrices, int dtype, int64_t width):
    """Return numbers of rows, addresses and strides of matrices, of which the rows are one list."""
    for matrix in matrices:
        if type_of(matrix) != dtype or matrix.shape[1] != width:
            raise ValueError(f"{matrix.shape} of {matrix.dtype} is unlike the gradient")
    told = [(len(m), m.ctypes.data, stride(m)) for m in matrices]
    return np.array(told, np.int64).reshape(-1, 3).T.copy()


def use(int most):
    """Use the best instruction set up to the given one that there is, and return it."""
    return gdb_products_isa(most)


def pack(b):
    """Return a copy of a matrix that `multiply` can read."""
    cdef int64_t k, n
    cdef int dtype = type_of(b if b.strides[1] == b.itemsize else b.T)
    k, n = b.shape
    packed = np.empty(gdb_packed_elements(dtype, k, n), b.dtype)
    gdb_pack(dtype, address(b), stride(b), stride(b, 1), k, n, address(packed))
    return packed


def multiply(a, packed, c, bias=None, accumulate=False):
    """Write the product of `a` and what was packed, plus `bias`, to `c`; or add it."""
    cdef int64_t m, k, n
    cdef int dtype = type_of(a)
    (m, k), n = a.shape, c.shape[1]
    if type_of(c) != dtype or len(c) != m or len(packed) != gdb_packed_elements(dtype, k, n):
        raise ValueError(f"{c.shape} of {c.dtype} is not the product with {a.shape}")
    cdef const void *left = address(a)
    cdef const void *right = address(packed)
    cdef const void *shift = NULL if bias is None else address(bias)
    cdef void *to = address(c)
    cdef int64_t a_row = stride(a), c_row = stride(c)
    cdef int add = accumulate
    with nogil:
        gdb_multiply(dtype, m, n, k, left, a_row, right, to, c_row, shift, add)


def multiply_few(a, w, c, bias=None, accumulate=False):
    """Write the product of `a` and the transpose of `w`, plus `bias`, to `c`; or add it."""
    cdef int dtype = type_of(a)
    gdb_multiply_few(
        dtype, len(c), len(w), w.shape[1], address(a), stride(a), address(w), stride(w),
        address(c), stride(c), NULL if bias is None else address(bias), accumulate)


def weight_gradient(dys, xs, dw, first=0, last=None, accumulate=False):
    """Write the sum of dy^T x over pairs of chunks to rows of `dw`; or add it."""
    cdef int dtype = type_of(dw), add = accumulate
    cdef int64_t n, k, since = first, until = len(dw) if last is None else last
    n, k = dw.shape
    rows, y, y_strides = describe(dys, dtype, n)
    x_rows, x, x_strides = describe(xs, dtype, k)
    if rows.tolist() != x_rows.tolist():
        raise ValueError("chunks have different numbers of rows")
    scratch = np.empty(gdb_weight_gradient_scratch(dtype, n, k), np.uint8)
    cdef int64_t chunks = len(rows), dw_row = stride(dw)
    cdef void *pointers[7]
    for i, array in enumerate((rows, y, y_strides, x, x_strides, dw, scratch)):
        pointers[i] = address(array)
    with nogil:
        gdb_weight_gradient(
            dtype, n, k, since, until, chunks, <int64_t *>pointers[0], <const void **>pointers[1],
            <int64_t *>pointers[2], <const void **>pointers[3], <int64_t *>pointers[4], pointers[5],
            dw_row, add, pointers[6])


def bias_gradient(dys, db, accumulate=False):
    """Write the sum of the rows of all chunks to `db`; or add it."""
    cdef int dtype = type_of(db)
    rows, y, strides = describe(dys, dtype, len(db))
    gdb_bias_gradient(
        dtype, len(db), len(rows), <int64_t *>address(rows), <const void **>address(y),
        <int64_t *>address(strides), address(db), accumulate)
