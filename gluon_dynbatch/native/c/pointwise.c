#ifndef _GNU_SOURCE
#define _GNU_SOURCE  /* lgamma_r; macOS wants _REENTRANT for it */
#endif
#ifndef _REENTRANT
#define _REENTRANT 1
#endif
#include "pointwise.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __APPLE__
#define lgammal_r(x, sign) lgamma_r((double)(x), sign)
#endif
#if defined(__clang__)
#define GDB_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GDB_INDEPENDENT _Pragma("GCC ivdep")
#else
#define GDB_INDEPENDENT
#endif

typedef void gdb_kernel(void *out, const void *a, const void *b, const void *c, int64_t n,
                        double value, double value2);
typedef void gdb_reduction(const void *from, int64_t rows, int64_t columns, double *so_far);

/* ------------------------------------------------------------------ instruction sets */

#define GDB_SET base
#define GDB_DOUBLE 1
#include "pointwise_kernels.h"
#undef GDB_DOUBLE
#define GDB_DOUBLE 0
#include "pointwise_kernels.h"
#undef GDB_DOUBLE
#undef GDB_SET

#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 8 && !defined(__clang__)
#define GDB_X86 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define GDB_SET avx2
#define GDB_DOUBLE 1
#include "pointwise_kernels.h"
#undef GDB_DOUBLE
#define GDB_DOUBLE 0
#include "pointwise_kernels.h"
#undef GDB_DOUBLE
#undef GDB_SET
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#define GDB_SET avx512
#define GDB_DOUBLE 1
#include "pointwise_kernels.h"
#undef GDB_DOUBLE
#define GDB_DOUBLE 0
#include "pointwise_kernels.h"
#undef GDB_DOUBLE
#undef GDB_SET
#pragma GCC pop_options
#endif

typedef struct {
    const char *name;
    gdb_kernel *const *kernels[2];  /* by type, then by code */
    gdb_reduction *add_sums[2], *raise_maxima[2];
} gdb_set;

#define GDB_SET_OF(name) \
    {#name, {kernels_f32_##name, kernels_f64_##name}, \
     {add_sums_f32_##name, add_sums_f64_##name}, {raise_maxima_f32_##name, raise_maxima_f64_##name}}

static const gdb_set SETS[] = {
#ifdef GDB_X86
    GDB_SET_OF(avx512), GDB_SET_OF(avx2),
#endif
    GDB_SET_OF(base)};

enum { N_SETS = sizeof SETS / sizeof *SETS };

static int runs_here(const char *name) {
#ifdef GDB_X86
    if (!strcmp(name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
            && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return !strcmp(name, "base");
}

static const gdb_set *chosen;  /* set once, always to the same unless tests ask for another */

const char *gdb_instruction_set(int i) {
    for (int s = 0; s < N_SETS; s++)
        if (runs_here(SETS[s].name) && i-- == 0)
            return SETS[s].name;
    return NULL;
}

int gdb_use_instruction_set(const char *name) {
    for (int s = 0; s < N_SETS; s++)
        if (runs_here(SETS[s].name) && (!name || !strcmp(name, SETS[s].name))) {
            __atomic_store_n(&chosen, &SETS[s], __ATOMIC_RELEASE);
            return 1;
        }
    return 0;
}

static const gdb_set *instruction_set(void) {
    if (!__atomic_load_n(&chosen, __ATOMIC_ACQUIRE))
        gdb_use_instruction_set(NULL);
    return __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
}

const char *const gdb_code_names[GDB_N_CODES] = {
#define GDB_NAME(name, arity) #name,
    GDB_CODES(GDB_NAME)
};
const int32_t gdb_code_arity[GDB_N_CODES] = {
#define GDB_ARITY(name, arity) arity,
    GDB_CODES(GDB_ARITY)
};

/* ------------------------------------------------------------------ from and to rows of arrays */

enum { VECTOR = 16, MOST = 512, CACHED = 24 << 10 };  /* numbers, numbers, bytes */

/* A matrix: the address of its first element, elements between rows, type. */
typedef struct {
    char *data;
    int64_t pitch;
    int32_t dtype;
} matrix;

static inline int64_t size_of(int32_t dtype) { return dtype & 1 ? 8 : 4; }

static inline void copy_bytes(char *to, int64_t to_step, const char *from, int64_t from_step,
                              int64_t rows, int64_t head, int64_t tail, int64_t bytes) {
    for (int64_t row = 0; row < rows; row++, to += to_step, from += from_step) {
        memcpy(to, from, head);
        if (tail)
            memcpy(to + bytes - tail, from + bytes - tail, tail);
    }
}

/* Copy rows within a type. Short rows are two copies of a fixed size, which overlap. */
static void copy_same(matrix to, matrix from, int64_t rows, int64_t columns) {
    const int64_t size = size_of(to.dtype), b = columns * size;
    const int64_t t = to.pitch * size, f = from.pitch * size;
    if (rows == 1 || (t == b && f == b))
        memcpy(to.data, from.data, rows * b);
    else if (b == 4)
        copy_bytes(to.data, t, from.data, f, rows, 4, 0, 4);
    else if (b == 8)
        copy_bytes(to.data, t, from.data, f, rows, 8, 0, 8);
    else if (b == 12)
        copy_bytes(to.data, t, from.data, f, rows, 8, 4, 12);
    else if (b <= 32)
        copy_bytes(to.data, t, from.data, f, rows, 16, 16, b);
    else if (b <= 64)
        copy_bytes(to.data, t, from.data, f, rows, 32, 32, b);
    else
        copy_bytes(to.data, t, from.data, f, rows, b, 0, b);
}

#define EACH_ELEMENT(D, S, assign) \
    for (int64_t row = 0; row < rows; row++) { \
        D *const t = (D *)to.data + row * to.pitch; \
        const S *const f = (const S *)from.data + row * from.pitch; \
        GDB_INDEPENDENT \
        for (int64_t i = 0; i < columns; i++) \
            t[i] assign (D)f[i]; \
    }
#define EACH_SOURCE(D, assign) \
    switch (from.dtype) { \
    case GDB_FLOAT32: EACH_ELEMENT(D, float, assign) break; \
    case GDB_FLOAT64: EACH_ELEMENT(D, double, assign) break; \
    case GDB_INT32: EACH_ELEMENT(D, int32_t, assign) break; \
    default: EACH_ELEMENT(D, int64_t, assign) \
    }
#define EACH_PAIR(assign) \
    if (to.dtype) \
        EACH_SOURCE(double, assign) \
    else \
        EACH_SOURCE(float, assign)

static void copy(matrix to, matrix from, int64_t rows, int64_t columns) {
    if (to.dtype == from.dtype)
        copy_same(to, from, rows, columns);
    else
        EACH_PAIR(=)
}

static void add(matrix to, matrix from, int64_t rows, int64_t columns) {
    if (to.pitch == columns && from.pitch == columns)
        columns *= rows, rows = 1;
    EACH_PAIR(+=)
}

static double element(matrix from, int64_t row) {
    double number;
    copy((matrix){(char *)&number, 1, GDB_FLOAT64},
         (matrix){from.data + row * from.pitch * size_of(from.dtype), 1, from.dtype}, 1, 1);
    return number;
}

/* Write an element of each row into all columns of a register. Whole vectors are written: the next
 * row overwrites what is too much, and registers have room for it after the last. */
#define SPREAD(D) \
    for (int64_t row = 0; row < rows; row++) { \
        const D number = (D)element(from, row); \
        D *const t = (D *)to.data + row * columns; \
        for (int64_t i = 0; i < columns; i += VECTOR) \
            for (int k = 0; k < VECTOR; k++) \
                t[i + k] = number; \
    }

static void spread(matrix to, matrix from, int64_t rows, int64_t columns) {
    if (to.dtype)
        SPREAD(double)
    else
        SPREAD(float)
}

/* ------------------------------------------------------------------ a run */

typedef struct {
    const gdb_loop *loop;
    const gdb_set *set;
    char *const *slot;
    const int64_t *pitch;
    const int32_t *slot_dtype;
    int64_t rows, width, size, tile, tile_rows, tile_columns;
    char **read;      /* per register: where it is now */
    char *registers;  /* one after another, `stride` bytes each */
    int64_t stride;
    double *reduced;  /* per store that reduces: `tile` numbers */
    int32_t *writers; /* per register: how many loads and instructions write it */
    int32_t *ready;   /* per load: 1 if done before all tiles, 2 if it must be copied */
    int32_t *direct;  /* per instruction: the store that it can write itself, or -1 */
} run;

static int64_t tile_of(const gdb_loop *loop) {
    const int64_t fits = CACHED / (size_of(loop->dtype) * (loop->n_registers + 1));
    return fits > MOST ? MOST : fits < 128 ? 128 : fits & ~(int64_t)(VECTOR - 1);
}

/* Lay out the scratch memory; return its size. */
static int64_t lay_out(run *r, char *scratch) {
    const gdb_loop *loop = r->loop;
    char *at = (char *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    int64_t reductions = 0;
    for (int32_t s = 0; s < loop->n_stores; s++)
        reductions += loop->stores[s].how >= GDB_SUM;
    r->size = size_of(loop->dtype);
    r->tile = tile_of(loop);
    r->stride = (r->tile + VECTOR) * r->size;
    r->registers = at, at += loop->n_registers * r->stride;
    r->reduced = (double *)at, at += reductions * r->tile * 8;
    r->read = (char **)at, at += loop->n_registers * sizeof(char *);
    r->writers = (int32_t *)at, at += loop->n_registers * 4;
    r->ready = (int32_t *)at, at += loop->n_loads * 4;
    r->direct = (int32_t *)at, at += loop->n_instructions * 4;
    return at - scratch + 64;
}

int64_t gdb_loop_scratch(const gdb_loop *loop) {
    run r = {.loop = loop};
    return lay_out(&r, NULL);
}

static inline char *own(const run *r, int32_t reg) { return r->registers + reg * r->stride; }

/* One column is the same spread, summed, or taken the maximum of. */
static inline int load_how(const run *r, const gdb_access *load) {
    return r->loop->width == 1 ? GDB_COLUMNS : load->how;
}

static inline int store_how(const run *r, const gdb_access *store) {
    return r->loop->width == 1 && store->how != GDB_ADD ? GDB_ASSIGN : store->how;
}

static inline matrix accessed(const run *r, const gdb_access *access, int64_t row, int64_t column) {
    const int64_t pitch = r->pitch[access->slot], offset = row * pitch + access->column + column;
    const int32_t dtype = r->slot_dtype[access->slot];
    return (matrix){r->slot[access->slot] + offset * size_of(dtype), pitch, dtype};
}

static int is_dense(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int32_t i = 0; i < loop->n_loads + loop->n_stores; i++) {
        const int is_load = i < loop->n_loads;
        const gdb_access *a = is_load ? &loop->loads[i] : &loop->stores[i - loop->n_loads];
        const int how = is_load ? load_how(r, a) : store_how(r, a);
        const int64_t pitch = r->pitch[a->slot];
        if (is_load && how == GDB_SPREAD && pitch == 0)
            continue;
        if (pitch != loop->width || a->column || how > (is_load ? GDB_COLUMNS : GDB_ADD))
            return 0;
    }
    for (int32_t i = 0; i < loop->n_instructions; i++)
        if (loop->instructions[i].code == GDB_ramp)
            return 0;
    return 1;
}

static void choose_tiles(run *r) {
    if (is_dense(r))
        r->width *= r->rows, r->rows = 1;
    const int64_t chunks = (r->width + r->tile - 1) / r->tile;
    const int64_t chunk = (r->width + chunks - 1) / chunks;
    r->tile_columns = chunks == 1 ? r->width : (chunk + VECTOR - 1) & ~(int64_t)(VECTOR - 1);
    r->tile_rows = r->width < r->tile ? r->tile / r->width : 1;
}

/* Whether a load's array and a store's array have memory in common. */
static int overlap(const run *r, const gdb_access *load, const gdb_access *store) {
    const int64_t wide = r->width, last = r->rows - 1;
    const char *a = accessed(r, load, 0, 0).data, *b = accessed(r, store, 0, 0).data;
    return a < accessed(r, store, last, wide).data && b < accessed(r, load, last, wide).data;
}

/* Find what can be done before all tiles and what can be done in place. */
static void prepare(run *r) {
    const gdb_loop *loop = r->loop;
    memset(r->writers, 0, loop->n_registers * sizeof *r->writers);
    for (int32_t l = 0; l < loop->n_loads; l++)
        r->writers[loop->loads[l].reg]++;
    for (int32_t i = 0; i < loop->n_instructions; i++) {
        r->direct[i] = -1;
        r->writers[loop->instructions[i].target]++;
    }
    for (int32_t reg = 0; reg < loop->n_registers; reg++)
        r->read[reg] = own(r, reg);
    for (int32_t l = 0; l < loop->n_loads; l++) {
        const gdb_access *load = &loop->loads[l];
        r->ready[l] = r->writers[load->reg] == 1 && r->pitch[load->slot] == 0
            && (load_how(r, load) == GDB_SPREAD || r->width == r->tile_columns);
        for (int32_t s = 0; s < loop->n_stores && !r->ready[l]; s++)
            r->ready[l] = overlap(r, load, &loop->stores[s]) ? 2 : 0;
    }
    for (int32_t s = loop->n_stores - 1; s >= 0; s--) {
        const gdb_access *store = &loop->stores[s];
        if (store_how(r, store) != GDB_ASSIGN || r->slot_dtype[store->slot] != loop->dtype)
            continue;
        for (int32_t i = loop->n_instructions - 1; i >= 0; i--)
            if (loop->instructions[i].target == store->reg) {
                r->direct[i] = loop->instructions[i].code == GDB_ramp ? -1 : s;
                break;
            }
    }
}

static inline void execute(const run *r, const gdb_instruction *i, void *out, int64_t n) {
    const int32_t arity = gdb_code_arity[i->code];
    r->set->kernels[r->loop->dtype][i->code](
        out, arity > 0 ? r->read[i->a] : NULL, arity > 1 ? r->read[i->b] : NULL,
        arity > 2 ? r->read[i->c] : NULL, n, i->value, i->value2);
}

/* Rows are written as whole vectors: the next overwrites what is too much. */
static void ramp(const run *r, const gdb_instruction *i, char *out, int64_t column, int64_t rows,
                 int64_t columns) {
    for (int64_t row = 0; row < rows; row++)
        r->set->kernels[r->loop->dtype][GDB_ramp](
            out + row * columns * r->size, NULL, NULL, NULL, columns + VECTOR - 1,
            i->value + (double)column, 0);
}

static inline int is_constant(const run *r, const gdb_instruction *i) {
    return (i->code == GDB_const || (i->code == GDB_ramp && r->width == r->tile_columns))
        && r->writers[i->target] == 1;
}

/* Fill the registers that are the same in all tiles. */
static void fill_constants(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int32_t l = 0; l < loop->n_loads; l++)
        if (r->ready[l] == 1) {
            const gdb_access *load = &loop->loads[l];
            const matrix to = {own(r, load->reg), r->tile_columns, loop->dtype};
            (load_how(r, load) == GDB_SPREAD ? spread : copy)(
                to, accessed(r, load, 0, 0), r->tile_rows, r->tile_columns);
        }
    for (int32_t i = 0; i < loop->n_instructions; i++) {
        char *out = own(r, loop->instructions[i].target);
        if (is_constant(r, &loop->instructions[i]) && loop->instructions[i].code == GDB_ramp)
            ramp(r, &loop->instructions[i], out, 0, r->tile_rows, r->tile_columns);
        else if (is_constant(r, &loop->instructions[i]))
            execute(r, &loop->instructions[i], out, r->tile);
    }
}

/* Whether rows of a register and of a matrix are the same sequence of numbers in memory, and whole
 * vectors, so that a kernel can work in place. */
static inline int in_place(const run *r, matrix m, int64_t rows, int64_t columns) {
    return m.dtype == r->loop->dtype && (rows * columns) % VECTOR == 0
        && (rows == 1 || m.pitch == columns);
}

static void run_loads(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const int64_t n = rows * columns, spare = -n & (VECTOR - 1);
    for (int32_t l = 0; l < r->loop->n_loads; l++) {
        const gdb_access *load = &r->loop->loads[l];
        if (r->ready[l] == 1)
            continue;
        const matrix to = {own(r, load->reg), columns, r->loop->dtype};
        r->read[load->reg] = to.data;
        if (load_how(r, load) == GDB_SPREAD) {
            spread(to, accessed(r, load, row, 0), rows, columns);
            continue;
        }
        const matrix from = accessed(r, load, row, column);
        if (!r->ready[l] && in_place(r, from, rows, columns)) {
            r->read[load->reg] = from.data;
            continue;
        }
        copy(to, from, rows, columns);
        memset(to.data + n * r->size, 0, spare * r->size);
    }
}

static void run_instructions(const run *r, int64_t row, int64_t column, int64_t rows,
                             int64_t columns) {
    const gdb_loop *loop = r->loop;
    const int64_t n = (rows * columns + VECTOR - 1) & ~(int64_t)(VECTOR - 1);
    for (int32_t i = 0; i < loop->n_instructions; i++) {
        const gdb_instruction *instruction = &loop->instructions[i];
        if (is_constant(r, instruction))
            continue;
        char *out = own(r, instruction->target);
        if (r->direct[i] >= 0) {
            const matrix to = accessed(r, &loop->stores[r->direct[i]], row, column);
            if (in_place(r, to, rows, columns))
                out = to.data;
        }
        if (instruction->code == GDB_ramp)
            ramp(r, instruction, out, column, rows, columns);
        else
            execute(r, instruction, out, n);
        r->read[instruction->target] = out;
    }
}

static void run_stores(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const int32_t dtype = r->loop->dtype;
    double *reduced = r->reduced;
    for (int32_t s = 0; s < r->loop->n_stores; s++) {
        const gdb_access *store = &r->loop->stores[s];
        const int how = store_how(r, store);
        const matrix from = {r->read[store->reg], columns, dtype};
        if (how >= GDB_SUM) {
            for (int64_t i = 0; i < rows && column == 0; i++)
                reduced[i] = how == GDB_SUM ? 0 : -INFINITY;
            (how == GDB_SUM ? r->set->add_sums : r->set->raise_maxima)[dtype](
                from.data, rows, columns, reduced);
            if (column + columns == r->width)
                copy(accessed(r, store, row, 0), (matrix){(char *)reduced, 1, GDB_FLOAT64}, rows, 1);
        } else {
            const matrix to = accessed(r, store, row, column);
            if (how == GDB_ADD)
                add(to, from, rows, columns);
            else if (to.data != from.data)
                copy(to, from, rows, columns);
        }
        reduced += store->how >= GDB_SUM ? r->tile : 0;
    }
}

void gdb_run_loop(const gdb_loop *loop, char *const *slot, const int64_t *pitch,
                  const int32_t *slot_dtype, int64_t rows, void *scratch) {
    run r = {.loop = loop, .set = instruction_set(), .slot = slot, .pitch = pitch,
             .slot_dtype = slot_dtype, .rows = rows, .width = loop->width};
    if (rows < 1 || loop->width < 1)
        return;
    lay_out(&r, scratch);
    choose_tiles(&r);
    prepare(&r);
    fill_constants(&r);
    for (int64_t row = 0; row < r.rows; row += r.tile_rows)
        for (int64_t column = 0; column < r.width; column += r.tile_columns) {
            const int64_t m = r.rows - row < r.tile_rows ? r.rows - row : r.tile_rows;
            const int64_t left = r.width - column;
            const int64_t n = left < r.tile_columns ? left : r.tile_columns;
            run_loads(&r, row, column, m, n);
            run_instructions(&r, row, column, m, n);
            run_stores(&r, row, column, m, n);
        }
}
