# Sweeps over dependencies and reads, for the backward pass; a part of `planning.pyx`.

def ancestors(
    const int64_t[::1] offsets, const int32_t[::1] preds, const uint8_t[::1] through,
    uint8_t[::1] reached,
):
    """Mark the ancestors of all marked units; paths continue only behind units in `through`."""
    cdef Py_ssize_t unit, k
    for unit in range(reached.shape[0] - 1, -1, -1):
        if reached[unit] and through[unit]:
            for k in range(offsets[unit], offsets[unit + 1]):
                reached[preds[k]] = True


def externals_read(
    const uint8_t[::1] units, const int32_t[::1] input0, const int32_t[::1] term0,
    const int32_t[::1] terms, uint8_t[::1] read,
):
    """Mark the external arrays that marked units read; terms of these are negative numbers."""
    cdef Py_ssize_t unit, i
    for unit in range(units.shape[0]):
        if units[unit]:
            for i in range(term0[input0[unit]], term0[input0[unit + 1]]):
                if terms[i] < 0:
                    read[-1 - terms[i]] = True


def descendants(
    const int64_t[::1] offsets, const int32_t[::1] preds, const uint8_t[::1] through,
    const int32_t[::1] input0, const int32_t[::1] term0, const int32_t[::1] terms,
    const uint8_t[::1] externals, uint8_t[::1] reached,
):
    """Mark the descendants, among units in `through`, of marked units and external arrays."""
    cdef Py_ssize_t unit, k
    for unit in range(reached.shape[0]):
        if reached[unit] or not through[unit]:
            continue
        for k in range(offsets[unit], offsets[unit + 1]):
            reached[unit] |= reached[preds[k]]
        for k in range(term0[input0[unit]], term0[input0[unit + 1]]):
            if terms[k] < 0:
                reached[unit] |= externals[-1 - terms[k]]


def spread_reach(
    inputs, reads, const uint8_t[::1] recorded, const int64_t[::1] maker, uint8_t[::1] passing,
    uint8_t[::1] flowing, uint8_t[::1] reached,
):
    """Mark the launches that take part in a backward pass, and the operands that pass gradients on.

    `inputs` and `reads` are those of a plan, whose reads are sorted by operand; `recorded` is given
    per launch, and `maker` has per region its launch, or one of two numbers for fills.  On entry,
    `flowing` marks the makers that train something themselves, and `reached` those with heads.  A
    forward sweep propagates `flowing`, a backward sweep `reached`; on return, `flowing` marks the
    makers that have both.
    """
    cdef const int64_t[::1] first = inputs.first, differentiable = inputs.differentiable
    cdef const int64_t[::1] operand = reads.operand, region = reads.region
    cdef int64_t launch, k, i = 0
    for launch in range(first.shape[0] - 1):
        for k in range(first[launch], first[launch + 1]):
            while i < operand.shape[0] and operand[i] == k:
                if recorded[launch] and differentiable[k] and flowing[maker[region[i]]]:
                    passing[k] = flowing[launch] = True
                i += 1
    for launch in range(first.shape[0] - 2, -1, -1):
        flowing[launch] &= reached[launch]
        for k in range(first[launch + 1] - 1, first[launch] - 1, -1):
            passing[k] &= flowing[launch]
            while i > 0 and operand[i - 1] == k:
                i -= 1
                if passing[k]:
                    reached[maker[region[i]]] = True
