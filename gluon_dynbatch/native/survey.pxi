# What all calls of a tape tell of their arguments; a part of `lowering.pyx`.

#: Marks of arguments: all calls get one array; a recursion that the call takes part in delivers it;
#: calls bring different numbers of arrays.
SHARED, RECURRENT, UNEVEN = 1, 2, 4

cdef enum:
    IS_SHARED = 1
    IS_RECURRENT = 2
    IS_UNEVEN = 4
    #: What is found of an argument that may be shared: it is the same array in several calls, or a
    #: variable with a gradient of its own (a weight) in all.
    SAME = 1
    WEIGHT = 2
    #: Nobody makes a value, or it is a weight.
    NOBODY = -1
    IS_WEIGHT = -2


cdef struct Kind:
    #: Family and callee; numbers of arrays and results; first argument, and that of the family.
    int32_t family, callee, arrays, results, first, shared


cdef struct Seen:
    #: What the first call of a family read, and what is found of all.
    int64_t offset
    int32_t value, found


@cython.final
cdef class Survey:
    """One look at all calls: which arguments they share, and who delivers which.

    Entries that were analysed as one are of one *kind*.  Calls of one callee with the same number
    of arrays are a *family*.
    """

    #: Per kind whether it adds up arrays.
    cdef list adds
    #: Per kind a `Kind`; per entry its kind; per argument of a kind the place in which it came, and
    #: whether it has several rows; per argument of a family what is `Seen`.
    cdef array rows, seen
    cdef int32_t[::1] kind_of, place
    cdef char[::1] several
    cdef int32_t families, callees, places
    #: By producer, consumer and place, whether one callee delivers an argument to another.
    cdef bytearray edges

    def __init__(self, entries, int64_t most_edges):
        cdef dict callees = {}, families = {}, kinds = {}
        cdef list rows = [], place = [], several = [], shared0 = []
        cdef Py_ssize_t count, arrays = 0, kind
        cdef Py_ssize_t number
        self.adds, self.kind_of = [], clone(INT, len(entries), False)
        for number, one in enumerate(entries):
            first = one.first
            kind = kinds.setdefault(first, len(kinds))
            self.kind_of[number] = kind
            if kind == len(self.adds):
                token, count = first.token, len(first.in_types)
                family = families.setdefault((token, count), len(families))
                if family == len(shared0):
                    shared0.append(arrays)
                    arrays += count
                callee = callees.setdefault(token, len(callees))
                rows += (family, callee, count, len(first.out_types), len(place), shared0[family])
                place += first.places
                several += first.several
                self.adds.append(first.program.adds)
        self.rows, self.place = array("i", rows), array("i", place)
        self.several = array("b", several)
        self.families, self.callees = len(families), len(callees)
        self.places = 1 + max(place, default=0)
        self.seen = clone(LONG, 2 * arrays, True)
        edges = <int64_t>self.callees * self.callees * self.places
        self.edges = bytearray(edges if edges <= most_edges else 0)

    cdef void look(
        self, const int32_t[::1] entry, const int32_t[::1] node_value0,
        const int32_t[::1] sources, const int64_t[::1] offsets, int32_t[::1] made_by,
    ):
        """Look at each call, given which values are weights, and that nobody makes others."""
        cdef array calls = clone(INT, self.families, True)
        cdef const Kind *kinds = <const Kind *>self.rows.data.as_ints
        cdef const Kind *kind
        cdef const int32_t *kind_of = &self.kind_of[0]
        cdef const int32_t *places
        cdef Seen *seen
        cdef char *edges = self.edges
        cdef int64_t callees = self.callees, count = self.places
        cdef Py_ssize_t node, operand = 0
        cdef int32_t known, k, value, maker
        cdef bint alike, edges_wanted = len(self.edges) > 0
        for node in range(entry.shape[0]):
            kind = &kinds[kind_of[entry[node]]]
            seen = <Seen *>self.seen.data.as_longlongs + kind.shared
            places = &self.place[kind.first]
            known = calls.data.as_ints[kind.family]
            calls.data.as_ints[kind.family] = known + 1
            for k in range(kind.arrays):
                value = sources[operand]
                maker = made_by[value]
                alike = seen.value == value and seen.offset == offsets[operand]
                if known == 0:
                    seen.value, seen.offset, seen.found = value, offsets[operand], WEIGHT
                elif known == 1 and alike:
                    seen.found |= SAME
                elif not alike:
                    seen.found &= WEIGHT
                if maker != IS_WEIGHT or offsets[operand]:
                    seen.found &= SAME
                if edges_wanted and maker >= 0:
                    edges[(maker * callees + kind.callee) * count + places[k]] = True
                operand += 1
                seen += 1
            for k in range(kind.results):
                made_by[node_value0[node] + k] = kind.callee

    cdef bytearray recurrent(self):
        """Tell per callee and place what comes out of a recursion that the callee takes part in.

        Arrays that are passed in one list are one argument here: that the second child of a node
        is a leaf in all of a minibatch does not make it another kind of child.
        """
        cdef bytearray found = bytearray(self.callees * self.places)
        cdef Py_ssize_t count = self.callees if len(self.edges) else 0, one, other, middle, k
        cdef bytearray table = bytearray(count * count)
        cdef bytearray makes = bytearray(count), reads = bytearray(count)
        cdef char *reach = table
        cdef const char *edge = self.edges
        for one in range(count):
            for other in range(count):
                for k in range(self.places):
                    reach[one * count + other] |= edge[0]
                    edge += 1
                makes[one] |= reach[one * count + other]
                reads[other] |= reach[one * count + other]
        for middle in range(count):
            # Most callees are at an end of all paths.
            for one in range(count if makes[middle] and reads[middle] else 0):
                if reach[one * count + middle]:
                    for other in range(count):
                        reach[one * count + other] |= reach[middle * count + other]
        edge = self.edges
        for one in range(count):
            for other in range(count):
                for k in range(self.places if reach[other * count + one] else 0):
                    found[other * self.places + k] |= edge[k]
                edge += self.places
        return found

    cdef bytearray uneven(self):
        """Tell per callee and place whether its calls bring different numbers of arrays there.

        Only where calls with sums do.
        """
        cdef bytearray found = bytearray(self.callees * self.places)
        cdef bytearray differs = bytearray(self.callees)
        cdef int32_t[::1] counts = clone(INT, len(self.adds) * self.places, True)
        # Per callee, one more than the number of its first kind, and than the arrays of a sum.
        cdef int32_t[::1] first = clone(INT, self.callees, True)
        cdef int32_t[::1] sums = clone(INT, self.callees, True)
        cdef const Kind *kind = <const Kind *>self.rows.data.as_ints
        cdef Py_ssize_t one, k, own, other
        for one in range(len(self.adds)):
            own = one * self.places
            for k in range(kind.first, kind.first + kind.arrays):
                counts[own + self.place[k]] += 1
            first[kind.callee] = first[kind.callee] or one + 1
            other = (first[kind.callee] - 1) * self.places
            for k in range(self.places):
                found[kind.callee * self.places + k] |= counts[own + k] != counts[other + k]
            if self.adds[one]:
                sums[kind.callee] = sums[kind.callee] or kind.arrays + 1
                differs[kind.callee] |= sums[kind.callee] != kind.arrays + 1
            kind += 1
        for k in range(len(found)):
            found[k] &= differs[k // self.places]
        return found

    cdef list marks(self, bint fine):
        """Return the marks of the arguments of each entry."""
        cdef bytearray recurrent = self.recurrent(), uneven = self.uneven(), own
        cdef const Kind *kind = <const Kind *>self.rows.data.as_ints
        cdef const Seen *seen
        cdef list found = []
        cdef Py_ssize_t k, at, one
        for one in range(len(self.adds)):
            own = bytearray(kind.arrays)
            seen = <const Seen *>self.seen.data.as_longlongs + kind.shared
            for k in range(kind.arrays):
                at = kind.callee * self.places + self.place[kind.first + k]
                if self.several[kind.first + k] and seen[k].found:
                    own[k] = IS_SHARED
                if fine:
                    own[k] |= IS_RECURRENT * recurrent[at] + IS_UNEVEN * uneven[at]
            found.append(bytes(own))
            kind += 1
        return [found[one] for one in self.kind_of]


def survey(tape, tuple weights, bint fine, int64_t most_edges, int32_t[::1] entry):
    """Number the entries of calls as they come in a tape; return the marks of arguments of each.

    An argument of several rows is `SHARED` if it is one of the `weights`, or if every call of the
    family gets the very same array.  Other marks are only found if they are to be `fine`; nothing
    is `RECURRENT` if the table of who delivers which argument would have more than `most_edges`.
    """
    cdef Survey found = Survey(tape.entries.values(), most_edges if fine else 0)
    cdef const int32_t[::1] node_entry = tape.node_entry
    cdef int32_t[::1] number = clone(INT, max(tape.entries) + 1, False)
    cdef int32_t[::1] made_by = clone(INT, len(tape.value_type), False)
    cdef Py_ssize_t node
    cdef int32_t key, value
    for node, key in enumerate(tape.entries):
        number[key] = node
    for node in range(entry.shape[0]):
        entry[node] = number[node_entry[node]]
    made_by[:] = NOBODY
    for value in weights:
        made_by[value] = IS_WEIGHT
    found.look(entry, tape.node_value0, tape.sources, tape.offsets, made_by)
    return found.marks(fine)
