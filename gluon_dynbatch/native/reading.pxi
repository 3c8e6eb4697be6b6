# The ports and the reads of launches; a part of `planning.pyx`.

def lay_out(
    list tables, const int64_t[::1] part0, const int64_t[::1] segment, const int64_t[::1] rows,
):
    """Return the columns of `plan.plan.Ports` by name, and a table of places, for launches.

    `tables` has the inputs or the outputs of each segment, see `port_table`.  Launches are given by
    their parts, as in `plan.plan.Members`.
    """
    cdef Py_ssize_t launch, launches = part0.shape[0] - 1, count = 0, i, column, part
    cdef const PortRow *port
    cdef int64_t size
    cdef int64_t[::1] first = clone(LONG, launches + 1, False)
    for launch in range(launches):
        first[launch] = count
        count += count_ports(tables[segment[part0[launch]]])
    first[launches] = count
    ports = numpy.empty((len(PORT), count), numpy.int64)
    places = numpy.zeros((count, 5), numpy.int64)
    cdef int64_t[:, ::1] columns = ports, place = places
    for launch in range(launches):
        for part in range(part0[launch], part0[launch + 1]):
            port = ports_in(tables[segment[part]])
            for i in range(first[launch], first[launch + 1]):
                if part == part0[launch]:
                    for column in range(columns.shape[0]):
                        columns[column, i] = (<const int64_t *>port)[column]
                # Rows of several sizes become rows of their greatest common divisor.
                size = gcd(place[i, ROW_SIZE], port.row_size) or 1
                place[i, ROWS] = 1 if port.shared else (
                    place[i, ROWS] * (place[i, ROW_SIZE] // size)
                    + rows[part] * (port.row_size // size))
                place[i, ROW_SIZE] = size
                check_size(place[i, ROWS] * size)
                port += 1
    return {"first": numpy.asarray(first), **dict(zip(PORT, ports))}, places


cdef int64_t gcd(int64_t a, int64_t b) noexcept:
    """Return the greatest common divisor."""
    while b:
        a, b = b, a % b
    return a


# Plain values, in arrays of a `Reader` that are as long as its widest launch, and in its places.

cdef struct TermPlace:
    #: Where a term is: its region, or -1, and its first element there.
    int32_t region, element


cdef struct Member:
    #: The first input and the first slot of a member of the launch at hand, and its rows.
    int32_t input, slot, rows


cdef struct TermRange:
    #: The first and the last term that a member reads as the operand at hand; and the first element
    #: and the number of elements of its part of the operand.
    int32_t first, end, target, length


cdef struct Located:
    #: What a term reads: the region and its first element there, the first element in the operand,
    #: and the number of elements.
    int32_t region, element, target, length


@cython.final
cdef class Reader:
    """Collects the reads of all launches, in order; for the arguments, see `plan.make`.

    Owned by the function that makes one plan.  Its columns keep the arrays of graph and plan alive, of which
    it writes to `operands` and `places`; it owns its output, which `reads` copies.
    """

    cdef const int32_t[::1] term0, term, outside_kind
    cdef const int32_t[::1] term_offset, term_size, slot_size
    cdef const int64_t[::1] outside_size
    cdef const int64_t[::1] port0, output0, part0, shared, concat, input_size, output_size
    #: A table of places, where operands that are whole external arrays are marked.
    cdef int64_t[:, ::1] operands
    #: Output: per term its region, or -1, and its first element there.
    cdef int32_t[:, ::1] places
    #: The columns of `plan.plan.Reads`, longer than the number of reads.
    cdef object columns
    cdef int32_t[::1] operand, region, target, length, element
    #: Numbers of fills by row size and number of the kind.
    cdef readonly dict fill_of
    #: Per fill, the external arrays that are copied, in order of first use, and their elements.
    cdef readonly list filled, sizes
    #: Number of reads.
    cdef int64_t count
    #: Scratch: entries of `Member`, `TermRange` and `Located`.
    cdef array members, terms, located

    def __init__(self, graph, members, inputs, outputs, outside, operands, places):
        self.term0, self.term = graph.term0, graph.term
        self.term_offset, self.term_size = graph.term_offset, graph.term_size
        self.slot_size, self.outside_size = graph.slot_size, outside.size
        self.outside_kind, self.part0 = outside.kind, members.part0
        self.port0, self.input_size = inputs.first, inputs.row_size
        self.shared, self.concat = inputs.shared, inputs.concat
        self.output0, self.output_size = outputs.first, outputs.row_size
        self.operands, self.places = operands, places
        self.columns = numpy.empty((5, self.term.shape[0]), numpy.int32)
        self.operand, self.region, self.target, self.length, self.element = self.columns
        self.fill_of, self.filled, self.sizes = {}, [], []
        self.read_launches(
            members.units, members.first, graph.input0, graph.slot0, graph.dependencies.rows)

    @property
    def reads(self):
        """The columns of `plan.plan.Reads`."""
        return numpy.array(self.columns[:, :self.count])

    cdef int read_launches(
        self, const int64_t[::1] units, const int64_t[::1] first, const int32_t[::1] input0,
        const int32_t[::1] slot0, const int64_t[::1] rows,
    ) except -1:
        """Locate all results, and list the reads of all operands."""
        cdef int64_t launch, port, unit, i, count, widest = 0
        for launch in range(first.shape[0] - 1):
            widest = max(widest, first[launch + 1] - first[launch])
        self.members = clone(INT, widest * sizeof(Member) // 4, False)
        self.terms = clone(INT, widest * sizeof(TermRange) // 4, False)
        self.located = clone(INT, widest * sizeof(Located) // 4, False)
        cdef Member *members = <Member *>self.members.data.as_ints
        for launch in range(first.shape[0] - 1):
            count = first[launch + 1] - first[launch]
            # This and other loops have no branches: most of what they read is not in the cache.
            for i in range(count):
                unit = units[first[launch] + i]
                members[i] = Member(input0[unit], slot0[unit], rows[unit])
            for port in range(self.output0[launch], self.output0[launch + 1]):
                self.place(launch, port, count)
            for port in range(self.port0[launch], self.port0[launch + 1]):
                self.read(launch, port, 1 if self.shared[port] else count)
        return 0

    cdef inline bint is_ragged(self, int64_t launch) noexcept:
        """Return whether the rows of a launch differ in size."""
        return self.part0[launch + 1] - self.part0[launch] > 1

    cdef void place(self, int64_t launch, int64_t port, int64_t count) noexcept:
        """Fill in the locations of the results of a port."""
        cdef const Member *members = <const Member *>self.members.data.as_ints
        cdef int64_t i, slot, done = 0, size = self.output_size[port]
        cdef bint ragged = self.is_ragged(launch)
        for i in range(count):
            slot = members[i].slot + port - self.output0[launch]
            self.places[slot, 0], self.places[slot, 1] = port, done
            done += self.slot_size[slot] if ragged else members[i].rows * size

    cdef int read(self, int64_t launch, int64_t port, int64_t count) except -1:
        """List the reads of an operand: all first terms, then all second ones, and so on.

        A shared operand is listed for the first member only.  If a port concatenates, its terms
        follow each other.
        """
        cdef const int32_t *term0 = &self.term0[port - self.port0[launch]]
        cdef const Member *members = <const Member *>self.members.data.as_ints
        cdef TermRange *terms = <TermRange *>self.terms.data.as_ints
        cdef int64_t i, k, length, done = 0, level = 0, size = self.input_size[port]
        cdef bint sizes_differ = self.is_ragged(launch) or self.shared[port]
        if self.concat[port]:
            for i in range(count):
                for k in range(term0[members[i].input], term0[members[i].input + 1]):
                    terms[0] = TermRange(k, k + 1, done, self.term_size[k])
                    done += self.term_size[k]
                    self.locate(port, 1, 0)
            return 0
        for i in range(count):
            k = term0[members[i].input]
            length = self.term_size[k] if sizes_differ else members[i].rows * size
            terms[i] = TermRange(k, term0[members[i].input + 1], done, length)
            done += length
        while count:
            count = self.locate(port, count, level)
            level += 1
        return 0

    cdef int64_t locate(self, int64_t port, int64_t count, int64_t level) except -1:
        """Add the reads of one term each of the first members.

        Returns how many of the first members have all further terms.
        """
        cdef const TermRange *terms = <const TermRange *>self.terms.data.as_ints
        cdef Located *located = <Located *>self.located.data.as_ints
        cdef const int32_t *term = &self.term[0]
        cdef const int32_t *offset = &self.term_offset[0]
        cdef const TermPlace *places = <const TermPlace *>&self.places[0, 0]
        cdef int64_t i, k, number, last = 0, found = 0, total = self.places.shape[0]
        for i in range(count):
            k = terms[i].first + level
            if k < terms[i].end:
                number = term[k]
                if number < 0:
                    self.fill(port, -1 - number, offset[k], terms[i].length)
                    number += total
                located[found] = Located(
                    places[number].region, places[number].element + offset[k],
                    terms[i].target, terms[i].length)
                found += 1
            last = i + 1 if k + 1 < terms[i].end else last
        if self.operands[port, TYPE] != tables.WHOLE:
            self.add(port, located, found)
        return last

    cdef void add(self, int64_t port, const Located *terms, int64_t count) noexcept:
        """Add the reads of terms; those that are contiguous on both sides are merged."""
        cdef Located read = Located(-1, 0, 0, 0)
        cdef const Located *term
        cdef int32_t *operand = &self.operand[0]
        cdef int32_t *region = &self.region[0]
        cdef int32_t *target = &self.target[0]
        cdef int32_t *length = &self.length[0]
        cdef int32_t *element = &self.element[0]
        cdef int64_t i, k = self.count - 1
        cdef bint extends
        for i in range(count):
            # Without branches, as these could not be predicted.
            term = &terms[i]
            extends = (term.region == read.region) & (term.target == read.target + read.length)
            extends &= term.element == read.element + read.length
            read.region = term.region
            read.target = read.target if extends else term.target
            read.element = read.element if extends else term.element
            read.length = term.length + (read.length if extends else 0)
            k += not extends
            operand[k], region[k], target[k] = port, read.region, read.target
            length[k], element[k] = read.length, read.element
        self.count = k + 1

    cdef int fill(self, int64_t port, int64_t external, int64_t offset, int64_t length) except -1:
        """Mark an operand as a whole array, or copy the array to an arena.

        It is added to the fill of its kind and of the row size it is read with, once; if a part of
        it is read, the rows are single elements.
        """
        cdef int64_t number = self.places.shape[0] - 1 - external, fill
        cdef bint whole = offset == 0 and length == self.outside_size[external]
        if self.shared[port] and whole:
            self.operands[port, TYPE], self.operands[port, FIRST] = tables.WHOLE, external
            return 0
        if self.places[number, 0] >= 0:
            return 0
        fill = self.fill_of.setdefault(
            (self.operands[port, ROW_SIZE] if whole else 1, self.outside_kind[external]),
            len(self.sizes))
        if fill == len(self.sizes):
            self.sizes.append(0)
            self.filled.append(array("q"))
        self.places[number, 0] = self.output0[self.output0.shape[0] - 1] + fill
        self.places[number, 1] = self.sizes[fill]
        self.sizes[fill] += self.outside_size[external]
        check_size(self.sizes[fill])
        cdef array copied = self.filled[fill]
        resize_smart(copied, copied.ob_size + 1)
        copied.data.as_longlongs[copied.ob_size - 1] = external
        return 0
