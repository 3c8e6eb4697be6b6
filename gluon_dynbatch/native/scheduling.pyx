# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""The parts of scheduling that look at every unit or at every pair of groups.

Units are numbered topologically; `offsets` and `preds` are as in `Dependencies`.
"""

cimport cython
from cpython.array cimport array, clone
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

cdef array INT, LONG, DOUBLE, WORD
INT, LONG, DOUBLE, WORD = array("i"), array("q"), array("d"), array("Q")


cdef int32_t largest(const int32_t[::1] numbers) noexcept:
    """Return the largest number, -1 if there is none."""
    cdef int32_t most = -1
    cdef Py_ssize_t i
    for i in range(numbers.shape[0]):
        most = max(most, numbers[i])
    return most


def depths(
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] stage,
    int32_t[::1] depth,
):
    """Fill in the number of units on the longest path to each unit, without itself.

    Of units of its own stage, that is.
    """
    cdef Py_ssize_t unit, k
    cdef int32_t deepest
    for unit in range(depth.shape[0]):
        deepest = 0
        for k in range(offsets[unit], offsets[unit + 1]):
            if stage[preds[k]] == stage[unit]:
                deepest = max(deepest, depth[preds[k]] + 1)
        depth[unit] = deepest


def edges(
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] signature,
    uint8_t[:, ::1] found,
):
    """Mark which signature is read by which."""
    cdef Py_ssize_t unit, k
    for unit in range(signature.shape[0]):
        for k in range(offsets[unit], offsets[unit + 1]):
            found[signature[preds[k]], signature[unit]] = 1


# ---------------------------------------------------------------- longest-path counts

cdef enum:
    #: Numbers held at once: 8 MB, unless a single column needs more.
    CELLS = 1 << 21


def path_counts(
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] column,
    int32_t[::1] count,
):
    """Count the most units of each unit's own signature on a path that starts with it.

    `column` numbers the signatures to look at, and is -1 for the units of others.  Returns the sum
    over these signatures of the largest count.
    """
    cdef Py_ssize_t units = column.shape[0], unit, k, width, low, w
    cdef int32_t columns = largest(column) + 1, c
    cdef int32_t[::1] most = clone(INT, columns, True)
    width = columns if units * columns <= CELLS else max(1, CELLS // units)
    cdef array table = clone(INT, units * width, False)
    cdef int32_t *row
    cdef int32_t *before
    for low in range(0, columns, max(width, 1)):
        memset(table.data.as_ints, 0, units * width * sizeof(int32_t))
        for unit in range(units - 1, -1, -1):
            row = <int32_t *>table.data.as_ints + unit * width
            c = column[unit]
            if low <= c < low + width:
                row[c - low] += 1
                count[unit] = row[c - low]
                most[c] = max(most[c], count[unit])
            for k in range(offsets[unit], offsets[unit + 1]):
                before = <int32_t *>table.data.as_ints + preds[k] * width
                for w in range(width):
                    before[w] = before[w] if before[w] > row[w] else row[w]
    return sum(most)


# ------------------------------------------------------------------------------ agenda

@cython.final
cdef class Agenda:
    """What is ready and what is left."""

    cdef const int32_t[::1] signature, depth, count
    #: Whether counts decide, not the average depth alone.
    cdef bint counted
    #: Ready units of each signature as a linked list.
    cdef int32_t[::1] next, first
    #: Per signature: units not launched yet, the largest count of one, the sum of their depths.
    cdef int32_t[::1] left, top
    cdef int64_t[::1] depth_left
    #: By signature and count, a signature from `start` on: units not launched yet; those ready.
    cdef int32_t[::1] start, left_at, ready_at
    #: Per signature, how urgent it is, lower is sooner; negative if that is to be found anew.
    cdef double[::1] urgency
    #: What the average depth is divided by to decide ties only.
    cdef double scale

    def __init__(
        self, const int32_t[::1] signature, const int32_t[::1] depth, const int32_t[::1] count
    ):
        cdef int32_t units = signature.shape[0], signatures = largest(signature) + 1
        cdef int32_t unit, s, start = 0
        self.signature, self.depth, self.count = signature, depth, count
        self.counted = count.shape[0] > 0
        self.next = clone(INT, units, False)
        self.first, self.start = clone(INT, signatures, False), clone(INT, signatures, False)
        self.left, self.top = clone(INT, signatures, True), clone(INT, signatures, True)
        self.depth_left, self.urgency = clone(LONG, signatures, True), clone(DOUBLE, signatures, True)
        # The counts of a signature are at most its units, and a place more is for zero.
        self.left_at = clone(INT, units + signatures, True)
        self.ready_at = clone(INT, units + signatures, True)
        self.scale = 1e3 * (largest(depth) + 1)
        for unit in range(units):
            s = signature[unit]
            self.left[s] += 1
            self.depth_left[s] += depth[unit]
            if self.counted:
                self.top[s] = max(self.top[s], count[unit])
        for s in range(signatures):
            self.first[s], self.urgency[s], self.start[s] = -1, INFINITY, start
            start += self.top[s] + 1
        for unit in range(units):
            self.left_at[self.place(unit)] += 1

    cdef inline int32_t place(self, int32_t unit) noexcept:
        return self.start[self.signature[unit]] + (self.count[unit] if self.counted else 0)

    cdef void make_ready(self, int32_t unit) noexcept:
        cdef int32_t s = self.signature[unit]
        self.next[unit], self.first[s] = self.first[s], unit
        self.ready_at[self.place(unit)] += 1
        self.urgency[s] = -1.0

    cdef int32_t most_urgent(self) noexcept:
        """Return the signature with the lowest urgency, of equals the first."""
        cdef int32_t s, top, chosen = 0
        for s in range(self.urgency.shape[0]):
            if self.urgency[s] < 0:
                self.urgency[s] = <double>self.depth_left[s] / self.left[s]
                if self.counted:
                    top = self.start[s] + self.top[s]
                    self.urgency[s] = (
                        1.0 - <double>self.ready_at[top] / self.left_at[top]
                    ) + self.urgency[s] / self.scale
            if self.urgency[s] < self.urgency[chosen]:
                chosen = s
        return chosen

    cdef int32_t take_ready(self, int32_t s) noexcept:
        """Take the ready units off a signature; return the first, others are `next`."""
        cdef int32_t taken = self.first[s], unit = taken
        self.first[s], self.urgency[s] = -1, INFINITY
        while unit >= 0:
            self.left[s] -= 1
            self.depth_left[s] -= self.depth[unit]
            self.left_at[self.place(unit)] -= 1
            self.ready_at[self.place(unit)] -= 1
            unit = self.next[unit]
        while self.top[s] and not self.left_at[self.start[s] + self.top[s]]:
            self.top[s] -= 1
        return taken


def agenda(
    const int64_t[::1] offsets, const int32_t[::1] succs, const int32_t[::1] signature,
    const int32_t[::1] depth, const int32_t[::1] count, int32_t[::1] groups,
):
    """Launch what is ready, the most urgent signature first, until nothing is left.

    `offsets` and `succs` are lists of successors.  `groups` comes as the number of units that each
    unit waits for.  Without counts, the average depth decides alone.
    """
    cdef Agenda a = Agenda(signature, depth, count)
    cdef int32_t unit, following, launch = 0, left = groups.shape[0]
    cdef Py_ssize_t k
    for unit in range(groups.shape[0]):
        if groups[unit] == 0:
            a.make_ready(unit)
    while left:
        unit = a.take_ready(a.most_urgent())
        while unit >= 0:
            left -= 1
            following = a.next[unit]
            groups[unit] = launch
            for k in range(offsets[unit], offsets[unit + 1]):
                groups[succs[k]] -= 1
                if groups[succs[k]] == 0:
                    a.make_ready(succs[k])
            unit = following
        launch += 1


# ------------------------------------------------------------------------------- merge

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
