/* Convolutions of maps for one type and one instruction set.
 *
 * Maps are copied to planes with zeros around them, or between. There, what an element of the kernel
 * is multiplied with is at a distance that a table has, whatever the place. Vectors are of maps that
 * are made: a tile is some places of some lines, or of some vectors of maps. The gradient of the kernel
 * is the same, with its elements for places, and the gradient of the result for a kernel.
 */
#ifndef GDB_CONVOLUTIONS_H
#define GDB_CONVOLUTIONS_H

/* Per axis: elements of a map that is read, how far apart and from where on they are on its plane, and
 * the plane; elements of the factor, and places that are made, and how far apart they are on planes. */
typedef struct {
    int64_t maps, found; /* read and made */
    int64_t size[2], apart[2], first[2], grid[2], taps[2], tap[2], places[2], step[2];
    int64_t outer, outer_row, found_row; /* maps of the factor, and where it has them */
} gdb_plan;

static inline int64_t gdb_area(const int64_t *size) { return size[0] * size[1]; }

static gdb_plan gdb_plan_of(const gdb_maps *m)
{
    const int back = m->of == GDB_OF_DATA, of_kernel = m->of == GDB_OF_KERNEL;
    gdb_plan p = {back ? m->filters : m->channels, back ? m->channels : m->filters};
    for (int i = 0; i < 2; i++) {
        const int64_t reach = (m->kernel[i] - 1) * m->dilate[i];
        p.size[i] = back ? m->result[i] : m->data[i];
        p.apart[i] = back ? m->stride[i] : 1;
        p.first[i] = back ? reach - m->pad[i] : m->pad[i];
        p.grid[i] = m->data[i] + (back ? reach : 2 * m->pad[i]);
        p.taps[i] = of_kernel ? m->result[i] : m->kernel[i];
        p.tap[i] = of_kernel ? m->stride[i] : m->dilate[i];
        p.places[i] = of_kernel ? m->kernel[i] : back ? m->data[i] : m->result[i];
        p.step[i] = of_kernel ? m->dilate[i] : back ? 1 : m->stride[i];
    }
    p.outer = of_kernel ? 1 : p.maps;
    p.outer_row = gdb_area(p.taps) * (back ? m->channels : 1);
    p.found_row = gdb_area(p.taps) * (back ? 1 : p.outer);
    return p;
}

/* The size of parts into which so many are cut, of at most so many each. */
static inline int64_t gdb_equal_parts(int64_t count, int64_t most)
{
    const int64_t cuts = (count + most - 1) / most;
    return (count + cuts - 1) / cuts;
}

/* Fill in how far on planes what each element of the factor is multiplied with is from a place; for
 * the gradient of the data the kernel is turned round. */
static void gdb_find_distances(const gdb_plan *p, int turned, int64_t *at)
{
    const int64_t last = gdb_area(p->taps) - 1;
    for (int64_t map = 0; map < p->outer; map++)
        for (int64_t i = 0; i <= last; i++) {
            const int64_t t = turned ? last - i : i, y = t / p->taps[1], x = t % p->taps[1];
            *at++ = map * gdb_area(p->grid) + y * p->tap[0] * p->grid[1] + x * p->tap[1];
        }
}

#endif

/* Put maps on their planes, of which all else is zero. */
static void F(spread_maps)(const gdb_plan *p, const T *from, T *plane)
{
    for (int64_t map = 0; map < p->maps; map++, plane += gdb_area(p->grid))
        for (int64_t y = 0; y < p->size[0]; y++, from += p->size[1]) {
            T *to = plane + (y * p->apart[0] + p->first[0]) * p->grid[1] + p->first[1];
            const int64_t quads = p->apart[1] == 1 && p->size[1] >= 4 ? p->size[1] : 0;
            for (int64_t x = 0; x + 4 <= quads; x += 4) *(QUAD *)(to + x) = *(const QUAD *)(from + x);
            if (quads) *(QUAD *)(to + quads - 4) = *(const QUAD *)(from + quads - 4);
            for (int64_t x = 0; x < p->size[1] && !quads; x++) to[x * p->apart[1]] = from[x];
        }
}

/* Pack a factor, a vector of maps that are made after the other, biases first. */
static void F(pack_factor)(const gdb_plan *p, const T *factor, const T *bias, T *to)
{
    const int64_t taps = gdb_area(p->taps);
    for (int64_t j = 0; j < p->found; j += LANES, factor += LANES * p->found_row) {
        const int count = p->found - j < LANES ? (int)(p->found - j) : LANES;
        for (int i = 0; i < LANES; i++) *to++ = bias && i < count ? bias[j + i] : 0;
        for (int64_t map = 0; map < p->outer; map++, to += taps * LANES)
            F(pack_columns)(factor + map * p->outer_row, p->found_row, taps, count, LANES, to);
    }
}

/* Some places of a line, of some vectors of maps, or else of some lines, of one vector. */
INLINE void F(places_tile)(const int places, const int parts, const int by_maps, const gdb_plan *p,
                           int64_t step, int64_t line_step, int64_t found, const int64_t *distance,
                           const T *factor, const T *from, T *to, int64_t map_row, int adds)
{
    const int64_t k = p->outer * gdb_area(p->taps);
    const T *line[NV], *own[NV];
    VECTOR sum[NV][MR], right[NV], made[MR];
    UNROLL for (int l = 0; l < parts; l++) {
        line[l] = from + (by_maps ? 0 : l * line_step);
        own[l] = factor + (by_maps ? l * (k + 1) * LANES : 0);
        UNROLL for (int i = 0; i < places; i++) sum[l][i] = LOAD(own[l]);
    }
    for (int64_t r = 0; r < k; r++) {
        const int64_t at = distance[r];
        UNROLL for (int l = 0; l < parts; l++) right[l] = LOAD(own[l] + (r + 1) * LANES);
        UNROLL for (int i = 0; i < places; i++)
            UNROLL for (int l = 0; l < parts; l++)
                sum[l][i] += (line[l][at + i * step] - (VECTOR){0}) * right[l];
    }
    UNROLL for (int l = 0; l < parts; l++) {
        const int64_t rest = by_maps ? found - l * LANES : found;
        T *own_to = to + l * (by_maps ? LANES * map_row : p->places[1]);
        UNROLL for (int i = 0; i < places; i++) made[i] = sum[l][i];
        for (int64_t f = 0; f < LANES && f < rest; f++)
            UNROLL for (int i = 0; i < places; i++) {
                T *at = own_to + f * map_row + i;
                *at = ((const T *)(made + i))[f] + (adds ? *at : 0);
            }
    }
}

#define PLACES_TILES(by_maps, step)                                                                 \
    ANY_TILE(places, parts * LANES, F(places_tile), by_maps, p, step, line_step, p->found - j,      \
             distance, factor + j * packed, from, made, map_row, adds)

/* Store or add what is made of planes on all places of lines. Places of a line, and vectors of maps,
 * are cut into equal parts. Tiles are of lines if more of these than of vectors fit together. */
static void F(multiply_places)(const gdb_plan *p, const int64_t *distance, const T *factor,
                               const T *planes, T *to, int64_t map_row, int adds)
{
    const int64_t *size = p->places, step = p->step[1], line_step = p->step[0] * p->grid[1];
    const int64_t packed = p->outer * gdb_area(p->taps) + 1, vectors = (p->found + LANES - 1) / LANES;
    const int64_t most = gdb_equal_parts(size[1], MR), maps = gdb_equal_parts(vectors, NV);
    const int by_maps = maps > 1 && (maps >= NV || maps >= size[0]);
    const int64_t most_lines = by_maps ? 1 : NV, most_maps = by_maps ? maps : 1;
    for (int64_t j = 0; j < p->found; j += most_maps * LANES)
        for (int64_t y = 0; y < size[0]; y += most_lines)
            for (int64_t x = 0; x < size[1]; x += most) {
                const int64_t left = by_maps ? vectors - j / LANES : size[0] - y;
                const int64_t parts = left < (by_maps ? maps : NV) ? left : by_maps ? maps : NV;
                const int64_t places = size[1] - x < most ? size[1] - x : most;
                const T *from = planes + y * line_step + x * step;
                T *made = to + j * map_row + y * size[1] + x;
                if (by_maps) {
                    PLACES_TILES(1, step)
                } else if (step == 1) {
                    PLACES_TILES(0, 1)
                } else {
                    PLACES_TILES(0, step)
                }
            }
}

/* Lay out scratch memory; return where it ends. */
static char *F(lay_out_maps)(const gdb_maps *m, const gdb_plan *p, char *scratch, T **planes,
                             T **packed, int64_t **distance)
{
    const int64_t taps = p->outer * gdb_area(p->taps);
    *planes = (T *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE);
    *packed = *planes + (p->maps * gdb_area(p->grid) + LANES - 1) / LANES * LANES;
    *distance = (int64_t *)(*packed + m->groups * F(packed_elements)(taps + 1, p->found));
    return (char *)(*distance + taps);
}

static int64_t F(maps_scratch)(const gdb_maps *m)
{
    const gdb_plan plan = gdb_plan_of(m);
    T *planes, *packed;
    int64_t *distance;
    return F(lay_out_maps)(m, &plan, NULL, &planes, &packed, &distance) - (char *)NULL + LINE;
}

static void F(convolve)(const gdb_maps *m, int64_t rows, const void *left, int64_t left_row,
                        const void *right, int64_t right_row, const void *bias, void *result,
                        int64_t result_row, void *scratch)
{
    gdb_plan p = gdb_plan_of(m);
    const int back = m->of == GDB_OF_DATA, of_kernel = m->of == GDB_OF_KERNEL;
    const int64_t taps = gdb_area(m->kernel), kernel = m->filters * m->channels * taps;
    const int64_t made = m->filters * gdb_area(m->result), data = m->channels * gdb_area(m->data);
    const int64_t size = F(packed_elements)(p.outer * gdb_area(p.taps) + 1, p.found);
    T *planes, *packed;
    int64_t *distance, rounds = 1;
    F(lay_out_maps)(m, &p, scratch, &planes, &packed, &distance);
    memset(planes, 0, (char *)packed - (char *)planes);
    gdb_find_distances(&p, back, distance);
    if (of_kernel && m->kernel[0] > 1)
        rounds = m->channels; /* lines of a tile are those of the kernel of a map */
    else if (of_kernel)
        p.places[0] = m->channels, p.step[0] = p.grid[0];
    for (int64_t row = 0; row < rows; row++) {
        const T *a = (const T *)left + row * left_row, *b = (const T *)right + row * right_row;
        T *c = (T *)result + row * result_row, *of_bias = c + m->groups * kernel;
        if (of_kernel) memset(c, 0, m->groups * (kernel + m->filters) * sizeof(T));
        for (int64_t g = 0; g < m->groups && !of_kernel && (!row || right_row); g++)
            F(pack_factor)(&p, b + g * kernel, bias ? (const T *)bias + g * m->filters : NULL,
                           packed + g * size);
        for (int64_t i = 0; i < m->images * m->groups; i++) {
            const int64_t g = i % m->groups;
            if (!of_kernel) {
                F(spread_maps)(&p, a + i * (back ? made : data), planes);
                F(multiply_places)(&p, distance, packed + g * size, planes,
                                   c + i * (back ? data : made), gdb_area(p.places), 0);
            } else if (!F(is_zero)(a + i * made, made)) {
                F(spread_maps)(&p, b + i * data, planes);
                F(pack_factor)(&p, a + i * made, NULL, packed);
                for (int64_t r = 0; r < rounds; r++)
                    F(multiply_places)(&p, distance, packed, planes + r * gdb_area(p.grid),
                                       c + g * kernel + r * taps, m->channels * taps, 1);
                for (int64_t f = 0; f < m->filters; f++) {
                    double total = of_bias[g * m->filters + f];
                    F(add_sums)(a + i * made + f * gdb_area(m->result), 1, gdb_area(m->result), &total);
                    of_bias[g * m->filters + f] = (T)total;
                }
            }
        }
    }
}

static const gdb_kernels F(kernels) = {
    F(functions), F(add_sums), F(raise_maxima), F(packed_elements), F(pack), F(multiply),
    F(multiply_small), F(multiply_few), F(is_zero), F(gradient_scratch), F(weight_gradient),
    F(bias_gradient), F(maps_scratch), F(convolve),
};
