#include "kernels.h"

#include <math.h>
#include <string.h>

#include "geometry.h"
#include "steps.h"

/* Tiles of products leave registers for a row of B: SSE2 and AVX2 have 16 vector registers, NEON
 * and AVX-512 have 32. */
#define GDB_SET base
#define GDB_BYTES 16
#ifdef __aarch64__
#define GDB_TILE_ROWS 8
#define GDB_TILE_VECTORS 3
#else
#define GDB_TILE_ROWS 4
#define GDB_TILE_VECTORS 2
#endif
#include "set.h"

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 8) && !defined(GDB_ONLY_BASE)
#define GDB_X86 1
#ifdef __clang__
#define GDB_TARGET(names, more) \
    GDB_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define GDB_TARGET_END _Pragma("clang attribute pop")
#else
#define GDB_TARGET(names, more) _Pragma("GCC push_options") GDB_PRAGMA(GCC target(names more))
#define GDB_TARGET_END _Pragma("GCC pop_options")
#endif
#define GDB_PRAGMA(text) _Pragma(#text)

GDB_TARGET("avx2,fma", "")
#define GDB_SET avx2
#define GDB_BYTES 32
#define GDB_TILE_ROWS 6
#define GDB_TILE_VECTORS 2
#include "set.h"
GDB_TARGET_END

GDB_TARGET("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl", ",prefer-vector-width=512")
#define GDB_SET avx512
#define GDB_BYTES 64
#define GDB_TILE_ROWS 8
#define GDB_TILE_VECTORS 3
#include "set.h"
GDB_TARGET_END
#endif

/* Plain values, which are constants. */
static const struct {
    const char *name;
    const gdb_kernels *kernels[2]; /* by type */
} SETS[] = {
#define GDB_SET_OF(name) {#name, {&kernels_f32_##name, &kernels_f64_##name}}
#ifdef GDB_X86
    GDB_SET_OF(avx512), GDB_SET_OF(avx2),
#endif
    GDB_SET_OF(base)};

enum { N_SETS = sizeof SETS / sizeof *SETS };

static int is_supported(const char *name) {
#ifdef GDB_X86
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx2")) return avx2;
    if (!strcmp(name, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
    return !strcmp(name, "base");
}

/* Index into SETS, or -1 before the first use. Threads may race to set it: all find the same. */
static int active_set = -1;

const char *gdb_instruction_set(int i) {
    for (int s = 0; s < N_SETS; s++)
        if (is_supported(SETS[s].name) && i-- == 0) return SETS[s].name;
    return NULL;
}

int gdb_use_instruction_set(const char *name) {
    for (int s = 0; s < N_SETS; s++)
        if (is_supported(SETS[s].name) && (!name || !strcmp(name, SETS[s].name))) {
            __atomic_store_n(&active_set, s, __ATOMIC_RELAXED);
            return 1;
        }
    return 0;
}

const gdb_kernels *gdb_kernels_of(int dtype) {
    if (__atomic_load_n(&active_set, __ATOMIC_RELAXED) < 0) gdb_use_instruction_set(NULL);
    return SETS[__atomic_load_n(&active_set, __ATOMIC_RELAXED)].kernels[dtype];
}
