"""Native kernels, which run on a block of rows at a time: a part of `executing.pyx`."""

cdef extern from "c/kernels.h" nogil:
    ctypedef struct gdb_kernels:
        int64_t (*packed_elements)(int64_t k, int64_t n) noexcept nogil

    const gdb_kernels *gdb_kernels_of(int dtype)
    const char *gdb_instruction_set(int i)
    int gdb_use_instruction_set(const char *name)

cdef extern from "c/steps.h" nogil:
    const char *gdb_code_names[]
    const int32_t gdb_code_arity[]
    int GDB_N_CODES

    ctypedef struct gdb_array:
        int64_t pitch, dtype

    ctypedef struct gdb_slot:
        gdb_array array
        int64_t bytes, local

    ctypedef struct gdb_layout:
        const char *name
        const char *member
        int64_t offset, size

    const gdb_layout gdb_layouts[]

    ctypedef struct gdb_kernel "gdb_kernel":
        int64_t references, work, scratch

    gdb_kernel *gdb_new_kernel(
        const int64_t *steps, int64_t words, const gdb_slot *slots, int64_t count)
    void release_kernel "gdb_release_kernel"(gdb_kernel *kernel)
    int take_failure "gdb_take_failure"(char *message, int64_t size)

#: Codes of types.  Products and reductions have the first two; loops compute with integers, too, and
#: convert booleans.
DTYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3, "bool": 4}
#: The code and the number of operands of each function, by name.
CODES = {
    gdb_code_names[code].decode(): (code, gdb_code_arity[code]) for code in range(GDB_N_CODES)
}
#: Where C has the members of the structs that Python writes as words (`kernel.step`): by struct and
#: member, the offset and the size in words.
LAYOUTS = {}
cdef const gdb_layout *layout = gdb_layouts
while layout.name != NULL:
    LAYOUTS.setdefault(layout.name.decode(), {})[layout.member.decode()] = layout.offset, layout.size
    layout += 1
#: Bytes of an element, by code of its type.
cdef int64_t *SIZES = [4, 8, 4, 8, 1]


def instruction_sets():
    """Return the names of the instruction sets that this processor supports, the best first."""
    names = []
    while gdb_instruction_set(len(names)):
        names.append(gdb_instruction_set(len(names)).decode())
    return names


def use_instruction_set(str name=None):
    """Switch all kernels to an instruction set, by default the best; for tests."""
    encoded = name.encode() if name is not None else None
    if not gdb_use_instruction_set(<const char *>encoded if encoded is not None else NULL):
        raise ValueError(
            f"This processor does not support {name!r}; choose one of {instruction_sets()}.")


cdef inline int64_t round_to_lines(int64_t count) noexcept nogil:
    """Round a number of bytes up to whole cache lines."""
    return (count + 63) // 64 * 64


cdef void *allocate_zeros(int64_t count, int64_t size) except NULL:
    """Allocate zeroed memory for `count` elements, also if there are none."""
    cdef void *memory = calloc(max(count, 1), size)
    if memory == NULL:
        raise MemoryError()
    return memory


cdef int describe_slot(object slot, object arrays, gdb_slot *native) except -1:
    """Fill in what native code knows of a slot: an array, or a packed matrix."""
    array = arrays.get(slot)
    if array is None:
        kind = DTYPES[arrays[slot.place.slot].dtype]
        native.bytes = gdb_kernels_of(kind).packed_elements(slot.inputs, slot.units) * SIZES[kind]
        return 0
    kind = DTYPES[array.dtype]
    native.array.dtype = kind
    native.array.pitch = 0 if array.every else array.width
    native.bytes = array.width * SIZES[kind] if array.every else 0
    native.local = slot.kind == "work"
    return 0


cdef class NativeKernel:
    """A kernel that programs can run, made of the words of all steps (`kernel.step`).

    Owned by the `kernel.step.Kernel` that it is made of; programs hold its `gdb_kernel`.
    """

    #: Owned by all that refer to it: this object, and each program, which the engine may still run
    #: after this object is gone.  The last `release_kernel`, in any thread, frees it.  It never
    #: changes, but for the count.
    cdef gdb_kernel *kernel
    #: What the steps work on, by number; a program says where each is.  Slots that are not in
    #: `arrays`, which has the width and type of each array, are packed matrices, the `packs`.
    cdef readonly tuple slots, packs
    #: The address by which LAUNCH records name the kernel, and its operations per row, roughly.
    cdef readonly int64_t address, work

    def __cinit__(self, const int64_t[::1] steps, tuple slots, arrays):
        cdef gdb_slot *native_slots = <gdb_slot *>allocate_zeros(len(slots), sizeof(gdb_slot))
        self.slots = slots
        self.packs = tuple(slot for slot in slots if slot not in arrays)
        try:  # a slot of an unknown type raises
            for i, slot in enumerate(slots):
                describe_slot(slot, arrays, &native_slots[i])
            self.kernel = gdb_new_kernel(&steps[0], steps.shape[0], native_slots, len(slots))
        finally:
            free(native_slots)
        if self.kernel == NULL:
            raise MemoryError()
        self.address, self.work = <int64_t>self.kernel, self.kernel.work

    def __dealloc__(self):
        if self.kernel != NULL:
            release_kernel(self.kernel)
