"""Sums over rows that a backward program collects from its launches: a part of `assembling.pyx`."""


cdef struct SumKey:
    # What sums that are added up by one record have in common: the target, and the members of
    # `SumRecord` with their names; a plain value, of which all bytes count.
    Spot target
    int64_t record, kind, rows, columns, option


cdef struct CollectedSum:
    # A plain value, in a table of `CollectedSums`: a record that is still to be written, with its
    # first and last chunk there, and their number; this is 0 once it is written.
    SumKey key
    int64_t first, last, count


cdef struct CollectedChunk:
    # A plain value, in a table of `CollectedSums`: a chunk, and the next one of its sum there.
    SumChunk chunk
    int64_t next


@cython.final
cdef class CollectedSums:
    """Sums that are still to be written, in the order of their first chunks.

    Owned by the `Backward` that collects them.
    """

    #: Entries of `CollectedSum`, and of `CollectedChunk`.
    cdef Code sums, chunks
    #: A hash table, at most half full, of numbers of sums that are not yet written; -1 is none.
    cdef int64_t *table
    cdef int64_t mask
    #: Bytes of scratch for the sums that are written; the last one, and the most chunks of such.
    cdef int64_t scratch, chunks_known
    cdef SumKey known

    def __cinit__(self):
        self.sums, self.chunks, self.scratch, self.chunks_known = Code(), Code(), 0, 0
        self.table, self.mask = NULL, -1

    def __dealloc__(self):
        free(self.table)

    cdef inline CollectedSum *at(self, int64_t number) noexcept:
        """Return a sum, at an address that is valid until the next one is added."""
        return <CollectedSum *>self.sums.numbers + number

    cdef inline int64_t total(self) noexcept:
        """Return the number of sums."""
        return self.sums.count(sizeof(CollectedSum))

    cdef int64_t *place_of(self, const SumKey *key) noexcept:
        """Return where the number of a sum is in the hash table, or where it belongs."""
        cdef const int64_t *member = <const int64_t *>key
        cdef uint64_t mixed = 0
        cdef int64_t i
        for i in range(<int64_t>numbers_in(sizeof(SumKey))):
            mixed = (mixed ^ <uint64_t>member[i]) * 0x9E3779B97F4A7C15ULL
        i = <int64_t>(mixed >> 32) & self.mask
        while self.table[i] >= 0 and memcmp(&self.at(self.table[i]).key, key, sizeof(SumKey)):
            i = (i + 1) & self.mask
        return self.table + i

    cdef int grow(self) except -1:
        """Double the hash table."""
        cdef int64_t size = max(2 * (self.mask + 1), 32), i
        cdef int64_t *table = <int64_t *>malloc(size * sizeof(int64_t))
        if table == NULL:
            raise MemoryError("no memory for a program")
        free(self.table)
        self.table, self.mask = table, size - 1
        for i in range(size):
            table[i] = -1
        for i in range(self.total()):
            # Of equal sums, only the last one is not yet written.
            self.place_of(&self.at(i).key)[0] = i
        return 0

    cdef int add(self, const SumKey *key, const SumChunk *chunk) except -1:
        """Add a chunk to the sum of a key."""
        cdef CollectedSum *found
        cdef CollectedChunk *added
        cdef int64_t number = self.chunks.count(sizeof(CollectedChunk))
        cdef int64_t *place
        if 2 * self.total() > self.mask:
            self.grow()
        added = <CollectedChunk *>self.chunks.grow(sizeof(CollectedChunk))
        added.chunk, added.next = chunk[0], -1
        place = self.place_of(key)
        if place[0] < 0 or not self.at(place[0]).count:
            place[0] = self.total()
            found = <CollectedSum *>self.sums.grow(sizeof(CollectedSum))
            found.key, found.first, found.count = key[0], number, 0
        else:
            found = self.at(place[0])
            (<CollectedChunk *>self.chunks.numbers)[found.last].next = number
        found.last = number
        found.count += 1
        return 0

    cdef int write(self, int64_t number, Code code) except -1:
        """Append the record of a sum that is not yet written."""
        cdef CollectedSum *found = self.at(number)
        cdef SumKey key = found.key
        cdef const CollectedChunk *next_ = NULL
        cdef int64_t i = found.first, count = found.count
        cdef SumRecord *record = <SumRecord *>code.grow(sizeof(SumRecord) + count * sizeof(SumChunk))
        cdef SumChunk *chunk = <SumChunk *>(record + 1)
        record[0] = SumRecord(
            key.record, key.kind, key.rows, key.columns, key.target, key.option, count)
        while i >= 0:
            next_ = <const CollectedChunk *>self.chunks.numbers + i
            chunk[0], i = next_.chunk, next_.next
            chunk += 1
        found.count = 0
        return self.need_scratch(key, count)

    cdef int need_scratch(self, SumKey key, int64_t count) except -1:
        """Note the scratch that a sum needs; most sums need as much as one before."""
        cdef SumKey *known = &self.known
        if (known.kind, known.rows, known.columns) != (key.kind, key.rows, key.columns):
            self.known, self.chunks_known = key, 0
        if count > self.chunks_known:
            self.chunks_known = count
            self.scratch = max(
                self.scratch, executing.sum_scratch(key.kind, key.rows, key.columns, count))
        return 0
