"""The program of a transposed plan: a part of `assembling.pyx`."""


cdef Spot read(Run run, const Read *how) noexcept:
    """Return where what is added up begins."""
    cdef Spot found = run.spots[how.number]
    found.offset += how.first
    return found


cdef class Backward(Assembler):
    """The program of a transposed plan.

    Parameters
    ----------
    plan
        See `Assembler`.
    forward : Forward
        Where the forward pass has left what is read.
    """

    #: What is trained: which base its gradient is, the number of the array among the bases forward,
    #: or whether among arrays from outside, and the parameter.
    cdef readonly list trained
    cdef Forward forward
    #: Per kind and target what adds up there.
    cdef dict sums
    #: Per segment the bases of the gradients of its parameters.
    cdef dict gradients
    cdef set zeroed

    def __init__(self, plan, Forward forward not None):
        super().__init__(plan, forward.stop)
        self.forward = forward
        self.trained, self.sums, self.gradients, self.zeroed = [], {}, {}, set()
        for number in plan.order:
            if self.is_native(number):
                self.zero_targets(number)

    cdef bint is_native(self, int64_t number) except -1:
        return number in self.forward.trained

    cdef int launch(self, int64_t number) except -1:
        cdef list runs = self.forward.launches[number]
        cdef Run first = self.place(runs, number, 1), run
        cdef Spot kept = NOWHERE
        if number in self.forward.distinct:
            # What is gained goes to the first of equal rows: all of them were chosen from one row.
            self.distinct[number] = kept.base, kept.offset = self.forward.distinct[number]
            self.tell_apart(first, number, kept, None, 1)
        for run in runs:
            self.note_sums(run, number, kept)
        self.run(runs, 1)
        self.add_up_shared(first.recipe, number)
        return 0

    cdef int note_sums(self, Run run, int64_t launch, Spot kept) except -1:
        """Take note of what adds up to gradients, which has to stay until that is done."""
        cdef const Sum *own
        cdef int64_t i, number
        cdef Spot target
        cdef Code chunks
        for number in run.recipe.added:
            if run.spots[number].base < 0:
                run.spots[number] = self.reserve(KEPT, run.size(number))
        for i in range(entries(run.recipe.sums, sizeof(Sum))):
            own = <const Sum *>of(run.recipe.sums) + i
            target = self.target(launch, own.parameter, own.input)
            head = own.record, own.kind, own.rows, own.columns, own.last
            key = target.base, target.offset + own.first, head
            chunks = self.sums.get(key)
            if chunks is None:
                chunks = self.sums[key] = Code()
            (<Chunk *>chunks.more(numbers_in(sizeof(Chunk))))[0] = Chunk(
                run.rows * own.parts, kept, read(run, &own.reads[0]), own.reads[0].pitch,
                read(run, &own.reads[1]), own.reads[1].pitch)
        return 0

    cdef int finish(self) except -1:
        """Add up gradients of parameters."""
        self.add_up(list(self.sums))
        return 0

    cdef int zero_targets(self, int64_t number) except -1:
        """Set what adds up to zero: all that is trained, also if no gradient flows there."""
        segment = self.segment(number)
        cdef Run run = self.forward.launches[number][0]
        cdef int64_t base, first
        cdef array trained = run.recipe.trained, reached = run.recipe.reached
        if segment not in self.gradients:
            found = self.gradients[segment] = {}
            for k, size in zip(trained[::2], trained[1::2]):
                parameter = segment.parameters[k]
                base = found[k] = self.held("gradient", parameter, segment.context)
                first = self.forward.held("parameter", parameter, segment.context)
                self.zero(base, size, (first, False, parameter))
        for k, size in zip(reached[::2], reached[1::2]):
            if self.output_of(number, k).what == NOTHING:
                base = self.target(number, -1, k).base
                self.zero(base, size, (self.bases[base - self.first][1], True, None))
        return 0

    cdef int zero(self, int64_t base, int64_t size, tuple trained) except -1:
        """Set a gradient of so many bytes to zero, once."""
        if base not in self.zeroed:
            self.zeroed.add(base)
            self.move(ZERO, kind_of("uint8"), 1, size, Spot(base, 0), Spot(0, 0))
            self.trained.append((base - self.first, *trained))
        return 0

    cdef Spot target(self, int64_t number, int64_t parameter, int64_t input) except *:
        """Return where the gradient of a parameter, or of an array that rows share, adds up."""
        if parameter >= 0:
            return Spot(self.gradients[self.segment(number)][parameter], 0)
        if self.output_of(number, input).what != NOTHING:
            return self.region(self.output_of(number, input))
        external = self.forward.operand_of(number, input).first
        return Spot(self.base(("external gradient", external)), 0)

    cdef int add_up(self, list keys) except -1:
        """Add up what is listed under some keys."""
        cdef Code chunks
        cdef int64_t count
        for key in keys:
            base, offset, (record, kind, rows, columns, last) = key
            chunks = self.sums[key]
            count = chunks.count(sizeof(Chunk))
            (<SumRecord *>self.code.more(numbers_in(sizeof(SumRecord))))[0] = SumRecord(
                record, kind, rows, columns, Spot(base, offset), last, count)
            self.code.copy(chunks.numbers, chunks.size)
            self.scratch = max(self.scratch, executing.sum_scratch(kind, rows, columns, count))
        return 0

    cdef int add_up_shared(self, Recipe recipe, int64_t number) except -1:
        """Add up the gradients of operands that all rows share: launches to come read them."""
        cdef array results = recipe.results[1]
        cdef int64_t k, size
        cdef const TableRow *region
        cdef Spot spot
        for k in range(len(results)):
            region = self.output_of(number, k)
            # Rows have gradients of their own.
            if region.what != NOTHING and of(results)[k] < 0:
                spot = self.region(region)
                size = region.rows * region.row_size * self.arena(region.first).size
                self.move(ZERO, kind_of("uint8"), 1, size, spot, Spot(0, 0))
                own = [
                    key for key in self.sums
                    if key[0] == spot.base and spot.offset <= key[1] < spot.offset + size
                ]
                self.add_up(own)
                for key in own:
                    del self.sums[key]
        return 0
