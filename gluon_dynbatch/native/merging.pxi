# Fewer groups of a finished grouping: merged, or dropped; a part of `scheduling.pyx`.

cdef inline void add_all(char *row, const char *other, Py_ssize_t size) noexcept:
    """Let a group reach what another reaches."""
    cdef Py_ssize_t k
    for k in range(size):
        row[k] |= other[k]


cdef bint merge_closest(
    char *reach, Py_ssize_t count, list members, int32_t[::1] stands_for
) except -1:
    """Merge the two of `members` that are closest together of those that can; False if none can."""
    cdef Py_ssize_t distance, first, keep, drop, group
    for distance in range(1, len(members)):
        for first in range(len(members) - distance):
            keep, drop = members[first], members[first + distance]
            if reach[keep * count + drop] or reach[drop * count + keep]:
                continue
            add_all(&reach[keep * count], &reach[drop * count], count)
            for group in range(count):
                if reach[group * count + keep] or reach[group * count + drop]:
                    add_all(&reach[group * count], &reach[keep * count], count)
                    reach[group * count + keep] = True
            stands_for[drop] = keep
            del members[first + distance]
            return True
    return False


def merge(
    const int32_t[::1] signature, const int64_t[::1] offsets, const int32_t[::1] preds,
    int32_t[::1] groups,
):
    """Merge groups of one signature of which neither needs the other."""
    cdef Py_ssize_t count = largest(groups) + 1, unit, k, group, other
    #: Which group reaches which other: a row per group.
    cdef bytearray table = bytearray(count * count)
    cdef char *reach = table
    cdef int32_t[::1] stands_for = array("i", range(count)), of_launch = clone(INT, count, True)
    cdef int32_t[::1] before = clone(INT, count, True), number = clone(INT, count, True)
    cdef list members = [[] for _ in range(largest(signature) + 1)]
    for unit in range(groups.shape[0]):
        of_launch[groups[unit]] = signature[unit]
        for k in range(offsets[unit], offsets[unit + 1]):
            reach[groups[preds[k]] * count + groups[unit]] = True
    for group in range(count - 1, -1, -1):
        for other in range(group + 1, count):
            if reach[group * count + other]:
                add_all(&reach[group * count], &reach[other * count], count)
    for group in range(count):
        (<list>members[of_launch[group]]).append(group)
    for alike in members:
        while merge_closest(reach, count, alike, stands_for):
            pass
    kept = sorted([group for alike in members for group in alike])
    for group in kept:
        for other in range(count):
            before[other] += reach[group * count + other]
    # What is reached by few can be launched early.
    for k, group in enumerate(sorted(kept, key=before.__getitem__)):
        number[group] = k
    for unit in range(groups.shape[0]):
        group = groups[unit]
        while stands_for[group] != group:
            group = stands_for[group]
        groups[unit] = number[group]


def drop(
    const int32_t[::1] signature, const int64_t[::1] offsets, const int32_t[::1] preds,
    int32_t[::1] groups,
):
    """Drop launches, from the last to the first, that no unit needs.

    A unit needs the first launch that it can run in, unless a later one has taken it: a launch that
    is kept takes all units whose readers have been taken.
    """
    cdef int32_t units = groups.shape[0], unit, following, launch, behind, pred, kept = 0
    cdef int32_t[::1] early = clone(INT, units, False), readers = clone(INT, units, True)
    cdef int32_t count = largest(groups) + 1
    #: Per launch: how many units need it, its signature, and the one before it of its signature.
    cdef int32_t[::1] needed = clone(INT, count, True), of_launch = clone(INT, count, True)
    cdef int32_t[::1] before = clone(INT, count, False)
    cdef int32_t[::1] last = clone(INT, largest(signature) + 1, False)
    cdef Ready ready = Ready(signature)
    cdef Py_ssize_t k
    last[:] = -1
    for unit in range(units):
        of_launch[groups[unit]] = signature[unit]
    for launch in range(count):
        before[launch], last[of_launch[launch]] = last[of_launch[launch]], launch
    for unit in range(units):
        behind = -1
        for k in range(offsets[unit], offsets[unit + 1]):
            behind = max(behind, early[preds[k]])
            readers[preds[k]] += 1
        launch = groups[unit]
        while before[launch] > behind:
            launch = before[launch]
        early[unit] = launch
        needed[launch] += 1
    for unit in range(units):
        if readers[unit] == 0:
            ready.add(unit)
    for launch in range(count - 1, -1, -1):
        if needed[launch] == 0:
            continue
        unit = ready.take(of_launch[launch])
        while unit >= 0:
            following, groups[unit] = ready.next[unit], kept
            needed[early[unit]] -= 1
            for k in range(offsets[unit], offsets[unit + 1]):
                pred = preds[k]
                readers[pred] -= 1
                if readers[pred] == 0:
                    ready.add(pred)
            unit = following
        kept += 1
    for unit in range(units):
        groups[unit] = kept - 1 - groups[unit]
