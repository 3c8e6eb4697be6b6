"""The C interface of pointwise programs; c/pointwise.h says what each part means."""

from libc.stdint cimport int32_t, int64_t


cdef extern from "c/pointwise.h" nogil:
    const char *gdb_code_names[]
    const int32_t gdb_code_arity[]
    int GDB_N_CODES

    ctypedef struct gdb_instruction:
        int32_t code, target, a, b, c
        double value, value2

    ctypedef struct gdb_access:
        int32_t reg, slot, column, how

    ctypedef struct gdb_loop:
        int32_t dtype, n_registers
        int64_t width
        int32_t n_loads, n_instructions, n_stores
        const gdb_access *loads
        const gdb_instruction *instructions
        const gdb_access *stores

    int64_t gdb_loop_scratch(const gdb_loop *loop)
    void gdb_run_loop(
        const gdb_loop *loop, char **slot, const int64_t *pitch, const int32_t *slot_dtype,
        int64_t rows, void *scratch,
    )
    const char *gdb_instruction_set(int i)
    int gdb_use_instruction_set(const char *name)

cdef void run_loop(
    const gdb_loop *loop, char **slot, const int64_t *pitch, const int32_t *slot_dtype,
    int64_t rows, void *scratch) noexcept nogil
cdef int64_t loop_scratch(const gdb_loop *loop) noexcept nogil
