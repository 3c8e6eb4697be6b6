# The order of units within launches, so that operands are contiguous; a part of `planning.pyx`.
#
# The rows that a launch reads are gathered, unless they already follow each other in an arena in
# the order of the launch's members.  So each unit follows one of its readers: launches are ordered
# from the last to the first, and the units that a launch reads are ordered as its members are.  A
# unit with several readers follows
#
# * the latest of the readers that are the only reader of some result.  A gate of a Tree-LSTM's node
#   that each child reads as well is copied for the children anyway; the node can read the others in
#   place.
# * otherwise the earliest.  A state of a sequence follows the next step, so the longest sequences
#   come first and each step reads a prefix.
#
# Members with more terms come first, so that each further term is added to a prefix.
#
# Members whose arrays have equal sizes are adjacent, the smallest first: a sample that attends to a
# short memory mostly ends early, and its results are read first.

cdef enum:
    #: The claim of no reader.
    UNREAD = -2147483648


cdef struct Leader:
    # A plain value, per unit, in scratch of `find_leaders`.
    #: The term by which the leader of a unit reads it, and the strength of its claim: the launch of
    #: the leader, counted from 1, or the negative of that if others read the same slot.
    int32_t term, claim


cdef bytearray find_leaders(
    const int32_t[::1] groups, const int32_t[::1] input0, const int32_t[::1] term0,
    const int32_t[::1] terms, const int32_t[::1] slot_unit, Ordering ordering,
):
    """Mark the terms by which units are led; units without leader get their positions."""
    cdef array scratch = clone(LONG, groups.shape[0], False)
    cdef array reads = clone(INT, slot_unit.shape[0], True)
    cdef bytearray marks = bytearray(terms.shape[0])
    cdef char *leads = marks
    cdef Leader *leaders = <Leader *>scratch.data.as_longlongs
    cdef Leader *leader
    cdef const int32_t *term = &terms[0]
    cdef Py_ssize_t unit, i
    cdef int32_t claim
    for i in range(terms.shape[0]):
        if term[i] >= 0:
            reads.data.as_ints[term[i]] += 1
    for unit in range(groups.shape[0]):
        leaders[unit] = Leader(-1, UNREAD)
        for i in range(term0[input0[unit]], term0[input0[unit + 1]]):
            if term[i] >= 0:
                leader = &leaders[slot_unit[term[i]]]
                claim = groups[unit] + 1
                claim = claim if reads.data.as_ints[term[i]] == 1 else -claim
                if claim > leader.claim or claim == leader.claim and claim > 0:
                    leader[0] = Leader(i, claim)
    for unit in range(groups.shape[0] - 1, -1, -1):
        if leaders[unit].claim == UNREAD:
            ordering.put(unit)
        else:
            leads[leaders[unit].term] = True
    return marks


@cython.final
cdef class Ordering:
    """Orders units by launch, and within a launch by who reads them; see `plan.make`.

    Owned by one call of `order`.  What it writes to is its own; `members` gives that away.
    """

    cdef const int32_t[::1] groups, segment, input0, term0
    #: Per segment: its rank by the size of its arrays, and whether it has inputs that concatenate.
    cdef int64_t[::1] rank, concatenates
    #: All units, by launch; and per launch, one more at the end, where its units begin.
    cdef int64_t[::1] units, first
    #: Per launch, where those of its units begin that have their positions already.
    cdef int64_t[::1] begins
    cdef Py_ssize_t launches

    def __init__(self, graph, list ports, groups):
        cdef Py_ssize_t unit, count = len(ports), number, i
        cdef bytearray items = bytearray(2 * count * sizeof(Keyed))
        cdef Keyed *sizes = <Keyed *><char *>items
        cdef const PortRow *port
        self.groups, self.segment = groups, graph.segment
        self.input0, self.term0 = graph.input0, graph.term0
        self.rank, self.concatenates = clone(LONG, count, False), clone(LONG, count, True)
        for number, sides in enumerate(ports):
            sizes[number].unit = number
            for table in <tuple>sides:
                port = ports_in(table)
                for i in range(count_ports(table)):
                    sizes[number].key += port[i].row_size
                    self.concatenates[number] |= port[i].concat
        radix_sort(sizes, sizes + count, count)
        for i in range(count):
            self.rank[sizes[i].unit] = i
        for unit in range(self.groups.shape[0]):
            self.launches = max(self.launches, self.groups[unit] + 1)
        self.units = clone(LONG, self.groups.shape[0], False)
        self.first = clone(LONG, self.launches + 1, True)
        for unit in range(self.groups.shape[0]):
            self.first[self.groups[unit] + 1] += 1
        for i in range(self.launches):
            self.first[i + 1] += self.first[i]
        self.begins = self.first[1:].copy()

    cdef inline int64_t count_terms(self, int64_t unit) noexcept:
        """Return the number of terms of all inputs of a unit."""
        if self.concatenates[self.segment[unit]]:
            return 0
        return self.term0[self.input0[unit + 1]] - self.term0[self.input0[unit]]

    cdef inline void put(self, int64_t unit) noexcept:
        """Put a unit before those of its launch that have their positions."""
        cdef int64_t launch = self.groups[unit]
        self.begins[launch] -= 1
        self.units[self.begins[launch]] = unit

    cdef void sort(self, int64_t *members, int64_t count, Keyed *items) noexcept:
        """Sort members by segment and by number of terms; stable.  `items` is scratch."""
        cdef int64_t i
        for i in range(count):
            items[i].unit = members[i]
            items[i].key = (self.rank[self.segment[members[i]]] << 32) + INT32_MAX
            items[i].key -= self.count_terms(members[i])
        radix_sort(items, items + count, count)
        for i in range(count):
            members[i] = items[i].unit

    cdef int follow(
        self, const int32_t[::1] term, const int32_t[::1] slot_unit, const char *leads,
    ) except -1:
        """Order all launches, from the last to the first: each after those that read it."""
        cdef array of_led = clone(LONG, self.units.shape[0], False)
        cdef array of_items = clone(LONG, 4 * self.units.shape[0], False)
        cdef array of_inputs = clone(LONG, self.units.shape[0], False)
        cdef int64_t *led = <int64_t *>of_led.data.as_longlongs
        #: The first input of each member of the launch at hand.
        cdef int64_t *inputs = <int64_t *>of_inputs.data.as_longlongs
        cdef int64_t *end
        cdef int64_t *members
        cdef int64_t launch, count, port, i
        for launch in range(self.launches - 1, -1, -1):
            members = &self.units[self.first[launch]]
            count = self.first[launch + 1] - self.first[launch]
            self.sort(members, count, <Keyed *>of_items.data.as_longlongs)
            for i in range(count):
                inputs[i] = self.input0[members[i]]
            end = led
            for port in range(self.input0[members[0] + 1] - self.input0[members[0]]):
                end = self.list_led(port, inputs, count, term, slot_unit, leads, end)
            while end > led:
                end -= 1
                self.put(end[0])
        return 0

    cdef int64_t *list_led(
        self, int64_t port, const int64_t *inputs, int64_t count, const int32_t[::1] term,
        const int32_t[::1] slot_unit, const char *leads, int64_t *led,
    ) noexcept:
        """List the units that members lead by what an input reads: by term, then by member.

        `inputs` has the first input of each member.
        """
        cdef int64_t level = 0, last, i, at, end
        while count:
            last = 0
            for i in range(count):
                at = self.term0[inputs[i] + port] + level
                end = self.term0[inputs[i] + port + 1]
                if at < end and leads[at]:
                    led[0] = slot_unit[term[at]]
                    led += 1
                last = i + 1 if at + 1 < end else last
            # No member behind the last one with a further term has to be visited again.
            level, count = level + 1, last
        return led

    cdef dict members(self, const int64_t[::1] unit_rows):
        """Return the columns of `plan.plan.Members` that follow from `groups`, by name."""
        cdef array part0 = array("q"), segment = array("q"), rows = array("q")
        cdef int64_t launch, i, unit
        for launch in range(self.launches):
            put_last(part0, segment.ob_size)
            for i in range(self.first[launch], self.first[launch + 1]):
                unit = self.units[i]
                if (
                    i == self.first[launch]
                    or self.segment[unit] != self.segment[self.units[i - 1]]
                ):
                    put_last(segment, self.segment[unit])
                    put_last(rows, 0)
                rows.data.as_longlongs[rows.ob_size - 1] += unit_rows[unit]
        put_last(part0, segment.ob_size)
        return {
            "units": numpy.asarray(self.units.base),
            "first": numpy.asarray(self.first.base),
            "part0": numpy.asarray(part0),
            "segment": numpy.asarray(segment),
            "rows": numpy.asarray(rows),
        }


cdef int put_last(array numbers, int64_t number) except -1:
    """Append to an array of 64-bit integers."""
    resize_smart(numbers, numbers.ob_size + 1)
    numbers.data.as_longlongs[numbers.ob_size - 1] = number
    return 0


def order(graph, list ports, groups):
    """Return the columns of `plan.plan.Members` that follow from `groups`, by name.

    `ports` are those of the segments; `groups` has the launch of each unit.
    """
    cdef const int32_t[::1] term = graph.term, slot_unit = graph.slot_unit
    cdef Ordering ordering = Ordering(graph, ports, groups)
    cdef bytearray leads = find_leaders(
        groups, graph.input0, graph.term0, term, slot_unit, ordering)
    ordering.follow(term, slot_unit, leads)
    return ordering.members(graph.dependencies.rows)
