"""The program of a plan, and where it leaves what the backward pass reads: a part of `assembling.pyx`."""


cdef struct Chosen:
    # Rows of an arena that were chosen from a table: the first element, and the one behind the last.
    int64_t arena, row_size, start, stop
    Key key


cdef class Forward(Assembler):
    """The program of a plan.

    Parameters
    ----------
    plan, types
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

    def __init__(self, plan, tuple types, dict kernels not None, dict trained not None):
        super().__init__(plan, types)
        self.given, self.trained = kernels, trained
        self.launches, self.fixed, self.copies = {}, {}, {}
        self.chosen, self.keys, self.rows_of = Code(), Code(), {}
        for launch in plan.launches:
            for part in launch.parts:
                segment, rows = <tuple>part
                self.rows_of[segment.family] = self.rows_of.get(segment.family, 0) + rows

    cdef bint is_native(self, launch) except -1:
        return self.given[launch.segment] is not None

    cdef int launch(self, launch) except -1:
        number, _, parts, _, operands, outputs = <tuple>launch
        cdef list runs = self.begin(number, parts)
        cdef Run first = self.place(runs, launch, 0), run
        cdef Recipe recipe = first.recipe
        cdef int64_t k
        packed = {}
        for run in runs:
            for k in run.recipe.saved:
                run.spots[k] = self.reserve(SAVED, run.size(k))
            self.pack(run, run.recipe.operand_packs, packed)
        self.launches[number] = runs
        if recipe.chooses:
            self.note_chosen(outputs[0], first)
        if len(runs) == 1 and recipe.single >= 0 and self.find_keys(operands[recipe.single]):
            self.run_distinct(number, first, operands)
        else:
            self.run(runs, 0)
        for run in runs:
            self.copy(run, operands)
        return 0

    cdef list begin(self, number, parts):
        """Return the runs of the parts of a launch, which know where parameters are."""
        cdef Run fixed
        kernels, runs = self.trained.get(number), []
        for k, part in enumerate(<tuple>parts):
            segment, rows = <tuple>part
            kernel = None if kernels is None else kernels[k]
            fixed = self.fixed.get((segment, kernel))
            if fixed is None:
                recipe = self.given[segment].recipe(kernel, self.rows_of[segment.family] <= FEW)
                fixed = self.fixed[segment, kernel] = Run(recipe, 0)
                self.place_parameters(segment, fixed)
            runs.append(fixed.again(rows))
        return runs

    cdef int place_parameters(self, segment, Run run) except -1:
        """Pack parameters, and copy those that the backward pass reads."""
        cdef int64_t k, base
        for k in range(len(run.recipe.parameters)):
            base = self.held("parameter", segment.parameters[k], segment.context)
            run.spots[of(run.recipe.parameters)[k]] = Spot(base, 0)
        self.pack(run, run.recipe.packs, self.copies)
        return self.copy(run, None)

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

    cdef int copy(self, Run run, operands) except -1:
        """Copy what the backward pass reads, and the user may have written to by then.

        These are operands, or without any the parameters.
        """
        cdef int64_t i
        cdef const Shared *own
        cdef Spot *spot
        cdef Spot target
        for i in range(entries(run.recipe.shared, sizeof(Shared))):
            own = <const Shared *>of(run.recipe.shared) + i
            if (own.input < 0) != (operands is None):
                continue
            if operands is not None and type(operands[own.input]) is not self.whole:
                continue
            spot = &run.spots[own.number]
            found = self.copies.get((spot.base, spot.offset))
            if found is None:
                target = self.reserve(SAVED, own.size * own.width)
                found = self.copies[spot.base, spot.offset] = target.base, target.offset
                self.move(COPY, own.kind, own.size, own.width, target, spot[0])
            spot[0] = Spot(found[0], found[1])
        return 0

    cdef int note_chosen(self, region, Run run) except -1:
        """Take note of rows that were chosen from a table."""
        cdef Chosen *found = <Chosen *>self.chosen.more(numbers_in(sizeof(Chosen)))
        cdef int64_t size = of(run.recipe.bytes)[0]
        found.arena = region[0]
        found.row_size = self.arena(found.arena).row_size
        found.start = <int64_t>(<tuple>region)[1] * found.row_size
        found.stop = found.start + <int64_t>(<tuple>region)[2] * found.row_size
        found.key = Key(run.spots[of(run.recipe.parameters)[0]].base, run.spots[0], 0, size)
        return 0

    cdef int64_t find_keys(self, operand) except -1:
        """Find what tells the rows of an operand apart; 0 if all of them may differ.

        Rows of a table are equal if equal numbers chose them.
        """
        cdef int64_t i, known = 0, row_size
        self.keys.size = 0
        if not self.chosen.size or type(operand) is self.whole:
            return 0
        row_size = operand[3]
        if type(operand) is self.slice:
            return self.add_keys(operand[0], operand[1], operand[2], row_size)
        for i in range(operand[0], <int64_t>(<tuple>operand)[0] + <int64_t>(<tuple>operand)[1]):
            if self.pieces[i, 0] != COPY or self.pieces[i, 1] % row_size:
                return 0
            if self.pieces[i, 4] % row_size:
                return 0
            known += self.add_keys(
                self.pieces[i, 2], self.pieces[i, 3], self.pieces[i, 4] // row_size, row_size)
        return known

    def keys_of(self, operand):
        """Return what tells the rows of an operand apart, entry by entry; for tests."""
        known = self.find_keys(operand)
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

    cdef int run_distinct(self, number, Run run, tuple operands) except -1:
        """Run a kernel on rows that differ."""
        cdef int64_t single = run.recipe.single
        cdef int64_t use = SAVED if len(run.recipe.natives) > 1 else TEMPORARY
        cdef Spot kept = self.reserve(use, 4 * (2 + 2 * run.rows)), source = run.spots[single]
        self.distinct[number] = kept.base, kept.offset
        self.tell_apart(run, operands, kept, self.keys, 0)
        self.run([run], 0)
        run.spots[single] = source
        return 0
