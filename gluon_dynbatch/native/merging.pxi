# Merging and dropping the groups of a grouping; a part of `scheduling.pyx`.

cdef inline void add_reach(char *row, const char *added, Py_ssize_t count) noexcept:
    """Let a group reach all groups that another one reaches, given their rows of the table."""
    cdef Py_ssize_t group
    for group in range(count):
        row[group] |= added[group]


cdef bint merge_closest(
    char *reach, Py_ssize_t count, list candidates, int32_t[::1] merged_into
) except -1:
    """Merge the closest two of `candidates` that can be merged; return False if no two can."""
    cdef Py_ssize_t distance, first, kept, removed, group
    for distance in range(1, len(candidates)):
        for first in range(len(candidates) - distance):
            kept, removed = candidates[first], candidates[first + distance]
            if reach[kept * count + removed] or reach[removed * count + kept]:
                continue
            add_reach(&reach[kept * count], &reach[removed * count], count)
            for group in range(count):
                if reach[group * count + kept] or reach[group * count + removed]:
                    add_reach(&reach[group * count], &reach[kept * count], count)
                    reach[group * count + kept] = True
            merged_into[removed] = kept
            del candidates[first + distance]
            return True
    return False


def merge(
    const int32_t[::1] signature, const int64_t[::1] offsets, const int32_t[::1] preds,
    int32_t[::1] groups,
):
    """Merge pairs of groups of one signature, neither of which reaches the other."""
    cdef Py_ssize_t count = largest(groups) + 1, unit, k, group, later
    #: Whether a group reaches another: a row per group.
    cdef bytearray table = bytearray(count * count)
    cdef char *reach = table
    #: Per group: the group that it was merged into, or itself; its signature; by how many groups it
    #: is reached; and its number after merging.
    cdef int32_t[::1] merged_into = array("i", range(count)), signature_of = clone(INT, count, True)
    cdef int32_t[::1] reached_by = clone(INT, count, True), number = clone(INT, count, True)
    cdef list by_signature = [[] for _ in range(largest(signature) + 1)]
    for unit in range(groups.shape[0]):
        signature_of[groups[unit]] = signature[unit]
        for k in range(offsets[unit], offsets[unit + 1]):
            reach[groups[preds[k]] * count + groups[unit]] = True
    for group in range(count - 1, -1, -1):
        for later in range(group + 1, count):
            if reach[group * count + later]:
                add_reach(&reach[group * count], &reach[later * count], count)
    for group in range(count):
        (<list>by_signature[signature_of[group]]).append(group)
    for candidates in by_signature:
        while merge_closest(reach, count, candidates, merged_into):
            pass
    kept = sorted([group for candidates in by_signature for group in candidates])
    for group in kept:
        for later in range(count):
            reached_by[later] += reach[group * count + later]
    # This order is topological: a group is reached by more groups than each of its predecessors.
    for k, group in enumerate(sorted(kept, key=reached_by.__getitem__)):
        number[group] = k
    for unit in range(groups.shape[0]):
        group = groups[unit]
        while merged_into[group] != group:
            group = merged_into[group]
        groups[unit] = number[group]


def drop(
    const int32_t[::1] signature, const int64_t[::1] offsets, const int32_t[::1] preds,
    int32_t[::1] groups,
):
    """Drop groups that no unit needs, from the last to the first.

    A unit needs the earliest group that it can run in, until a later group takes the unit: a group
    that is kept takes all units of its signature whose readers are taken.
    """
    cdef int32_t units = groups.shape[0], unit, following, group, latest_pred, pred, kept = 0
    #: Per unit: the earliest group that it can run in, and how many readers are not taken.
    cdef int32_t[::1] earliest = clone(INT, units, False), readers = clone(INT, units, True)
    cdef int32_t count = largest(groups) + 1
    #: Per group: how many units need it, its signature, and the previous group of its signature.
    cdef int32_t[::1] needed = clone(INT, count, True), signature_of = clone(INT, count, True)
    cdef int32_t[::1] previous = clone(INT, count, False)
    cdef int32_t[::1] last = clone(INT, largest(signature) + 1, False)
    cdef Ready ready = Ready(signature)
    cdef Py_ssize_t k
    last[:] = -1
    for unit in range(units):
        signature_of[groups[unit]] = signature[unit]
    for group in range(count):
        previous[group], last[signature_of[group]] = last[signature_of[group]], group
    for unit in range(units):
        latest_pred = -1
        for k in range(offsets[unit], offsets[unit + 1]):
            latest_pred = max(latest_pred, earliest[preds[k]])
            readers[preds[k]] += 1
        group = groups[unit]
        while previous[group] > latest_pred:
            group = previous[group]
        earliest[unit] = group
        needed[group] += 1
    for unit in range(units):
        if readers[unit] == 0:
            ready.add(unit)
    for group in range(count - 1, -1, -1):
        if needed[group] == 0:
            continue
        unit = ready.take(signature_of[group])
        while unit >= 0:
            following, groups[unit] = ready.next[unit], kept
            needed[earliest[unit]] -= 1
            for k in range(offsets[unit], offsets[unit + 1]):
                pred = preds[k]
                readers[pred] -= 1
                if readers[pred] == 0:
                    ready.add(pred)
            unit = following
        kept += 1
    for unit in range(units):
        groups[unit] = kept - 1 - groups[unit]
