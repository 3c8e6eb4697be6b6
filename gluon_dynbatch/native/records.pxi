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
    #: The most rows of each part of a launch that are run.
    int64_t most


cdef inline const int64_t *behind(const int64_t *part) noexcept nogil:
    """Return the part of a launch that follows: each is a kernel, rows, and places of slots."""
    return part + 2 + 2 * (<Kernel_ *><uintptr_t>part[0]).slots_count


cdef void run_parts(void *given, int number) noexcept nogil:
    """Run pieces of the parts of a launch, none of which has rows of two parts."""
    cdef Split *split = <Split *>given
    cdef char *scratch = split.scratch + number * split.scratch_each
    cdef const int64_t *part = split.code + 2
    cdef const Kernel_ *kernel
    cdef int64_t left = split.code[1], before = 0, taken, size, low, rows
    while True:
        taken = TAKE(&split.next)
        while True:
            if left == 0:
                return
            kernel = <const Kernel_ *><uintptr_t>part[0]
            size, rows = min(split.piece, kernel.block_rows), min(part[1], split.most)
            low = (taken - before) * size
            if low < rows:
                break
            before += (rows + size - 1) // size
            part = behind(part)
            left -= 1
        run_block(kernel, part + 2, split.bases, scratch, low, min(low + size, rows))


cdef void run_pieces(void *given, int number) noexcept nogil:
    cdef Split *split = <Split *>given
    cdef char *scratch = split.scratch + number * split.scratch_each
    cdef int64_t low
    while True:
        low = TAKE(&split.next) * split.piece
        if low >= split.rows:
            return
        add_up(
            <const SumRecord *>split.code, split.bases, scratch, low, min(low + split.piece, split.rows))


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
        split.rows += min(part[1], split.most)
        work += min(part[1], split.most) * (<Kernel_ *><uintptr_t>part[0]).work
        part = behind(part)
    threads = max(min(threads, work // WORTH), 1)
    split.piece = max(even(split.rows, threads), 1)
    gdb_run_in_threads(run_parts, split, threads)
    return part


cdef struct Equal:
    # The number of each row, equal ones alike, and the first row of each number.
    int64_t rows
    const int32_t *number
    const int32_t *first


cdef inline char *at(Spot spot, char **bases) noexcept nogil:
    return bases[spot.base] + spot.offset


cdef void gather(const Equal *equal, const Moved *moved, char **bases) noexcept nogil:
    """Put the first, or the totals, of equal rows side by side, maybe where they are."""
    cdef int64_t size = moved.width * SIZES[moved.kind], i, number
    cdef char *target = at(moved.target, bases)
    cdef const char *source = at(moved.source, bases)
    for i in range(equal.rows):
        number = equal.number[i]
        if equal.first[number] == i:
            memmove(target + number * size, source + i * size, size)
        elif moved.what == TOTAL:
            add_row(moved.kind, target + number * size, source + i * size, moved.width)


cdef void spread(const Equal *equal, const Moved *moved, char **bases) noexcept nogil:
    """Put rows that stand side by side where all that are equal belong; or where the first does,
    and zeros where the others do."""
    cdef int64_t size = moved.width * SIZES[moved.kind], i, number
    cdef char *rows = at(moved.target, bases)
    for i in range(equal.rows - 1, -1, -1):
        number = equal.number[i]
        if moved.what == SINGLE and equal.first[number] != i:
            memset(rows + i * size, 0, size)
        elif number != i:
            memcpy(rows + i * size, rows + number * size, size)


cdef struct Choice:
    int64_t value, table


cdef int64_t tell_apart(
    const Key *keys, int64_t count, char **bases, int64_t rows, int32_t *number, int32_t *first
) noexcept nogil:
    """Number rows as they come, equal ones alike; return how many numbers there are.

    Filled in are the number of each row, and the first row of each number.  Without memory, or if
    few are equal, all rows count as different.
    """
    cdef int64_t i, k, row = 0, distinct = 0
    cdef uint64_t place, slots = 16
    cdef Choice one
    cdef const char *source
    while slots < <uint64_t>(2 * rows):
        slots *= 2
    cdef int32_t *table = <int32_t *>malloc(slots * sizeof(int32_t))
    cdef Choice *known = <Choice *>malloc(rows * sizeof(Choice))
    if table != NULL and known != NULL:
        memset(table, -1, slots * sizeof(int32_t))
        for i in range(count):
            one.table = keys[i].table
            for k in range(keys[i].rows):
                place = slots
                if one.table >= 0:
                    source = at(keys[i].numbers, bases) + k * keys[i].size
                    one.value = (<const int32_t *>source)[0]
                    if keys[i].size == 8:
                        one.value = (<const int64_t *>source)[0]
                    place = (<uint64_t>one.value * 0x9E3779B97F4A7C15ULL) >> 32 & (slots - 1)
                    while table[place] >= 0 and memcmp(&known[table[place]], &one, sizeof(Choice)):
                        place = (place + 1) & (slots - 1)
                if place < slots and table[place] >= 0:
                    number[row] = table[place]
                else:
                    known[distinct], first[distinct], number[row] = one, row, distinct
                    if place < slots:
                        table[place] = distinct
                    distinct += 1
                row += 1
    free(table)
    free(known)
    if row == 0 or 4 * distinct > 3 * rows:
        for k in range(rows):
            number[k] = first[k] = k
        return rows
    return distinct


cdef const int64_t *run_distinct(Split *split, int64_t threads) noexcept nogil:
    cdef const DistinctRecord *record = <const DistinctRecord *>split.code
    cdef const Key *keys = <const Key *>(record + 1)
    cdef const Moved *moved = <const Moved *>(keys + record.keys)
    cdef const int64_t *code
    cdef int64_t i
    #: How many are different, and of how many; then what `Equal` has.
    cdef int32_t *kept = <int32_t *>at(record.kept, split.bases)
    cdef int32_t *first = kept + 2 + record.rows
    cdef Equal equal = Equal(record.rows, kept + 2, first)
    if record.keys:
        kept[0] = tell_apart(keys, record.keys, split.bases, record.rows, kept + 2, first)
        kept[1] = record.rows
    for i in range(record.moved):
        if moved[i].what <= TOTAL:
            gather(&equal, moved + i, split.bases)
    split.code, split.most = <const int64_t *>(moved + record.moved), kept[0]
    code = run_launch(split, threads)
    split.most = INT64_MAX
    for i in range(record.moved):
        if moved[i].what > TOTAL:
            spread(&equal, moved + i, split.bases)
    return code


cdef const int64_t *run_rows(const int64_t *code, char **bases) noexcept nogil:
    cdef const RowsRecord *record = <const RowsRecord *>code
    cdef const Piece *piece = <const Piece *>(record + 1)
    cdef const Piece *end = piece + record.count
    cdef int64_t size = record.size
    cdef char *first = at(record.target, bases)
    cdef char *target
    while piece < end:
        target = first + piece.target * size
        if piece.what == 0:
            memcpy(target, at(piece.source, bases), piece.count * size)
        elif piece.what == 1:
            add_row(record.kind, target, at(piece.source, bases), piece.count)
        else:
            memset(target, 0, piece.count * size)
        piece += 1
    return <const int64_t *>end


cdef const int64_t *run_sum(Split *split, int64_t threads) noexcept nogil:
    cdef const SumRecord *record = <const SumRecord *>split.code
    cdef const Chunk *chunks = <const Chunk *>(record + 1)
    cdef int64_t work = 0, i
    split.rows, split.piece, split.next = record.rows, record.rows, 0
    if record.record == MATRIX:
        for i in range(record.count):
            work += 2 * record.rows * record.columns * chunks[i].rows * max(record.last >> 1, 1)
        threads = max(min(threads, work // WORTH), 1)
        split.piece = even(split.rows, threads)
        gdb_run_in_threads(run_pieces, split, threads)
    else:
        add_up(record, split.bases, split.scratch, 0, record.rows)
    return <const int64_t *>(chunks + record.count)


cdef void add_up(
    const SumRecord *record, char **bases, char *scratch, int64_t low, int64_t high
) noexcept nogil:
    """Compute some rows of the sum of a MATRIX record, or that of another record."""
    cdef const gdb_kernels *kernels = gdb_kernels_of(record.kind)
    cdef int64_t count = record.count, i
    cdef const Chunk *own = <const Chunk *>(record + 1)
    cdef gdb_chunk *chunks = <gdb_chunk *>scratch
    cdef const int32_t *kept
    cdef char *target = at(record.target, bases)
    for i in range(count):
        chunks[i] = gdb_chunk(
            own.rows, at(own.gradient, bases), own.gradient_pitch, at(own.other, bases),
            own.other_pitch)
        if own.kept.base >= 0:
            kept = <const int32_t *>at(own.kept, bases)
            chunks[i].rows = own.rows // kept[1] * kept[0]
        own += 1
    if record.record == CHOSEN:
        for i in range(count):
            add_to_chosen(
                record.kind, target, record.rows, record.columns, &chunks[i], record.last)
    elif record.record == ROW:
        kernels.bias_gradient(record.columns, chunks, count, target)
    else:
        kernels.weight_gradient(
            record.rows, record.columns, low, high, chunks, count, target, record.columns,
            record.last & 1, record.last >> 1, scratch + lines(count * sizeof(gdb_chunk)))


cdef const int64_t *run_pack(const int64_t *code, char **bases) noexcept nogil:
    cdef const PackRecord *record = <const PackRecord *>code
    gdb_kernels_of(record.kind).pack(
        at(record.source, bases), record.row_stride, record.column_stride, record.rows,
        record.columns, at(record.target, bases))
    return <const int64_t *>(record + 1)
