"""The program of a plan, and where it leaves what the backward pass reads: a part of `assembling.pyx`."""


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
    #: Regions of rows that were chosen from tables: arena, elements of a row, first element and the
    #: one behind the last, base of the table, spot and bytes of the numbers by which they were chosen.
    cdef Code chosen
    #: What tells the rows of a launch apart, as a DISTINCT record has it.
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

    cdef ports(self, segment):
        return segment.inputs

    cdef int launch(self, launch) except -1:
        number, _, parts, _, operands, outputs = <tuple>launch
        cdef list runs = self.begin(number, parts)
        cdef Run first = runs[0], run
        cdef Recipe recipe = first.recipe
        cdef int64_t k, use, inputs = len(recipe.inputs) // INPUT
        cdef const int64_t *given
        for k in range(inputs):
            given = of(recipe.inputs) + INPUT * k
            use = given[2]
            for run in runs:
                use = SAVED if of(run.recipe.inputs)[INPUT * k + 2] == SAVED else use
            first.spots[k] = self.operand(operands[k], given, use)
        for k in range(len(recipe.outputs)):
            first.spots[of(recipe.outputs)[k]] = self.region(outputs[k])
        if len(runs) > 1:
            place_parts(runs, array("q", range(inputs)) + recipe.outputs)
        packed = {}
        for run in runs:
            for k in run.recipe.saved:
                run.spots[k] = self.reserve(SAVED, run.size(k))
            self.pack(run, run.recipe.operand_packs, packed)
        self.launches[number] = runs
        if recipe.chooses:
            self.note_chosen(outputs[0], first)
        if len(runs) == 1 and recipe.single >= 0 and self.find_keys(operands[recipe.single]):
            self.run_distinct(number, first)
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
        cdef int64_t i, k
        cdef int64_t *code
        cdef const int64_t *entry
        cdef Spot source, target
        for i in range(len(packs) // PACKED):
            # Number, source, first byte, type, strides, rows, columns, use.
            entry = of(packs) + PACKED * i
            source = run.spots[entry[1]]
            key = (source.base, source.offset + entry[2], *packs[PACKED * i + 4 : PACKED * (i + 1)])
            found = known.get(key)
            if found is None:
                target = self.reserve(
                    entry[8], executing.packed_bytes(entry[3], entry[6], entry[7]))
                known[key] = found = target.base, target.offset
                code = self.code.more(10)
                code[0], code[1], code[2], code[3] = PACK, entry[3], key[0], key[1]
                for k in range(4):
                    code[4 + k] = entry[4 + k]
                code[8], code[9] = target.base, target.offset
            run.spots[entry[0]] = Spot(found[0], found[1])
        return 0

    cdef int copy(self, Run run, operands) except -1:
        """Copy what the backward pass reads, and the user may have written to by then.

        These are operands, or without any the parameters.
        """
        cdef int64_t i
        cdef const int64_t *entry
        cdef Spot *spot
        cdef Spot target
        for i in range(len(run.recipe.copied) // COPIED):
            # Number, input, type, bytes of an element, elements.
            entry = of(run.recipe.copied) + COPIED * i
            if (entry[1] < 0) != (operands is None):
                continue
            if operands is not None and type(operands[entry[1]]) is not self.whole:
                continue
            spot = &run.spots[entry[0]]
            found = self.copies.get((spot.base, spot.offset))
            if found is None:
                target = self.reserve(SAVED, entry[3] * entry[4])
                found = self.copies[spot.base, spot.offset] = target.base, target.offset
                self.move(COPY, entry[2], entry[3], entry[4], target, spot[0])
            spot[0] = Spot(found[0], found[1])
        return 0

    cdef int note_chosen(self, region, Run run) except -1:
        """Take note of rows that were chosen from a table."""
        cdef int64_t *found = self.chosen.more(REGION)
        cdef Spot numbers = run.spots[0]
        found[0] = region[0]
        found[1] = of(self.arenas)[3 * found[0] + 2]
        found[2] = <int64_t>(<tuple>region)[1] * found[1]
        found[3] = found[2] + <int64_t>(<tuple>region)[2] * found[1]
        found[4] = run.spots[of(run.recipe.parameters)[0]].base
        found[5], found[6], found[7] = numbers.base, numbers.offset, of(run.recipe.bytes)[0]
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
        cdef int64_t *key = self.keys.more(PIECE)
        cdef const int64_t *chosen = self.chosen.numbers
        cdef const int64_t *end = chosen + self.chosen.size
        key[0], key[1], key[2], key[3], key[4] = -1, 0, 0, rows, 0
        while chosen < end:
            if (
                chosen[0] == arena and chosen[1] == row_size and element >= chosen[2]
                and element + rows * row_size <= chosen[3]
            ):
                key[0], key[1], key[4] = chosen[4], chosen[5], chosen[7]
                key[2] = chosen[6] + (element - chosen[2]) // row_size * chosen[7]
            chosen += REGION
        return key[0] >= 0

    cdef int run_distinct(self, number, Run run) except -1:
        """Run a kernel on rows that differ."""
        cdef Recipe recipe = run.recipe
        cdef int64_t i, single = recipe.single
        cdef int64_t use = SAVED if len(recipe.natives) > 1 else TEMPORARY
        cdef const int64_t *entry = of(recipe.inputs) + INPUT * single
        cdef Spot kept = self.reserve(use, 4 * (2 + 2 * run.rows)), source = run.spots[single]
        cdef Spot spot = self.reserve(TEMPORARY, run.size(single))
        self.distinct[number] = kept.base, kept.offset
        self.tell_apart(kept, run.rows, self.keys)
        self.rows_apart(PICK, entry[0], run.size(single) // run.rows // entry[1], spot, source)
        for i in range(len(recipe.repeated) // REPEATED):
            # Number, type, elements.
            entry = of(recipe.repeated) + REPEATED * i
            if run.spots[entry[0]].base >= 0:
                self.rows_apart(REPEAT, entry[1], entry[2], run.spots[entry[0]], run.spots[entry[0]])
        run.spots[single] = spot
        self.run([run], 0)
        run.spots[single] = source
        return 0
