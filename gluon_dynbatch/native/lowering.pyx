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
        cdef const int64_t *codes = <const int64_t *>self.codes.data.as_longlongs
        cdef const int32_t *code0 = <const int32_t *>self.code0.data.as_ints
        cdef const int32_t *use0 = <const int32_t *>self.use0.data.as_ints
        cdef const int32_t *used
        cdef const Head *head
        cdef const Use *uses
        cdef const Slot *slots
        cdef const int64_t *inputs
        cdef const Term *terms
        cdef Py_ssize_t node, k, n, unit = 0, slot = 0, item = 0, at = 0, edges = 0, operand = 0
        cdef int64_t source, offset
        value_term[:] = INT64_MIN
        for k, value in enumerate(tape.external_values):
            value_term[<int64_t>value] = -1 - k
        # Several short loops, as one loop would have more variables than there are registers.
        for node in range(entry.shape[0]):
            used = <const int32_t *>self.used.data.as_ints + use0[entry[node]]
            head = <const Head *>(codes + code0[entry[node]])
            uses = <const Use *>(head + 1)
            slots = <const Slot *>(uses + head.uses)
            inputs = <const int64_t *>(slots + head.slots)
            terms = <const Term *>(inputs + head.inputs)
            for k in range(head.uses):
                segment[unit + k], unit_node[unit + k] = used[k], node
                rows[unit + k], slot0[unit + k] = uses[k].rows, slot + uses[k].slot
                input0[unit + k] = item + uses[k].input
            for k in range(head.slots):
                slot_unit[slot + k], slot_size[slot + k] = unit + slots[k].unit, slots[k].size
            for k in range(head.inputs):
                term0[item + k] = at + inputs[k]
            for n in range(head.uses):
                pred0[unit + n] = edges
                for k in range(uses[n].terms):
                    source, offset = slot + terms[k].source, 0
                    if terms[k].source < 0:
                        source = value_term[sources[operand - 1 - terms[k].source]]
                        offset = offsets[operand - 1 - terms[k].source]
                    term[at + k], term_offset[at + k] = source, offset
                    term_size[at + k] = terms[k].size
                    if source >= 0:
                        preds[edges] = slot_unit[source]
                        edges += 1
                at, terms = at + uses[n].terms, terms + uses[n].terms
            for k in range(head.results):
                value_term[node_value0[node] + k] = slot + (<const int64_t *>terms)[k]
            unit, slot, item = unit + head.uses, slot + head.slots, item + head.inputs
            operand += head.arguments
        input0[unit], term0[item], pred0[unit] = item, at, edges
        return edges
