# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, auto_pickle=False
"""The parts of lowering that visit every call; arrays are those of `Tape` and `Graph`."""

cimport cython
from cpython.array cimport array, clone, extend
from libc.stdint cimport INT64_MIN, int32_t, int64_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")

include "survey.pxi"


cdef struct Head:
    #: Numbers of the parts of a cut.
    int64_t uses, slots, inputs, terms, results, arguments


cdef struct Use:
    int64_t rows, slots, inputs


cdef struct Term:
    #: A slot of the call, or an argument ``e`` as ``-1 - e``; and the number of elements.
    int64_t source, size


@cython.final
cdef class Cuts:
    """The cuts of all entries, as integers.

    The code of a cut is a `Head`; then a `Use` of a segment per unit, the elements of each slot,
    the number of terms of each input, a `Term` per term, and the slot of each result of the call.
    """

    #: Segments to their numbers, in the order of their first use.
    cdef readonly dict segments
    #: Numbers of units, slots, inputs and terms of all calls.
    cdef readonly tuple sizes
    #: The codes of all cuts, and the segments of their uses; per cut, the position of its first.
    cdef array codes, used, code0, use0

    def __init__(self, list cuts, const int32_t[::1] entry):
        cdef array calls = clone(INT, len(cuts), True), code
        cdef int64_t units = 0, slots = 0, inputs = 0, terms = 0, count
        cdef const Head *head
        cdef Py_ssize_t i
        for i in range(entry.shape[0]):
            calls.data.as_ints[entry[i]] += 1
        self.segments, self.codes, self.used = {}, array("q"), array("i")
        self.code0, self.use0 = clone(INT, len(cuts), False), clone(INT, len(cuts), False)
        for i, cut in enumerate(cuts):
            code, count = cut.code, calls.data.as_ints[i]
            self.code0.data.as_ints[i], self.use0.data.as_ints[i] = len(self.codes), len(self.used)
            extend(self.codes, code)
            for segment in <tuple>cut.segments:
                self.used.append(self.segments.setdefault(segment, len(self.segments)))
            head = <const Head *>code.data.as_longlongs
            units, slots = units + count * head.uses, slots + count * head.slots
            inputs, terms = inputs + count * head.inputs, terms + count * head.terms
        self.sizes = units, slots, inputs, terms

    def wire(
        self, tape, const int32_t[::1] entry, int32_t[::1] segment, int32_t[::1] unit_node,
        int64_t[::1] rows, int32_t[::1] slot0, int32_t[::1] input0, int32_t[::1] term0,
        int32_t[::1] term, int64_t[::1] term_offset, int64_t[::1] term_size,
        int32_t[::1] slot_unit, int64_t[::1] slot_size, int64_t[::1] value_term,
        int64_t[::1] pred0, int32_t[::1] preds,
    ):
        """Fill in the columns of a `Graph`, and the first `edges` of `preds`; return `edges`."""
        cdef const int32_t[::1] node_value0 = tape.node_value0, sources = tape.sources
        cdef const int64_t[::1] offsets = tape.offsets
        cdef const int32_t *used
        cdef const int64_t *size
        cdef const int64_t *count
        cdef const Head *head
        cdef const Use *use
        cdef const Term *read
        cdef const int64_t *codes = <const int64_t *>self.codes.data.as_longlongs
        cdef const int32_t *code0 = <const int32_t *>self.code0.data.as_ints
        cdef const int32_t *used0 = <const int32_t *>self.used.data.as_ints
        cdef const int32_t *use0 = <const int32_t *>self.use0.data.as_ints
        cdef int64_t operand = 0, offset
        cdef int32_t slot = 0, item = 0, at = 0, edges = 0, unit = 0, first, stop, source, node, n, k
        value_term[:] = INT64_MIN
        for k, value in enumerate(tape.external_values):
            value_term[<int64_t>value] = -1 - k
        for node in range(entry.shape[0]):
            k, first = entry[node], slot
            used, head = used0 + use0[k], <const Head *>(codes + code0[k])
            use = <const Use *>(head + 1)
            size = <const int64_t *>(use + head.uses)
            count = size + head.slots
            read = <const Term *>(count + head.inputs)
            for n in range(head.uses):
                segment[unit], unit_node[unit], rows[unit] = used[0], node, use.rows
                slot0[unit], input0[unit], pred0[unit] = slot, item, edges
                for k in range(use.slots):
                    slot_unit[slot], slot_size[slot] = unit, size[k]
                    slot += 1
                stop = at
                for k in range(use.inputs):
                    term0[item] = stop
                    item, stop = item + 1, stop + count[k]
                while at < stop:
                    source, offset = first + read.source, 0
                    if read.source < 0:
                        source = value_term[sources[operand - 1 - read.source]]
                        offset = offsets[operand - 1 - read.source]
                    term[at], term_offset[at], term_size[at] = source, offset, read.size
                    if source >= 0:
                        preds[edges] = slot_unit[source]
                        edges += 1
                    at, read = at + 1, read + 1
                size, count = size + use.slots, count + use.inputs
                unit, used, use = unit + 1, used + 1, use + 1
            for k in range(head.results):
                value_term[node_value0[node] + k] = first + (<const int64_t *>read)[k]
            operand += head.arguments
        input0[unit], term0[item], pred0[unit] = item, at, edges
        return edges
