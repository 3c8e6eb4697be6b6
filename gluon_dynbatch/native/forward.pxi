"""The program of a plan, and where it leaves what the backward pass reads: a part of `assembling.pyx`."""


cdef struct Chosen:
    # Rows of an arena that were chosen from a table: the first element, and the one behind the last.
    int64_t arena, row_size, start, stop
    Key key


cdef class Forward(Assembler):
    """The program of a plan.

    Parameters
    ----------
    plan
        See `Assembler`.
    kernels : dict
        The kernels of each segment, None for what MXNet's operators run.
    trained : dict
        Per launch that is native backward, what does that, part by part.
    """

    cdef dict given, trained
    #: What each launch consists of.
    cdef dict launches
    #: Rows of all launches of a family of segments.
    cdef dict rows_of
    #: Per segment, and what runs it backward: a run with what does not differ from launch to launch.
    cdef dict fixed
    #: Copies of what all rows share, and packed matrices.
    cdef dict copies
    #: Entries of `Chosen`.
    cdef Code chosen
    #: What tells the rows of a launch apart: entries of `Key`.
    cdef Code keys

    def __init__(self, plan, dict kernels not None, dict trained not None):
        super().__init__(plan)
        cdef int64_t k
        self.given, self.trained = kernels, trained
        self.launches, self.fixed, self.copies = {}, {}, {}
        self.chosen, self.keys, self.rows_of = Code(), Code(), {}
        for k in range(self.part_rows.shape[0]):
            family = self.segments[self.part_segment[k]].family
            self.rows_of[family] = self.rows_of.get(family, 0) + self.part_rows[k]

    cdef bint is_native(self, int64_t number) except -1:
        return self.given[self.segment(number)] is not None

    cdef int launch(self, int64_t number) except -1:
        cdef list runs = self.begin(number)
        cdef Run first = self.place(runs, number, 0), run
        cdef Recipe recipe = first.recipe
        cdef int64_t k
        packed = {}
        for run in runs:
            for k in run.recipe.saved:
                run.spots[k] = self.reserve(SAVED, run.size(k))
            self.pack(run, run.recipe.operand_packs, packed)
        self.launches[number] = runs
        if recipe.chooses:
            self.note_chosen(self.output_of(number, 0), first)
        if len(runs) == 1 and recipe.single >= 0 and self.find_keys(number, recipe.single):
            self.run_distinct(number, first)
        else:
            self.run(runs, 0)
        for run in runs:
            self.copy(run, number)
        return 0

    cdef list begin(self, int64_t number):
        """Return the runs of the parts of a launch, which know where parameters are."""
        cdef Run fixed
        cdef int64_t k
        kernels, runs = self.trained.get(number), []
        for k in range(self.part0[number], self.part0[number + 1]):
            segment = self.segments[self.part_segment[k]]
            kernel = None if kernels is None else kernels[k - self.part0[number]]
            fixed = self.fixed.get((segment, kernel))
            if fixed is None:
                recipe = self.given[segment].recipe(kernel, self.rows_of[segment.family] <= FEW)
                fixed = self.fixed[segment, kernel] = Run(recipe, 0)
                self.place_parameters(segment, fixed)
            runs.append(fixed.again(self.part_rows[k]))
        return runs

    cdef int place_parameters(self, segment, Run run) except -1:
        """Pack parameters, and copy those that the backward pass reads."""
        cdef int64_t k, base
        for k in range(len(run.recipe.parameters)):
            base = self.held("parameter", segment.parameters[k], segment.context)
            run.spots[of(run.recipe.parameters)[k]] = Spot(base, 0)
        self.pack(run, run.recipe.packs, self.copies)
        return self.copy(run, -1)

    cdef int pack(self, Run run, array packs, dict known) except -1:
        """Pack matrices for products with them, or with their transposes."""
        cdef int64_t i
        cdef const Pack *pack
        cdef Spot source, target
        for i in range(entries(packs, sizeof(Pack))):
            pack = <const Pack *>of(packs) + i
            source = run.spots[pack.source]
            source.offset += pack.first
            shape = pack.strides[0], pack.strides[1], pack.rows, pack.columns
            key = source.base, source.offset, shape, pack.use
            found = known.get(key)
            if found is None:
                target = self.reserve(
                    pack.use, executing.packed_bytes(pack.kind, pack.rows, pack.columns))
                known[key] = found = target.base, target.offset
                (<PackRecord *>self.code.more(numbers_in(sizeof(PackRecord))))[0] = PackRecord(
                    PACK, pack.kind, source, pack.strides[0], pack.strides[1], pack.rows,
                    pack.columns, target)
            run.spots[pack.number] = Spot(found[0], found[1])
        return 0

    cdef int copy(self, Run run, int64_t number) except -1:
        """Copy what the backward pass reads, and the user may have written to by then.

        These are operands of a launch, or without any (-1) the parameters.
        """
        cdef int64_t i
        cdef const Shared *own
        cdef Spot *spot
        cdef Spot target
        for i in range(entries(run.recipe.shared, sizeof(Shared))):
            own = <const Shared *>of(run.recipe.shared) + i
            if (own.input < 0) != (number < 0):
                continue
            if number >= 0 and self.operand_of(number, own.input).what != WHOLE:
                continue
            spot = &run.spots[own.number]
            found = self.copies.get((spot.base, spot.offset))
            if found is None:
                target = self.reserve(SAVED, own.size * own.width)
                found = self.copies[spot.base, spot.offset] = target.base, target.offset
                self.move(COPY, own.kind, own.size, own.width, target, spot[0])
            spot[0] = Spot(found[0], found[1])
        return 0

    cdef int note_chosen(self, const TableRow *region, Run run) except -1:
        """Take note of rows that were chosen from a table."""
        cdef Chosen *found = <Chosen *>self.chosen.more(numbers_in(sizeof(Chosen)))
        cdef int64_t size = of(run.recipe.bytes)[0]
        found.arena, found.row_size = region.first, region.row_size
        found.start = region.second * found.row_size
        found.stop = found.start + region.rows * found.row_size
        found.key = Key(run.spots[of(run.recipe.parameters)[0]].base, run.spots[0], 0, size)
        return 0

    cdef int64_t find_keys(self, int64_t number, int64_t which) except -1:
        """Find what tells the rows of an operand apart; 0 if all of them may differ.

        Rows of a table are equal if equal numbers chose them.
        """
        cdef const TableRow *operand = self.operand_of(number, which)
        cdef int64_t i, known = 0, row_size = operand.row_size
        self.keys.size = 0
        if not self.chosen.size or operand.what == WHOLE:
            return 0
        if operand.what == SLICE:
            return self.add_keys(operand.first, operand.second, operand.rows, row_size)
        for i in range(operand.first, operand.first + operand.second):
            if self.pieces[i, 0] != COPY or self.pieces[i, 1] % row_size:
                return 0
            if self.pieces[i, 4] % row_size:
                return 0
            known += self.add_keys(
                self.pieces[i, 2], self.pieces[i, 3], self.pieces[i, 4] // row_size, row_size)
        return known

    def keys_of(self, int64_t number, int64_t which):
        """Return what tells the rows of an operand of a launch apart, entry by entry; for tests."""
        known = self.find_keys(number, which)
        return [self.keys.numbers[i] for i in range(self.keys.size)] if known else []

    cdef bint add_keys(
        self, int64_t arena, int64_t element, int64_t rows, int64_t row_size
    ) except -1:
        """Add what tells some rows of an arena apart; return whether anything is known to."""
        cdef Key *key = <Key *>self.keys.more(numbers_in(sizeof(Key)))
        cdef const Chosen *chosen = <const Chosen *>self.chosen.numbers
        cdef int64_t i
        key[0] = Key(-1, Spot(0, 0), rows, 0)
        for i in range(self.chosen.count(sizeof(Chosen))):
            if (
                chosen[i].arena == arena and chosen[i].row_size == row_size
                and element >= chosen[i].start and element + rows * row_size <= chosen[i].stop
            ):
                key[0], key.rows = chosen[i].key, rows
                key.numbers.offset += (element - chosen[i].start) // row_size * key.size
        return key.table >= 0

    cdef int run_distinct(self, int64_t number, Run run) except -1:
        """Run a kernel on rows that differ."""
        cdef int64_t single = run.recipe.single
        cdef int64_t use = SAVED if len(run.recipe.natives) > 1 else TEMPORARY
        cdef Spot kept = self.reserve(use, 4 * (2 + 2 * run.rows)), source = run.spots[single]
        self.distinct[number] = kept.base, kept.offset
        self.tell_apart(run, number, kept, self.keys, 0)
        self.run([run], 0)
        run.spots[single] = source
        return 0
