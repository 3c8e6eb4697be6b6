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
    const uint8_t[::1] units, const int64_t[::1] offsets, const int32_t[::1] input0,
    const int32_t[::1] term0, const int32_t[::1] terms, uint8_t[::1] read,
):
    """Mark the external arrays that marked units read; terms of these are negative numbers."""
    cdef Py_ssize_t unit, i, first, stop
    for unit in range(units.shape[0]):
        first, stop = term0[input0[unit]], term0[input0[unit + 1]]
        # The other terms are those of predecessors.
        if units[unit] and stop - first > offsets[unit + 1] - offsets[unit]:
            for i in range(first, stop):
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


def exchange_reads(
    reads, tuple filled, term, offset, size, const int32_t[:] region_of,
    const int32_t[:] element_of, int64_t operands, const int64_t[::1] inputs,
    const uint8_t[::1] wanted,
):
    """Return the columns of the reads of a backward plan, as those of `plan.plan.Reads`.

    Operands of the backward plan are the regions of the forward plan, and its regions are the
    operands, and then the fills with gradients of heads.  First come the reads of fills, then those
    of the gradients of `inputs`, in their order.  Only `wanted` regions get gradients.  `term`,
    `offset` and `size` are columns of `plan.transpose.Heads`.
    """
    cdef const int64_t[:] terms = term, offsets = offset, sizes = size, numbers
    cdef const int32_t[::1] operand = reads.operand, region = reads.region
    cdef const int32_t[::1] target = reads.target, length = reads.length, element = reads.element
    #: Per operand its rank among the inputs, counted from 1; per rank, where its reads begin.
    cdef int64_t[::1] rank = clone(LONG, max(operands, 1), True)
    cdef int64_t[::1] first = clone(LONG, inputs.shape[0] + 2, True)
    cdef int64_t i, k, head, done, row, count = 0
    for i in range(inputs.shape[0]):
        rank[inputs[i]] = i + 1
    for k in range(operand.shape[0]):
        if rank[operand[k]] and wanted[region[k]]:
            first[rank[operand[k]] + 1] += 1
    for i in range(inputs.shape[0] + 1):
        first[i + 1] += first[i]
    columns = numpy.empty((5, terms.shape[0] + first[inputs.shape[0] + 1]), numpy.int32)
    cdef int32_t[:, ::1] found = columns
    for i, (externals, _) in enumerate(filled):
        numbers, done = externals, 0
        for k in range(numbers.shape[0]):
            head = numbers[k]
            if wanted[region_of[terms[head]]]:
                found[0, count], found[1, count] = region_of[terms[head]], operands + i
                found[2, count] = element_of[terms[head]] + offsets[head]
                found[3, count], found[4, count] = sizes[head], done
                count += 1
            done += sizes[head]
    for k in range(operand.shape[0]):
        i = rank[operand[k]]
        if i and wanted[region[k]]:
            row = count + first[i]
            first[i] += 1
            found[0, row], found[1, row], found[2, row] = region[k], operand[k], element[k]
            found[3, row], found[4, row] = length[k], target[k]
    return columns[:, :count + first[inputs.shape[0] + 1]]


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


def find_heads(
    const int64_t[::1] places, const int64_t[::1] sizes, const int32_t[::1] kinds, graph,
    const uint8_t[::1] recorded, const int32_t[:] region_of, const int32_t[:] element_of,
    const int64_t[:, ::1] regions,
):
    """Return the ranges at which gradients may arrive: terms, first elements there, sizes, kinds.

    `places` has a value, an offset and a type for each array that is held, as
    `recording.places_of`; `sizes` and `kinds` are those of types.  `recorded` is given per segment.
    Arrays that overlap are one range.  Ranges are in the order of arenas and elements.
    """
    cdef const int64_t[::1] value_term = graph.value_term
    cdef const int32_t[::1] slot_unit = graph.slot_unit, segment = graph.segment
    cdef int64_t i, term, region, count = 0, number = -1, stop = -1, first = 0
    cdef int64_t held = places.shape[0] // 3
    cdef const int64_t *place
    cdef bytearray scratch = bytearray(2 * held * sizeof(Keyed))
    cdef Keyed *items = <Keyed *><char *>scratch
    for i in range(held):
        term = value_term[places[3 * i]]
        if term >= 0 and recorded[segment[slot_unit[term]]]:
            region = region_of[term]
            # No array of MXNet has as many elements as there are numbers for them.
            items[count] = Keyed(
                (regions[region, FIRST] << 32) + regions[region, SECOND] * regions[region, ROW_SIZE]
                + element_of[term] + places[3 * i + 1], i)
            count += 1
    radix_sort(items, items + count, count)
    columns = numpy.empty((4, count), numpy.int64)
    cdef int64_t[:, ::1] head = columns
    for i in range(count):
        place = &places[3 * items[i].unit]
        if items[i].key >= stop:
            number += 1
            first = stop = items[i].key
            head[0, number], head[1, number] = value_term[place[0]], place[1]
            head[3, number] = kinds[place[2]]
        stop = max(stop, items[i].key + sizes[place[2]])
        head[2, number] = stop - first
    return columns[:, :number + 1]


def spread_reach(
    inputs, outputs, reads, const int64_t[:, ::1] operands, const int64_t[::1] segment,
    const uint8_t[::1] recorded, const uint8_t[::1] trained, const uint8_t[::1] in_graph,
    tuple filled, const int32_t[:] heads,
):
    """Find what takes part in a backward pass.

    The first arguments are columns of a plan, whose reads are sorted by operand; `recorded` and
    `trained` are given per segment, `in_graph` per external array, and `heads` are regions.

    Returns marks of makers and of operands, and the maker of each region.  A maker is a launch or
    one of two numbers for fills: the first if a gradient may flow on to one of their arrays.  It
    takes part if it was recorded, something that is trained lies behind it, and a head depends on
    it.  A forward sweep propagates the one, a backward sweep the other.  Marked operands pass a
    gradient on.
    """
    cdef const int64_t[::1] first = inputs.first, differentiable = inputs.differentiable
    cdef const int64_t[::1] output0 = outputs.first
    cdef const int32_t[::1] operand = reads.operand, region = reads.region
    cdef int64_t launch, k, i = 0, launches = first.shape[0] - 1
    makers = numpy.empty(output0[launches] + len(filled), numpy.int64)
    marks, passes = numpy.zeros(launches + 2, bool), numpy.zeros(operands.shape[0], bool)
    cdef int64_t[::1] maker = makers
    cdef uint8_t[::1] flowing = marks, passing = passes, reached = bytearray(launches + 2)
    for k, (externals, _) in enumerate(filled):
        maker[output0[launches] + k] = launches + (not any_marked(externals, in_graph))
    flowing[launches] = True
    for launch in range(launches):
        for k in range(output0[launch], output0[launch + 1]):
            maker[k] = launch
        if not recorded[segment[launch]]:
            continue
        flowing[launch] = trained[segment[launch]]
        for k in range(first[launch], first[launch + 1]):
            flowing[launch] |= flows_outside(&operands[k, 0], differentiable[k], in_graph)
    for k in range(heads.shape[0]):
        reached[maker[heads[k]]] = True
    for launch in range(launches):
        for k in range(first[launch], first[launch + 1]):
            while i < operand.shape[0] and operand[i] == k:
                if recorded[segment[launch]] and differentiable[k] and flowing[maker[region[i]]]:
                    passing[k] = flowing[launch] = True
                i += 1
    for launch in range(launches - 1, -1, -1):
        flowing[launch] &= reached[launch]
        for k in range(first[launch + 1] - 1, first[launch] - 1, -1):
            passing[k] &= flowing[launch]
            while i > 0 and operand[i - 1] == k:
                i -= 1
                if passing[k]:
                    reached[maker[region[i]]] = True
    return marks, passes, makers


cdef bint any_marked(const int64_t[:] numbers, const uint8_t[::1] marks) noexcept:
    """Return whether any of some numbers is marked."""
    cdef Py_ssize_t i
    for i in range(numbers.shape[0]):
        if marks[numbers[i]]:
            return True
    return False


cdef inline bint flows_outside(
    const int64_t *operand, int64_t differentiable, const uint8_t[::1] in_graph
) noexcept:
    """Return whether an operand is a whole external array to which a gradient may flow."""
    return operand[TYPE] == tables.WHOLE and differentiable > 0 and in_graph[operand[FIRST]]


def gradients_wanted(
    inputs, outputs, const int64_t[:, ::1] forward, const int64_t[:, ::1] operands,
    const int64_t[:, ::1] regions, const uint8_t[::1] in_graph, const int64_t[:] order,
):
    """Return for each launch of a backward plan two texts, with a byte per port: 1 if it counts.

    These are the results of the forward launch whose gradients it reads, and the inputs whose
    gradients it computes.  `inputs`, `outputs` and the places of operands (`forward`) are those of
    the forward plan, the other tables those of the backward plan.
    """
    cdef const int64_t[::1] input0 = inputs.first, output0 = outputs.first
    cdef const int64_t[::1] differentiable = inputs.differentiable
    cdef bytearray read = bytearray(output0[output0.shape[0] - 1])
    cdef bytearray computed = bytearray(forward.shape[0])
    cdef int64_t k, number
    for k in range(len(read)):
        read[k] = operands[k, TYPE] > 0
    for k in range(len(computed)):
        computed[k] = regions[k, TYPE] > 0 or flows_outside(
            &forward[k, 0], differentiable[k], in_graph)
    cdef list found = []
    for k in range(order.shape[0]):
        number = order[k]
        found.append((
            bytes(read[output0[number]:output0[number + 1]]),
            bytes(computed[input0[number]:input0[number + 1]])))
    return found
