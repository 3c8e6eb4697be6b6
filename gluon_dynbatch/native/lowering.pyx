# cython: language_level=3, boundscheck=False, wraparound=False, binding=False, auto_pickle=False
"""The parts of lowering that look at every call; arrays as in `Tape` and `Graph`."""

from cpython.array cimport array, clone
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")

cdef enum:
    #: What `survey` finds of an argument.
    SAME = 1
    WEIGHT = 2


def survey(
    const int32_t[::1] entry, const int32_t[::1] node_value0, const int32_t[::1] sources,
    const int64_t[::1] offsets, const int32_t[::1] row, const int32_t[:, ::1] rows,
    const int32_t[::1] places, const int32_t[::1] argument0, const uint8_t[::1] is_weight,
    uint8_t[::1] shared, uint8_t[:, :, ::1] edges,
):
    """Find which arguments all calls of a family share, and which callee delivers which argument.

    A `row` of an entry has its family, callee, numbers of arrays and of results, and from where on
    its arguments have their `places`.  Filled in are, per argument of a family from `argument0` on, whether
    it is the `SAME` array in several calls, or a `WEIGHT` in all; and `edges`, by
    producer, consumer and place, unless it is empty.
    """
    cdef int32_t[::1] made_by = clone(INT, is_weight.shape[0], False)
    cdef int32_t[::1] calls = clone(INT, argument0.shape[0], True)
    cdef int32_t[::1] first_value = clone(INT, shared.shape[0], True)
    cdef int64_t[::1] first_offset = clone(LONG, shared.shape[0], True)
    cdef Py_ssize_t node, operand = 0, argument
    cdef int32_t family, callee, known, k, value, source
    cdef const int32_t *own
    cdef int64_t offset
    cdef bint alike, edges_wanted = edges.shape[0] > 0
    made_by[:] = -1
    for node in range(entry.shape[0]):
        own = &rows[row[entry[node]], 0]
        family, callee = own[0], own[1]
        argument, known = argument0[family], calls[family]
        calls[family] = known + 1
        for k in range(own[2]):
            value, offset, source = sources[operand], offsets[operand], made_by[sources[operand]]
            alike = first_value[argument] == value and first_offset[argument] == offset
            if known == 0:
                first_value[argument], first_offset[argument] = value, offset
                shared[argument] = WEIGHT
            elif known == 1 and alike:
                shared[argument] |= SAME
            elif not alike:
                shared[argument] &= WEIGHT
            if not is_weight[value] or offset:
                shared[argument] &= SAME
            if edges_wanted and source >= 0:
                edges[source, callee, places[own[4] + k]] = True
            operand += 1
            argument += 1
        for k in range(own[3]):
            made_by[node_value0[node] + k] = callee


def wire(
    const int32_t[::1] node_entry, const int32_t[::1] node_value0, const int32_t[::1] sources,
    const int64_t[::1] offsets, const int32_t[::1] externals, const int64_t[::1] code0,
    const int64_t[::1] use0, const int64_t[::1] codes, const int32_t[::1] used, int32_t most_uses, int32_t[::1] segment,
    int32_t[::1] unit_node, int64_t[::1] rows, int32_t[::1] slot0, int32_t[::1] input0,
    int32_t[::1] term0, int32_t[::1] term, int64_t[::1] term_offset, int64_t[::1] term_size,
    int32_t[::1] slot_unit, int64_t[::1] slot_size, int64_t[::1] value_term, int64_t[::1] pred0,
    int32_t[::1] preds,
):
    """Number units, slots, inputs and terms, and fill in who reads what; return the edges.

    The cut of an entry stands in `codes` from `code0` on, and has the segments `used` from `use0`
    on: the number of its uses, at most `most_uses`, of its heads, and of its arguments; per use
    its rows, and numbers of outputs and inputs; per output its elements; per input its number of
    terms, and per term 1, a use and its output, or 0, an argument and nothing, and its elements;
    per head a use and its output.  What is filled in are columns of a `Graph`.
    """
    cdef int32_t[::1] first_slot = clone(INT, most_uses, False)
    cdef Py_ssize_t node, unit = 0
    cdef int64_t edges = 0, operand = 0, offset
    cdef int32_t slot = 0, item = 0, count = 0, made
    cdef int32_t entry, i, k, use, uses, heads, arity, inputs, summands
    cdef const int64_t *code
    value_term[:] = INT64_MIN
    for k in range(externals.shape[0]):
        value_term[externals[k]] = -1 - k
    for node in range(node_entry.shape[0]):
        entry = node_entry[node]
        code = &codes[code0[entry]]
        uses, heads, arity = code[0], code[1], code[2]
        code += 3
        for use in range(uses):
            segment[unit], unit_node[unit], rows[unit] = used[use0[entry] + use], node, code[0]
            slot0[unit], input0[unit], pred0[unit] = slot, item, edges
            first_slot[use], inputs = slot, code[2]
            for k in range(code[1]):
                slot_unit[slot], slot_size[slot] = unit, code[3 + k]
                slot += 1
            code += 3 + code[1]
            for i in range(inputs):
                term0[item], summands = count, code[0]
                item += 1
                code += 1
                for k in range(summands):
                    if code[0]:
                        made, offset = first_slot[code[1]] + code[2], 0
                    else:
                        made = value_term[sources[operand + code[1]]]
                        offset = offsets[operand + code[1]]
                    term[count], term_offset[count], term_size[count] = made, offset, code[3]
                    count += 1
                    code += 4
                    if made >= 0:
                        preds[edges] = slot_unit[made]
                        edges += 1
            unit += 1
        for k in range(heads):
            value_term[node_value0[node] + k] = first_slot[code[0]] + code[1]
            code += 2
        operand += arity
    input0[unit], term0[item], pred0[unit] = item, count, edges
    return edges
