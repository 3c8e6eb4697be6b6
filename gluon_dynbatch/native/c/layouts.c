/* Where the members of steps and of records are, for whoever writes them as words: see
 * `gdb_layouts`. */
#include <stddef.h>

#include "records.h"
#include "steps.h"

#define M(name, member) \
    {#name, #member, offsetof(gdb_##name, member) / 8, sizeof(((gdb_##name *)0)->member) / 8}

const gdb_layout gdb_layouts[] = {
    M(step, kind), M(step, words), M(step, dtype),
    M(product, left), M(product, matrix), M(product, result), M(product, bias),
    M(product, table_rows), M(product, inputs), M(product, units), M(product, parts),
    M(product, accumulate), M(product, matrix_is), M(product, transposed), M(product, mode),
    M(dots, left), M(dots, right), M(dots, result), M(dots, matrices), M(dots, m), M(dots, k),
    M(dots, n), M(dots, transpose_left), M(dots, transpose_right), M(dots, gradient),
    M(convolved, left), M(convolved, right), M(convolved, result), M(convolved, bias),
    M(convolved, added), M(convolved, function), M(convolved, passes_on),
    M(convolved, kept),
    M(convolved, maps.of), M(convolved, maps.images), M(convolved, maps.groups),
    M(convolved, maps.channels), M(convolved, maps.filters), M(convolved, maps.data),
    M(convolved, maps.result), M(convolved, maps.kernel), M(convolved, maps.stride),
    M(convolved, maps.dilate), M(convolved, maps.pad),
    M(indexed, source), M(indexed, index), M(indexed, result), M(indexed, operation),
    M(indexed, mode), M(indexed, outer), M(indexed, number), M(indexed, inner), M(indexed, each),
    M(indexed, lenient), M(indexed, axes),
    M(ranked, source), M(ranked, result), M(ranked, order), M(ranked, outer), M(ranked, count),
    M(ranked, inner), M(ranked, number),
    M(loop, width), M(loop, parts), M(loop, registers), M(loop, n_loads), M(loop, n_stores),
    M(loop, n_instructions),
    M(access, reg), M(access, place), M(access, mode), M(access, order), M(access, step),
    M(access, value),
    M(instruction, code), M(instruction, target), M(instruction, a), M(instruction, b),
    M(instruction, c), M(instruction, value), M(instruction, value2),
    M(spot, base), M(spot, offset),
    M(launch_record, record), M(launch_record, count),
    M(rows_record, record), M(rows_record, dtype), M(rows_record, element_size),
    M(rows_record, count), M(rows_record, target), M(rows_record, in_order),
    M(rows_record, elements), M(rows_record, end),
    M(piece, operation), M(piece, target), M(piece, source), M(piece, count),
    M(pack_record, record), M(pack_record, dtype), M(pack_record, source),
    M(pack_record, row_stride), M(pack_record, column_stride), M(pack_record, rows),
    M(pack_record, columns), M(pack_record, target),
    M(distinct_record, record), M(distinct_record, numbering), M(distinct_record, rows),
    M(distinct_record, keys), M(distinct_record, moved),
    M(key, table), M(key, numbers), M(key, rows), M(key, size),
    M(moved, operation), M(moved, dtype), M(moved, width), M(moved, target), M(moved, source),
    M(moved, table_rows), M(moved, index_dtype),
    M(sum_record, record), M(sum_record, dtype), M(sum_record, rows), M(sum_record, columns),
    M(sum_record, target), M(sum_record, option), M(sum_record, count),
    M(sum_chunk, rows), M(sum_chunk, numbering), M(sum_chunk, left), M(sum_chunk, left_pitch),
    M(sum_chunk, right), M(sum_chunk, right_pitch),
    {0},
};
