# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, auto_pickle=False
"""The parts of lowering that visit every call; arrays are those of `Tape` and `Graph`."""

cimport cython
from cpython.array cimport array, clone, extend
from libc.stdint cimport INT64_MIN, int32_t, int64_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")

include "survey.pxi"


@cython.final
cdef class Cuts:
    """The cuts of all entries, as integers.

    The code of a cut has, in this order:

    - the numbers of its uses, outputs, inputs, terms, heads and arguments;
    - per use its rows, and its numbers of outputs and inputs;
      then the elements of each output;
      then per input its number of terms, followed by four integers per term:
      1, a use, its output and the elements; or 0, an argument, 0 and the elements;
    - per head a use and its output.
    """

    #: Segments to their numbers, in the order of their first use.
    cdef readonly dict segments
    #: Numbers of units, slots, inputs and terms of all calls.
    cdef readonly tuple sizes
    #: The codes of all cuts, and the segments of their uses; per cut, the position of its first.
    cdef array codes, used
    cdef int64_t[::1] code0
    cdef int32_t[::1] use0
    #: The largest number of uses of a cut.
    cdef Py_ssize_t most_uses

    def __init__(self, list cuts, const int32_t[::1] entry):
        cdef int64_t[::1] calls = clone(LONG, len(cuts), True)
        cdef list sizes = [0, 0, 0, 0]
        cdef Py_ssize_t i, k
        for i in range(entry.shape[0]):
            calls[entry[i]] += 1
        self.segments, self.codes, self.used = {}, array("q"), array("i")
        self.code0, self.use0 = clone(LONG, len(cuts), False), clone(INT, len(cuts), False)
        for i, cut in enumerate(cuts):
            self.code0[i], self.use0[i] = len(self.codes), len(self.used)
            extend(self.codes, cut.code)
            for segment in cut.segments:
                self.used.append(self.segments.setdefault(segment, len(self.segments)))
            for k in range(4):
                sizes[k] += calls[i] * <int64_t>cut.code[k]
            self.most_uses = max(self.most_uses, <int64_t>cut.code[0])
        self.sizes = tuple(sizes)

    def wire(
        self, tape, const int32_t[::1] node_entry, int32_t[::1] segment, int32_t[::1] unit_node,
        int64_t[::1] rows, int32_t[::1] slot0, int32_t[::1] input0, int32_t[::1] term0,
        int32_t[::1] term, int64_t[::1] term_offset, int64_t[::1] term_size,
        int32_t[::1] slot_unit, int64_t[::1] slot_size, int64_t[::1] value_term,
        int64_t[::1] pred0, int32_t[::1] preds,
    ):
        """Fill in the columns of a `Graph`, and the first `edges` of `preds`; return `edges`."""
        cdef const int32_t[::1] node_value0 = tape.node_value0, sources = tape.sources
        cdef const int64_t[::1] offsets = tape.offsets, codes = self.codes
        cdef const int32_t[::1] used = self.used
        cdef int32_t[::1] first_slot = clone(INT, self.most_uses, False)
        cdef Py_ssize_t node, unit = 0
        cdef int64_t edges = 0, operand = 0, offset
        cdef int32_t next_slot = 0, next_input = 0, next_term = 0, source
        cdef int32_t entry, i, k, use, first_use, uses, heads, arguments, inputs, terms
        cdef const int64_t *code
        value_term[:] = INT64_MIN
        for k, value in enumerate(tape.external_values):
            value_term[<int64_t>value] = -1 - k
        for node in range(node_entry.shape[0]):
            entry = node_entry[node]
            code, first_use = &codes[self.code0[entry]], self.use0[entry]
            uses, heads, arguments = code[0], code[4], code[5]
            code += 6
            for use in range(uses):
                segment[unit], unit_node[unit], rows[unit] = used[first_use + use], node, code[0]
                slot0[unit], input0[unit], pred0[unit] = next_slot, next_input, edges
                first_slot[use], inputs = next_slot, code[2]
                for k in range(code[1]):
                    slot_unit[next_slot], slot_size[next_slot] = unit, code[3 + k]
                    next_slot += 1
                code += 3 + code[1]
                for i in range(inputs):
                    term0[next_input], terms = next_term, code[0]
                    next_input += 1
                    code += 1
                    for k in range(terms):
                        if code[0]:
                            source, offset = first_slot[code[1]] + code[2], 0
                        else:
                            source = value_term[sources[operand + code[1]]]
                            offset = offsets[operand + code[1]]
                        term[next_term], term_offset[next_term] = source, offset
                        term_size[next_term] = code[3]
                        next_term += 1
                        code += 4
                        if source >= 0:
                            preds[edges] = slot_unit[source]
                            edges += 1
                unit += 1
            for k in range(heads):
                value_term[node_value0[node] + k] = first_slot[code[0]] + code[1]
                code += 2
            operand += arguments
        input0[unit], term0[next_input], pred0[unit] = next_input, next_term, edges
        return edges
