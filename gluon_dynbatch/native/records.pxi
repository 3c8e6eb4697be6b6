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
            size, rows = min(split.piece, kernel.block), min(part[1], split.most)
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
        split.rows += min(part[1], split.most)
        work += min(part[1], split.most) * (<Kernel_ *><uintptr_t>part[0]).work
        part = behind(part)
    threads = max(min(threads, work // WORTH), 1)
    split.piece = max(even(split.rows, threads), 1)
    gdb_together(run_parts, split, threads)
    return part


cdef enum:
    #: Numbers before those of rows: how many are different, and of how many.
    KEPT_HEAD = 2
    #: Numbers per array of a DISTINCT record, and per chunk of a sum.
    ARRAY = 7
    CHUNK = 9


cdef struct Equal:
    # The number of each row, equal ones alike, and the first row of each number.
    int64_t rows
    const int32_t *number
    const int32_t *first


cdef void gather(const Equal *equal, const int64_t *array, char **bases) noexcept nogil:
    """Put the first, or the totals, of equal rows side by side, maybe where they are."""
    cdef int64_t size = array[2] * SIZES[array[1]], i, number
    cdef char *target = bases[array[3]] + array[4]
    cdef const char *source = bases[array[5]] + array[6]
    for i in range(equal.rows):
        number = equal.number[i]
        if equal.first[number] == i:
            memmove(target + number * size, source + i * size, size)
        elif array[0] == DO_TOTAL:
            add_row(array[1], target + number * size, source + i * size, array[2])


cdef void spread(const Equal *equal, const int64_t *array, char **bases) noexcept nogil:
    """Put rows that stand side by side where all that are equal belong; or where the first does,
    and zeros where the others do."""
    cdef int64_t size = array[2] * SIZES[array[1]], i, number
    cdef char *rows = bases[array[3]] + array[4]
    for i in range(equal.rows - 1, -1, -1):
        number = equal.number[i]
        if array[0] == DO_SINGLE and equal.first[number] != i:
            memset(rows + i * size, 0, size)
        elif number != i:
            memcpy(rows + i * size, rows + number * size, size)


cdef struct Key:
    int64_t value, table


cdef int64_t tell_apart(
    const int64_t *pieces, int64_t count, char **bases, int64_t rows, int32_t *number,
    int32_t *first,
) noexcept nogil:
    """Number the keys of rows as they come, equal ones alike; return how many there are.

    Pieces are as in `run_distinct`.  Filled in are the number of each row, and the first row of
    each number.  Without memory, or if few are equal, all rows count as different.
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
    if row == 0 or 4 * distinct > 3 * rows:
        for k in range(rows):
            number[k] = first[k] = k
        return rows
    return distinct


cdef const int64_t *run_distinct(Split *split, int64_t threads) noexcept nogil:
    """DISTINCT, where it is kept which rows are equal (base, offset), rows, pieces, arrays; then per
    piece: the table from which rows were chosen, -1 if they were not, where the numbers are by which
    they were (base, offset), rows, bytes of a number; then per array: what is done with its rows,
    their type, elements of one, where the launch has them and where they come from (base, offset).

    A LAUNCH of one part follows, which runs on as many rows as are different.  If equal numbers
    chose rows from one table, they are equal, and so is what is computed of them; unless they are
    few.  Without pieces, it is known which are.
    """
    cdef const int64_t *code = split.code
    cdef const int64_t *array = code + 6 + 5 * code[4]
    cdef int64_t rows = code[3], count = code[5], i
    cdef int32_t *kept = <int32_t *>(split.bases[code[1]] + code[2])
    cdef int32_t *number = kept + KEPT_HEAD
    cdef int32_t *first = number + rows
    cdef Equal equal = Equal(rows, number, first)
    if code[4]:
        kept[0] = tell_apart(code + 6, code[4], split.bases, rows, number, first)
        kept[1] = rows
    for i in range(count):
        if array[ARRAY * i] <= DO_TOTAL:
            gather(&equal, array + ARRAY * i, split.bases)
    split.code, split.most = array + ARRAY * count, kept[0]
    code = run_launch(split, threads)
    split.most = INT64_MAX
    for i in range(count):
        if array[ARRAY * i] > DO_TOTAL:
            spread(&equal, array + ARRAY * i, split.bases)
    return code


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
    the second of two rows is the gradient, plus twice the columns of matrices if rows are matrices
    whose columns are multiplied (of CHOSEN the type of places), chunks, then per chunk:
    rows, which of them are equal as kept by DISTINCT (base, offset), base -1 if that is not known,
    and gradient and rows, each a base, an offset in bytes and elements per row."""
    cdef const int64_t *code = split.code
    cdef int64_t work = 0, i
    split.rows, split.piece, split.next = code[2], code[2], 0
    if code[0] == DO_MATRIX:
        for i in range(code[7]):
            work += 2 * code[2] * code[3] * code[8 + CHUNK * i] * max(code[6] >> 1, 1)
        threads = max(min(threads, work // WORTH), 1)
        split.piece = even(split.rows, threads)
        gdb_together(run_pieces, split, threads)
    else:
        add_up(code, split.bases, split.scratch, 0, code[2])
    return code + 8 + CHUNK * code[7]


cdef void add_up(
    const int64_t *code, char **bases, char *scratch, int64_t low, int64_t high
) noexcept nogil:
    """Compute some rows of the sum of a MATRIX record, or that of another record."""
    cdef const gdb_kernels *kernels = gdb_kernels_of(code[1])
    cdef int64_t count = code[7], i
    cdef const int64_t *own = code + 8
    cdef gdb_chunk *chunks = <gdb_chunk *>scratch
    cdef const int32_t *kept
    cdef char *target = bases[code[4]] + code[5]
    for i in range(count):
        chunks[i] = gdb_chunk(
            own[0], bases[own[3]] + own[4], own[5], bases[own[6]] + own[7], own[8])
        if own[1] >= 0:
            kept = <const int32_t *>(bases[own[1]] + own[2])
            chunks[i].rows = own[0] // kept[1] * kept[0]
        own += CHUNK
    if code[0] == DO_CHOSEN:
        for i in range(count):
            add_to_chosen(code[1], target, code[2], code[3], &chunks[i], code[6])
    elif code[0] == DO_ROW:
        kernels.bias_gradient(code[3], chunks, count, target)
    else:
        kernels.weight_gradient(
            code[2], code[3], low, high, chunks, count, target, code[3], code[6] & 1, code[6] >> 1,
            scratch + lines(count * sizeof(gdb_chunk)))


cdef void run_pack(const int64_t *code, char **bases) noexcept nogil:
    """PACK, type, source (base, offset, strides), rows, columns, target (base, offset)."""
    gdb_kernels_of(code[1]).pack(
        bases[code[2]] + code[3], code[4], code[5], code[6], code[7], bases[code[8]] + code[9])
