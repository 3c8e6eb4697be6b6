"""Assemble the program of a plan: a part of `assembling.pyx`."""


cdef class Forward(DistinctRows):
    """Assembles the program of a plan.

    Owned by the draft of the flush, and by the `Backward` that reads where values are.
    """

    #: The kernels of each segment, as in `Plan`; and per launch that runs natively backward, the
    #: backward kernel of each part.
    cdef tuple kernels
    cdef dict trained
    #: Per segment, the number of its parts; and of all parts of its family the number, and the rows.
    cdef const int64_t[::1] uses, family_uses, family_rows
    #: By number of a segment, and backward kernel: a run with the spots that all its launches share.
    #: Segments of one part have none.
    cdef dict templates
    #: Per segment that native code runs, where the bases of its parameters begin; and these.
    cdef int64_t[::1] parameter0
    cdef Code parameter_bases
    #: What `recipe` was asked for last, and its answer.
    cdef tuple asked
    cdef Recipe answered
    #: Spots of copies and of packed matrices of arrays that all rows share, by what they are made
    #: from.
    cdef dict copies
    #: What identifies each row that draws random numbers.
    cdef Code drawn
    #: Units by launch, the first one of each launch, and the rows of each unit.
    cdef const int64_t[::1] units, unit0, unit_rows

    def __init__(
        self, plan, dict trained not None, frozenset unread not None, tuple on_host not None,
        frozenset kept not None,
    ):
        super().__init__(plan, on_host, kept, unread)
        self.kernels, self.trained = plan.kernels, trained
        self.templates, self.copies = {}, {}
        self.asked = None, None, -1
        self.parameter_bases = Code()
        self.parameter0 = clone(LONG, len(self.briefs), False)
        self.parameter0[:] = -1
        self.drawn, self.units, self.unit0 = Code(), plan.members.units, plan.members.first
        self.unit_rows = plan.graph.dependencies.rows
        self.count_parts()

    cdef int count_parts(self) except -1:
        """Count the parts of each segment, and the parts and rows of each family."""
        cdef Py_ssize_t count = len(self.briefs), k
        cdef int64_t[::1] uses = clone(LONG, count, True)
        cdef int64_t[::1] family_uses = clone(LONG, count, True), rows = clone(LONG, count, True)
        cdef int64_t *number
        cdef SegmentBrief brief
        cdef dict families = {}
        cdef array family = clone(LONG, count, False)
        number = data_of(family)
        for k in range(count):
            brief = self.briefs[k]
            number[k] = families.setdefault(brief.family, k)
        for k in range(self.part_segment.shape[0]):
            uses[self.part_segment[k]] += 1
            family_uses[number[self.part_segment[k]]] += 1
            rows[number[self.part_segment[k]]] += self.part_rows[k]
        for k in range(count):  # the first of a family comes first
            family_uses[k], rows[k] = family_uses[number[k]], rows[number[k]]
        self.uses, self.family_uses, self.family_rows = uses, family_uses, rows
        return 0

    cdef int matrices_of(self, int64_t segment) noexcept:
        """Return what matrices are when products of a segment begin: see `kernel.step.PACKED`."""
        if self.family_rows[segment] <= FEW_ROWS:
            return FEW
        if self.family_uses[segment] == 1 and self.family_rows[segment] <= MOST_ROWS_BY_PANELS:
            return PANELS
        return PACKED

    cdef bint is_native(self, int64_t launch) except -1:
        return not isinstance(self.kernels[self.part_segment[self.part0[launch]]], str)

    cdef int add_launch(self, int64_t launch) except -1:
        cdef list runs = self.begin(launch)
        cdef Run first = runs[0], run
        cdef Recipe recipe = first.recipe
        cdef int64_t number, k
        cdef dict packed = None
        cdef array places = None
        cdef int64_t apart = recipe.single if recipe.products is None else recipe.products.input
        cdef bint distinct = len(runs) == 1 and apart >= 0 and self.find_keys(launch, apart)
        if distinct and self.equal.table >= 0 and recipe.products is None:
            self.place_looked_up(first, launch)
        if len(runs) == 1 and not distinct and len(recipe.far):
            places = self.find_far(first, launch)
        self.place(runs, launch, 0)
        for run in runs:
            for k in range(len(run.recipe.saved)):
                number = data_of(run.recipe.saved)[k]
                run.spots[number] = self.reserve(SAVED, run.bytes_of(number))
            if len(run.recipe.operand_packs):
                packed = {} if packed is None else packed
                self.pack(run, run.recipe.operand_packs, packed)
        if len(recipe.draws):
            self.place_draws(launch, runs)
        self.launches[launch] = runs
        if recipe.gathers:
            self.register_gathered(launch, first)
        if distinct and recipe.products is not None:
            self.run_products(launch, first, recipe.products)
        elif distinct:
            self.run_distinct(launch, first)
        else:
            self.add_runs(runs if places is None else self.cut_far(first, places), 0)
        for run in runs:
            self.copy_shared(run, launch)
        return 0

    cdef int place_draws(self, int64_t launch, list runs) except -1:
        """Set the spots of the key of random numbers and of what identifies rows.

        That is the unit, and the number of the row in the unit.  So random numbers do not depend on
        the order of launches, or of the rows in them.
        """
        cdef Run run
        cdef int64_t rows = self.drawn.size, i, k, unit
        cdef int32_t *identity
        for run in runs:
            key, number = run.recipe.draws
            run.spots[key] = Spot(self.base(("key",)), 0)
            run.spots[number] = Spot(self.base(("identities",)), rows * sizeof(int64_t))
            rows += run.rows
        identity = <int32_t *>self.drawn.grow((rows - self.drawn.size) * sizeof(int64_t))
        for i in range(self.unit0[launch], self.unit0[launch + 1]):
            unit = self.units[i]
            for k in range(self.unit_rows[unit]):
                identity[0], identity[1] = <int32_t>unit, <int32_t>k
                identity += 2
        return 0

    @property
    def identities(self):
        """Two integers of 32 bits for each row that draws random numbers."""
        return PyBytes_FromStringAndSize(
            <char *>self.drawn.numbers, self.drawn.size * sizeof(int64_t))

    cdef list begin(self, int64_t launch):
        """Return the runs of the parts of a launch, with the spots of their parameters."""
        cdef Run run
        cdef Recipe recipe
        cdef int64_t k, number
        cdef bint once
        cdef list runs = []
        backward = self.trained.get(launch) if self.trained else None
        for k in range(self.part0[launch], self.part0[launch + 1]):
            number = self.part_segment[k]
            once = self.uses[number] == 1
            kernel = None if backward is None else backward[k - self.part0[launch]]
            key = number if once or kernel is None else (number, kernel)
            run = None if once else self.templates.get(key)
            if run is None:
                recipe = self.recipe(self.kernels[number], kernel, self.matrices_of(number))
                run = Run(recipe, self.part_rows[k])
                self.place_parameters(number, run)
                if not once:
                    self.templates[key] = run
            runs.append(run if once else run.resized(self.part_rows[k]))
        return runs

    cdef Recipe recipe(self, kernels, kernel, int matrices):
        """Return the recipe of kernels; many segments in a row may have the same ones."""
        if self.asked[0] is not kernels or self.asked[1] is not kernel or self.asked[2] != matrices:
            self.asked = kernels, kernel, matrices
            self.answered = kernels.recipe(kernel, matrices)
        return self.answered

    cdef int place_parameters(self, int64_t number, Run run) except -1:
        """Set the spots of a segment's parameters, pack them, and copy those to read backward."""
        cdef SegmentBrief segment = self.briefs[number]
        cdef int64_t k, count = len(run.recipe.parameters)
        cdef int64_t *bases
        if self.parameter0[number] < 0:
            self.parameter0[number] = self.parameter_bases.size
            bases = <int64_t *>self.parameter_bases.grow(count * sizeof(int64_t))
            for k in range(count):
                bases[k] = self.parameter_base(segment, k)
        bases = self.parameter_bases.numbers + self.parameter0[number]
        for k in range(count):
            run.spots[data_of(run.recipe.parameters)[k]] = Spot(bases[k], 0)
        self.pack(run, run.recipe.packs, self.copies)
        return self.copy_shared(run, -1)

    cdef inline int64_t parameter_at(self, int64_t segment, int64_t number) noexcept:
        """Return the base of a parameter of a segment that native code runs."""
        return self.parameter_bases.numbers[self.parameter0[segment] + number]

    cdef int pack(self, Run run, array packs, dict packed) except -1:
        """Pack the matrices of a table, or find them among those that are `packed` already."""
        cdef int64_t i
        cdef const Pack *pack
        cdef Spot source, target
        for i in range(entries(packs, sizeof(Pack))):
            pack = <const Pack *>data_of(packs) + i
            source = run.spots[pack.source]
            source.offset += pack.first
            key = (source.base, source.offset, pack.row_stride, pack.column_stride, pack.rows,
                   pack.columns, pack.use)
            spot = packed.get(key)
            if spot is None:
                target = self.reserve(
                    pack.use, executing.packed_bytes(pack.kind, pack.rows, pack.columns))
                packed[key] = spot = target.base, target.offset
                (<PackRecord *>self.code.grow(sizeof(PackRecord)))[0] = PackRecord(
                    PACK, pack.kind, source, pack.row_stride, pack.column_stride, pack.rows,
                    pack.columns, target)
            run.spots[pack.number] = Spot(spot[0], spot[1])
        return 0

    cdef int copy_shared(self, Run run, int64_t launch) except -1:
        """Copy shared arrays for the backward pass, as the user may write to them before it runs.

        These are the external operands of a launch or, if `launch` is -1, the parameters.
        """
        cdef int64_t i
        cdef const Shared *shared
        cdef Spot *spot
        cdef Spot target
        for i in range(entries(run.recipe.shared, sizeof(Shared))):
            shared = <const Shared *>data_of(run.recipe.shared) + i
            if (shared.input < 0) != (launch < 0):
                continue
            if launch >= 0 and self.operand_of(launch, shared.input).what != WHOLE:
                continue
            spot = &run.spots[shared.number]
            copied = self.copies.get((spot.base, spot.offset))
            if copied is None:
                target = self.reserve(SAVED, shared.bytes)
                copied = self.copies[spot.base, spot.offset] = target.base, target.offset
                self.add_bytes(COPY, shared.bytes, target, spot[0])
            spot[0] = Spot(copied[0], copied[1])
        return 0

    cdef int finish(self) except -1:
        self.write_fills()
        return self.drop_gathers()
