/* Convolutions of maps for one type and one instruction set.
 *
 * Maps are spread on planes with zeros around them. There, what an element of the kernel is
 * multiplied with lies in one run for all places, at a distance that a table has: nothing is copied
 * once per element. A stride makes a plane of every so many lines, and of every so many columns of
 * these. Vectors are of places, and then some are not wanted, those between the lines; or of maps
 * that are made, if these fill vectors better.
 */
#ifndef GDB_CONVOLUTIONS_H
#define GDB_CONVOLUTIONS_H

/* How maps are spread, per axis: elements of the map, distance of these, place of the first, number
 * of planes, and what a plane holds. */
typedef struct {
    int64_t size[2], apart[2], first[2], planes[2], grid[2];
} gdb_spread;

enum { PACKING = 8 }; /* places of which the product takes as long as packing a kernel */

static inline int64_t gdb_area(const int64_t *size) { return size[0] * size[1]; }

/* Elements that a map takes on its planes. */
static inline int64_t gdb_spread_area(const gdb_spread *s)
{
    return gdb_area(s->planes) * gdb_area(s->grid);
}

/* Elements from the first place to the last one on a plane. */
static inline int64_t gdb_run_of(const gdb_spread *s, const int64_t *places)
{
    return (places[0] - 1) * s->grid[1] + places[1];
}

/* How the data of a convolution are spread, or for their gradient that of its result. */
static gdb_spread gdb_spread_of(const gdb_maps *m)
{
    gdb_spread s;
    for (int i = 0; i < 2; i++) {
        const int64_t reach = (m->kernel[i] - 1) * m->dilate[i], back = m->of == GDB_OF_DATA;
        s.size[i] = back ? m->result[i] : m->data[i];
        s.apart[i] = back ? m->stride[i] : 1;
        s.first[i] = back ? reach - m->pad[i] : m->pad[i];
        s.planes[i] = back ? 1 : m->stride[i];
        s.grid[i] = back ? m->data[i] + reach : m->result[i] + reach / m->stride[i];
    }
    return s;
}

/* Fill in where each element of the kernel, for each map, finds the first of its run. */
static void gdb_find_runs(const gdb_maps *m, const gdb_spread *s, int64_t maps, int64_t *runs)
{
    for (int64_t map = 0; map < maps; map++)
        for (int64_t y = 0; y < m->kernel[0]; y++)
            for (int64_t x = 0; x < m->kernel[1]; x++) {
                const int64_t row = y * m->dilate[0], column = x * m->dilate[1];
                const int64_t plane = row % s->planes[0] * s->planes[1] + column % s->planes[1];
                *runs++ = map * gdb_spread_area(s) + plane * gdb_area(s->grid)
                    + row / s->planes[0] * s->grid[1] + column / s->planes[1];
            }
}

#endif

/* A tile of a product of which tables say where rows of A, columns of A and rows of B are. */
INLINE void F(scattered_tile)(const int rows, const int vectors, int64_t k, const T *a,
                              const int64_t *a_row, const int64_t *a_column, const T *b,
                              const int64_t *b_row, T *c, int64_t c_row)
{
    const T *row[MR];
    VECTOR sum[MR][NV], right[NV];
    UNROLL for (int i = 0; i < rows; i++) {
        row[i] = a + a_row[i];
        UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = (VECTOR){0};
    }
    for (int64_t p = 0; p < k; p++) {
        const int64_t at = a_column[p];
        UNROLL for (int v = 0; v < vectors; v++) right[v] = LOAD(b + b_row[p] + v * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            VECTOR left = row[i][at] - (VECTOR){0};
            UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += left * right[v];
        }
    }
    UNROLL for (int i = 0; i < rows; i++, c += c_row)
        UNROLL for (int v = 0; v < vectors; v++) *(VECTOR *)(c + v * LANES) = sum[i][v];
}

/* C = A B for as many columns as there are in whole vectors. */
static void F(scattered)(int64_t m, int64_t n, int64_t k, const T *a, const int64_t *a_row,
                         const int64_t *a_column, const T *b, const int64_t *b_row, T *c,
                         int64_t c_row)
{
    for (int64_t j = 0; j < n; j += NR)
        for (int64_t i = 0; i < m; i += MR) {
            const int rows = m - i < MR ? (int)(m - i) : MR, width = F(width)(n, j);
            ANY_TILE(rows, width, F(scattered_tile), k, a, a_row + i, a_column, b + j, b_row,
                     c + i * c_row + j, c_row)
        }
}

INLINE int64_t F(whole)(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Copy lines of a map, plus a bias, in whole vectors: behind each line they leave zeros, which the
 * next line overwrites. What is read and written ends where the pointers say. */
INLINE void F(copy_lines)(const int64_t *size, const T *from, int64_t from_line, const T *from_end,
                          T *to, int64_t to_line, const T *to_end, T bias)
{
    typedef BITS bits __attribute__((vector_size(GDB_BYTES)));
    bits number, all = ~(bits){0};
    for (int i = 0; i < LANES; i++) number[i] = i;
    for (int64_t y = 0; y < size[0]; y++, from += from_line, to += to_line)
        for (int64_t x = 0; x < size[1]; x += LANES) {
            const int64_t rest = size[1] - x;
            if (from + x + LANES <= from_end && to + x + LANES <= to_end) {
                const bits wanted = rest < LANES ? (bits)(number < (BITS)rest) : all;
                *(VECTOR *)(to + x) = (VECTOR)((bits)(LOAD(from + x) + bias) & wanted);
            } else
                for (int64_t i = x; i < x + LANES && i < size[1]; i++) to[i] = from[i] + bias;
        }
}

/* Put maps on their planes, of which all else is zero. */
static void F(spread_maps)(const gdb_spread *s, int64_t maps, const T *from, T *planes)
{
    const int64_t grid = gdb_area(s->grid), area = gdb_area(s->size);
    const T *end = from + maps * area, *planes_end = planes + maps * gdb_spread_area(s) + LANES;
    for (; maps; maps--, planes += gdb_spread_area(s), from += area) {
        if (s->apart[1] == 1 && gdb_area(s->planes) == 1) {
            T *first = planes + s->first[0] * s->grid[1] + s->first[1];
            F(copy_lines)(s->size, from, s->size[1], end, first, s->apart[0] * s->grid[1],
                          planes_end, 0);
            continue;
        }
        for (int64_t y = 0; y < s->size[0]; y++) {
            const int64_t row = y * s->apart[0] + s->first[0], line = row / s->planes[0];
            T *to = planes + row % s->planes[0] * s->planes[1] * grid + line * s->grid[1];
            int64_t at = s->first[1] / s->planes[1], plane = s->first[1] % s->planes[1];
            for (int64_t x = 0; x < s->size[1] && line < s->grid[0] && at < s->grid[1]; x++) {
                to[plane * grid + at] = from[y * s->size[1] + x];
                for (plane += s->apart[1]; plane >= s->planes[1]; plane -= s->planes[1]) at++;
            }
        }
    }
}

/* Maps of a group are multiplied with the kernel: data for the result, or for the gradient of the
 * data that of the result, with the kernel turned round. */
typedef struct {
    gdb_spread spread;
    int64_t maps, found, taps, run; /* maps read and made; elements of a kernel, and of a run */
    int across; /* whether vectors are of maps that are made */
    const int64_t *places;
    int64_t *a_row, *a_column, *b_row;
    T *planes, *product, *packed, *ones;
} F(plan);

/* Lay out scratch memory; return where it ends. */
static char *F(lay_out_maps)(const gdb_maps *m, F(plan) *p, char *scratch)
{
    const int back = m->of == GDB_OF_DATA;
    p->spread = gdb_spread_of(m);
    p->maps = back ? m->filters : m->channels, p->found = back ? m->channels : m->filters;
    p->taps = gdb_area(m->kernel), p->places = back ? m->data : m->result;
    p->run = gdb_run_of(&p->spread, p->places);
    const int64_t runs = p->maps * p->taps, width = F(whole)(p->run);
    const int64_t planes = p->maps * gdb_spread_area(&p->spread), most = runs > p->run ? runs : p->run;
    const int64_t filled = F(whole)(p->found);
    /* Then a number is read per vector, which AVX-512 does as it multiplies, and kernels are
     * packed, which takes as long as some places. */
    p->across = GDB_BYTES == 64 && m->of != GDB_OF_KERNEL
        && filled * (gdb_area(p->places) + PACKING) < p->found * width;
    p->planes = (T *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE);
    p->product = p->planes + F(whole)(planes + p->spread.grid[1] + LANES);
    /* For the gradient of the kernel, that of the result is spread and packed; its product with a run
     * of ones is the gradient of the bias. */
    p->packed = p->product + (p->across ? 0 : p->found * width);
    p->ones = p->packed + F(packed_elements)(p->run, p->found);
    p->a_row = (int64_t *)(m->of == GDB_OF_KERNEL ? p->ones + width + (runs + 1) * NR
                           : p->across            ? p->packed + m->groups * filled * (runs + 1)
                                                  : p->packed);
    p->a_column = p->a_row + (runs >= p->found ? runs + 1 : p->found);
    p->b_row = p->a_column + most;
    return (char *)(p->b_row + most);
}

static int64_t F(maps_scratch)(const gdb_maps *m)
{
    F(plan) plan;
    return F(lay_out_maps)(m, &plan, NULL) - (char *)NULL + LINE;
}

/* Pack the kernels of a group, a vector of maps that are made after the other, the bias first. */
static void F(pack_kernels)(const F(plan) *p, const T *kernel, const T *bias, T *to)
{
    const int64_t runs = p->maps * p->taps;
    for (int64_t j = 0; j < p->found; j += LANES) {
        const int count = p->found - j < LANES ? (int)(p->found - j) : LANES;
        memset(to, 0, (runs + 1) * LANES * sizeof(T));
        if (bias) memcpy(to, bias + j, count * sizeof(T));
        to += LANES;
        for (int64_t k = 0; k < runs; k++, to += LANES)
            for (int i = 0; i < count; i++) to[i] = kernel[p->a_row[j + i] + p->a_column[k]];
    }
}

/* Some places of some lines, of as many maps as a vector has. */
INLINE void F(places_tile)(const int places, const int lines, const F(plan) *p, int64_t count,
                           const T *kernel, const T *from, T *to)
{
    const int64_t grid = p->spread.grid[1], area = gdb_area(p->places), k = p->maps * p->taps;
    const T *line[NV];
    VECTOR sum[NV][MR], made[MR];
    UNROLL for (int l = 0; l < lines; l++) {
        line[l] = from + l * grid;
        UNROLL for (int i = 0; i < places; i++) sum[l][i] = LOAD(kernel);
    }
    for (int64_t r = 0; r < k; r++) {
        const int64_t at = p->b_row[r];
        const VECTOR right = LOAD(kernel += LANES);
        UNROLL for (int l = 0; l < lines; l++)
            UNROLL for (int i = 0; i < places; i++)
                sum[l][i] += (line[l][at + i] - (VECTOR){0}) * right;
    }
    UNROLL for (int l = 0; l < lines; l++, to += p->places[1]) {
        UNROLL for (int i = 0; i < places; i++) made[i] = sum[l][i];
        for (int64_t f = 0; f < count; f++)
            UNROLL for (int i = 0; i < places; i++) to[f * area + i] = ((const T *)(made + i))[f];
    }
}

/* Make maps on all places of lines, which are cut into equal parts. */
static void F(multiply_places)(const F(plan) *p, const T *kernel, T *to)
{
    const int64_t *size = p->places, cuts = (size[1] + MR - 1) / MR;
    const int64_t most = (size[1] + cuts - 1) / cuts;
    for (int64_t j = 0; j < p->found; j += LANES, kernel += (p->maps * p->taps + 1) * LANES)
        for (int64_t y = 0; y < size[0]; y += NV)
            for (int64_t x = 0; x < size[1]; x += most) {
                const int64_t lines = size[0] - y < NV ? size[0] - y : NV;
                const int64_t places = size[1] - x < most ? size[1] - x : most;
                const int64_t count = p->found - j < LANES ? p->found - j : LANES;
                ANY_TILE(places, lines * LANES, F(places_tile), p, count, kernel,
                         p->planes + y * p->spread.grid[1] + x,
                         to + j * gdb_area(size) + y * size[1] + x)
            }
}

/* Make the maps of a group; its kernels may be packed. */
static void F(multiply_maps)(const F(plan) *p, const T *from, const T *kernel, const T *packed,
                             const T *bias, T *to)
{
    const int64_t width = F(whole)(p->run), area = gdb_area(p->places);
    F(spread_maps)(&p->spread, p->maps, from, p->planes);
    if (p->across) {
        F(multiply_places)(p, packed, to);
        return;
    }
    F(scattered)(p->found, width, p->maps * p->taps, kernel, p->a_row, p->a_column, p->planes,
                 p->b_row, p->product, width);
    for (int64_t i = 0; i < p->found; i++) {
        const T *made = p->product + i * width;
        F(copy_lines)(p->places, made, p->spread.grid[1], made + width, to + i * area, p->places[1],
                      to + p->found * area, bias ? bias[i] : 0);
    }
}

/* Add to the gradients of the kernels and biases of a group. */
static void F(add_gradients)(const gdb_maps *m, const F(plan) *p, const T *gradient, const T *data,
                             T *to, T *to_bias)
{
    const int64_t width = F(whole)(p->run), area = gdb_area(m->result), runs = p->maps * p->taps;
    T *turned = p->ones + width;
    F(spread_maps)(&p->spread, p->maps, data, p->planes);
    for (int64_t i = 0; i < p->found; i++)
        F(copy_lines)(m->result, gradient + i * area, m->result[1], gradient + p->found * area,
                      p->product + i * width, p->spread.grid[1], p->packed, 0);
    F(pack)(p->product, 1, width, p->run, p->found, p->packed);
    for (int64_t j = 0; j < p->found; j += NR) {
        const int count = F(width)(p->found, j);
        for (int64_t r = 0; r < p->run; r++) p->b_row[r] = r * count;
        F(scattered)(runs + 1, count, p->run, p->planes, p->a_row, p->a_column,
                     p->packed + j * p->run, p->b_row, turned, count);
        for (int64_t i = j; i < p->found && i < j + count; i++) {
            for (int64_t r = 0; r < runs; r++) to[i * runs + r] += turned[r * count + i - j];
            to_bias[i] += turned[runs * count + i - j];
        }
    }
}

static void F(convolve)(const gdb_maps *m, int64_t rows, const void *left, int64_t left_row,
                        const void *right, int64_t right_row, const void *bias, void *result,
                        int64_t result_row, void *scratch)
{
    F(plan) plan;
    char *end = F(lay_out_maps)(m, &plan, scratch);
    const int64_t taps = plan.taps, of_kernel = m->of == GDB_OF_KERNEL, back = m->of == GDB_OF_DATA;
    const int64_t kernel = m->filters * m->channels * taps;
    const int64_t data = m->channels * gdb_area(m->data), made = m->filters * gdb_area(m->result);
    const int64_t packed = F(whole)(plan.found) * (plan.maps * taps + 1);
    memset(plan.planes, 0, (of_kernel ? end : (char *)plan.product) - (char *)plan.planes);
    gdb_find_runs(m, &plan.spread, plan.maps, of_kernel ? plan.a_row : plan.b_row);
    if (of_kernel) {
        plan.a_row[plan.maps * taps] = plan.ones - plan.planes;
        for (int64_t r = 0; r < plan.run; r++) plan.a_column[r] = r, plan.ones[r] = 1;
    } else {
        for (int64_t i = 0; i < plan.found; i++) plan.a_row[i] = i * taps * (back ? 1 : m->channels);
        for (int64_t i = 0; i < plan.maps; i++)
            for (int64_t t = 0; t < taps; t++)
                plan.a_column[i * taps + t] = back ? (i * m->channels + 1) * taps - 1 - t : i * taps + t;
    }
    for (int64_t row = 0; row < rows; row++) {
        const T *a = (const T *)left + row * left_row, *b = (const T *)right + row * right_row;
        T *c = (T *)result + row * result_row;
        if (of_kernel) memset(c, 0, m->groups * (kernel + m->filters) * sizeof(T));
        for (int64_t g = 0; plan.across && g < m->groups && (!row || right_row); g++)
            F(pack_kernels)(&plan, b + g * kernel, bias ? (const T *)bias + g * m->filters : NULL,
                            plan.packed + g * packed);
        for (int64_t i = 0; i < m->images * m->groups; i++) {
            const int64_t g = i % m->groups;
            if (!of_kernel)
                F(multiply_maps)(&plan, a + i * (back ? made : data), b + g * kernel,
                                 plan.packed + g * packed,
                                 bias ? (const T *)bias + g * m->filters : NULL,
                                 c + i * (back ? data : made));
            else if (!F(is_zero)(a + i * made, made))
                F(add_gradients)(m, &plan, a + i * made, b + i * data, c + g * kernel,
                                 c + m->groups * kernel + g * m->filters);
        }
    }
}

static const gdb_kernels F(kernels) = {
    F(functions), F(add_sums), F(raise_maxima), F(packed_elements), F(pack), F(multiply),
    F(multiply_small), F(multiply_few), F(gradient_scratch), F(weight_gradient), F(bias_gradient),
    F(maps_scratch),
    F(convolve),
};
