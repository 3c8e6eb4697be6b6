/* Sizes of convolutions and of their gradients: maps, planes and taps. */
#ifndef GDB_GEOMETRY_H
#define GDB_GEOMETRY_H

#include "kernels.h"

/* Sizes of a convolution per group, a plain value; arrays have a number per axis. */
typedef struct {
    int64_t in_maps, out_maps;
    int64_t in_size[2];       /* of an input map */
    int64_t spacing[2];       /* of its elements on the plane */
    int64_t origin[2];        /* of its first element on the plane */
    int64_t plane[2];         /* size of the plane */
    int64_t taps[2];          /* of a map of the factor */
    int64_t tap_step[2];      /* distance of taps on the plane */
    int64_t positions[2];     /* of an output map */
    int64_t position_step[2]; /* distance of positions on the plane */
    int64_t factor_maps;      /* per output map */
    int64_t factor_in_row;    /* elements of the factor from one of its maps to the next */
    int64_t factor_out_row;   /* elements of the factor from one output map to the next */
    int64_t stretch;          /* of the plane, from the first position to the last */
    int channel_lines;        /* a line of positions is a channel, whose kernel has one line */
} gdb_geometry;

/* Operations of a lane in the time in which an element is stored whose lane is a map. */
enum { GDB_STORE_WORK = 16 };

static inline int64_t gdb_area(const int64_t *size) { return size[0] * size[1]; }

static gdb_geometry gdb_geometry_of(const gdb_maps *m) {
    const int of_data = m->of == GDB_OF_DATA, of_kernel = m->of == GDB_OF_KERNEL;
    gdb_geometry g = {.in_maps = of_data ? m->filters : m->channels,
                      .out_maps = of_data ? m->channels : m->filters};
    for (int i = 0; i < 2; i++) {
        const int64_t reach = (m->kernel[i] - 1) * m->dilate[i];
        g.in_size[i] = of_data ? m->result[i] : m->data[i];
        g.spacing[i] = of_data ? m->stride[i] : 1;
        g.origin[i] = of_data ? reach - m->pad[i] : m->pad[i];
        g.plane[i] = m->data[i] + (of_data ? reach : 2 * m->pad[i]);
        g.taps[i] = of_kernel ? m->result[i] : m->kernel[i];
        g.tap_step[i] = of_kernel ? m->stride[i] : m->dilate[i];
        g.positions[i] = of_kernel ? m->kernel[i] : of_data ? m->data[i] : m->result[i];
        g.position_step[i] = of_kernel ? m->dilate[i] : of_data ? 1 : m->stride[i];
    }
    g.channel_lines = of_kernel && m->kernel[0] == 1;
    if (g.channel_lines) g.positions[0] = m->channels, g.position_step[0] = g.plane[0];
    g.stretch = (g.positions[0] - 1) * g.plane[1] + g.positions[1];
    g.factor_maps = of_kernel ? 1 : g.in_maps;
    g.factor_in_row = gdb_area(g.taps) * (of_data ? m->channels : 1);
    g.factor_out_row = gdb_area(g.taps) * (of_data ? 1 : g.factor_maps);
    return g;
}

/* Cut `count` into the fewest parts of at most `limit`; return the size of the largest, if they are
 * as equal as possible. */
static inline int64_t gdb_equal_parts(int64_t count, int64_t limit) {
    const int64_t parts = (count + limit - 1) / limit;
    return (count + parts - 1) / parts;
}

/* Return whether input maps are planes as they are. */
static inline int gdb_is_plane(const gdb_geometry *g) {
    return g->plane[0] == g->in_size[0] && g->plane[1] == g->in_size[1]
        && g->spacing[0] == 1 && g->spacing[1] == 1;
}

/* Fill in the distance on planes from a position to what each tap is multiplied with. If `turned`,
 * the taps are in reverse order. */
static void gdb_fill_distances(const gdb_geometry *g, int turned, int64_t *distances) {
    const int64_t line = g->tap_step[0] * g->plane[1], step = turned ? -1 : 1;
    for (int64_t map = 0; map < g->factor_maps; map++) {
        int64_t *to = distances + map * gdb_area(g->taps) + (turned ? gdb_area(g->taps) - 1 : 0);
        for (int64_t y = 0; y < g->taps[0]; y++)
            for (int64_t x = 0; x < g->taps[1]; x++, to += step)
                *to = map * gdb_area(g->plane) + y * line + x * g->tap_step[1];
    }
}

/* Fill in which element of the factor each tap is, for the first output map. */
static void gdb_fill_elements(const gdb_geometry *g, int64_t *elements) {
    for (int64_t map = 0; map < g->factor_maps; map++)
        for (int64_t i = 0; i < gdb_area(g->taps); i++)
            *elements++ = map * g->factor_in_row + i;
}

#endif
