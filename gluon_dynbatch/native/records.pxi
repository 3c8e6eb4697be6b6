"""What each record of a program does: a part of `executing.pyx`."""


cdef struct Split:
    # A record in pieces, of which each thread takes the next one until there are no more.
    const int64_t *code
    char **bases
    #: Each thread has its own.
    char *scratch
    int64_t scratch_each
    #: Rows of a piece at most, rows of all pieces, and the piece that is next.
    int64_t piece, rows, next


cdef inline const int64_t *behind(const int64_t *part) noexcept nogil:
    """Return the part of a launch that follows: each is a kernel, rows, and places of slots."""
    return part + 2 + 2 * (<Kernel_ *><uintptr_t>part[0]).slots_count


cdef void run_parts(void *given, int number) noexcept nogil:
    """Run pieces of the parts of a launch, none of which has rows of two parts."""
    cdef Split *split = <Split *>given
    cdef char *scratch = split.scratch + number * split.scratch_each
    cdef const int64_t *part = split.code + 2
    cdef const Kernel_ *kernel
    cdef int64_t left = split.code[1], before = 0, taken, size, low
    while True:
        taken = TAKE(&split.next)
        while True:
            if left == 0:
                return
            kernel = <const Kernel_ *><uintptr_t>part[0]
            size = min(split.piece, kernel.block)
            low = (taken - before) * size
            if low < part[1]:
                break
            before += (part[1] + size - 1) // size
            part = behind(part)
            left -= 1
        run_block(kernel, part + 2, split.bases, scratch, low, min(low + size, part[1]))


cdef void run_pieces(void *given, int number) noexcept nogil:
    cdef Split *split = <Split *>given
    cdef char *scratch = split.scratch + number * split.scratch_each
    cdef int64_t low
    while True:
        low = TAKE(&split.next) * split.piece
        if low >= split.rows:
            return
        add_up(split.code, split.bases, scratch, low, min(low + split.piece, split.rows))


cdef int64_t even(int64_t rows, int64_t parts) noexcept nogil:
    """Return the rows of a piece of so many; products compute whole blocks of them alike."""
    return ((rows + parts - 1) // parts + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE * ROWS_AT_ONCE


cdef const int64_t *run_launch(Split *split, int64_t threads) noexcept nogil:
    """LAUNCH, number of parts, then per part: kernel, rows, and per slot a base, -1 for a block of
    rows of scratch, and an offset in bytes."""
    cdef const int64_t *part = split.code + 2
    cdef int64_t work = 0, i
    split.rows, split.next = 0, 0
    for i in range(split.code[1]):
        split.rows += part[1]
        work += part[1] * (<Kernel_ *><uintptr_t>part[0]).work
        part = behind(part)
    threads = max(min(threads, work // WORTH), 1)
    split.piece = max(even(split.rows, threads), 1)
    gdb_together(run_parts, split, threads)
    return part


cdef struct Key:
    int64_t value, table


cdef int64_t tell_apart(
    const int64_t *pieces, int64_t count, char **bases, int64_t rows, int32_t *number,
    int32_t *first,
) noexcept nogil:
    """Number the keys of rows as they come, equal ones alike; return how many there are.

    Pieces are as in `run_distinct`.  Filled in are the number of each row, and the first row of
    each number.  Without memory, all rows count as different.
    """
    cdef int64_t i, k, row = 0, distinct = 0
    cdef uint64_t at, slots = 16
    cdef Key key
    cdef const char *source
    while slots < <uint64_t>(2 * rows):
        slots *= 2
    cdef int32_t *table = <int32_t *>malloc(slots * sizeof(int32_t))
    cdef Key *keys = <Key *>malloc(rows * sizeof(Key))
    if table != NULL and keys != NULL:
        memset(table, -1, slots * sizeof(int32_t))
        for i in range(count):
            key.table = pieces[0]
            for k in range(pieces[3]):
                at = slots
                if key.table >= 0:
                    source = bases[pieces[1]] + pieces[2] + k * pieces[4]
                    key.value = (<const int32_t *>source)[0]
                    if pieces[4] == 8:
                        key.value = (<const int64_t *>source)[0]
                    at = (<uint64_t>key.value * 0x9E3779B97F4A7C15ULL) >> 32 & (slots - 1)
                    while table[at] >= 0 and memcmp(&keys[table[at]], &key, sizeof(Key)):
                        at = (at + 1) & (slots - 1)
                if at < slots and table[at] >= 0:
                    number[row] = table[at]
                else:
                    keys[distinct], first[distinct], number[row] = key, row, distinct
                    if at < slots:
                        table[at] = distinct
                    distinct += 1
                row += 1
            pieces += 5
    free(table)
    free(keys)
    return distinct if row else rows


cdef const int64_t *run_distinct(Split *split, int64_t threads) noexcept nogil:
    """DISTINCT, a slot, pieces, then per piece: the table from which rows were chosen, -1 if they
    were not, where the numbers are by which they were (base, offset), rows, bytes of a number.

    A LAUNCH of one part follows, in which only the slot differs from row to row.  So if equal
    numbers chose rows from one table, their results are equal, and computed once; unless they
    are few.
    """
    cdef const int64_t *launch = split.code + 3 + 5 * split.code[2]
    cdef const int64_t *part = launch + 2
    cdef const Kernel_ *kernel = <const Kernel_ *><uintptr_t>part[0]
    cdef int64_t slot = split.code[1], rows = part[1], length = behind(part) - launch
    cdef int64_t size = row_bytes(kernel, slot), distinct = rows, i
    cdef const char *source = split.bases[part[2 + 2 * slot]] + part[3 + 2 * slot]
    cdef int32_t *number = <int32_t *>malloc(2 * rows * sizeof(int32_t))
    cdef int32_t *first = number + rows
    cdef int64_t *code = <int64_t *>malloc(8 * length)
    cdef char *given = NULL
    if number != NULL:
        distinct = tell_apart(split.code + 3, split.code[2], split.bases, rows, number, first)
    if 4 * distinct <= 3 * rows:
        given = <char *>malloc(distinct * size + 64)
    split.code = launch
    if code == NULL or given == NULL:
        run_launch(split, threads)
    else:
        for i in range(distinct):
            memcpy(given + i * size, source + first[i] * size, size)
        memcpy(code, launch, 8 * length)
        code[3], code[5 + 2 * slot] = distinct, given - split.bases[code[4 + 2 * slot]]
        split.code = code
        run_launch(split, threads)
        for i in range(kernel.slots_count):
            source = split.bases[part[2 + 2 * i]] + part[3 + 2 * i]
            if i != slot and part[2 + 2 * i] >= 0:
                spread(<char *>source, row_bytes(kernel, i), number, rows)
    free(given)
    free(code)
    free(number)
    return behind(part)


cdef inline int64_t row_bytes(const Kernel_ *kernel, int64_t slot) noexcept nogil:
    return kernel.slots[slot].array.pitch * SIZES[kernel.slots[slot].array.dtype]


cdef void spread(char *rows, int64_t size, const int32_t *number, int64_t count) noexcept nogil:
    """Put rows, of which the first ones are there, where their numbers are; none comes before."""
    cdef int64_t i
    for i in range(count - 1 if size else -1, -1, -1):
        if number[i] != i:
            memcpy(rows + i * size, rows + number[i] * size, size)


cdef const int64_t *run_rows(const int64_t *code, char **bases) noexcept nogil:
    """ROWS, type, bytes of an element, entries, target (base, offset), then per entry: what to do
    (0 copy, 1 add, 2 zeros), first element in the target, source (base, offset), elements."""
    cdef int64_t kind = code[1], size = code[2], count = code[3], i
    cdef char *first = bases[code[4]] + code[5]
    cdef char *target
    cdef const char *source
    code += 6
    for i in range(count):
        target = first + code[1] * size
        source = bases[code[2]] + code[3]
        if code[0] == 0:
            memcpy(target, source, code[4] * size)
        elif code[0] == 1:
            add_row(kind, target, source, code[4])
        else:
            memset(target, 0, code[4] * size)
        code += 5
    return code


cdef const int64_t *run_sum(Split *split, int64_t threads) noexcept nogil:
    """MATRIX, ROW or CHOSEN, type, rows and columns of the target, where it is (base, offset), whether
    the second of two rows is the gradient (of CHOSEN the type of places), chunks, then per chunk:
    rows, and gradient and rows, each a base, an offset in bytes and elements per row."""
    cdef const int64_t *code = split.code
    cdef int64_t work = 0, i
    split.rows, split.piece, split.next = code[2], code[2], 0
    if code[0] == DO_MATRIX:
        for i in range(code[7]):
            work += 2 * code[2] * code[3] * code[8 + 7 * i]
        threads = max(min(threads, work // WORTH), 1)
        split.piece = even(split.rows, threads)
        gdb_together(run_pieces, split, threads)
    else:
        add_up(code, split.bases, split.scratch, 0, code[2])
    return code + 8 + 7 * code[7]


cdef void add_up(
    const int64_t *code, char **bases, char *scratch, int64_t low, int64_t high
) noexcept nogil:
    """Compute some rows of the sum of a MATRIX record, or that of another record."""
    cdef const gdb_kernels *kernels = gdb_kernels_of(code[1])
    cdef int64_t count = code[7], i
    cdef const int64_t *own = code + 8
    cdef gdb_chunk *chunks = <gdb_chunk *>scratch
    cdef char *target = bases[code[4]] + code[5]
    for i in range(count):
        chunks[i] = gdb_chunk(
            own[0], bases[own[1]] + own[2], own[3], bases[own[4]] + own[5], own[6])
        own += 7
    if code[0] == DO_CHOSEN:
        for i in range(count):
            add_to_chosen(code[1], target, code[2], code[3], &chunks[i], code[6])
    elif code[0] == DO_ROW:
        kernels.bias_gradient(code[3], chunks, count, target)
    else:
        kernels.weight_gradient(
            code[2], code[3], low, high, chunks, count, target, code[3], code[6],
            scratch + lines(count * sizeof(gdb_chunk)))


cdef void run_pack(const int64_t *code, char **bases) noexcept nogil:
    """PACK, type, source (base, offset, strides), rows, columns, target (base, offset)."""
    gdb_kernels_of(code[1]).pack(
        bases[code[2]] + code[3], code[4], code[5], code[6], code[7], bases[code[8]] + code[9])
