# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Pointwise programs over rows of arrays, on the current thread; c/pointwise.h is their contract."""

from libc.stdlib cimport calloc, free


#: By name of each function: its code and how many registers it reads.
CODES = {
    gdb_code_names[code].decode(): (code, gdb_code_arity[code]) for code in range(GDB_N_CODES)
}
#: How a register is loaded, and how it is stored.
LOADS = {"columns": 0, "spread": 1}
STORES = {"assign": 0, "add": 1, "sum": 2, "max": 3}


cdef void run_loop(
    const gdb_loop *loop, char **slot, const int64_t *pitch, const int32_t *slot_dtype,
    int64_t rows, void *scratch,
) noexcept nogil:
    gdb_run_loop(loop, slot, pitch, slot_dtype, rows, scratch)


cdef int64_t loop_scratch(const gdb_loop *loop) noexcept nogil:
    return gdb_loop_scratch(loop)


def instruction_sets():
    """Return the names of the instruction sets that this processor can run, the best first."""
    names, i = [], 0
    while gdb_instruction_set(i):
        names.append(gdb_instruction_set(i).decode())
        i += 1
    return names


def use_instruction_set(str name=None):
    """Run all loops with an instruction set from now on, by default the best; for tests."""
    encoded = name.encode() if name is not None else None
    if not gdb_use_instruction_set(<const char *>encoded if encoded is not None else NULL):
        raise ValueError(f"This processor can't run instruction set {name!r}.")


cdef class Loop:
    """A pointwise program.

    Parameters
    ----------
    dtype : int
        Type of all registers: 0 is float32, 1 float64.
    registers : int
        How many there are.
    width : int
        Numbers a row in each register.
    loads, stores : sequence of (register, slot, column, how)
    instructions : sequence of (code, target, a, b, c, value, value2)
    """

    cdef gdb_loop loop
    cdef gdb_access *loads
    cdef gdb_access *stores
    cdef gdb_instruction *instructions
    cdef void *scratch
    cdef Py_ssize_t slots

    def __cinit__(self, int32_t dtype, int32_t registers, int64_t width, loads, instructions, stores):
        self.loads = <gdb_access *>calloc(len(loads) + 1, sizeof(gdb_access))
        self.stores = <gdb_access *>calloc(len(stores) + 1, sizeof(gdb_access))
        self.instructions = <gdb_instruction *>calloc(
            len(instructions) + 1, sizeof(gdb_instruction)
        )
        if not (self.loads and self.stores and self.instructions):
            raise MemoryError
        for i, (reg, slot, column, how) in enumerate(loads):
            self.loads[i] = gdb_access(reg, slot, column, how)
            self.slots = max(self.slots, slot + 1)
        for i, (reg, slot, column, how) in enumerate(stores):
            self.stores[i] = gdb_access(reg, slot, column, how)
            self.slots = max(self.slots, slot + 1)
        for i, (code, target, a, b, c, value, value2) in enumerate(instructions):
            self.instructions[i] = gdb_instruction(code, target, a, b, c, value, value2)
        self.loop = gdb_loop(
            dtype, registers, width, len(loads), len(instructions), len(stores),
            self.loads, self.instructions, self.stores,
        )
        self.scratch = calloc(gdb_loop_scratch(&self.loop), 1)
        if not self.scratch:
            raise MemoryError

    def __dealloc__(self):
        free(self.loads)
        free(self.stores)
        free(self.instructions)
        free(self.scratch)

    def run(self, slots, int64_t rows):
        """Run over `rows` rows of slots: (address, pitch in elements, dtype) each."""
        if len(slots) < self.slots:
            raise ValueError(f"The loop has {self.slots} slots, not {len(slots)}.")
        cdef char **address = <char **>calloc(len(slots) + 1, sizeof(char *))
        cdef int64_t *pitch = <int64_t *>calloc(len(slots) + 1, sizeof(int64_t))
        cdef int32_t *dtype = <int32_t *>calloc(len(slots) + 1, sizeof(int32_t))
        try:
            if not (address and pitch and dtype):
                raise MemoryError
            for i, (where, apart, kind) in enumerate(slots):
                address[i], pitch[i], dtype[i] = <char *><size_t>where, apart, kind
            with nogil:
                gdb_run_loop(&self.loop, address, pitch, dtype, rows, self.scratch)
        finally:
            free(address)
            free(pitch)
            free(dtype)
