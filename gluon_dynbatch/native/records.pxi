"""How each record of a program runs: a part of `executing.pyx`."""


cdef struct SharedRecord:
    # A record that threads run together: each takes the next piece of rows until none is left.
    const int64_t *code
    char **bases
    #: One scratch per thread, `scratch_bytes` apart.
    char *scratch
    int64_t scratch_bytes
    #: Rows of a piece at most, rows of all pieces, and the next piece.
    int64_t piece_rows, rows, next
    #: Rows at most that run of each part of a launch.
    int64_t limit


cdef inline const int64_t *next_part(const int64_t *part) noexcept nogil:
    """Return the part of a launch after this one: each is a kernel, rows, and a Spot per slot."""
    return part + 2 + 2 * (<NativeKernel *><uintptr_t>part[0]).slots_count


cdef void run_launch_pieces(void *context, int thread) noexcept nogil:
    """Run pieces of a launch until none is left; a piece has rows of one part."""
    cdef SharedRecord *shared = <SharedRecord *>context
    cdef char *scratch = shared.scratch + thread * shared.scratch_bytes
    cdef const int64_t *part = shared.code + 2
    cdef const NativeKernel *kernel
    cdef int64_t parts_left = shared.code[1], earlier_pieces = 0, piece, size, low, rows
    while True:
        piece = TAKE(&shared.next)
        while True:
            if parts_left == 0:
                return
            kernel = <const NativeKernel *><uintptr_t>part[0]
            size, rows = min(shared.piece_rows, kernel.block_rows), min(part[1], shared.limit)
            low = (piece - earlier_pieces) * size
            if low < rows:
                break
            earlier_pieces += (rows + size - 1) // size
            part = next_part(part)
            parts_left -= 1
        run_block(kernel, part + 2, shared.bases, scratch, low, min(low + size, rows))


cdef void run_sum_pieces(void *context, int thread) noexcept nogil:
    """Run pieces of a MATRIX record until none is left."""
    cdef SharedRecord *shared = <SharedRecord *>context
    cdef char *scratch = shared.scratch + thread * shared.scratch_bytes
    cdef int64_t low
    while True:
        low = TAKE(&shared.next) * shared.piece_rows
        if low >= shared.rows:
            return
        compute_sum(
            <const SumRecord *>shared.code, shared.bases, scratch, low,
            min(low + shared.piece_rows, shared.rows))


cdef int64_t rows_per_piece(int64_t rows, int64_t threads) noexcept nogil:
    """Return the size of pieces of rows that threads share, a multiple of ROWS_AT_ONCE.

    So products have the same blocks of rows, and equal results, for any number of threads.
    """
    return ((rows + threads - 1) // threads + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE * ROWS_AT_ONCE


cdef const int64_t *run_launch(SharedRecord *shared, int64_t threads) noexcept nogil:
    """Run a LAUNCH; return the end of the record.

    It has the number of parts and, for each part, the address of the kernel, the number of rows,
    and a Spot per slot, with base -1 if the slot is in scratch.
    """
    cdef const int64_t *part = shared.code + 2
    cdef int64_t work = 0, i
    shared.rows, shared.next = 0, 0
    for i in range(shared.code[1]):
        shared.rows += min(part[1], shared.limit)
        work += min(part[1], shared.limit) * (<NativeKernel *><uintptr_t>part[0]).work
        part = next_part(part)
    threads = max(min(threads, work // WORK_PER_THREAD), 1)
    shared.piece_rows = max(rows_per_piece(shared.rows, threads), 1)
    gdb_run_in_threads(run_launch_pieces, shared, threads)
    return part


cdef struct Numbering:
    # Rows, the number of each (equal rows have one number), and the first row of each number.  In
    # memory, as int32: how many numbers there are, the number of rows, then both arrays.
    int64_t rows
    const int32_t *number
    const int32_t *first


cdef inline char *at(Spot spot, char **bases) noexcept nogil:
    return bases[spot.base] + spot.offset


cdef void compact_rows(
    const Numbering *numbering, const Moved *moved, char **bases
) noexcept nogil:
    """Move the first of equal rows, or their sum (TOTAL), to the row of their number.

    The target may be the source: rows move only forward to lower numbers.
    """
    cdef int64_t size = moved.width * SIZES[moved.dtype], i, number
    cdef char *target = at(moved.target, bases)
    cdef const char *source = at(moved.source, bases)
    for i in range(numbering.rows):
        number = numbering.number[i]
        if numbering.first[number] == i:
            memmove(target + number * size, source + i * size, size)
        elif moved.operation == TOTAL:
            add(moved.dtype, target + number * size, source + i * size, moved.width)


cdef void expand_rows(
    const Numbering *numbering, const Moved *moved, char **bases
) noexcept nogil:
    """Copy the row of each number, in place, to all rows that have it.

    With SINGLE only the first of them gets it, and the others become zero.
    """
    cdef int64_t size = moved.width * SIZES[moved.dtype], i, number
    cdef char *rows = at(moved.target, bases)
    for i in range(numbering.rows - 1, -1, -1):
        number = numbering.number[i]
        if moved.operation == SINGLE and numbering.first[number] != i:
            memset(rows + i * size, 0, size)
        elif number != i:
            memcpy(rows + i * size, rows + number * size, size)


cdef struct Origin:
    # The index by which a row was chosen, and the table.
    int64_t index, table


cdef inline uint64_t hash_of(int64_t index) noexcept nogil:
    return (<uint64_t>index * 0x9E3779B97F4A7C15ULL) >> 32


cdef int64_t number_rows(
    const Key *keys, int64_t count, char **bases, int64_t rows, int32_t *number, int32_t *first
) noexcept nogil:
    """Number rows in order of appearance, equal rows alike; return how many numbers there are.

    Fills in the number of each row, and the first row of each number.  If few rows are equal, or
    there is no memory for a hash table, all rows count as distinct.
    """
    cdef int64_t i, k, row = 0, distinct = 0
    cdef uint64_t bucket, buckets = 16
    cdef Origin origin
    cdef const char *source
    while buckets < <uint64_t>(2 * rows):
        buckets *= 2
    # Buckets hold numbers, or -1.
    cdef int32_t *table = <int32_t *>malloc(buckets * sizeof(int32_t))
    cdef Origin *origins = <Origin *>malloc(rows * sizeof(Origin))
    if table != NULL and origins != NULL:
        memset(table, -1, buckets * sizeof(int32_t))
        for i in range(count):
            origin.table = keys[i].table
            for k in range(keys[i].rows):
                bucket = buckets
                if origin.table >= 0:
                    source = at(keys[i].numbers, bases) + k * keys[i].size
                    origin.index = (<const int32_t *>source)[0]
                    if keys[i].size == 8:
                        origin.index = (<const int64_t *>source)[0]
                    bucket = hash_of(origin.index) & (buckets - 1)
                    while table[bucket] >= 0 and memcmp(
                        &origins[table[bucket]], &origin, sizeof(Origin)
                    ):
                        bucket = (bucket + 1) & (buckets - 1)
                if bucket < buckets and table[bucket] >= 0:
                    number[row] = table[bucket]
                else:
                    origins[distinct], first[distinct], number[row] = origin, row, distinct
                    if bucket < buckets:
                        table[bucket] = distinct
                    distinct += 1
                row += 1
    free(table)
    free(origins)
    if row == 0 or 4 * distinct > 3 * rows:
        for k in range(rows):
            number[k] = first[k] = k
        return rows
    return distinct


cdef const int64_t *run_distinct(SharedRecord *shared, int64_t threads) noexcept nogil:
    """Run the launch after a DISTINCT record on distinct rows; return the end of that launch."""
    cdef const DistinctRecord *record = <const DistinctRecord *>shared.code
    cdef const Key *keys = <const Key *>(record + 1)
    cdef const Moved *moved = <const Moved *>(keys + record.keys)
    cdef const int64_t *end
    cdef int64_t i
    cdef int32_t *memory = <int32_t *>at(record.numbering, shared.bases)
    cdef int32_t *first = memory + 2 + record.rows
    cdef Numbering numbering = Numbering(record.rows, memory + 2, first)
    if record.keys:
        memory[0] = number_rows(
            keys, record.keys, shared.bases, record.rows, memory + 2, first)
        memory[1] = record.rows
    for i in range(record.moved):
        if moved[i].operation <= TOTAL:
            compact_rows(&numbering, moved + i, shared.bases)
    shared.code, shared.limit = <const int64_t *>(moved + record.moved), memory[0]
    end = run_launch(shared, threads)
    shared.limit = INT64_MAX
    for i in range(record.moved):
        if moved[i].operation > TOTAL:
            expand_rows(&numbering, moved + i, shared.bases)
    return end


cdef const int64_t *run_rows(const int64_t *code, char **bases) noexcept nogil:
    """Copy, add and clear the pieces of a ROWS record; return its end."""
    cdef const RowsRecord *record = <const RowsRecord *>code
    cdef const Piece *piece = <const Piece *>(record + 1)
    cdef const Piece *end = piece + record.count
    cdef int64_t size = record.element_size
    cdef char *first = at(record.target, bases)
    cdef char *target
    while piece < end:
        target = first + piece.target * size
        if piece.operation == 0:
            memcpy(target, at(piece.source, bases), piece.count * size)
        elif piece.operation == 1:
            add(record.dtype, target, at(piece.source, bases), piece.count)
        else:
            memset(target, 0, piece.count * size)
        piece += 1
    return <const int64_t *>end


cdef const int64_t *run_sum(SharedRecord *shared, int64_t threads) noexcept nogil:
    """Run a MATRIX record, in several threads, or a ROW or SCATTER record; return its end."""
    cdef const SumRecord *record = <const SumRecord *>shared.code
    cdef const Chunk *chunks = <const Chunk *>(record + 1)
    cdef int64_t work = 0, i
    if record.record == MATRIX:
        for i in range(record.count):
            work += 2 * record.rows * record.columns * chunks[i].rows * max(record.option >> 1, 1)
        threads = max(min(threads, work // WORK_PER_THREAD), 1)
        shared.rows, shared.next = record.rows, 0
        shared.piece_rows = rows_per_piece(shared.rows, threads)
        gdb_run_in_threads(run_sum_pieces, shared, threads)
    else:
        compute_sum(record, shared.bases, shared.scratch, 0, record.rows)
    return <const int64_t *>(chunks + record.count)


cdef void compute_sum(
    const SumRecord *record, char **bases, char *scratch, int64_t low, int64_t high
) noexcept nogil:
    """Compute rows [low, high) of a MATRIX record, or all of a ROW or SCATTER record."""
    cdef const gdb_kernels *kernels = gdb_kernels_of(record.dtype)
    cdef int64_t count = record.count, i
    cdef const Chunk *chunk = <const Chunk *>(record + 1)
    cdef gdb_chunk *chunks = <gdb_chunk *>scratch
    cdef const int32_t *numbering
    cdef char *target = at(record.target, bases)
    for i in range(count):
        chunks[i] = gdb_chunk(
            chunk.rows, at(chunk.left, bases), chunk.left_pitch, at(chunk.right, bases),
            chunk.right_pitch)
        if chunk.numbering.base >= 0:
            numbering = <const int32_t *>at(chunk.numbering, bases)
            chunks[i].rows = chunk.rows // numbering[1] * numbering[0]
        chunk += 1
    if record.record == SCATTER:
        for i in range(count):
            scatter_add(
                record.dtype, target, record.rows, record.columns, &chunks[i], record.option >> 1,
                record.option & 1)
    elif record.record == ROW:
        kernels.bias_gradient(record.columns, chunks, count, target)
    else:
        kernels.weight_gradient(
            record.rows, record.columns, low, high, chunks, count, target, record.columns,
            record.option & 1, record.option >> 1,
            scratch + round_to_lines(count * sizeof(gdb_chunk)))


cdef const int64_t *run_pack(const int64_t *code, char **bases) noexcept nogil:
    cdef const PackRecord *record = <const PackRecord *>code
    gdb_kernels_of(record.dtype).pack(
        at(record.source, bases), record.row_stride, record.column_stride, record.rows,
        record.columns, at(record.target, bases))
    return <const int64_t *>(record + 1)
