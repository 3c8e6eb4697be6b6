# Merging and dropping the groups of a grouping; a part of `scheduling.pyx`.

cdef inline void add_row(char *row, const char *added, Py_ssize_t count) noexcept:
    """Let all groups that reach one group reach another, given their rows of the table."""
    cdef Py_ssize_t group
    for group in range(count):
        row[group] |= added[group]


cdef bint merge_closest(
    char *reached, Py_ssize_t count, list candidates, int32_t[::1] merged_into
) except -1:
    """Merge the closest two of `candidates` that can be merged; return False if no two can."""
    cdef Py_ssize_t distance, first, kept, removed, group
    for distance in range(1, len(candidates)):
        for first in range(len(candidates) - distance):
            kept, removed = candidates[first], candidates[first + distance]
            if reached[kept * count + removed] or reached[removed * count + kept]:
                continue
            add_row(&reached[kept * count], &reached[removed * count], count)
            for group in range(count):
                if reached[group * count + kept] or reached[group * count + removed]:
                    add_row(&reached[group * count], &reached[kept * count], count)
                    reached[group * count + kept] = True
            merged_into[removed] = kept
            del candidates[first + distance]
            return True
    return False


def merge_groups(
    const int32_t[::1] signature, const int64_t[::1] offsets, const int32_t[::1] preds,
    int32_t[::1] groups,
):
    """Merge pairs of groups of one signature, neither of which reaches the other."""
    cdef Py_ssize_t count = largest(groups) + 1, unit, k, group, earlier
    #: Which groups reach a group: a row per group.
    cdef bytearray table = bytearray(count * count)
    cdef char *reached = table
    cdef char *row
    #: Per group: the group that it was merged into, or itself; its signature; how many groups
    #: reach it; and its number after merging.
    cdef int32_t[::1] merged_into = array("i", range(count)), signature_of = clone(INT, count, True)
    cdef int32_t[::1] reached_by = clone(INT, count, True), number = clone(INT, count, True)
    cdef list by_signature = [[] for _ in range(largest(signature) + 1)]
    for unit in range(groups.shape[0]):
        signature_of[groups[unit]] = signature[unit]
        row = reached + groups[unit] * count
        for k in range(offsets[unit], offsets[unit + 1]):
            row[groups[preds[k]]] = True
    for group in range(count):
        for earlier in range(group):
            if reached[group * count + earlier]:
                add_row(&reached[group * count], &reached[earlier * count], count)
        (<list>by_signature[signature_of[group]]).append(group)
    for candidates in by_signature:
        while merge_closest(reached, count, candidates, merged_into):
            pass
    kept = sorted([group for candidates in by_signature for group in candidates])
    for group in kept:
        for earlier in kept:
            reached_by[group] += reached[group * count + earlier]
    # This order is topological: a group is reached by more groups than each of its predecessors.
    for k, group in enumerate(sorted(kept, key=reached_by.__getitem__)):
        number[group] = k
    for group in range(count):
        earlier = group
        while merged_into[earlier] != earlier:
            earlier = merged_into[earlier]
        number[group] = number[earlier]
    for unit in range(groups.shape[0]):
        groups[unit] = number[groups[unit]]


def drop_groups(
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
