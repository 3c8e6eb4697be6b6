/* Convolutions by tiles, for one type and one instruction set: of one link, or of several, each of which
 * convolves the result of the one before.
 *
 * Rows run one after another, through all links, and what is between two links stays in the cache: a
 * result is written as a vector of maps for each position, which is how the next link reads it. Only the
 * last result is transposed.
 */
#ifndef GDB_CHAINS_H
#define GDB_CHAINS_H

enum {
    GDB_CHAIN_BYTES = 1 << 19 /* of all links of a chain, which stay in the L2 cache */
};

#endif

/* A link at work. Arrays are parts of scratch: its planes, and the transformed kernels of all groups. A
 * plain value. */
typedef struct {
    gdb_geometry geometry;
    gdb_tiling tiling;
    T *planes, *factors;
    F(target) target;
} F(link);

static int64_t F(plane_elements)(const gdb_tiling *t) { return t->vectors * t->plane; }

/* Return the elements of the result of a group, a vector of maps for each position. */
static int64_t F(result_elements)(const gdb_geometry *g) {
    return F(packed_elements)(gdb_area(g->positions), g->out_maps);
}

/* Return the bytes of the planes and transformed kernels of a link. */
static int64_t F(link_scratch)(const gdb_maps *m, const gdb_geometry *g) {
    const gdb_tiling t = F(tiling_of)(g, g->positions, GDB_GROUP_BYTES);
    return (F(plane_elements)(&t) + m->groups * F(transformed_elements)(g)) * (int64_t)sizeof(T);
}

/* Return the bytes of a group of transformed tiles, which links share. */
static int64_t F(group_scratch)(const gdb_geometry *g) {
    const gdb_tiling t = F(tiling_of)(g, g->positions, GDB_GROUP_BYTES);
    return t.vectors * t.group * (int64_t)sizeof(T);
}

/* Return whether the first of some convolutions reads the result of the one before maps by maps, if
 * there is one, and is computed as a link. */
static int F(is_link)(const gdb_link *links, int64_t i) {
    const gdb_maps *m = links[i].maps, *before = links[i ? i - 1 : 0].maps;
    const gdb_geometry g = gdb_geometry_of(m);
    if (m->of != GDB_OF_RESULT || m->groups != 1 || !F(is_tiled)(m, &g)) return 0;
    return !i || (m->images == before->images && m->channels == before->filters
                  && m->data[0] == before->result[0] && m->data[1] == before->result[1]);
}

static int64_t F(chain_length)(const gdb_link *links, int64_t count) {
    int64_t length = 0;
    for (int64_t bytes = 0; length < count && F(is_link)(links, length); length++) {
        const gdb_geometry g = gdb_geometry_of(links[length].maps);
        bytes += F(link_scratch)(links[length].maps, &g);
        if (bytes > GDB_CHAIN_BYTES) break;
    }
    return length ? length : 1;
}

/* Return the bytes of scratch of a chain: links, a group of transformed tiles, and the last result. */
static int64_t F(chain_scratch)(const gdb_link *links, int64_t count) {
    int64_t bytes = 0, most = 0;
    for (int64_t i = 0; i < count; i++) {
        const gdb_geometry g = gdb_geometry_of(links[i].maps);
        const int64_t group = F(group_scratch)(&g);
        bytes += F(link_scratch)(links[i].maps, &g);
        most = most < group ? group : most;
        if (i == count - 1) bytes += F(result_elements)(&g) * (int64_t)sizeof(T);
    }
    return bytes + most;
}

/* Fill in links; return the rest of scratch, which they share. Planes are zero unless they are used
 * `again`. */
static T *F(begin_links)(const gdb_link *links, int64_t count, F(link) *at, T *scratch, int again) {
    for (int64_t i = 0; i < count; i++) {
        const gdb_maps *m = links[i].maps;
        F(link) *l = at + i;
        l->geometry = gdb_geometry_of(m);
        l->tiling = F(tiling_of)(&l->geometry, l->geometry.positions, GDB_GROUP_BYTES);
        const int64_t elements = F(plane_elements)(&l->tiling);
        l->planes = scratch, l->factors = scratch + elements;
        if (!again) memset(scratch, 0, elements * sizeof(T));
        scratch = l->factors + m->groups * F(transformed_elements)(&l->geometry);
        if (i) {
            const gdb_geometry *g = &l->geometry;
            T *to = l->planes + g->origin[0] * l->tiling.line + g->origin[1] * LANES;
            at[i - 1].target = (F(target)){to, l->tiling.line, l->tiling.plane};
            F(set_cutoff)(&at[i - 1].target.cutoff, links[i - 1].ending.function);
        }
    }
    return scratch;
}

/* Let the last link write its result to `to`. */
static void F(end_links)(F(link) *last, T *to) {
    const int64_t line = last->geometry.positions[1] * LANES;
    last->target = (F(target)){to, line, last->geometry.positions[0] * line};
    F(set_cutoff)(&last->target.cutoff, GDB_AS_IT_IS);
}

/* Let a link fetch an array of so many elements into the L2 cache, line by line. */
static void F(fetch_ahead)(F(link) *l, const T *array, int64_t elements) {
    const int64_t lines = l->tiling.tiles[0], bytes = elements * (int64_t)sizeof(T);
    l->target.ahead = (const char *)array;
    l->target.ahead_bytes = (bytes + lines - 1) / lines;
}

/* Transform the kernels of all groups of a link. */
static void F(transform_link)(const gdb_link *link, const F(link) *l, int64_t row) {
    const gdb_maps *m = link->maps;
    const T *right = (const T *)link->right + row * link->right_row, *bias = link->bias;
    const int64_t size = m->filters * m->channels * 9, packed = F(transformed_elements)(&l->geometry);
    for (int64_t j = 0; j < m->groups; j++)
        F(transform_factor)(&l->geometry, m->of == GDB_OF_DATA, right + j * size,
                            bias ? bias + j * m->filters : NULL, l->factors + j * packed);
}

/* Compute results, or gradients of the data, of all rows. */
static void F(convolve_by_tiles)(const gdb_link *links, int64_t count, int64_t rows, const T *a,
                                 int64_t a_row, T *c, int64_t c_row, T *scratch, int again) {
    F(link) at[GDB_MOST_LINKS], *last = at + count - 1;
    T *transformed = F(begin_links)(links, count, at, scratch, again);
    const gdb_ending ending = links[count - 1].ending;
    const gdb_geometry *g = &at->geometry, *end = &last->geometry;
    const int64_t in_size = g->in_maps * gdb_area(g->in_size), size = gdb_area(end->positions);
    const int64_t out_size = end->out_maps * size, groups = links->maps->groups;
    const int64_t images = links->maps->images * groups;
    T *result = transformed;
    for (int64_t i = 0; i < count; i++) {
        T *after = transformed + at[i].tiling.vectors * at[i].tiling.group;
        result = after > result ? after : result;
    }
    F(end_links)(last, result);
    for (int64_t row = 0; row < rows; row++, a += a_row, c += c_row) {
        for (int64_t i = 0; i < count; i++)
            if ((!row && !again) || links[i].right_row) F(transform_link)(links + i, at + i, row);
        for (int64_t image = 0; image < images; image++) {
            const int ends_row = image == images - 1, ends = ends_row && row == rows - 1;
            F(fetch_ahead)(last, c + image * out_size, out_size);
            F(fetch_ahead)(at, ends_row ? a + a_row : a + (image + 1) * in_size, ends ? 0 : in_size);
            F(copy_to_vectors)(g, &at->tiling, a + image * in_size, at->planes);
            for (F(link) *l = at; l <= last; l++)
                F(convolve_tiles)(&l->geometry, &l->tiling, l->planes,
                                  l->factors + image % groups * F(transformed_elements)(&l->geometry),
                                  transformed, &l->target);
            F(write_maps)(ending.function, end->out_maps, size, result,
                          F(added_to)(ending, row, image * out_size), c + image * out_size);
        }
    }
}
