"""Number the arrays that a program refers to: a part of `assembling.pyx`."""

#: By use of memory, the kind of its base.
MEMORY = ("temporary", "kept", "saved")

#: How the program accesses bases of a kind, as a letter of `recording.addresses_and_handles`.
#: MXNet may not have allocated parameters and gradients yet.  Bases of other kinds are written.
cdef dict USES = {
    "parameter": ord("R"), "external": ord("a"),
    "gradient": ord("W"), "external gradient": ord("W"), "key": ord("r"), "identities": ord("r"),
    "gathered": ord("r"),
}


cdef class Addressing:
    """Numbers the arrays that a program refers to, and reserves the program's own memory.

    Owned by whoever owns the `Assembler`, which is a subclass; it holds no memory itself.
    """

    #: Per base, its key (a kind of array, then what identifies the array), and a letter of `USES`.
    cdef readonly list bases
    cdef readonly bytearray uses
    #: Numbers of bases; and those of parameters and gradients by context, kind and identity, with the
    #: context looked up last.
    cdef dict numbers, devices, on_device
    cdef object context
    #: Number of the first base.  The bases of a backward program follow those of the forward one.
    cdef int64_t first
    #: Per use of memory: its base, or -1; the bytes reserved now, and the most ever reserved.
    cdef int64_t[3] memory, used, most

    def __init__(self, int64_t first=0):
        cdef int64_t use
        self.bases, self.uses, self.first = [], bytearray(), first
        self.numbers, self.devices = {}, {}
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

    cdef int64_t parameter_base(self, str kind, parameter, context) except -1:
        """Return the number of the base of a parameter, or of its gradient, in a context."""
        if context is not self.context:
            # A context itself is slow to look up: its hash is a function in Python.
            device = context.device_typeid, context.device_id
            self.context, self.on_device = context, self.devices.setdefault(device, {})
        key = <size_t><PyObject *>parameter
        numbers = self.on_device.get(kind)
        if numbers is None:
            numbers = self.on_device[kind] = {}
        number = (<dict>numbers).get(key)
        if number is None:
            number = (<dict>numbers)[key] = self.add_base((kind, parameter, context))
        return number

    cdef Spot reserve(self, int64_t use, int64_t count) except *:
        """Reserve bytes of memory."""
        if self.memory[use] < 0:
            self.memory[use] = self.base((MEMORY[use],))
        cdef Spot spot = Spot(self.memory[use], self.used[use])
        self.used[use] = (spot.offset + count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.most[use] = max(self.most[use], self.used[use])
        return spot
