"""Launches that run on distinct rows only: a part of `assembling.pyx`."""


cdef class DistinctRows(Stretches):
    """Tells equal rows of launches apart, and adds the code of launches on distinct ones.

    Owned by whoever owns its subclass, `Forward`.
    """

    #: Per launch its runs, one for each part; None if native code does not run it.
    cdef list launches
    #: What is known of equal rows, with the keys of the last `find_keys`.
    cdef EqualRows equal
    #: Regions of gathered rows that are read by launches only, if at all.
    cdef frozenset unread
    #: Per launch that computes some products on distinct rows only: the spot that keeps which rows
    #: are equal, and that of the distinct rows.
    cdef readonly dict apart
    cdef dict picked
    #: Launches that gather nothing, because nobody reads what they would.
    cdef readonly set unneeded

    def __init__(
        self, plan, tuple on_host not None, frozenset kept not None, frozenset unread not None
    ):
        super().__init__(plan, on_host, kept)
        self.launches, self.unread, self.unneeded = [None] * len(plan.segment), unread, set()
        self.equal, self.apart, self.picked = EqualRows(), {}, {}

    cdef int register_gathered(self, int64_t launch, Run run) except -1:
        """Register the result of a launch, whose code comes next, as rows gathered from a table."""
        cdef const TableRow *region = self.output_of(launch, 0)
        cdef Gathered *gathered = self.equal.add(region, launch)
        cdef int64_t size = data_of(run.recipe.row_bytes)[0]
        gathered.code = self.code.size
        gathered.table = run.spots[data_of(run.recipe.parameters)[0]]
        gathered.table_rows = run.recipe.table_rows
        # Equal bits of integers and of floats are different indices, even into one table.
        kind = (<const OperandEntry *>data_of(run.recipe.direction(0).operands)).kind
        gathered.key = RowKey(gathered.table.base * TYPES + kind, run.spots[0], 0, size)
        return 0

    cdef int place_looked_up(self, Run run, int64_t launch) except -1:
        """Reserve memory for the rows that a launch looks up by itself, instead of reading them."""
        cdef int64_t single = run.recipe.single
        cdef array operands = run.recipe.direction(0).operands
        cdef const OperandEntry *operand = <const OperandEntry *>data_of(operands)
        run.spots[single] = self.reserve(operand[single].use, run.bytes_of(single))
        self.looked_up.add(launch)
        return 0

    cdef int add_looked_up(self, const Apart *apart, Spot target) except -1:
        cdef const Gathered *gathered = self.equal.rows(self.equal.table)
        (<Moved *>self.code.grow(sizeof(Moved)))[0] = Moved(
            LOOK_UP, apart.kind, apart.width, target, gathered.table, gathered.table_rows,
            gathered.key.table % TYPES)
        return 1

    cdef int drop_gathers(self) except -1:
        """Let launches gather nothing whose results nobody reads, as others look up what they need."""
        cdef const Gathered *gathered
        cdef int64_t i
        cdef int64_t *part
        cdef Run run
        for i in range(self.equal.count() if self.looked_up else 0):
            gathered = self.equal.rows(i)
            if not gathered.table_rows or self.output0[gathered.launch] not in self.unread:
                continue
            if self.is_read(gathered):
                continue
            self.unneeded.add(gathered.launch)
            part = self.code.numbers + gathered.code + 2
            for run in self.launches[gathered.launch]:
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
        self.equal.begin_keys()
        if not self.equal.count() or operand.what == WHOLE:
            return 0
        if operand.what == SLICE:
            return self.equal.add_key(operand.first, operand.second, operand.rows, row_size)
        for i in range(operand.first, operand.first + operand.second):
            piece = self.piece(i)
            if piece.action != COPY or piece.target % row_size or piece.length % row_size:
                return 0
            gathered += self.equal.add_key(
                piece.arena, piece.element, piece.length // row_size, row_size)
        return gathered

    def keys_of(self, int64_t launch, int64_t port):
        """Return the keys of an operand of a launch as a list of integers; for tests."""
        gathered = self.find_keys(launch, port)
        keys = self.equal.keys
        return [keys.numbers[i] for i in range(keys.size)] if gathered else []

    cdef int run_distinct(self, int64_t launch, Run run) except -1:
        """Add a run on distinct rows, which the last call of `find_keys` tells apart."""
        cdef int64_t single = run.recipe.single
        cdef Spot kept = self.reserve_numbering(run), source = run.spots[single]
        self.distinct[launch] = kept.base, kept.offset
        self.register_equal(launch, run, kept)
        self.add_distinct(run, launch, kept, self.equal.keys, run.recipe.direction(0))
        self.add_runs([run], 0)
        # The backward pass picks distinct rows from the same source.
        run.spots[single] = source
        return 0

    cdef Spot reserve_numbering(self, Run run) except *:
        """Reserve memory for what a DISTINCT record finds out, which later records may read."""
        cdef int64_t use = SAVED if len(run.recipe.directions) > 1 else KEPT
        return self.reserve(use, 4 * (2 + 2 * run.rows))

    cdef int register_equal(self, int64_t launch, Run run, Spot kept) except -1:
        """Register the results of a launch on distinct rows: rows of equal numbers are equal."""
        cdef int64_t number
        cdef Gathered *gathered
        cdef const TableRow *region
        for number in range(self.output0[launch + 1] - self.output0[launch]):
            region = self.output_of(launch, number)
            if region.what == NOTHING or region.rows != run.rows:
                continue
            if self.equal.count() >= MOST_GATHERED:
                continue
            gathered = self.equal.add(region, launch)
            # The numbers follow how many there are, and how many rows.
            gathered.key = RowKey(
                AFTER_TABLES + launch, Spot(kept.base, kept.offset + 2 * sizeof(int32_t)), 0,
                sizeof(int32_t))
        return 0

    cdef int run_products(self, int64_t launch, Run run, Products products) except -1:
        """Add a run whose products of one input are computed on distinct rows of that only.

        The last call of `find_keys` tells these apart.
        """
        cdef Spot kept = self.reserve_numbering(run), source = run.spots[products.input]
        self.place_in_memory(run, products.results)
        self.add_distinct(run, launch, kept, self.equal.keys, products.products)
        self.begin_launch(1)
        self.add_part(run, products.products)
        # The backward pass reads distinct rows of the input.
        self.apart[launch] = kept.base, kept.offset
        self.picked[launch] = run.spots[products.input].base, run.spots[products.input].offset
        run.spots[products.input] = source
        self.begin_launch(1)
        self.add_part(run, products.rest)
        return 0
