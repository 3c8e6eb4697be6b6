# Fewer groups of a finished grouping: merged, or dropped; a part of `scheduling.pyx`.

@cython.final
cdef class Reach:
    """Which group reaches which other: a row of bits per group."""

    cdef array memory
    cdef uint64_t *bits
    cdef int32_t groups, words

    def __init__(self, int32_t groups):
        self.groups, self.words = groups, groups // 64 + 1
        self.memory = clone(WORD, groups * <int64_t>self.words, True)
        self.bits = <uint64_t *>self.memory.data.as_ulonglongs

    cdef inline uint64_t *row(self, int64_t group) noexcept:
        return self.bits + group * self.words

    cdef inline bint get(self, int32_t source, int32_t target) noexcept:
        return self.row(source)[target >> 6] >> (target & 63) & 1

    cdef inline void set(self, int32_t source, int32_t target) noexcept:
        self.row(source)[target >> 6] |= <uint64_t>1 << (target & 63)

    cdef void add(self, int32_t group, int32_t other) noexcept:
        """Let a group reach what another reaches."""
        cdef uint64_t *more = self.row(other)
        cdef uint64_t *row = self.row(group)
        cdef int32_t word
        for word in range(self.words):
            row[word] |= more[word]

    cdef void close(self) noexcept:
        """Fill in what is reached through others; groups come in an order of launches."""
        cdef int32_t group, other
        for group in range(self.groups - 1, -1, -1):
            for other in range(group + 1, self.groups):
                if self.get(group, other):
                    self.add(group, other)

    cdef void merge(self, int32_t keep, int32_t drop) noexcept:
        """Let group `keep` stand for both."""
        cdef int32_t group
        self.add(keep, drop)
        memset(self.row(drop), 0, self.words * sizeof(uint64_t))
        for group in range(self.groups):
            if self.get(group, keep) or self.get(group, drop):
                self.add(group, keep)
                self.set(group, keep)
                self.row(group)[drop >> 6] &= ~(<uint64_t>1 << (drop & 63))


cdef bint merge_closest(Reach reach, list members, int32_t[::1] stands_for) except -1:
    """Merge the two of `members` that are closest together of those that can; False if none can."""
    cdef Py_ssize_t distance, first, count = len(members)
    cdef int32_t keep, drop
    for distance in range(1, count):
        for first in range(count - distance):
            keep, drop = members[first], members[first + distance]
            if not reach.get(keep, drop) and not reach.get(drop, keep):
                reach.merge(keep, drop)
                stands_for[drop] = keep
                del members[first + distance]
                return True
    return False


cdef int32_t[::1] launch_order(Reach reach, int32_t[::1] stands_for):
    """Number the groups that are left by how many groups reach them."""
    cdef int32_t[::1] before = clone(INT, reach.groups, True)
    cdef int32_t[::1] number = clone(INT, reach.groups, True)
    cdef int32_t group, other, count, numbered = 0
    for group in range(reach.groups):
        for other in range(reach.groups):
            before[other] += reach.get(group, other)
    for count in range(reach.groups):
        for group in range(reach.groups):
            if stands_for[group] == group and before[group] == count:
                number[group] = numbered
                numbered += 1
    return number


def merge(
    const int32_t[::1] signature, const int64_t[::1] offsets, const int32_t[::1] preds,
    int32_t[::1] groups,
):
    """Merge groups of one signature of which neither needs the other."""
    cdef Py_ssize_t unit, k
    cdef int32_t group
    cdef Reach reach = Reach(largest(groups) + 1)
    cdef int32_t[::1] stands_for = array("i", range(reach.groups)), number
    cdef list members = [[] for _ in range(largest(signature) + 1)]
    cdef array signature_of = clone(INT, reach.groups, True)
    for unit in range(groups.shape[0]):
        group = groups[unit]
        signature_of.data.as_ints[group] = signature[unit]
        for k in range(offsets[unit], offsets[unit + 1]):
            reach.set(groups[preds[k]], group)
    reach.close()
    for group in range(reach.groups):
        (<list>members[signature_of.data.as_ints[group]]).append(group)
    for alike in members:
        while merge_closest(reach, alike, stands_for):
            pass
    number = launch_order(reach, stands_for)
    for unit in range(groups.shape[0]):
        group = groups[unit]
        while stands_for[group] != group:
            group = stands_for[group]
        groups[unit] = number[group]


cdef inline int32_t first_behind(
    const int32_t[::1] launches, int32_t low, int32_t high, int32_t launch
) noexcept:
    """Return the first of some launches that is behind a launch; there is one."""
    cdef int32_t middle
    high -= 1
    while low < high:
        middle = (low + high) // 2
        if launches[middle] > launch:
            high = middle
        else:
            low = middle + 1
    return launches[low]


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
    cdef int32_t count = largest(groups) + 1, signatures = largest(signature) + 1
    #: Per launch: how many units need it, and its signature.
    cdef int32_t[::1] needed = clone(INT, count, True), of_launch = clone(INT, count, True)
    #: All launches in the order of their signatures, and where each signature begins there.
    cdef int32_t[::1] launches = clone(INT, count, True), start = clone(INT, signatures + 2, True)
    cdef Ready ready = Ready(signature)
    cdef Py_ssize_t k
    for unit in range(units):
        of_launch[groups[unit]] = signature[unit]
    for launch in range(count):
        start[of_launch[launch] + 2] += 1
    for k in range(signatures):
        start[k + 2] += start[k + 1]
    for launch in range(count):
        launches[start[of_launch[launch] + 1]] = launch
        start[of_launch[launch] + 1] += 1
    for unit in range(units):
        behind = -1
        for k in range(offsets[unit], offsets[unit + 1]):
            behind = max(behind, early[preds[k]])
            readers[preds[k]] += 1
        k = signature[unit]
        early[unit] = first_behind(launches, start[k], start[k + 1], behind)
        needed[early[unit]] += 1
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
