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


cdef class Survey:
    """One pass over all calls: which arguments they share, and which callees deliver them.

    Entries with one `CallKind` are of one *kind*.  Calls of one callee with the same
    number of arguments are a *family*.  The arrays of a list are several arguments in one *place*.

    Owned by one call of `find_cuts`: it holds the entries, and changes neither these nor the tape.
    """

    #: The briefs of all entries; and per kind, the number of its first entry, and whether its program
    #: has a sum.
    cdef list briefs
    cdef int32_t[::1] firsts
    cdef bytearray adds
    #: Per kind a `KindRow`; per argument of a family an `Argument`; per family, the number of its
    #: calls.
    cdef array kinds, arguments, calls
    #: Per entry its kind; per argument of a kind its place, and whether it has several rows.
    cdef int32_t[::1] kind_of
    cdef array place, several
    cdef int32_t callees, places
    #: Per callee that gets an argument from another: by that callee and place, whether it does; and
    #: the address of this table, or 0.
    cdef dict edges
    cdef int64_t[::1] edges_at
    #: Elements that these tables may still have; negative once they would have more.
    cdef int64_t edges_left

    def __init__(self, tape, int64_t most_edges):
        self.briefs = recorded_briefs(tape)
        self.kind_of = clone(INT, len(self.briefs), False)
        self.adds, self.firsts = bytearray(len(self.briefs)), clone(INT, len(self.briefs), False)
        self.place, self.several = array("i"), array("b")
        self.number_kinds()
        self.edges, self.edges_left = {}, most_edges
        self.edges_at = clone(LONG, self.callees, True)

    cdef int number_kinds(self) except -1:
        """Number the kinds of all entries, their callees, families and arguments."""
        cdef Py_ssize_t count = len(self.briefs), number, kind, k
        cdef int32_t family, families = 0, arguments = 0, first = 0, callee, known
        cdef dict callees = {}, kinds = {}
        cdef array rows = clone(INT, count * (sizeof(KindRow) // sizeof(int32_t)), False)
        cdef KindRow *row = <KindRow *>rows.data.as_ints
        #: Per callee its last family, or -1; per family its first kind, and the one before, or -1.
        cdef int32_t[::1] last = clone(INT, count, False), of_family = clone(INT, count, False)
        cdef int32_t[::1] before = clone(INT, count, False)
        cdef CallBrief brief
        for number in range(count):
            brief, known = self.briefs[number], len(kinds)
            kind = self.kind_of[number] = kinds.setdefault(brief.kind, known)
            if kind < known:
                continue
            known = len(callees)
            callee = callees.setdefault(brief.token, known)
            if callee == known:
                last[callee] = -1
            family = last[callee]
            while family >= 0 and row[of_family[family]].arguments != brief.arguments:
                family = before[family]
            row[kind] = KindRow(
                families, callee, brief.arguments, brief.results, first, arguments)
            if family >= 0:
                row[kind].family, row[kind].shared = family, row[of_family[family]].shared
            else:
                of_family[families], before[families], last[callee] = kind, last[callee], families
                families, arguments = families + 1, arguments + brief.arguments
            first += brief.arguments
            extend(self.place, brief.places)
            extend(self.several, brief.several)
            self.firsts[kind], self.adds[kind] = number, brief.adds
        del self.adds[len(kinds):]
        self.kinds, self.callees, self.places = rows, len(callees), 1
        self.calls, self.arguments = clone(INT, families, True), clone(LONG, 2 * arguments, True)
        for k in range(first):
            self.places = max(self.places, self.place.data.as_ints[k] + 1)
        return 0

    cdef char *receive(self, int32_t callee) except? NULL:
        """Make the table of what a callee gets from others; return NULL if there is no room."""
        cdef int64_t size = <int64_t>self.callees * self.places
        self.edges_left -= size
        if self.edges_left < 0:
            return NULL
        table = self.edges[callee] = bytearray(size)
        self.edges_at[callee] = <int64_t><char *>(<bytearray>table)
        return <char *>self.edges_at[callee]

    cdef int scan(self, const int32_t[::1] entry, tape, int32_t *producer) except -1:
        """Visit each call; on entry, all values are marked as external in `producer`.

        For other values, `producer` gets the position of their callee in tables of edges.
        """
        cdef const KindRow *kinds = <const KindRow *>self.kinds.data.as_ints
        cdef const KindRow *kind
        cdef const int32_t *kind_of = &self.kind_of[0]
        cdef const int32_t *place
        cdef const char *several = self.several.data.as_chars
        cdef int32_t *calls = <int32_t *>self.calls.data.as_ints
        cdef Argument *arguments = <Argument *>self.arguments.data.as_longlongs
        cdef Argument *argument
        cdef const int32_t[::1] node_value0 = tape.node_value0, sources = tape.sources
        cdef const int64_t[::1] offsets = tape.offsets
        cdef char *edge
        cdef Py_ssize_t node, operand = 0
        cdef int64_t offset
        cdef int32_t k, value, maker
        cdef bint first, wanted = self.edges_left > 0
        for node in range(len(self.adds)):
            kind = kinds + node
            for k in range(kind.arguments):
                if several[kind.first + k]:
                    arguments[kind.shared + k].reasons = SAME | WEIGHT
        for node in range(entry.shape[0]):
            kind = kinds + kind_of[entry[node]]
            argument = arguments + kind.shared
            place = <const int32_t *>self.place.data.as_ints + kind.first
            edge = <char *>self.edges_at[kind.callee]
            first = calls[kind.family] == 0
            calls[kind.family] += 1
            for k in range(kind.arguments):
                value = sources[operand + k]
                maker = producer[value]
                if maker >= 0:
                    if edge == NULL:
                        edge = self.receive(kind.callee)
                    if edge != NULL:
                        edge[maker + place[k]] = True
                if argument[k].reasons:
                    offset = offsets[operand + k]
                    if first:
                        argument[k].value, argument[k].offset = value, offset
                    if argument[k].value != value or argument[k].offset != offset:
                        argument[k].reasons &= WEIGHT
                    if maker != EXTERNAL_WEIGHT or offset:
                        argument[k].reasons &= SAME
            operand += kind.arguments
            maker = kind.callee * self.places if wanted else EXTERNAL
            for k in range(kind.results):
                producer[node_value0[node] + k] = maker
        return 0

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
        cdef list entries = list((<dict>tape.entries).values())
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
            firsts = [entries[self.firsts[<Py_ssize_t>number]] for number, _ in own[at]]
            size = max([each.in_types[place].elements for each in firsts])
            if saved > 0 and (2 * len(launches) > calls or calls * size < saved * COPIED_PER_LAUNCH):
                arguments[<Py_ssize_t>argument].reasons = 0
