#include "phases.h"

#include <stdlib.h>
#include <string.h>

#include "sizes.h"

enum {
    MOST_WRITTEN = 32,       /* stretches of a base that a group writes */
    GAP = 64,                /* bytes between two stretches that count as one */
    ENOUGH_WORK = 100000000, /* of a stage that all threads share well by itself */
    LEVELS = GDB_LEVEL_OF_SUMS + 1
};

/* ------------------------------------------------------------------ stages */

/* Bytes [low, high) of a base, which a record of some level reads or writes. A plain value. */
typedef struct {
    int64_t base, low, high;
    int64_t is_written, level;
} range;

/* The stage at hand. Owned by `gdb_inspect`, with its arrays, which stages use one after another. */
typedef struct {
    const int64_t *code;
    range *ranges;
    int64_t ranges_count, ranges_space;
    gdb_placed *records;
    int64_t records_count, records_space;
    int is_alone; /* whether it is a group by itself */
    int no_memory;
} stage;

static inline int overlap(const range *a, const range *b) {
    return a->base == b->base && a->low < b->high && b->low < a->high;
}

/* Return whether there is room for another element, which the caller adds. */
static int make_room(void **elements, int64_t *space, int64_t count, size_t size) {
    if (count == *space) {
        const int64_t more = larger(64, 2 * count);
        void *memory = realloc(*elements, more * size);
        if (!memory) return 0;
        *elements = memory, *space = more;
    }
    return 1;
}

static void add_range(stage *s, gdb_spot spot, int64_t bytes, int is_written) {
    range *last = s->ranges_count ? s->ranges + s->ranges_count - 1 : NULL;
    if (spot.base < 0 || bytes <= 0) return;
    if (last && last->base == spot.base && last->high == spot.offset
        && last->is_written == is_written && last->level < 0) {
        last->high += bytes;
    } else if (make_room((void **)&s->ranges, &s->ranges_space, s->ranges_count,
                         sizeof *s->ranges)) {
        s->ranges[s->ranges_count++] =
            (range){spot.base, spot.offset, spot.offset + bytes, is_written, -1};
    } else {
        s->no_memory = 1;
    }
}

/* Add what pieces read: of each base, the span from the first byte to the last. */
static void add_sources(stage *s, const gdb_rows_record *rows) {
    const gdb_piece *piece = (const gdb_piece *)(rows + 1), *end = piece + rows->count;
    const int64_t first = s->ranges_count, size = rows->element_size;
    for (; piece < end; piece++) {
        range *r = s->ranges + first, *last = s->ranges + s->ranges_count;
        if (piece->operation == GDB_ZERO) continue;
        while (r < last && r->base != piece->source.base) r++;
        if (r == last) {
            add_range(s, piece->source, piece->count * size, 0);
        } else {
            r->low = smaller(r->low, piece->source.offset);
            r->high = larger(r->high, piece->source.offset + piece->count * size);
        }
    }
}

static void add_ranges_of_launch(stage *s, const int64_t *code) {
    const int64_t *part = code + 2;
    for (int64_t i = 0; i < code[1]; i++, part = gdb_next_part(part)) {
        const gdb_kernel *kernel = gdb_kernel_of(part);
        const gdb_spot *spots = (const gdb_spot *)(part + 2);
        for (int64_t k = 0; k < kernel->slots_count; k++) {
            const gdb_slot *slot = &kernel->slots[k];
            const int64_t row = slot->array.pitch * gdb_size_of(slot->array.dtype);
            add_range(s, spots[k], row ? part[1] * row : slot->bytes, slot->is_written);
        }
    }
}

static void add_ranges_of_sum(stage *s, const gdb_sum_record *record) {
    const gdb_sum_chunk *chunk = (const gdb_sum_chunk *)(record + 1);
    const int64_t size = gdb_size_of(record->dtype), matrices = larger(record->option >> 1, 1);
    const int64_t row = larger(record->rows, record->columns) * matrices * size;
    const int64_t right_size = record->record == GDB_SCATTER ? 8 : size; /* at most */
    add_range(s, record->target, record->rows * record->columns * size, 1);
    for (int64_t i = 0; i < record->count; i++, chunk++) {
        add_range(s, chunk->left, chunk->rows * chunk->left_pitch * size + row, 0);
        add_range(s, chunk->right, chunk->rows * chunk->right_pitch * right_size + row, 0);
    }
}

/* Add what a record reads and writes, its own numbers of bytes. */
static void add_ranges(stage *s, const int64_t *code) {
    const gdb_rows_record *rows = (const gdb_rows_record *)code;
    const gdb_pack_record *pack = (const gdb_pack_record *)code;
    int64_t size;
    switch (code[0]) {
    case GDB_LAUNCH: add_ranges_of_launch(s, code); break;
    case GDB_ROWS:
        add_range(s, rows->target, rows->end * rows->element_size, 1);
        add_sources(s, rows);
        break;
    case GDB_PACK:
        size = gdb_size_of(pack->dtype);
        add_range(s, pack->target, size * gdb_kernels_of(pack->dtype)->packed_elements(
                                              pack->rows, pack->columns), 1);
        add_range(s, pack->source, size * ((pack->rows - 1) * pack->row_stride
                                           + (pack->columns - 1) * pack->column_stride + 1), 0);
        break;
    default: add_ranges_of_sum(s, (const gdb_sum_record *)code);
    }
}

/* Return the level of a copy or packed matrix, whose ranges are those from `first` on: the first
 * after all on which it depends. */
static int64_t level_of(const stage *s, int64_t first) {
    int64_t level = 0;
    for (const range *own = s->ranges + first; own < s->ranges + s->ranges_count; own++)
        for (const range *other = s->ranges; other < s->ranges + first; other++)
            if ((own->is_written || other->is_written) && overlap(own, other))
                level = larger(level, other->level + 1);
    return level;
}

/* Add a record to the stage. */
static void add_record(stage *s, const int64_t *code) {
    const int64_t first = s->ranges_count;
    const int is_copy = code[0] == GDB_ROWS || code[0] == GDB_PACK;
    int64_t level = code[0] == GDB_LAUNCH ? GDB_LEVEL_OF_LAUNCHES : GDB_LEVEL_OF_SUMS;
    if (!make_room((void **)&s->records, &s->records_space, s->records_count, sizeof *s->records)) {
        s->no_memory = 1;
        return;
    }
    add_ranges(s, code);
    if (is_copy) level = level_of(s, first);
    s->is_alone |= is_copy && level >= GDB_LEVEL_OF_LAUNCHES;
    for (int64_t i = first; i < s->ranges_count; i++) s->ranges[i].level = level;
    s->records[s->records_count++] =
        (gdb_placed){code - s->code, level, gdb_work_of_record(code)};
}

/* Fill in what running a ROWS record depends on. */
static void inspect_pieces(gdb_rows_record *record) {
    const gdb_piece *piece = (const gdb_piece *)(record + 1), *last = piece + record->count;
    record->in_order = 1, record->elements = record->end = 0;
    for (; piece < last; piece++) {
        record->in_order &= piece->target >= record->end;
        record->elements += piece->count;
        record->end = larger(record->end, piece->target + piece->count);
    }
}

/* Find the stage at `code`; return its end. */
static int64_t *find_stage(stage *s, int64_t *code, const int64_t *end) {
    int64_t *at = code, work = 0;
    int is_last = 0;
    s->code = code;
    s->ranges_count = s->records_count = s->is_alone = 0;
    while (at < end && !is_last) {
        if (at[0] == GDB_ROWS) inspect_pieces((gdb_rows_record *)at);
        is_last = at[0] != GDB_ROWS && at[0] != GDB_PACK && at[0] != GDB_DISTINCT;
        s->is_alone |= at[0] == GDB_DISTINCT;
        work += gdb_work_of_record(at);
        at += gdb_next_record(at) - at;
    }
    s->is_alone |= work > ENOUGH_WORK;
    for (const int64_t *record = code; record < at && !s->is_alone && !s->no_memory;
         record = gdb_next_record(record))
        add_record(s, record);
    return at;
}

/* ------------------------------------------------------------------ groups */

/* Bytes [low, high) that a group writes, and the number of another stretch of the same base, or -1.
 * A plain value. */
typedef struct {
    int64_t low, high, next;
} stretch;

/* What a group reads of a base, bytes [low, high) at most; and the number of a stretch that it
 * writes. The numbers of the last groups that read and write the base tell whether it does. A
 * plain value. */
typedef struct {
    int64_t read_by, written_by, low, high, written;
} use;

/* The groups so far; the last one may still grow. Owned by `gdb_inspect`, which gives `found` away and
 * frees the other arrays. */
typedef struct {
    struct gdb_groups *found;
    int64_t groups_space, records_space, records_count;
    int64_t number; /* of the last group, counting from 1 */
    int64_t stages;
    use *uses;
    int64_t uses_count;
    stretch *written; /* by the last group */
    int64_t written_space, written_count;
} search;

/* Return the number of the first stretch of a base that the last group writes, or -1. */
static inline int64_t first_written(const search *f, int64_t base) {
    return f->uses[base].written_by == f->number ? f->uses[base].written : -1;
}

/* Return whether there are uses of all bases of a stage. */
static int make_uses(search *f, const stage *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->ranges_count; i++) count = larger(count, s->ranges[i].base + 1);
    if (count > f->uses_count) {
        count *= 2;
        use *memory = realloc(f->uses, count * sizeof *memory);
        if (!memory) return 0;
        memset(memory + f->uses_count, 0, (count - f->uses_count) * sizeof *memory);
        f->uses = memory, f->uses_count = count;
    }
    return 1;
}

/* Return whether a group writes what a stage reads or writes, or reads what that writes. */
static int conflicts(const search *f, const stage *s) {
    for (const range *own = s->ranges; own < s->ranges + s->ranges_count; own++) {
        const use *u = &f->uses[own->base];
        if (own->is_written && u->read_by == f->number && u->low < own->high && own->low < u->high)
            return 1;
        for (int64_t i = first_written(f, own->base); i >= 0; i = f->written[i].next)
            if (own->low < f->written[i].high && f->written[i].low < own->high) return 1;
    }
    return 0;
}

/* Note that the last group writes a stretch; return whether there was room. */
static int note_written(search *f, const range *own) {
    use *u = &f->uses[own->base];
    const int64_t first = first_written(f, own->base);
    int64_t count = 0;
    for (int64_t i = first; i >= 0; i = f->written[i].next, count++) {
        stretch *w = &f->written[i];
        if (own->low > w->high + GAP || w->low > own->high + GAP) continue;
        w->low = smaller(w->low, own->low), w->high = larger(w->high, own->high);
        return 1;
    }
    if (count == MOST_WRITTEN
        || !make_room((void **)&f->written, &f->written_space, f->written_count, sizeof(stretch)))
        return 0;
    f->written[f->written_count] = (stretch){own->low, own->high, first};
    u->written = f->written_count++, u->written_by = f->number;
    return 1;
}

/* Note what a stage reads and writes; return whether there was room. */
static int note(search *f, const stage *s) {
    for (const range *own = s->ranges; own < s->ranges + s->ranges_count; own++) {
        use *u = &f->uses[own->base];
        const int is_new = u->read_by != f->number;
        if (own->is_written) {
            if (!note_written(f, own)) return 0;
            continue;
        }
        u->low = is_new ? own->low : smaller(u->low, own->low);
        u->high = is_new ? own->high : larger(u->high, own->high);
        u->read_by = f->number;
    }
    return 1;
}

/* Put records in the order of their levels; return 0 if there is no memory. */
static int sort_records(gdb_placed *records, int64_t count) {
    int64_t next[LEVELS + 1] = {0};
    gdb_placed *copy = malloc(count * sizeof *copy);
    if (!copy) return 0;
    memcpy(copy, records, count * sizeof *copy);
    for (int64_t i = 0; i < count; i++) next[copy[i].level + 1]++;
    for (int level = 0; level < LEVELS; level++) next[level + 1] += next[level];
    for (int64_t i = 0; i < count; i++) records[next[copy[i].level]++] = copy[i];
    free(copy);
    return 1;
}

/* End the last group: put its records in order, or forget it if it has one stage. Return 0 if there
 * is no memory. */
static int end_group(search *f) {
    struct gdb_groups *found = f->found;
    const int64_t stages = f->stages;
    f->stages = 0;
    if (!stages) return 1;
    const gdb_group *last = &found->groups[found->count - 1];
    if (stages > 1) return sort_records(found->records + last->first, last->stop - last->first);
    f->records_count = last->first;
    found->count--;
    return 1;
}

/* Let a stage join the last group, or begin another one; return 0 if there is no memory. */
static int join(search *f, const stage *s, const int64_t *code, const int64_t *end) {
    struct gdb_groups *found = f->found;
    if (!make_uses(f, s)) return 0;
    if (f->stages && (s->is_alone || conflicts(f, s)) && !end_group(f)) return 0;
    if (s->is_alone) return 1;
    if (!f->stages) {
        if (!make_room((void **)&found->groups, &f->groups_space, found->count,
                       sizeof *found->groups))
            return 0;
        found->groups[found->count++] =
            (gdb_group){s->code - code, s->code - code, f->records_count, f->records_count, 0};
        f->number++, f->written_count = 0;
    }
    gdb_group *group = &found->groups[found->count - 1];
    for (int64_t i = 0; i < s->records_count; i++) {
        if (!make_room((void **)&found->records, &f->records_space, f->records_count,
                       sizeof *found->records))
            return 0;
        gdb_placed *record = &found->records[f->records_count++];
        *record = s->records[i];
        record->at += s->code - code;
        group->work += record->work;
    }
    group->end = end - code, group->stop = f->records_count;
    f->stages++;
    return note(f, s) || end_group(f);
}

struct gdb_groups *gdb_inspect(int64_t *code, int64_t length) {
    search f = {.found = calloc(1, sizeof *f.found)};
    stage s = {0};
    int64_t *at = code;
    int is_complete = f.found != NULL;
    while (is_complete && at < code + length) {
        at = find_stage(&s, at, code + length);
        is_complete = !s.no_memory && join(&f, &s, code, at);
    }
    is_complete = is_complete && end_group(&f);
    free(s.ranges);
    free(s.records);
    free(f.uses);
    free(f.written);
    if (is_complete) return f.found;
    gdb_release_groups(f.found);
    return NULL;
}

void gdb_release_groups(struct gdb_groups *groups) {
    if (!groups) return;
    free(groups->groups);
    free(groups->records);
    free(groups);
}
