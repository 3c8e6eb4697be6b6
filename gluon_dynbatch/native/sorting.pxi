# Stable sorting by integer keys; included by the modules that sort.

from libc.string cimport memcpy, memset


cdef struct Keyed:
    # A plain value, in scratch of the function that sorts.
    int64_t key
    int64_t unit


#: Up to this number of items, insertion sort is faster.
cdef enum:
    FEW = 48


cdef void insertion_sort(Keyed *items, int64_t count) noexcept:
    """Sort by key; stable."""
    cdef int64_t i, k
    cdef Keyed item
    for i in range(1, count):
        item, k = items[i], i
        while k > 0 and items[k - 1].key > item.key:
            items[k] = items[k - 1]
            k -= 1
        items[k] = item


cdef void radix_sort(Keyed *items, Keyed *spare, int64_t count) noexcept:
    """Sort by key; stable.  `spare` is scratch of the same length."""
    cdef int64_t ends[256]
    cdef int64_t i, varying = 0, end
    cdef int shift, digit
    cdef bint sorted_ = True
    for i in range(1, count):
        varying |= items[i].key ^ items[0].key
        sorted_ = sorted_ and items[i - 1].key <= items[i].key
    if sorted_:
        return
    if count <= FEW:
        insertion_sort(items, count)
        return
    for shift in range(0, 64, 8):
        if not varying >> shift & 255:
            continue
        memset(ends, 0, sizeof(ends))
        for i in range(count):
            ends[items[i].key >> shift & 255] += 1
        end = 0
        for digit in range(256):
            end += ends[digit]
            ends[digit] = end - ends[digit]
        for i in range(count):
            digit = items[i].key >> shift & 255
            spare[ends[digit]] = items[i]
            ends[digit] += 1
        memcpy(items, spare, count * sizeof(Keyed))
