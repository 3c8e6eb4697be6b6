# What flushes read of segments and of entries, in one object each; a part of `lowering.pyx`.
#
# A minibatch may have a thousand of either, most of which are not in the cache: to read an
# attribute of an object of Python takes longer than all that is done with its value.

cdef enum:
    #: How many briefs are on their way to the cache.
    BRIEFS_AHEAD = 6


cdef list recorded_briefs(tape):
    """Return the `CallBrief` of each entry of a tape, in its order."""
    cdef list briefs = [entry.brief for entry in (<dict>tape.entries).values()]
    return briefs


@cython.final
cdef class SegmentBrief:
    """What flushes read of a segment.

    Owned by the segment; it never changes, but for the kernels, and where parameters are.
    """

    # `lowering.pxd` has the attributes: the parameters, where each is, and their context; per parameter whether its gradient is dense; the family;
    # whether calls do not merge, or only those that read equal shared arrays; whether no parameter
    # is of a subclass, and whether a backward pass may follow; and what `kernel.kernels.Kernels` has
    # found, or None.

    def __init__(
        self, tuple parameters not None, context, str family not None, bint unbatched, bint shares,
        bint plain, bint recorded,
    ):
        self.parameters, self.context, self.family = parameters, context, family
        self.unbatched, self.shares, self.plain = unbatched, shares, plain
        self.recorded = recorded
        self.places = <ParameterPlace *>calloc(len(parameters), sizeof(ParameterPlace))
        if self.places == NULL and len(parameters):
            raise MemoryError("no memory for a segment")
        self.dense = bytes([parameter._grad_stype == "default" for parameter in parameters])

    def __dealloc__(self):
        free(self.places)


def merge_freely(list briefs not None):
    """Return whether all units of a segment may share launches, but none with another segment."""
    cdef set families = set()
    cdef SegmentBrief brief
    for brief in briefs:
        if brief.unbatched or brief.shares:
            return False
        families.add(brief.family)
    return len(families) == len(briefs)


def kernels_found(list segments not None):
    """Return the kernels of each segment, or the reason why there are none; None if not known."""
    cdef SegmentBrief brief
    cdef list found = []
    for segment in segments:
        brief = segment.brief
        found.append(brief.kernels)
    return found


cdef inline void fetch_parameters(list briefs, Py_ssize_t i, Py_ssize_t count) noexcept:
    """Fetch to the cache what is read of briefs that come soon after one.

    That is a brief, then its table of parameters, then these.
    """
    cdef Py_ssize_t k
    cdef SegmentBrief brief
    if i + 3 * BRIEFS_AHEAD < count:
        FETCH(<char *><PyObject *>briefs[i + 3 * BRIEFS_AHEAD])
    if i + 2 * BRIEFS_AHEAD < count:
        brief = <SegmentBrief>briefs[i + 2 * BRIEFS_AHEAD]
        FETCH(<char *><PyObject *>brief.parameters)
    if i + BRIEFS_AHEAD < count:
        brief = <SegmentBrief>briefs[i + BRIEFS_AHEAD]
        for k in range(len(brief.parameters)):
            # Python 3.11 has the attributes of an object before it.
            FETCH(<char *><PyObject *>brief.parameters[k] - 32)
            FETCH(<char *><PyObject *>brief.parameters[k])


def trained_in(list briefs not None):
    """Return for each segment a byte per parameter: whether a gradient is wanted."""
    cdef SegmentBrief brief
    cdef list found = []
    cdef bytes marks
    cdef Py_ssize_t i, number
    for number in range(len(briefs)):
        fetch_parameters(briefs, number, len(briefs))
        brief = briefs[number]
        marks = PyBytes_FromStringAndSize(NULL, len(brief.parameters))
        for i in range(len(brief.parameters)):
            parameter = brief.parameters[i]
            # What the property returns that `Parameter` has.
            grad_req = parameter._grad_req if brief.plain else parameter.grad_req
            (<char *>marks)[i] = grad_req != "null"
        found.append(marks)
    return found


def recorded_in(list briefs not None):
    """Return a byte per segment: whether its calls were recorded for a backward pass."""
    cdef SegmentBrief brief
    cdef bytearray marks = bytearray(len(briefs))
    cdef Py_ssize_t number
    for number in range(len(briefs)):
        brief = briefs[number]
        marks[number] = brief.recorded
    return marks


def run_otherwise(list briefs not None, tuple kernels not None):
    """Return the numbers of segments whose calls do not merge, and of those without kernels."""
    cdef SegmentBrief brief
    cdef list numbers = []
    cdef Py_ssize_t number
    for number in range(len(briefs)):
        brief = briefs[number]
        if brief.unbatched or isinstance(kernels[number], str):
            numbers.append(number)
    return numbers


@cython.final
cdef class CallBrief:
    """What flushes read of an entry.

    Owned by the entry; it never changes, but for the last cut.
    """

    #: What calls of any number of rows have in common, and what identifies the callee.
    cdef object kind, token
    #: Numbers of arguments and of results; per argument its place, and whether it has several rows.
    cdef int32_t arguments, results
    cdef array places, several
    #: Whether the program has a sum, whether the call is one of a block, whether a backward pass may
    #: follow, and whether it is a part of one that the user makes.
    cdef bint adds, of_block, recorded, is_part
    #: The operators of the program, and the operations of its products.
    cdef int64_t operators
    cdef double work
    #: The last cut of its calls, its segments and its code; and for which granularity and marks.
    cdef object cut
    cdef tuple segments
    cdef array code
    cdef str granularity
    cdef bytes marks

    def __init__(
        self, kind, tuple token not None, *, int32_t results, places, several, bint adds,
        bint of_block, bint recorded, bint is_part, int64_t operators, double work,
    ):
        self.kind, self.token, self.results = kind, token, results
        self.places, self.several = array("i", places), array("b", several)
        self.arguments = len(self.places)
        self.adds, self.of_block, self.recorded, self.is_part = adds, of_block, recorded, is_part
        self.operators, self.work = operators, work

    cdef int keep(self, cut, str granularity, bytes marks) except -1:
        """Keep a cut."""
        self.cut, self.segments, self.code = cut, cut.segments, cut.code
        self.granularity, self.marks = granularity, marks
        return 0


def several_counts(entries not None):
    """Return the tokens of callees that are called with several numbers of arrays.

    Calls that are parts of one that the user makes do not count.
    """
    cdef dict counts = {}
    cdef set several = set()
    cdef CallBrief brief
    for entry in entries:
        brief = entry.brief
        if not brief.is_part and counts.setdefault(brief.token, brief.arguments) != brief.arguments:
            several.add(brief.token)
    return several


cdef int64_t[::1] calls_of(tape, list briefs):
    """Return the number of calls of each entry."""
    cdef const int32_t[::1] node_entry = tape.node_entry
    cdef dict entries = tape.entries
    cdef int64_t[::1] counts = clone(LONG, max(entries, default=0) + 1, True)
    cdef int64_t[::1] calls = clone(LONG, len(briefs), False)
    cdef Py_ssize_t node, number
    for node in range(node_entry.shape[0]):
        counts[node_entry[node]] += 1
    for number, entry_id in enumerate(entries):
        calls[number] = counts[<int64_t>entry_id]
    return calls


def work_of(tape):
    """Return the operations of all products of the calls of a tape, which keeps what is counted."""
    cdef const int32_t[::1] node_entry = tape.node_entry
    cdef dict entries = tape.entries
    cdef double work = tape.work
    cdef CallBrief brief
    cdef Py_ssize_t node, k
    #: The last entry of each hash, with 1 added, and the operations of its products.
    cdef int64_t[256] last
    cdef double[256] of_entry
    memset(last, 0, sizeof(last))
    for node in range(tape.weighed, node_entry.shape[0]):
        k = node_entry[node] & 255
        if last[k] != node_entry[node] + 1:
            brief = entries[node_entry[node]].brief
            last[k], of_entry[k] = node_entry[node] + 1, brief.work
        work += of_entry[k]
    tape.work, tape.weighed = work, node_entry.shape[0]
    return work


def totals(tape):
    """Return the number of calls of blocks, and that of operators in all calls."""
    cdef list briefs = recorded_briefs(tape)
    cdef int64_t[::1] calls = calls_of(tape, briefs)
    cdef int64_t of_blocks = 0, operators = 0
    cdef CallBrief brief
    cdef Py_ssize_t number
    for number in range(len(briefs)):
        brief = briefs[number]
        operators += calls[number] * brief.operators
        if brief.of_block:
            of_blocks += calls[number]
    return of_blocks, operators


def any_recorded(tape):
    """Return whether a backward pass may follow a call of a tape."""
    cdef CallBrief brief
    for entry in (<dict>tape.entries).values():
        brief = entry.brief
        if brief.recorded:
            return True
    return False
