/* Random numbers, for one type and one instruction set: Philox 4x32-10, which computes each number
 * from a key and a counter, with nothing stored in between (J. K. Salmon, M. A. Moraes, R. O. Dror,
 * D. E. Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 *
 * A counter gives four words of 32 bits.  RANDOM_LANES counters are computed at once; a row of
 * numbers has the first words of all of them, then the second ones, and so on.  A float takes one
 * word, a double two. */
enum { F(RANDOM_LANES) = 16, F(RANDOM_GROUP) = PICK(32, 64) };

/* Compute the numbers of a group: GROUP numbers in [0, 1), all multiples of 2^-24 or 2^-53. */
static void F(random_group)(const uint32_t key[2], const uint32_t row[2], uint32_t draw,
                            uint32_t group, T *to) {
    INDEPENDENT
    for (int lane = 0; lane < F(RANDOM_LANES); lane++) {
        uint32_t k0 = key[0], k1 = key[1];
        uint32_t c0 = group * F(RANDOM_LANES) + lane, c1 = draw, c2 = row[1], c3 = row[0];
        UNROLL
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, c1 = (uint32_t)p1;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1, c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
#if GDB_DOUBLE
        to[lane] = ((int32_t)(c0 >> 5) * 0x1p26 + (int32_t)(c1 >> 6)) * 0x1p-53;
        to[lane + 16] = ((int32_t)(c2 >> 5) * 0x1p26 + (int32_t)(c3 >> 6)) * 0x1p-53;
#else
        to[lane] = (int32_t)(c0 >> 8) * 0x1p-24f;
        to[lane + 16] = (int32_t)(c1 >> 8) * 0x1p-24f;
        to[lane + 32] = (int32_t)(c2 >> 8) * 0x1p-24f;
        to[lane + 48] = (int32_t)(c3 >> 8) * 0x1p-24f;
#endif
    }
}

static void F(uniform)(const uint32_t *key, const uint32_t *row, uint32_t draw, int64_t first,
                       int64_t columns, void *numbers) {
    T *to = numbers, some[F(RANDOM_GROUP)];
    while (columns > 0) {
        const int64_t skipped = first % F(RANDOM_GROUP), left = F(RANDOM_GROUP) - skipped;
        const int64_t count = columns < left ? columns : left;
        T *const whole = count == F(RANDOM_GROUP) ? to : some;
        F(random_group)(key, row, draw, (uint32_t)(first / F(RANDOM_GROUP)), whole);
        if (whole == some)
            memcpy(to, some + skipped, count * sizeof(T));
        to += count, first += count, columns -= count;
    }
}
