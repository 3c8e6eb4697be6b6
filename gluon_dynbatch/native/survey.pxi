# Marks of arguments, found by one pass over all calls of a tape; a part of `lowering.pyx`.

#: Marks of an argument: it is one array for all calls, or a weight; it is a result of a recursion
#: that the call takes part in; calls get different numbers of arrays in its place; and so many that
#: it saves launches to compute the terms of sums apart.
SHARED, RECURRENT, UNEVEN, VARIED = 1, 2, 4, 8

cdef enum:
    IS_SHARED = 1
    IS_RECURRENT = 2
    IS_UNEVEN = 4
    IS_VARIED = 8
    #: Why an argument can be shared: all calls, if there are several, get the same array, or each
    #: call gets a weight, which is a variable with a gradient of its own, and others get it too.
    SAME = 1
    WEIGHT = 2
    #: Elements that are copied in about the time of a launch.
    COPIED_PER_LAUNCH = 16384
    #: Producers of values that no callee computes.
    EXTERNAL = -1
    EXTERNAL_WEIGHT = -2


# Plain values in arrays of a `Survey`, which never grow: pointers to them stay valid as long as the
# survey.

cdef struct KindRow:
    #: Family and callee; numbers of arguments and results; the first argument, and that of the
    #: family.
    int32_t family, callee, arguments, results, first, shared


cdef struct Argument:
    #: What the first call of the family reads, and why the argument can be shared so far.
    int64_t offset
    int32_t value, reasons


cdef struct Seen:
    # Positive numbers that have been seen: a hash table, at most half full.  Its owner frees it.
    int64_t mask
    int64_t *keys


cdef inline bint is_new(Seen *seen, int64_t key) noexcept nogil:
    """Return whether a number is seen for the first time."""
    cdef int64_t i = <int64_t>((<uint64_t>key * 0x9E3779B97F4A7C15ULL) >> 32) & seen.mask
    while seen.keys[i] != key and seen.keys[i]:
        i = (i + 1) & seen.mask
    if seen.keys[i]:
        return False
    seen.keys[i] = key
    return True


@cython.final
cdef class Survey:
    """One pass over all calls: which arguments they share, and which callees deliver them.

    Entries with one `CallKind` are of one *kind*.  Calls of one callee with the same
    number of arguments are a *family*.  The arrays of a list are several arguments in one *place*.

    Owned by one call of `survey`: it holds the entries, and changes neither these nor the tape.
    """

    #: Per kind, its first entry here, and whether its program has a sum.
    cdef list firsts, adds
    #: Per kind a `KindRow`; per argument of a family an `Argument`; per family, the number of its
    #: calls.
    cdef array kinds, arguments, calls
    #: Per entry its kind; per argument of a kind its place, and whether it has several rows.
    cdef int32_t[::1] kind_of, place
    cdef char[::1] several
    cdef int32_t callees, places
    #: By producer, consumer and place, whether one callee delivers an argument of another; per
    #: consumer, whether any does.
    cdef bytearray edges, receives

    def __init__(self, entries, int64_t most_edges):
        cdef dict callees = {}, families = {}, kinds = {}
        cdef list columns = [], place = [], several = [], shared0 = []
        cdef Py_ssize_t count, arguments = 0, kind, number
        self.firsts, self.adds, self.kind_of = [], [], clone(INT, len(entries), False)
        for number, entry in enumerate(entries):
            kind = kinds.setdefault(entry.kind, len(kinds))
            self.kind_of[number] = kind
            if kind == len(self.adds):
                token, count = entry.token, len(entry.in_types)
                family = families.setdefault((token, count), len(families))
                if family == len(shared0):
                    shared0.append(arguments)
                    arguments += count
                callee = callees.setdefault(token, len(callees))
                results = len(entry.out_types)
                columns += (family, callee, count, results, len(place), shared0[family])
                place += entry.argument_of
                several += entry.kind.has_rows
                self.firsts.append(entry)
                self.adds.append(entry.program.has_sum)
        self.kinds, self.place = array("i", columns), array("i", place)
        self.several = array("b", several)
        self.calls, self.callees = clone(INT, len(families), True), len(callees)
        self.places = 1 + max(place, default=0)
        self.arguments = clone(LONG, 2 * arguments, True)
        edges = <int64_t>self.callees * self.callees * self.places
        self.edges = bytearray(edges if edges <= most_edges else 0)
        self.receives = bytearray(self.callees)

    cdef void scan(self, const int32_t[::1] entry, tape, int32_t *producer):
        """Visit each call; on entry, all values are marked as external in `producer`.

        For other values, `producer` gets the position of the edges of their callee.
        """
        cdef const KindRow *kinds = <const KindRow *>self.kinds.data.as_ints
        cdef const KindRow *kind
        cdef const int32_t *kind_of = &self.kind_of[0]
        cdef const int32_t *place
        cdef int32_t *calls = <int32_t *>self.calls.data.as_ints
        cdef Argument *arguments = <Argument *>self.arguments.data.as_longlongs
        cdef Argument *argument
        cdef const int32_t[::1] node_value0 = tape.node_value0, sources = tape.sources
        cdef const int64_t[::1] offsets = tape.offsets
        cdef char *edges = self.edges
        cdef char *receives = self.receives
        cdef char *edge
        cdef int32_t count = self.places, step = self.callees * count
        cdef Py_ssize_t node, operand = 0
        cdef int64_t offset
        cdef int32_t k, value, maker
        cdef bint first, wanted = len(self.edges) > 0
        for node in range(len(self.adds)):
            kind = kinds + node
            for k in range(kind.arguments):
                if self.several[kind.first + k]:
                    arguments[kind.shared + k].reasons = SAME | WEIGHT
        for node in range(entry.shape[0]):
            kind = kinds + kind_of[entry[node]]
            argument, place = arguments + kind.shared, &self.place[kind.first]
            edge = edges + kind.callee * count
            first = calls[kind.family] == 0
            calls[kind.family] += 1
            for k in range(kind.arguments):
                value = sources[operand + k]
                maker = producer[value]
                if maker >= 0:
                    edge[maker + place[k]] = receives[kind.callee] = True
                if argument[k].reasons:
                    offset = offsets[operand + k]
                    if first:
                        argument[k].value, argument[k].offset = value, offset
                    if argument[k].value != value or argument[k].offset != offset:
                        argument[k].reasons &= WEIGHT
                    if maker != EXTERNAL_WEIGHT or offset:
                        argument[k].reasons &= SAME
            operand += kind.arguments
            maker = kind.callee * step if wanted else EXTERNAL
            for k in range(kind.results):
                producer[node_value0[node] + k] = maker

    cdef int32_t[::1] depths(self, const int32_t[::1] entry, tape):
        """Return per call how many calls are on the longest path to it."""
        cdef const KindRow *kinds = <const KindRow *>self.kinds.data.as_ints
        cdef const KindRow *kind
        cdef const int32_t[::1] node_value0 = tape.node_value0, sources = tape.sources
        cdef int32_t[::1] depths = clone(INT, entry.shape[0], True)
        cdef int32_t[::1] depth_of = clone(INT, len(tape.value_type), True)
        cdef Py_ssize_t node, operand = 0
        cdef int32_t k, depth
        for node in range(entry.shape[0]):
            kind, depth = kinds + self.kind_of[entry[node]], 0
            for k in range(kind.arguments):
                depth = max(depth, depth_of[sources[operand + k]])
            operand += kind.arguments
            depths[node] = depth
            for k in range(kind.results):
                depth_of[node_value0[node] + k] = depth + 1
        return depths

    cdef void drop_own_weights(self, const int32_t[::1] entry, tape):
        """Clear the reason of arguments whose weights are not shared, but belong to single calls.

        If calls of equal depth merge, sharing needs a launch per depth and weight.  It pays unless
        copies of the weights for each call save more than half of the launches, or launches that
        take longer than the copies.
        """
        cdef const KindRow *kinds = <const KindRow *>self.kinds.data.as_ints
        cdef const KindRow *kind
        cdef Argument *arguments = <Argument *>self.arguments.data.as_longlongs
        cdef const int32_t[::1] sources = tape.sources, depth = self.depths(entry, tape)
        #: Per argument, the launches of calls that share arrays, and of those that have their own.
        cdef dict shared = {}, own = {}
        cdef Py_ssize_t node, operand = 0
        cdef int32_t k
        for node in range(entry.shape[0]):
            kind = kinds + self.kind_of[entry[node]]
            for k in range(kind.arguments):
                if arguments[kind.shared + k].reasons == WEIGHT:
                    at = kind.shared + k, kind.family, k
                    shared.setdefault(at, set()).add((sources[operand + k], depth[node]))
                    own.setdefault(at, set()).add((self.kind_of[entry[node]], depth[node]))
            operand += kind.arguments
        for at, launches in shared.items():
            argument, family, place = at
            saved, calls = len(launches) - len(own[at]), self.calls.data.as_ints[family]
            size = max([self.firsts[number].in_types[place].elements for number, _ in own[at]])
            if saved > 0 and (2 * len(launches) > calls or calls * size < saved * COPIED_PER_LAUNCH):
                arguments[<Py_ssize_t>argument].reasons = 0

    cdef bytearray recurrent(self):
        """Return, per callee and place, whether a recursion that has the callee delivers arrays.

        The arrays of a list have one place: if second children are leaves in a whole minibatch,
        they are still recurrent, as the first are.
        """
        cdef bytearray marks = bytearray(self.callees * self.places)
        cdef Py_ssize_t count = self.callees if len(self.edges) else 0, producer, consumer, via, k
        #: Only callees that deliver and receive take part in recursions, and most do not: others
        #: belong to single samples, such as experts.
        cdef list receivers = [k for k in range(count) if self.receives[k]]
        cdef list members = [k for k in receivers if self.delivers(k, receivers)]
        cdef bytearray table = bytearray(count * count if members else 0)
        cdef char *reach = table
        cdef const char *edge = self.edges
        for producer in members:
            for consumer in members:
                for k in range(self.places):
                    reach[producer * count + consumer] |= (
                        edge[(producer * count + consumer) * self.places + k]
                    )
        for via in members:
            for producer in members:
                if reach[producer * count + via]:
                    for consumer in members:
                        reach[producer * count + consumer] |= reach[via * count + consumer]
        for producer in members:
            for consumer in members:
                for k in range(self.places if reach[consumer * count + producer] else 0):
                    marks[consumer * self.places + k] |= (
                        edge[(producer * count + consumer) * self.places + k]
                    )
        return marks

    cdef bint delivers(self, Py_ssize_t producer, list receivers):
        """Return whether a callee delivers arrays to any of some others."""
        cdef const char *edge = self.edges
        cdef Py_ssize_t consumer, k
        for consumer in receivers:
            for k in range(self.places):
                if edge[(producer * self.callees + consumer) * self.places + k]:
                    return True
        return False

    cdef bytearray uneven(self, const int32_t[::1] entry, tape):
        """Return, per callee and place, `UNEVEN` and `VARIED` if these hold there.

        Both are false for callees whose calls with sums all get the same number of arrays.
        """
        cdef bytearray marks = bytearray(self.callees * self.places)
        cdef bytearray differs = bytearray(self.callees)
        #: Per kind and place, the number of arrays.
        cdef int32_t[::1] counts = clone(INT, len(self.adds) * self.places, True)
        #: Per callee, with 1 added: its first kind, and the number of arrays of its first kind with
        #: a sum.
        cdef int32_t[::1] first = clone(INT, self.callees, True)
        cdef int32_t[::1] sums = clone(INT, self.callees, True)
        cdef const KindRow *kind = <const KindRow *>self.kinds.data.as_ints
        cdef Py_ssize_t number, k, start, first_start
        for number in range(len(self.adds)):
            start = number * self.places
            for k in range(kind.first, kind.first + kind.arguments):
                counts[start + self.place[k]] += 1
            first[kind.callee] = first[kind.callee] or number + 1
            first_start = (first[kind.callee] - 1) * self.places
            for k in range(self.places):
                if counts[start + k] != counts[first_start + k]:
                    marks[kind.callee * self.places + k] = IS_UNEVEN | IS_VARIED
            if self.adds[number]:
                sums[kind.callee] = sums[kind.callee] or kind.arguments + 1
                if sums[kind.callee] != kind.arguments + 1:
                    differs[kind.callee] = IS_UNEVEN
            kind += 1
        if any(differs):
            self.find_varied(entry, tape, differs)
        for k in range(len(marks)):
            marks[k] &= differs[k // self.places]
        return marks

    cdef int find_varied(self, const int32_t[::1] entry, tape, bytearray differs) except -1:
        """Add `VARIED` to the marks of callees if it saves launches to compute terms apart.

        Calls of equal depth share launches.  If terms are computed apart, calls with sums need two
        launches, for their terms and for the rest, otherwise one for each number of arrays.
        """
        cdef const KindRow *kinds = <const KindRow *>self.kinds.data.as_ints
        cdef const KindRow *kind
        cdef const int32_t[::1] depth = self.depths(entry, tape)
        cdef bytearray adds = bytearray(self.adds)
        cdef int64_t most = 2 + max([kinds[k].arguments for k in range(len(adds))]), size = 4, level
        #: Per callee, the launches if terms are not apart, less those if they are.
        cdef int64_t[::1] saved = clone(LONG, self.callees, True)
        cdef Py_ssize_t node
        cdef Seen seen
        while size < 4 * entry.shape[0]:
            size *= 2
        seen.mask, seen.keys = size - 1, <int64_t *>calloc(size, sizeof(int64_t))
        if seen.keys == NULL:
            raise MemoryError()
        for node in range(entry.shape[0]):
            kind = kinds + self.kind_of[entry[node]]
            if adds[self.kind_of[entry[node]]] and differs[kind.callee]:
                level = most * (kind.callee * <int64_t>entry.shape[0] + depth[node]) + 1
                saved[kind.callee] -= 2 * is_new(&seen, level)
                saved[kind.callee] += is_new(&seen, level + 1 + kind.arguments)
        free(seen.keys)
        for node in range(self.callees):
            if saved[node] > 0:
                differs[node] |= IS_VARIED
        return 0

    cdef list marks(self, bint by_operator, const int32_t[::1] entry, tape):
        """Return the marks of the arguments of each entry."""
        cdef bytearray recurrent, uneven, marks
        cdef const KindRow *kind = <const KindRow *>self.kinds.data.as_ints
        cdef const Argument *arguments
        cdef list by_kind = []
        cdef Py_ssize_t k, at, number
        cdef int32_t reasons
        if by_operator:
            recurrent, uneven = self.recurrent(), self.uneven(entry, tape)
        for number in range(len(self.adds)):
            marks = bytearray(kind.arguments)
            reasons = SAME | WEIGHT if self.calls.data.as_ints[kind.family] > 1 else WEIGHT
            arguments = <const Argument *>self.arguments.data.as_longlongs + kind.shared
            for k in range(kind.arguments):
                at = kind.callee * self.places + self.place[kind.first + k]
                if self.several[kind.first + k] and arguments[k].reasons & reasons:
                    marks[k] = IS_SHARED
                if by_operator:
                    marks[k] |= IS_RECURRENT * recurrent[at] | uneven[at]
            by_kind.append(bytes(marks))
            kind += 1
        return [by_kind[number] for number in self.kind_of]


def survey(tape, tuple weights, bint by_operator, int64_t most_edges, int32_t[::1] entry):
    """Fill in the entry of each call, numbered as in `tape.entries`; return each entry's marks.

    An argument of several rows is `SHARED` if every call gets the very same array, or if every call
    of the family gets one of the `weights` and sharing these pays.  The other marks are for granularity "operator".  No
    argument is `RECURRENT` if the table of edges would have more than `most_edges` elements.
    """
    cdef Survey calls = Survey(tape.entries.values(), most_edges if by_operator else 0)
    cdef const int32_t[::1] node_entry = tape.node_entry
    cdef int32_t[::1] number_of = clone(INT, max(tape.entries) + 1, False)
    cdef int32_t[::1] producer = clone(INT, len(tape.value_type), False)
    cdef Py_ssize_t node, number
    cdef int32_t entry_id, value
    for number, entry_id in enumerate(tape.entries):
        number_of[entry_id] = number
    for node in range(entry.shape[0]):
        entry[node] = number_of[node_entry[node]]
    producer[:] = EXTERNAL
    for value in weights:
        producer[value] = EXTERNAL_WEIGHT
    calls.scan(entry, tape, &producer[0])
    if weights:
        calls.drop_own_weights(entry, tape)
    return calls.marks(by_operator, entry, tape)
