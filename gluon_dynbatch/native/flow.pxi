# Sweeps over dependencies and reads, for the backward pass; a part of `planning.pyx`.

def ancestors(
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] segment,
    const uint8_t[::1] recorded, uint8_t[::1] reached,
):
    """Mark the recorded units on paths of these to marked units; return how many they are.

    `recorded` is given per segment.  Marks of other units are removed.
    """
    cdef Py_ssize_t unit, k, count = 0
    for unit in range(reached.shape[0] - 1, -1, -1):
        reached[unit] &= recorded[segment[unit]]
        if reached[unit]:
            count += 1
            for k in range(offsets[unit], offsets[unit + 1]):
                reached[preds[k]] = True
    return count


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
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] segment,
    const uint8_t[::1] recorded, const int32_t[::1] input0, const int32_t[::1] term0,
    const int32_t[::1] terms, const uint8_t[::1] externals, uint8_t[::1] reached,
):
    """Mark the descendants of marked units and external arrays, among units of recorded segments."""
    cdef Py_ssize_t unit, k
    for unit in range(reached.shape[0]):
        if reached[unit] or not recorded[segment[unit]]:
            continue
        for k in range(offsets[unit], offsets[unit + 1]):
            reached[unit] |= reached[preds[k]]
        for k in range(term0[input0[unit]], term0[input0[unit + 1]]):
            if terms[k] < 0:
                reached[unit] |= externals[-1 - terms[k]]


def find_ranges(
    const int64_t[::1] starts, const int64_t[::1] sizes, const int64_t[:] first,
    const int64_t[:] count,
):
    """Return which of some sorted ranges contains each of others, or -1, and from where on."""
    found, offsets = numpy.empty((2, first.shape[0]), numpy.int64)
    cdef int64_t[::1] number = found, offset = offsets
    cdef int64_t i, low = 0, high, middle
    for i in range(first.shape[0]):
        # Mostly, ranges are given in their order, so the search begins where the last one ended.
        high = starts.shape[0]
        if low < high and starts[low] > first[i]:
            low, high = 0, low
        if low + 1 < high and starts[low + 1] > first[i]:
            high = low + 1
        elif low + 2 < high and starts[low + 2] > first[i]:
            low, high = low + 1, low + 2
        while high - low > 1:
            middle = (low + high) // 2
            if starts[middle] <= first[i]:
                low = middle
            else:
                high = middle
        if low < high and starts[low] <= first[i] and (
            first[i] + count[i] <= starts[low] + sizes[low]
        ):
            number[i], offset[i] = low, first[i] - starts[low]
        else:
            number[i], offset[i] = -1, 0
    return found, offsets


def sums_of_heads(
    const int64_t[:, :] given, int64_t heads, const int64_t[::1] filled, const int64_t[::1] counts,
):
    """Return the pieces of a fill with sums of gradients: of `filled` heads, of these sizes.

    `given` has pieces of gradients of any heads, as `run.backward.HeadGradients`.
    """
    cdef int64_t[::1] start = clone(LONG, heads, False)
    cdef int64_t i, total = 0, added = 0
    start[:] = -1
    for i in range(filled.shape[0]):
        start[filled[i]] = total
        total += counts[i]
    for i in range(given.shape[0]):
        added += start[given[i, 1]] >= 0
    pieces = numpy.empty((1 + added, 5), numpy.int64)
    cdef int64_t[:, ::1] table = pieces
    cdef PieceRow *piece = <PieceRow *>&table[0, 0]
    piece[0] = PieceRow(tables.ZERO, 0, -1, 0, total)
    for i in range(given.shape[0]):
        if start[given[i, 1]] >= 0:
            piece += 1
            piece[0] = PieceRow(
                tables.ADD, start[given[i, 1]] + given[i, 2], given[i, 0], given[i, 3], given[i, 4])
    return pieces


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
