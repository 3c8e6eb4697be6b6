/* How a convolution is computed: directly, with maps or positions as lanes of vectors, or by tiles. */
/* Return the operations of vectors of a convolution if lanes are positions, or maps. */
static int64_t F(work_by_positions)(const gdb_geometry *g) {
    return g->out_maps * ((g->stretch + LANES - 1) / LANES) * g->factor_maps * gdb_area(g->taps);
}

static int64_t F(work_by_maps)(const gdb_geometry *g) {
    const int64_t work = (g->out_maps + LANES - 1) / LANES * g->factor_maps * gdb_area(g->taps);
    return gdb_area(g->positions) * (work + g->out_maps * GDB_STORE_WORK / LANES);
}

/* Return whether lanes are positions. */
static int F(by_positions)(const gdb_geometry *g, int of_kernel) {
    if (of_kernel || g->position_step[0] != 1 || g->position_step[1] != 1 || g->stretch < LANES)
        return 0;
    return F(work_by_positions)(g) < F(work_by_maps)(g);
}

/* Return whether a convolution is computed by tiles, if it takes `direct` operations of vectors
 * otherwise. Loads and stores of the transforms take as long as products. Maps have several tiles,
 * because a gradient of a kernel that has few terms would be less exact. */
static int F(by_tiles)(const gdb_maps *m, const gdb_geometry *g, int64_t direct) {
    for (int i = 0; i < 2; i++)
        if (m->kernel[i] != 3 || m->stride[i] != 1 || m->dilate[i] != 1 || m->result[i] < 4)
            return 0;
    const int of_kernel = m->of == GDB_OF_KERNEL;
    const gdb_tiling t = F(tiling_of)(g, of_kernel ? m->result : g->positions, GDB_GROUP_BYTES);
    const int64_t vectors = (g->out_maps + LANES - 1) / LANES;
    const int64_t of_tile = GDB_TILE_ELEMENTS * g->in_maps + (of_kernel ? 48 : 28);
    const int64_t of_data = t.vectors * (3 * GDB_TILE_ELEMENTS * gdb_area(t.tiles) + 4 * gdb_area(g->in_size));
    const int64_t of_sums = of_kernel ? 4 * GDB_TILE_ELEMENTS * vectors : 0;
    return 6 * (vectors * gdb_area(t.tiles) * of_tile + of_data + g->in_maps * of_sums)
        < 5 * direct;
}

/* Return whether a convolution is computed by tiles, as winograd.h has it. */
static int F(is_tiled)(const gdb_maps *m, const gdb_geometry *g) {
    const int by_positions = F(by_positions)(g, m->of == GDB_OF_KERNEL);
    const int64_t rounds = m->of == GDB_OF_KERNEL ? m->channels : 1;
    return F(by_tiles)(m, g, by_positions ? F(work_by_positions)(g) : rounds * F(work_by_maps)(g));
}
