"""Assemble the program of a plan: a part of `assembling.pyx`."""


cdef struct Gathered:
    # A plain value: rows of an arena that were gathered from a table: their launch, where its code
    # begins, their first element, the end of the last, and how they were gathered.  There are no
    # table rows if indices that do not fit are errors, which only that launch reports.
    int64_t launch, code, arena, row_size, start, stop
    Key key
    Spot table
    int64_t table_rows


cdef class Forward(Assembler):
    """Assembles the program of a plan.

    Owned by the draft of the flush, and by the `Backward` that reads where values are.
    """

    #: The kernels of each segment, as in `Plan`; and per launch that runs natively backward, the
    #: backward kernel of each part.
    cdef tuple kernels
    cdef dict trained
    #: Per launch its runs, one for each part.
    cdef dict launches
    #: Per family of segments, the rows of all its launches.
    cdef dict family_rows
    #: By number of a segment, and backward kernel: a run with the spots that all its launches share.
    cdef dict templates
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
    #: Entries of `Gathered`; and the one that all rows of the last `find_keys` are from, or -1.
    cdef Code gathered
    cdef int64_t table
    #: Regions of gathered rows that are read by launches only, if at all.
    cdef frozenset unread
    #: Launches that gather nothing, because nobody reads what they would.
    cdef readonly set unneeded
    #: The last result of `find_keys`: entries of `Key`.
    cdef Code keys

    def __init__(self, plan, dict trained not None, frozenset unread not None=frozenset()):
        super().__init__(plan)
        cdef int64_t k
        self.unread, self.unneeded = unread, set()
        self.kernels, self.trained = plan.kernels, trained
        self.launches, self.templates, self.copies = {}, {}, {}
        self.asked = None, None, False
        self.gathered, self.keys, self.family_rows = Code(), Code(), {}
        self.drawn, self.units, self.unit0 = Code(), plan.members.units, plan.members.first
        self.unit_rows = plan.graph.dependencies.rows
        for k in range(self.part_rows.shape[0]):
            family = self.segments[self.part_segment[k]].family
            self.family_rows[family] = self.family_rows.get(family, 0) + self.part_rows[k]

    cdef bint is_native(self, int64_t launch) except -1:
        return not isinstance(self.kernels[self.part_segment[self.part0[launch]]], str)

    cdef int add_launch(self, int64_t launch) except -1:
        cdef list runs = self.begin(launch)
        cdef Run first = runs[0], run
        cdef Recipe recipe = first.recipe
        cdef int64_t number, k
        cdef dict packed = None
        cdef bint distinct = (
            len(runs) == 1 and recipe.single >= 0 and self.find_keys(launch, recipe.single))
        if distinct and self.table >= 0:
            self.place_looked_up(first, launch)
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
        if distinct:
            self.run_distinct(launch, first)
        else:
            self.add_runs(runs, 0)
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
        cdef Run template
        cdef int64_t k, number
        backward, runs = self.trained.get(launch), []
        for k in range(self.part0[launch], self.part0[launch + 1]):
            number = self.part_segment[k]
            segment = self.segments[number]
            kernel = None if backward is None else backward[k - self.part0[launch]]
            key = number if kernel is None else (number, kernel)
            template = self.templates.get(key)
            if template is None:
                few = self.family_rows[segment.family] <= FEW
                template = Run(self.recipe(self.kernels[number], kernel, few), 0)
                self.templates[key] = template
                self.place_parameters(segment, template)
            runs.append(template.resized(self.part_rows[k]))
        return runs

    cdef Recipe recipe(self, kernels, kernel, bint few):
        """Return the recipe of kernels; many segments in a row may have the same ones."""
        if self.asked[0] is not kernels or self.asked[1] is not kernel or self.asked[2] != few:
            self.asked = kernels, kernel, few
            self.answered = kernels.recipe(kernel, few)
        return self.answered

    cdef int place_parameters(self, segment, Run run) except -1:
        """Set the spots of parameters, pack them, and copy those that the backward pass reads."""
        cdef int64_t k, base
        for k in range(len(run.recipe.parameters)):
            base = self.parameter_base("parameter", segment.parameters[k], segment.context)
            run.spots[data_of(run.recipe.parameters)[k]] = Spot(base, 0)
        self.pack(run, run.recipe.packs, self.copies)
        return self.copy_shared(run, -1)

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

    cdef int register_gathered(self, int64_t launch, Run run) except -1:
        """Register the result of a launch, whose code comes next, as rows gathered from a table."""
        cdef const TableRow *region = self.output_of(launch, 0)
        cdef Gathered *gathered = <Gathered *>self.gathered.grow(sizeof(Gathered))
        cdef int64_t size = data_of(run.recipe.row_bytes)[0]
        gathered.launch, gathered.code = launch, self.code.size
        gathered.arena, gathered.row_size = region.first, region.row_size
        gathered.start = region.second * gathered.row_size
        gathered.stop = gathered.start + region.rows * gathered.row_size
        gathered.table = run.spots[data_of(run.recipe.parameters)[0]]
        gathered.table_rows = run.recipe.table_rows
        # Equal bits of integers and of floats are different indices, even into one table.
        kind = (<const Operand *>data_of(run.recipe.direction(0).operands)).kind
        gathered.key = Key(gathered.table.base * TYPES + kind, run.spots[0], 0, size)
        return 0

    cdef int place_looked_up(self, Run run, int64_t launch) except -1:
        """Reserve memory for the rows that a launch looks up by itself, instead of reading them."""
        cdef int64_t single = run.recipe.single
        cdef const Operand *operand = <const Operand *>data_of(run.recipe.direction(0).operands)
        run.spots[single] = self.reserve(operand[single].use, run.bytes_of(single))
        self.looked_up.add(launch)
        return 0

    cdef int add_looked_up(self, const Apart *apart, Spot target) except -1:
        cdef const Gathered *gathered = <const Gathered *>self.gathered.numbers + self.table
        (<Moved *>self.code.grow(sizeof(Moved)))[0] = Moved(
            LOOK_UP, apart.kind, apart.width, target, gathered.table, gathered.table_rows,
            gathered.key.table % TYPES)
        return 1

    cdef int finish(self) except -1:
        """Let launches gather nothing whose results nobody reads, as others look up what they need."""
        cdef const Gathered *gathered = <const Gathered *>self.gathered.numbers
        cdef int64_t i
        cdef int64_t *part
        cdef Run run
        for i in range(self.gathered.count(sizeof(Gathered)) if self.looked_up else 0):
            if not gathered[i].table_rows or self.output0[gathered[i].launch] not in self.unread:
                continue
            if self.is_read(&gathered[i]):
                continue
            self.unneeded.add(gathered[i].launch)
            part = self.code.numbers + gathered[i].code + 2
            for run in self.launches[gathered[i].launch]:
                part[1] = 0
                part += 2 + numbers_in(sizeof(Spot)) * len(run.recipe.direction(0).order)
        return 0

    cdef bint is_read(self, const Gathered *gathered) except -1:
        """Return whether a launch reads some gathered rows, other than one that looks them up."""
        cdef int64_t launch, k, i, single
        cdef const TableRow *operand
        cdef const PieceRow *piece
        for launch in range(self.output0.shape[0] - 1):
            single = -1
            if launch in self.looked_up:
                single = (<Run>(<list>self.launches[launch])[0]).recipe.single
            for k in range(self.operand0[launch + 1] - self.operand0[launch]):
                operand = self.operand_of(launch, k)
                if k == single or operand.what == NOTHING or operand.what == WHOLE:
                    continue
                if operand.what == SLICE:
                    if operand.first == gathered.arena and operand.second < gathered.stop and (
                        operand.second + operand.rows * operand.row_size > gathered.start
                    ):
                        return True
                    continue
                for i in range(operand.first, operand.first + operand.second):
                    piece = self.piece(i)
                    if piece.arena == gathered.arena and piece.action != ZERO and (
                        piece.element < gathered.stop
                        and piece.element + piece.length > gathered.start
                    ):
                        return True
        return False

    cdef int64_t find_keys(self, int64_t launch, int64_t port) except -1:
        """Find the keys that tell the rows of an operand apart; return 0 if all rows may differ.

        Rows that were gathered from one table are equal if they were gathered by equal indices.
        """
        cdef const TableRow *operand = self.operand_of(launch, port)
        cdef const PieceRow *piece
        cdef int64_t i, gathered = 0, row_size = operand.row_size
        self.keys.size, self.table = 0, -1
        if not self.gathered.size or operand.what == WHOLE:
            return 0
        if operand.what == SLICE:
            return self.add_key(operand.first, operand.second, operand.rows, row_size)
        for i in range(operand.first, operand.first + operand.second):
            piece = self.piece(i)
            if piece.action != COPY or piece.target % row_size or piece.length % row_size:
                return 0
            gathered += self.add_key(
                piece.arena, piece.element, piece.length // row_size, row_size)
        return gathered

    def keys_of(self, int64_t launch, int64_t port):
        """Return the keys of an operand of a launch as a list of integers; for tests."""
        gathered = self.find_keys(launch, port)
        return [self.keys.numbers[i] for i in range(self.keys.size)] if gathered else []

    cdef bint add_key(
        self, int64_t arena, int64_t element, int64_t rows, int64_t row_size
    ) except -1:
        """Add the key of some rows of an arena; return whether they were gathered from a table."""
        cdef Key *key = <Key *>self.keys.grow(sizeof(Key))
        cdef const Gathered *gathered = <const Gathered *>self.gathered.numbers
        cdef int64_t i, table = -1
        key[0] = Key(-1, Spot(0, 0), rows, 0)
        for i in range(self.gathered.count(sizeof(Gathered))):
            if (
                gathered[i].arena == arena and gathered[i].row_size == row_size
                and element >= gathered[i].start and element + rows * row_size <= gathered[i].stop
            ):
                key[0], key.rows = gathered[i].key, rows
                key.numbers.offset += (element - gathered[i].start) // row_size * key.size
                table = i
        if self.keys.size == numbers_in(sizeof(Key)):
            self.table = table if table >= 0 and gathered[table].table_rows else -1
        elif self.table >= 0 and key.table != gathered[self.table].key.table:
            self.table = -1
        return key.table >= 0

    cdef int run_distinct(self, int64_t launch, Run run) except -1:
        """Add a run on distinct rows, which the last call of `find_keys` tells apart."""
        cdef int64_t single = run.recipe.single
        cdef int64_t use = SAVED if len(run.recipe.directions) > 1 else TEMPORARY
        cdef Spot kept = self.reserve(use, 4 * (2 + 2 * run.rows)), source = run.spots[single]
        self.distinct[launch] = kept.base, kept.offset
        self.add_distinct(run, launch, kept, self.keys, 0)
        self.add_runs([run], 0)
        # The backward pass picks distinct rows from the same source.
        run.spots[single] = source
        return 0
