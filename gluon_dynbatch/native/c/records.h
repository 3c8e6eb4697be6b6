/* The records of programs: `assembling.pyx` writes them, and `records.c` runs them.
 *
 * A program is an array of integers, one record after another, each a struct of 8-byte members. It
 * refers to each array by its *base*, the index of its address; whoever runs the program passes the
 * addresses. All structs below are plain values in that array, which is owned by `NativeProgram`
 * (`executing.pyx`) and never changes after `gdb_inspect`.
 */
#ifndef GDB_RECORDS_H
#define GDB_RECORDS_H

#include <stdint.h>

#include "team.h"

/* The kind of a record, its first member. */
enum { GDB_LAUNCH, GDB_ROWS, GDB_PACK, GDB_MATRIX, GDB_ROW_SUM, GDB_SCATTER, GDB_DISTINCT };

/* What DISTINCT does with equal rows. Before the launch, PICK compacts an array to the first of equal
 * rows, LOOK_UP gets these rows from the table that they were chosen from, and TOTAL compacts an array
 * to the sums of equal rows. After it, REPEAT copies each computed row to all rows that are equal, and
 * SINGLE to the first of them, with zeros for the others. */
enum { GDB_PICK, GDB_LOOK_UP, GDB_TOTAL, GDB_REPEAT, GDB_SINGLE };

/* A base, or -1 for none, and an offset in bytes. */
typedef struct {
    int64_t base, offset;
} gdb_spot;

/* LAUNCH: `count` parts follow, each the address of a kernel, a number of rows, and a spot per slot,
 * with base -1 if the slot is in scratch. */
typedef struct {
    int64_t record, count;
} gdb_launch_record;

/* ROWS: `count` pieces follow. The last members are filled in by `gdb_inspect`: whether each piece
 * begins where the ones before it end, or later; the elements of all pieces; and where the last one
 * ends. */
typedef struct {
    int64_t record, dtype, element_size, count;
    gdb_spot target;
    int64_t in_order, elements, end;
} gdb_rows_record;

enum { GDB_COPY, GDB_ADD, GDB_ZERO };

/* What to do (GDB_COPY, GDB_ADD, GDB_ZERO), the first element of the target, the source, and the
 * number of elements. */
typedef struct {
    int64_t operation, target;
    gdb_spot source;
    int64_t count;
} gdb_piece;

/* PACK */
typedef struct {
    int64_t record, dtype;
    gdb_spot source;
    int64_t row_stride, column_stride, rows, columns;
    gdb_spot target;
} gdb_pack_record;

/* DISTINCT: `keys` keys follow, `moved` arrays, and a LAUNCH of one part, which runs on distinct
 * rows only. Rows are equal if equal indices chose them from one table; then so are their results.
 * If few rows are equal, all count as distinct. The numbering of the rows is written to a spot, or
 * read from there if there are no keys. In memory, as int32: how many distinct rows there are, the
 * number of rows, then per row its number (equal rows have one number), and per number its first
 * row. */
typedef struct {
    int64_t record;
    gdb_spot numbering;
    int64_t rows, keys, moved;
} gdb_distinct_record;

/* The origin of some rows: the number of the table from which they were chosen and of the type of
 * indices, or -1, and their indices, of `size` bytes each. */
typedef struct {
    int64_t table;
    gdb_spot numbers;
    int64_t rows, size;
} gdb_key;

/* An array of the launch, where it comes from, and what DISTINCT does with its rows. For LOOK_UP, the
 * source is the table, of so many rows, in which the keys have indices of one type. Those that do not
 * fit are clipped. */
typedef struct {
    int64_t operation, dtype, width;
    gdb_spot target, source;
    int64_t table_rows, index_dtype;
} gdb_moved;

/* MATRIX, ROW and SCATTER: `count` chunks follow. MATRIX adds left^T right to a matrix, ROW the rows
 * of left to a vector, SCATTER each row of left to the row of a matrix that an index in right
 * chooses. For SCATTER, `option` is the type of the indices times GDB_INDEX_MODES, plus their mode.
 * For MATRIX it is 1 if the gradient is right instead of left, plus twice the number of columns if rows are
 * matrices whose columns are multiplied. */
typedef struct {
    int64_t record, dtype, rows, columns;
    gdb_spot target;
    int64_t option, count;
} gdb_sum_record;

/* Rows to add up, the numbering of DISTINCT for them (base -1: none), and both arrays. A pitch is the
 * number of elements between rows. */
typedef struct {
    int64_t rows;
    gdb_spot numbering, left;
    int64_t left_pitch;
    gdb_spot right;
    int64_t right_pitch;
} gdb_sum_chunk;

/* Return the end of a record; that of DISTINCT is before its launch. */
const int64_t *gdb_next_record(const int64_t *code);

/* Return the operations of a record, roughly. */
int64_t gdb_work_of_record(const int64_t *code);

/* Return the bytes of scratch of a sum, in the thread that runs the program. */
int64_t gdb_sum_scratch(int64_t dtype, int64_t rows, int64_t columns, int64_t chunks);

/* Complete the records of a new program: fill in what running them depends on. Return which of them
 * may run at the same time, which `gdb_release_groups` frees, or NULL if there is no memory. */
struct gdb_groups *gdb_inspect(int64_t *code, int64_t length);
void gdb_release_groups(struct gdb_groups *groups);

/* Run the records at [low, high) of the code of a program, each shared with the crew: those of a
 * group at the same time, or all one after another if there are no groups. */
void gdb_run_records(const int64_t *code, int64_t low, int64_t high,
                     const struct gdb_groups *groups, char **bases, gdb_crew *crew);

#endif
