#include "products.h"

#include <string.h>

#define DEPTH 256 /* at most so many products are summed up in registers */
#define HEIGHT 16 /* tiles of A that are multiplied by one panel of B after the other */
#define LINE 64   /* bytes of a line of the cache, and of the widest vector */
#define ROWS 250  /* that weight_gradient packs; no power of two, which is bad for caches */
#define AHEAD 1024 /* bytes by which B is prefetched: it is in the second cache, or beyond it */

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define JOIN(x, type, isa) JOIN_(x, type, isa)
#define JOIN_(x, type, isa) x##_##type##_##isa

/* a0 b0 a1 b1 ... of the lower, or the upper, halves of two vectors of 16 bytes. */
#if defined(__clang__) || __GNUC__ >= 12
#define LOW_float(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH_float(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define LOW_double(a, b) __builtin_shufflevector(a, b, 0, 2)
#define HIGH_double(a, b) __builtin_shufflevector(a, b, 1, 3)
#else
typedef int32_t order_float __attribute__((vector_size(16)));
typedef int64_t order_double __attribute__((vector_size(16)));
#define LOW_float(a, b) __builtin_shuffle(a, b, (order_float){0, 4, 1, 5})
#define HIGH_float(a, b) __builtin_shuffle(a, b, (order_float){2, 6, 3, 7})
#define LOW_double(a, b) __builtin_shuffle(a, b, (order_double){0, 2})
#define HIGH_double(a, b) __builtin_shuffle(a, b, (order_double){1, 3})
#endif
#define LOW(type, a, b) LOW_(type, a, b)
#define LOW_(type, a, b) LOW_##type(a, b)
#define HIGH(type, a, b) HIGH_(type, a, b)
#define HIGH_(type, a, b) HIGH_##type(a, b)

struct products {
    int64_t (*packed_elements)(int64_t, int64_t);
    void (*pack)(const void *, int64_t, int64_t, int64_t, int64_t, void *);
    void (*multiply)(int64_t, int64_t, int64_t, const void *, int64_t, const void *, void *,
                     int64_t, const void *, int);
    void (*multiply_few)(int64_t, int64_t, int64_t, const void *, int64_t, const void *, int64_t,
                         void *, int64_t, const void *, int);
    int64_t (*scratch)(int64_t, int64_t);
    void (*weight_gradient)(int64_t, int64_t, int64_t, int64_t, int64_t, const int64_t *,
                            const void *const *, const int64_t *, const void *const *,
                            const int64_t *, void *, int64_t, int, void *);
    void (*bias_gradient)(int64_t, int64_t, const int64_t *, const void *const *, const int64_t *,
                          void *, int);
};

/* Tiles leave registers for a row of B: SSE2 and AVX2 have 16 in all, NEON and AVX-512 have 32. */
#define ISA baseline
#define TARGET
#define BYTES 16
#ifdef __aarch64__
#define MR 8
#define NV 3
#else
#define MR 4
#define NV 2
#endif
#include "products_kernel.h"

#ifdef __x86_64__
#define ISA avx2
#define TARGET __attribute__((target("avx2,fma")))
#define BYTES 32
#define MR 6
#define NV 2
#include "products_kernel.h"

#define ISA avx512
#define TARGET __attribute__((target("avx512f,avx2,fma")))
#define BYTES 64
#define MR 8
#define NV 3
#include "products_kernel.h"
#endif

#define BOTH_TYPES(isa) {&products_float_##isa, &products_double_##isa}

static const struct products *const TABLE[GDB_ISAS][2] = {
    BOTH_TYPES(baseline),
#ifdef __x86_64__
    BOTH_TYPES(avx2),
    BOTH_TYPES(avx512),
#endif
};

static int chosen = -1; /* found out by whoever comes first; all find the same */

int gdb_products_isa(int most)
{
    int best = GDB_BASELINE;
    (void)most;
#ifdef __x86_64__
    if (most >= GDB_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        best = most >= GDB_AVX512 && __builtin_cpu_supports("avx512f") ? GDB_AVX512 : GDB_AVX2;
#endif
    __atomic_store_n(&chosen, best, __ATOMIC_RELAXED);
    return best;
}

static const struct products *products(int dtype)
{
    int isa = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    return TABLE[isa < 0 ? gdb_products_isa(GDB_ISAS) : isa][dtype];
}

int64_t gdb_packed_elements(int dtype, int64_t k, int64_t n)
{
    return products(dtype)->packed_elements(k, n);
}

void gdb_pack(int dtype, const void *b, int64_t row_stride, int64_t column_stride, int64_t k,
              int64_t n, void *packed)
{
    products(dtype)->pack(b, row_stride, column_stride, k, n, packed);
}

void gdb_multiply(int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                  const void *packed, void *c, int64_t c_row, const void *bias, int accumulate)
{
    products(dtype)->multiply(m, n, k, a, a_row, packed, c, c_row, bias, accumulate);
}

void gdb_multiply_few(int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                      const void *w, int64_t w_row, void *c, int64_t c_row, const void *bias,
                      int accumulate)
{
    products(dtype)->multiply_few(m, n, k, a, a_row, w, w_row, c, c_row, bias, accumulate);
}

int64_t gdb_weight_gradient_scratch(int dtype, int64_t n, int64_t k)
{
    return products(dtype)->scratch(n, k);
}

void gdb_weight_gradient(int dtype, int64_t n, int64_t k, int64_t first, int64_t last,
                         int64_t chunks, const int64_t *rows, const void *const *dy,
                         const int64_t *dy_row, const void *const *x, const int64_t *x_row,
                         void *dw, int64_t dw_row, int how, void *scratch)
{
    products(dtype)->weight_gradient(n, k, first, last, chunks, rows, dy, dy_row, x, x_row, dw,
                                     dw_row, how, scratch);
}

void gdb_bias_gradient(int dtype, int64_t n, int64_t chunks, const int64_t *rows,
                       const void *const *dy, const int64_t *dy_row, void *db, int accumulate)
{
    products(dtype)->bias_gradient(n, chunks, rows, dy, dy_row, db, accumulate);
}
