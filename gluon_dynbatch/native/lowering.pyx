# cython: language_level=3, boundscheck=False, wraparound=False, binding=False, auto_pickle=False
"""The parts of lowering that look at every call; arrays as in `Tape` and `Graph`."""

from cpython.array cimport array, clone
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memset

cdef array INT, LONG
INT, LONG = array("i"), array("q")


def survey(
    const int32_t[::1] node_entry, const int32_t[::1] node_value0, const int32_t[::1] sources,
    const int64_t[::1] offsets, const int32_t[::1] family, const int32_t[::1] callee,
    const int32_t[::1] arity, const int32_t[::1] results, const int32_t[::1] place0,
    const int32_t[::1] places, const int32_t[::1] argument0, const uint8_t[::1] is_weight,
    uint8_t[::1] same, uint8_t[::1] weight, int32_t[::1] calls, uint8_t[:, :, ::1] edges,
):
    """Find which arguments all calls of a family share, and which callee delivers which argument.

    Family, callee, arity and number of results are those of an entry, whose arguments have their
    `places` from `place0` on.  Filled in are, per argument of a family from `argument0` on, whether
    it is always the `same` array and always a `weight`; per family its number of `calls`; and
    `edges`, by producer, consumer and place, unless it is empty.
    """
    cdef array producers = clone(INT, is_weight.shape[0], False)
    cdef array values = clone(INT, same.shape[0], False), starts = clone(LONG, same.shape[0], False)
    cdef int32_t *made_by = <int32_t *>producers.data.as_ints
    cdef int32_t *first_value = <int32_t *>values.data.as_ints
    cdef int64_t *first_offset = <int64_t *>starts.data.as_longlongs
    cdef Py_ssize_t node, operand = 0, argument
    cdef int32_t entry, known, k, value, source
    cdef int64_t offset
    cdef bint edges_wanted = edges.shape[0] > 0
    memset(made_by, -1, is_weight.shape[0] * sizeof(int32_t))
    for node in range(node_entry.shape[0]):
        entry = node_entry[node]
        argument, known = argument0[family[entry]], calls[family[entry]]
        calls[family[entry]] = known + 1
        for k in range(arity[entry]):
            value, offset, source = sources[operand], offsets[operand], made_by[sources[operand]]
            if not known:
                first_value[argument], first_offset[argument] = value, offset
            elif first_value[argument] != value or first_offset[argument] != offset:
                same[argument] = False
            if not is_weight[value] or offset:
                weight[argument] = False
            if edges_wanted and source >= 0:
                edges[source, callee[entry], places[place0[entry] + k]] = True
            operand += 1
            argument += 1
        for k in range(results[entry]):
            made_by[node_value0[node] + k] = callee[entry]


def wire(
    const int32_t[::1] node_entry, const int32_t[::1] node_value0, const int32_t[::1] sources,
    const int64_t[::1] offsets, const int32_t[::1] externals, const int32_t[::1] arity,
    const int64_t[::1] code0, const int64_t[::1] codes, const int64_t[::1] use0,
    const int32_t[::1] used, int32_t most_uses, int32_t[::1] segment, int64_t[:, ::1] units,
    int64_t[::1] term0, int64_t[:, ::1] terms, int64_t[:, ::1] slots, int64_t[::1] value_term,
    int64_t[::1] pred0, int32_t[::1] preds,
):
    """Number units, slots, inputs and terms, and fill in who reads what; return the edges.

    The arity is that of an entry, whose cut stands in `codes` from `code0` on, and has the segments
    `used` from `use0` on: the number of its uses, at most `most_uses`, and of its heads; per use
    its rows, and numbers of outputs and inputs; per output its elements; per input its number of
    terms, and per term 1, a use and its output, or 0, an argument and nothing, and its elements;
    per head a use and its output.  Rows of what is filled in are the columns of a `Graph`.
    """
    cdef int64_t[::1] first_slot = clone(LONG, most_uses, False)
    cdef Py_ssize_t node, unit = 0
    cdef int64_t slot = 0, item = 0, count = 0, edges = 0, operand = 0, made, offset
    cdef int32_t entry, i, k, use, uses, heads, inputs, summands
    cdef const int64_t *code
    value_term[:] = INT64_MIN
    for k in range(externals.shape[0]):
        value_term[externals[k]] = -1 - k
    for node in range(node_entry.shape[0]):
        entry = node_entry[node]
        code = &codes[code0[entry]]
        uses, heads = code[0], code[1]
        code += 2
        for use in range(uses):
            segment[unit], units[0, unit], units[1, unit] = used[use0[entry] + use], node, code[0]
            units[2, unit], units[3, unit], pred0[unit] = slot, item, edges
            first_slot[use], inputs = slot, code[2]
            for k in range(code[1]):
                slots[0, slot], slots[1, slot] = unit, code[3 + k]
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
                    terms[0, count], terms[1, count], terms[2, count] = made, offset, code[3]
                    count += 1
                    code += 4
                    if made >= 0:
                        preds[edges] = slots[0, made]
                        edges += 1
            unit += 1
        for k in range(heads):
            value_term[node_value0[node] + k] = first_slot[code[0]] + code[1]
            code += 2
        operand += arity[entry]
    term0[item], pred0[unit] = count, edges
    return edges
