# Marks of arguments, and the cuts that follow from them; a part of `lowering.pyx`.


@cython.final
cdef class Marking(Survey):
    """The marks of all arguments, from what a survey has found, and the cut of each entry.

    Owned by one call of `find_cuts`.
    """

    cdef bytearray recurrent(self):
        """Return, per callee and place, whether a recursion that has the callee delivers arrays.

        The arrays of a list have one place: if second children are leaves in a whole minibatch,
        they are still recurrent, as the first are.
        """
        cdef bytearray marks = bytearray(self.callees * self.places)
        #: Only callees that deliver and receive take part in recursions, and most do not: others
        #: belong to single samples, such as experts.
        cdef list members = [k for k in sorted(self.edges) if self.delivers(k)]
        cdef Py_ssize_t count = len(members) if self.edges_left >= 0 else 0, producer, consumer, via
        cdef bytearray reach = bytearray(count * count)
        cdef const char *edge
        cdef int32_t k
        for producer in range(count):
            for consumer in range(count):
                edge = self.edge_of(members[producer], members[consumer])
                for k in range(self.places):
                    reach[producer * count + consumer] |= edge[k]
        for via in range(count):
            for producer in range(count):
                if reach[producer * count + via]:
                    for consumer in range(count):
                        reach[producer * count + consumer] |= reach[via * count + consumer]
        for producer in range(count):
            for consumer in range(count):
                edge = self.edge_of(members[producer], members[consumer])
                for k in range(self.places if reach[consumer * count + producer] else 0):
                    marks[<int32_t>members[consumer] * self.places + k] |= edge[k]
        return marks

    cdef const char *edge_of(self, int32_t producer, int32_t consumer) noexcept:
        """Return per place whether a callee delivers to one that receives."""
        return <const char *>self.edges_at[consumer] + producer * self.places

    cdef bint delivers(self, int32_t producer):
        """Return whether a callee delivers arrays to any other, or to itself."""
        cdef int32_t k
        for consumer in self.edges:
            for k in range(self.places):
                if self.edge_of(producer, consumer)[k]:
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
                counts[start + self.place.data.as_ints[k]] += 1
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
        cdef bytearray adds = self.adds
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

    cdef bytearray marks(self, bint by_operator, const int32_t[::1] entry, tape):
        """Return the marks of the arguments of each kind."""
        cdef bytearray recurrent, uneven
        cdef const KindRow *kind = <const KindRow *>self.kinds.data.as_ints
        cdef const Argument *arguments
        cdef const char *several = self.several.data.as_chars
        cdef const int32_t *place = <const int32_t *>self.place.data.as_ints
        cdef bytearray marks = bytearray(len(self.place))
        cdef Py_ssize_t k, at, number
        cdef int32_t reasons
        if by_operator:
            recurrent, uneven = self.recurrent(), self.uneven(entry, tape)
        for number in range(len(self.adds)):
            reasons = SAME | WEIGHT if self.calls.data.as_ints[kind.family] > 1 else WEIGHT
            arguments = <const Argument *>self.arguments.data.as_longlongs + kind.shared
            for k in range(kind.arguments):
                at = kind.callee * self.places + place[kind.first + k]
                if several[kind.first + k] and arguments[k].reasons & reasons:
                    marks[kind.first + k] = IS_SHARED
                if by_operator:
                    marks[kind.first + k] |= IS_RECURRENT * recurrent[at] | uneven[at]
            kind += 1
        return marks

    cdef tuple cuts(self, bytearray marks, str granularity, tape, cut_of):
        """Return the cut of each entry, and the code and the segments of that."""
        cdef const KindRow *kinds = <const KindRow *>self.kinds.data.as_ints
        cdef const KindRow *kind
        cdef const char *of_all = marks
        cdef CallBrief brief
        cdef list cuts = [], codes = [], segments = []
        cdef Py_ssize_t number
        for number, entry in enumerate((<dict>tape.entries).values()):
            brief, kind = self.briefs[number], kinds + self.kind_of[number]
            if brief.granularity != granularity or memcmp(
                <const char *>brief.marks, of_all + kind.first, kind.arguments
            ):
                own = bytes(marks[kind.first:kind.first + kind.arguments])
                brief.keep(cut_of(entry, granularity, own), granularity, own)
            cuts.append(brief.cut)
            codes.append(brief.code)
            segments.append(brief.segments)
        return cuts, codes, segments


def find_cuts(
    tape, tuple weights not None, str granularity not None, int64_t most_edges, int32_t[::1] entry, cut_of
):
    """Fill in the entry of each call, numbered as in `tape.entries`; return the cut of each entry.

    Returns a list of cuts, one of their codes, and one of their segments.  `cut_of` returns the cut
    of an entry at a granularity, given the marks of its arguments.

    An argument of several rows is `SHARED` if every call gets the very same array, or if every call
    of the family gets one of the `weights` and sharing these pays.  The other marks are for granularity "operator".  No
    argument is `RECURRENT` if the table of edges would have more than `most_edges` elements.
    """
    cdef bint by_operator = granularity == "operator"
    cdef Marking calls = Marking(tape, most_edges if by_operator else 0)
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
    return calls.cuts(calls.marks(by_operator, entry, tape), granularity, tape, cut_of)
