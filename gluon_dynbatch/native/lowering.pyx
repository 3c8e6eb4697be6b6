# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, auto_pickle=False
"""The parts of lowering that visit every call; arrays are those of `Tape` and `Graph`."""

cimport cython
from cpython.array cimport array, clone, extend
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    void FETCH "__builtin_prefetch"(const void *address) noexcept nogil

cdef array INT, LONG
INT, LONG = array("i"), array("q")

include "briefs.pxi"
include "survey.pxi"
include "marks.pxi"


def find_rows(tape, bytearray has_rows):
    """Return the numbers of the external arrays whose types are marked in `has_rows`."""
    cdef array values = tape.external_values, types = tape.value_type
    cdef Py_ssize_t k
    return [k for k in range(len(values)) if has_rows[types.data.as_ints[values.data.as_ints[k]]]]


# Plain values, which are words of the code of a cut: `Cut.code` owns it, and never changes.

cdef struct Head:
    #: Numbers of the parts of a cut; and of the slots of its first segment, if its unit exists once
    #: per tape, else 0.
    int64_t uses, slots, inputs, terms, results, arguments, once


cdef struct Use:
    int64_t rows, slots, inputs


cdef struct Term:
    #: A slot, from the first of the call on, or an argument ``e`` as ``-1 - e``; and elements.
    int64_t source, size


cdef struct CutParts:
    # Where the parts of a cut are, and how many units it has; `Cuts` owns them.
    const int32_t *segment
    const Head *head
    const Use *use
    const int64_t *size
    const int64_t *count
    const Term *read
    int64_t uses


cdef inline CutParts without_first(CutParts of) noexcept:
    """Leave out the first unit."""
    of.segment += 1
    of.size, of.count = of.size + of.use.slots, of.count + of.use.inputs
    of.read, of.use, of.uses = of.read + of.use.inputs, of.use + 1, of.uses - 1
    return of


def code_of_cut(cut):
    """Return a `lower.segment.Cut` as integers.

    A `Head`; then a `Use` of a segment per unit, the elements of each slot, the number of terms of
    each input, the `Term`s, and the slot of each result of the call.
    """
    cdef int64_t rows, slots = 0, inputs = 0, terms = 0
    cdef list slot0 = []
    for segment, sources in zip(cut.segments, cut.sources):
        slot0.append(slots)
        slots += len(segment.outputs)
        inputs += len(sources)
        terms += sum([len(of_port) for of_port in sources])
    cdef int64_t bytes = sizeof(Head) + len(slot0) * sizeof(Use) + terms * sizeof(Term)
    bytes += (slots + inputs + len(cut.heads)) * sizeof(int64_t)
    cdef array code = clone(LONG, bytes // sizeof(int64_t), False)
    cdef Head *head = <Head *>code.data.as_longlongs
    cdef Use *use = <Use *>(head + 1)
    cdef int64_t *size = <int64_t *>(use + len(slot0))
    cdef int64_t *count = size + slots
    cdef Term *term = <Term *>(count + inputs)
    cdef int64_t *result = <int64_t *>(term + terms)
    head[0] = Head(
        uses=len(slot0), slots=slots, inputs=inputs, terms=terms, results=len(cut.heads),
        arguments=cut.arguments,
        once=len(cut.segments[0].outputs) if cut.segments[0].layout == "once" else 0)
    for segment, sources in zip(cut.segments, cut.sources):
        rows = cut.rows if segment.layout in ("rows", "concat") else 1
        use[0] = Use(rows=rows, slots=len(segment.outputs), inputs=len(sources))
        use += 1
        for port in segment.outputs:
            size[0] = rows * port.row_size
            size += 1
        for port, of_port in zip(segment.inputs, sources):
            count[0] = len(of_port)
            count += 1
            for k, (origin, number) in enumerate(of_port):
                term_rows = cut.concat_rows[k] if port.concat else 1 if port.shared else rows
                term[0] = Term(
                    source=-1 - number if origin < 0 else slot0[origin] + number,
                    size=term_rows * port.row_size)
                term += 1
    for origin, number in cut.heads:
        result[0] = slot0[origin] + number
        result += 1
    return code


cdef int number_externals(tape, int64_t[::1] value_term) except -1:
    """Write to each value the term that it is: -1, -2, ... for externals, none for others."""
    cdef Py_ssize_t k
    value_term[:] = INT64_MIN
    for k, value in enumerate(tape.external_values):
        value_term[<int64_t>value] = -1 - k
    return 0


@cython.final
cdef class Cuts:
    """The cuts of all entries, as integers: see `code_of_cut`.

    Owned by the function that makes one graph.  It holds the codes, whose addresses it uses.
    """

    #: Segments to their numbers, in the order of their first use.
    cdef readonly dict segments
    #: Numbers of units, slots, inputs and terms of all calls; more than there are until `wire` has
    #: left out the units of segments that exist once.
    cdef readonly tuple sizes
    cdef list codes
    #: Per cut: the address of its code, and the position of its segments in `used`.
    cdef array address, use0, used

    def __init__(self, list codes not None, list segments not None, const int32_t[::1] entry):
        cdef array calls = clone(INT, len(codes), True)
        cdef int64_t sizes[4]
        cdef const int64_t *code
        cdef Py_ssize_t i, k, used = 0
        sizes[:] = [0, 0, 0, 0]
        for i in range(entry.shape[0]):
            calls.data.as_ints[entry[i]] += 1
        self.segments, self.codes = {}, codes
        self.used = clone(INT, sum([len(<tuple>of_cut) for of_cut in segments]), False)
        self.address, self.use0 = clone(LONG, len(codes), False), clone(INT, len(codes), False)
        for i in range(len(codes)):
            code = <const int64_t *>(<array>codes[i]).data.as_longlongs
            self.address.data.as_longlongs[i] = <int64_t>code
            self.use0.data.as_ints[i] = used
            for segment in <tuple>segments[i]:
                self.used.data.as_ints[used] = self.segments.setdefault(segment, len(self.segments))
                used += 1
            for k in range(4):
                sizes[k] += calls.data.as_ints[i] * code[k]
        self.sizes = sizes[0], sizes[1], sizes[2], sizes[3]

    cdef inline CutParts cut_at(self, Py_ssize_t number) noexcept:
        """Find the parts of a cut."""
        cdef CutParts of
        of.segment = <const int32_t *>self.used.data.as_ints + self.use0.data.as_ints[number]
        of.head = <const Head *>self.address.data.as_longlongs[number]
        of.use = <const Use *>(of.head + 1)
        of.size = <const int64_t *>(of.use + of.head.uses)
        of.count = of.size + of.head.slots
        of.read = <const Term *>(of.count + of.head.inputs)
        of.uses = of.head.uses
        return of

    cdef object key_of(self, tape, CutParts of, int64_t operand):
        """Return what identifies a unit that exists once: its segment, and what it reads."""
        cdef array sources = tape.sources, offsets = tape.offsets
        cdef list key = [of.segment[0]]
        cdef int64_t k
        for k in range(of.use.inputs):
            key.append(sources.data.as_ints[operand - 1 - of.read[k].source])
            key.append(offsets.data.as_longlongs[operand - 1 - of.read[k].source])
        return tuple(key)

    def wire(
        self, tape, const int32_t[::1] entry, int32_t[::1] segment, int32_t[::1] unit_node,
        int64_t[::1] rows, int32_t[::1] slot0, int32_t[::1] input0, int32_t[::1] term0,
        int32_t[::1] term, int32_t[::1] term_offset, int32_t[::1] term_size,
        int32_t[::1] slot_unit, int32_t[::1] slot_size, int64_t[::1] value_term,
        int64_t[::1] pred0, int32_t[::1] preds,
    ):
        """Fill in the columns of a `Graph`, and the first `edges` of `preds`; return `edges`."""
        cdef array sources = tape.sources, offsets = tape.offsets, value0 = tape.node_value0
        cdef CutParts of
        cdef Py_ssize_t slot = 0, item = 0, at = 0, edges = 0, unit = 0, operand = 0, first, stop
        cdef Py_ssize_t node, n, k, source, offset, once
        #: First slots of units that exist once, and belong to the first call that reads them.
        cdef dict made = {}
        number_externals(tape, value_term)
        for node in range(entry.shape[0]):
            of, first, once = self.cut_at(entry[node]), slot, slot
            if of.head.once:
                once = made.setdefault(self.key_of(tape, of, operand), slot)
                if once < slot:
                    first = slot - of.head.once
                    of = without_first(of)
            for n in range(of.uses):
                segment[unit], unit_node[unit], rows[unit] = of.segment[n], node, of.use[n].rows
                slot0[unit], input0[unit], pred0[unit] = slot, item, edges
                for k in range(of.use[n].slots):
                    slot_unit[slot + k], slot_size[slot + k] = unit, of.size[k]
                stop = at
                for k in range(of.use[n].inputs):
                    term0[item + k] = stop
                    stop += of.count[k]
                for at in range(at, stop):
                    source, offset = of.read.source, 0
                    source += first if source >= of.head.once else once
                    if of.read.source < 0:
                        source = value_term[sources.data.as_ints[operand - 1 - of.read.source]]
                        offset = offsets.data.as_longlongs[operand - 1 - of.read.source]
                    term[at], term_offset[at], term_size[at] = source, offset, of.read.size
                    if source >= 0:
                        preds[edges] = slot_unit[source]
                        edges += 1
                    of.read += 1
                unit, slot, item, at = unit + 1, slot + of.use[n].slots, item + of.use[n].inputs, stop
                of.size, of.count = of.size + of.use[n].slots, of.count + of.use[n].inputs
            for k in range(of.head.results):
                value_term[value0.data.as_ints[node] + k] = first + (<const int64_t *>of.read)[k]
            operand += of.head.arguments
        input0[unit], term0[item], pred0[unit] = item, at, edges
        self.sizes = unit, slot, item, at
        return edges
