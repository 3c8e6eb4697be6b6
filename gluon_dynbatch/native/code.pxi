"""The code of programs: a part of `executing.pyx`."""


@cython.final
cdef class Code:
    """A growing array of integers, which records are written to.

    Owned by an `Assembler`, or by who makes a `Program` of it, which takes its memory.
    """

    def __cinit__(self, const int64_t[::1] numbers=None):
        cdef int64_t size = 0 if numbers is None else numbers.shape[0]
        if size:
            memcpy(self.grow(size * sizeof(int64_t)), &numbers[0], size * sizeof(int64_t))

    def __dealloc__(self):
        free(self.numbers)

    @property
    def words(self):
        """The integers as a list; for tests."""
        return [self.numbers[i] for i in range(self.size)]

    cdef int reserve(self, int64_t bytes) except -1:
        """Make room for some bytes, and for half as many more."""
        cdef int64_t count = numbers_in(bytes), capacity = count + count // 2 + 1024
        cdef int64_t *moved
        if self.size + count > self.capacity or self.numbers == NULL:
            capacity += self.size
            moved = <int64_t *>realloc(self.numbers, capacity * sizeof(int64_t))
            if moved == NULL:
                raise MemoryError("no memory for a program")
            self.numbers, self.capacity = moved, capacity
        return 0

    cdef void *grow(self, int64_t bytes) except NULL:
        """Append uninitialized bytes; return their address, which is valid until the next call."""
        cdef int64_t count = numbers_in(bytes)
        if self.size + count > self.capacity or self.numbers == NULL:
            self.reserve(self.size * sizeof(int64_t) + bytes)
        self.size += count
        return self.numbers + self.size - count

    cdef int append(self, Code code) except -1:
        cdef int64_t bytes = code.size * sizeof(int64_t)
        if bytes:
            memcpy(self.grow(bytes), code.numbers, bytes)
        return 0

    cdef int64_t count(self, int64_t size) noexcept:
        """Return the number of entries of `size` bytes."""
        return self.size // numbers_in(size)

    cdef int64_t *give(self) noexcept:
        """Give the memory to the caller; nothing is left."""
        cdef int64_t *numbers = self.numbers
        self.numbers, self.size, self.capacity = NULL, 0, 0
        return numbers
