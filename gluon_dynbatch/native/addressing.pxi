"""Number the arrays that a program refers to: a part of `assembling.pyx`."""

#: By use of memory, the kind of its base.
MEMORY = ("temporary", "kept", "saved")

#: How the program accesses bases of a kind, as a letter of `recording.addresses_and_handles`.
#: MXNet may not have allocated gradients yet.  Bases of other kinds are written.
cdef dict USES = {
    "parameter": ord("p"), "external": ord("a"),
    "gradient": ord("W"), "external gradient": ord("W"), "key": ord("r"), "identities": ord("r"),
    "gathered": ord("r"),
}


cdef tuple PARAMETER_BASE = ("parameter",)


cdef struct ParameterBase:
    # A plain value, in a table of `ParameterBases`: a parameter on a device, by its address, or 0;
    # the number of the device; and the base.
    size_t parameter
    int64_t device, base


@cython.final
cdef class ParameterBases:
    """A hash table, at most half full, that finds the numbers of bases of parameters.

    Owned by an `Addressing`, whose owners of parameters keep these alive.
    """

    cdef ParameterBase *table
    cdef int64_t mask, count

    def __cinit__(self):
        self.table, self.mask = NULL, -1

    def __dealloc__(self):
        free(self.table)

    cdef int grow(self) except -1:
        """Double the table."""
        cdef ParameterBase *before = self.table
        cdef int64_t size = self.mask + 1, i
        cdef ParameterBase *table
        table = <ParameterBase *>calloc(max(2 * size, 64), sizeof(ParameterBase))
        if table == NULL:
            raise MemoryError("no memory for a program")
        self.table, self.mask = table, max(2 * size, 64) - 1
        for i in range(size):
            if before[i].parameter:
                self.find(before[i].parameter, before[i].device)[0] = before[i]
        free(before)
        return 0

    cdef inline ParameterBase *find(self, size_t parameter, int64_t device) noexcept:
        """Return the entry of a parameter, or the one where it belongs."""
        cdef int64_t i = <int64_t>(((parameter + device) * 0x9E3779B97F4A7C15ULL) >> 32) & self.mask
        while self.table[i].parameter and (
            self.table[i].parameter != parameter or self.table[i].device != device
        ):
            i = (i + 1) & self.mask
        return self.table + i


cdef class Addressing:
    """Numbers the arrays that a program refers to, and reserves the program's own memory.

    Owned by whoever owns the `Assembler`, which is a subclass; it holds no memory itself.
    """

    #: Per base, its key (a kind of array, then what identifies the array), and a letter of `USES`.
    cdef readonly list bases
    cdef readonly bytearray uses
    #: Per base of a parameter, a segment that has it; and its number, and that of the parameter there.
    cdef readonly list owners
    cdef readonly array owned
    #: Numbers of bases; those of parameters; and of devices, with the context looked
    #: up last.
    cdef dict numbers, devices
    cdef ParameterBases of_parameters
    cdef object context
    cdef int64_t device
    #: Number of the first base.  The bases of a backward program follow those of the forward one.
    cdef int64_t first
    #: Per use of memory: its base, or -1; the bytes reserved now, and the most ever reserved.
    cdef int64_t[3] memory, used, most

    def __init__(self, int64_t first=0):
        cdef int64_t use
        self.bases, self.uses, self.first = [], bytearray(), first
        self.owners, self.owned = [], array("q")
        self.numbers, self.devices, self.of_parameters = {}, {}, ParameterBases()
        for use in range(3):
            self.memory[use], self.used[use], self.most[use] = -1, 0, 0

    @property
    def stop(self):
        """The number after the last base."""
        return self.first + len(self.bases)

    @property
    def sizes(self):
        """Bytes of memory, by kind of its base."""
        return {name: self.most[use] for use, name in enumerate(MEMORY)}

    cdef int64_t base(self, tuple base) except -1:
        """Return the number of a base, a new one if it has none."""
        number = self.numbers.get(base)
        if number is None:
            number = self.numbers[base] = self.add_base(base)
        return number

    cdef int64_t add_base(self, tuple base) except -1:
        """Add a base; return its number."""
        self.bases.append(base)
        self.uses.append(USES.get(base[0], ord("w")))
        return self.first + len(self.bases) - 1

    cdef int64_t parameter_base(self, SegmentBrief segment, int64_t number) except -1:
        """Return the number of the base of a parameter of a segment."""
        cdef ParameterBases table = self.of_parameters
        cdef ParameterBase *entry
        cdef size_t parameter = <size_t><PyObject *>segment.parameters[number]
        if segment.context is not self.context:
            # A context itself is slow to look up: its hash is a function in Python.
            device = segment.context.device_typeid, segment.context.device_id
            self.context = segment.context
            self.device = self.devices.setdefault(device, len(self.devices))
        if 2 * table.count > table.mask:
            table.grow()
        entry = table.find(parameter, self.device)
        if not entry.parameter:
            base = self.add_base(PARAMETER_BASE)
            self.owners.append(segment)
            append_to(self.owned, base)
            append_to(self.owned, number)
            entry[0] = ParameterBase(parameter, self.device, base)
            table.count += 1
        return entry.base

    cdef Spot reserve(self, int64_t use, int64_t count) except *:
        """Reserve bytes of memory."""
        if self.memory[use] < 0:
            self.memory[use] = self.base((MEMORY[use],))
        cdef Spot spot = Spot(self.memory[use], self.used[use])
        self.used[use] = (spot.offset + count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.most[use] = max(self.most[use], self.used[use])
        return spot
