# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, auto_pickle=False
"""The parts of lowering that visit every call; arrays are those of `Tape` and `Graph`."""

cimport cython
from cpython.array cimport array, clone, extend
from libc.stdint cimport INT64_MIN, int32_t, int64_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")

include "survey.pxi"


def find_rows(tape, bytearray has_rows):
    """Return the numbers of the external arrays whose types are marked in `has_rows`."""
    cdef array values = tape.external_values, types = tape.value_type
    cdef Py_ssize_t k
    return [k for k in range(len(values)) if has_rows[types.data.as_ints[values.data.as_ints[k]]]]


cdef struct Head:
    #: Numbers of the parts of a cut.
    int64_t uses, slots, inputs, terms, results, arguments


cdef struct Use:
    #: Rows; the first slot and input, from those of the call on; number of terms.
    int64_t rows, slot, input, terms


cdef struct Slot:
    #: Unit, from the first of the call on, and elements.
    int64_t unit, size


cdef struct Term:
    #: A slot, from the first of the call on, or an argument ``e`` as ``-1 - e``; and elements.
    int64_t source, size


@cython.final
cdef class Cuts:
    """The cuts of all entries, as integers.

    The code of a cut is a `Head`; then a `Use` of a segment per unit, its `Slot`s, the first term of
    each input, from that of the call on, the `Term`s, and the slot of each result of the call.
    """

    #: Segments to their numbers, in the order of their first use.
    cdef readonly dict segments
    #: Numbers of units, slots, inputs and terms of all calls.
    cdef readonly int64_t units, slots, inputs, terms
    cdef list codes
    #: Per cut: the address of its code, and the position of its segments in `used`.
    cdef array address, use0, used

    def __init__(self, list cuts, const int32_t[::1] entry):
        cdef array calls = clone(INT, len(cuts), True), code
        cdef int64_t count
        cdef const Head *head
        cdef Py_ssize_t i
        for i in range(entry.shape[0]):
            calls.data.as_ints[entry[i]] += 1
        self.segments, self.codes, self.used = {}, [cut.code for cut in cuts], array("i")
        self.address, self.use0 = clone(LONG, len(cuts), False), clone(INT, len(cuts), False)
        for i, cut in enumerate(cuts):
            code, count = self.codes[i], calls.data.as_ints[i]
            head = <const Head *>code.data.as_longlongs
            self.address.data.as_longlongs[i] = <int64_t>head
            self.use0.data.as_ints[i] = len(self.used)
            for segment in <tuple>cut.segments:
                self.used.append(self.segments.setdefault(segment, len(self.segments)))
            self.units, self.slots = self.units + count * head.uses, self.slots + count * head.slots
            self.inputs += count * head.inputs
            self.terms += count * head.terms

    def wire(self, tape, const int32_t[::1] entry, int32_t[::1] ints, int64_t[::1] longs):
        """Fill in the columns of a `Graph`, in the order of `wire.py`; return the number of `preds`.
        """
        cdef int32_t *slot0 = &ints[2 * self.units]
        cdef int32_t *term = slot0 + 2 * self.units + self.inputs + 2
        cdef int64_t *pred0 = &longs[self.units]
        self.lay_out(entry, &ints[0], slot0, term + 2 * self.terms, &longs[0],
                     pred0 + self.units + 1 + 2 * self.terms)
        return self.connect(tape, entry, term, term + 2 * self.terms, pred0)

    cdef void lay_out(
        self, const int32_t[::1] entry, int32_t *segment, int32_t *slot0, int32_t *slot_unit,
        int64_t *rows, int64_t *slot_size,
    ):
        """Fill in what the order of the calls alone determines."""
        cdef int32_t *unit_node = segment + self.units
        cdef int32_t *input0 = slot0 + self.units
        cdef int32_t *term0 = input0 + self.units + 1
        cdef const int64_t *address = <const int64_t *>self.address.data.as_longlongs
        cdef const int32_t *use0 = <const int32_t *>self.use0.data.as_ints
        cdef const int32_t *used
        cdef const Head *head
        cdef const Use *uses
        cdef const Slot *slots
        cdef const int64_t *inputs
        cdef Py_ssize_t node, k, unit = 0, slot = 0, item = 0, at = 0
        for node in range(entry.shape[0]):
            used = <const int32_t *>self.used.data.as_ints + use0[entry[node]]
            head = <const Head *>address[entry[node]]
            uses = <const Use *>(head + 1)
            slots = <const Slot *>(uses + head.uses)
            inputs = <const int64_t *>(slots + head.slots)
            for k in range(head.uses):
                segment[unit + k], unit_node[unit + k] = used[k], node
                rows[unit + k], slot0[unit + k] = uses[k].rows, slot + uses[k].slot
                input0[unit + k] = item + uses[k].input
            for k in range(head.slots):
                slot_unit[slot + k], slot_size[slot + k] = unit + slots[k].unit, slots[k].size
            for k in range(head.inputs):
                term0[item + k] = at + inputs[k]
            unit, slot = unit + head.uses, slot + head.slots
            item, at = item + head.inputs, at + head.terms
        input0[unit], term0[item] = item, at

    cdef int64_t connect(
        self, tape, const int32_t[::1] entry, int32_t *term, const int32_t *slot_unit,
        int64_t *pred0,
    ) except -1:
        """Fill in terms, values and predecessors; return the number of predecessors."""
        cdef int32_t *preds = term + self.terms
        cdef int64_t *term_offset = pred0 + self.units + 1
        cdef int64_t *term_size = term_offset + self.terms
        cdef int64_t *value_term = term_size + self.terms + self.slots
        cdef const int64_t *address = <const int64_t *>self.address.data.as_longlongs
        cdef array sources = tape.sources, offsets = tape.offsets, value0 = tape.node_value0
        cdef const int32_t *operand = <const int32_t *>sources.data.as_ints
        cdef const int64_t *operand_offset = <const int64_t *>offsets.data.as_longlongs
        cdef const Head *head
        cdef const Use *uses
        cdef const Term *terms
        cdef const int64_t *results
        cdef Py_ssize_t node, k, n, unit = 0, slot = 0, at = 0, edges = 0
        cdef int64_t source, offset
        for k in range(len(tape.value_type)):
            value_term[k] = INT64_MIN
        for k, value in enumerate(tape.external_values):
            value_term[<int64_t>value] = -1 - k
        for node in range(entry.shape[0]):
            head = <const Head *>address[entry[node]]
            uses = <const Use *>(head + 1)
            terms = <const Term *>(
                <const int64_t *>(<const Slot *>(uses + head.uses) + head.slots) + head.inputs)
            results = <const int64_t *>(terms + head.terms)
            for n in range(head.uses):
                pred0[unit + n] = edges
                for k in range(uses[n].terms):
                    source, offset = slot + terms[k].source, 0
                    if terms[k].source < 0:
                        source = value_term[operand[-1 - terms[k].source]]
                        offset = operand_offset[-1 - terms[k].source]
                    term[at + k], term_offset[at + k] = source, offset
                    term_size[at + k] = terms[k].size
                    if source >= 0:
                        preds[edges] = slot_unit[source]
                        edges += 1
                at, terms = at + uses[n].terms, terms + uses[n].terms
            for k in range(head.results):
                value_term[value0.data.as_ints[node] + k] = slot + results[k]
            unit, slot = unit + head.uses, slot + head.slots
            operand += head.arguments
            operand_offset += head.arguments
        pred0[unit] = edges
        return edges
