"""The program of a transposed plan: a part of `assembling.pyx`."""


cdef class Backward(Assembler):
    """The program of a transposed plan.

    Parameters
    ----------
    plan, types
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

    def __init__(self, plan, tuple types, Forward forward not None):
        super().__init__(plan, types, forward.stop)
        self.forward = forward
        self.trained, self.sums, self.gradients, self.zeroed = [], {}, {}, set()
        for launch in plan.launches:
            if self.is_native(launch):
                self.zero_targets(launch)

    cdef bint is_native(self, launch) except -1:
        return launch.number in self.forward.trained

    cdef ports(self, segment):
        return segment.outputs

    cdef int launch(self, launch) except -1:
        number, _, _, _, operands, outputs = <tuple>launch
        cdef list runs = self.forward.launches[number]
        cdef Run first = runs[0], run
        cdef Recipe recipe = first.recipe
        cdef int64_t k, use
        cdef int64_t *head
        cdef array placed = array("q")
        cdef Spot kept = NOWHERE
        for k, operand in enumerate(operands):
            if operand is None:
                continue
            head = of(recipe.heads) + HEAD * k
            use = TEMPORARY
            for run in runs:
                use = max(use, of(run.recipe.heads)[HEAD * k + 3])
            first.spots[head[0]] = self.operand(operand, head + 1, use)
            placed.append(head[0])
        for k, region in enumerate(outputs):
            if region is not None and of(recipe.gradients)[k] >= 0:
                first.spots[of(recipe.gradients)[k]] = self.region(region)
                placed.append(of(recipe.gradients)[k])
        place_parts(runs, placed)
        if number in self.forward.distinct:
            self.distinct[number] = kept.base, kept.offset = self.forward.distinct[number]
            self.run_distinct(launch, first, kept)
        for run in runs:
            self.note_sums(run, launch, kept)
        self.run(runs, 1)
        self.add_up_shared(recipe, outputs)
        return 0

    cdef int run_distinct(self, launch, Run run, Spot kept) except -1:
        """Let a launch go backward for rows that differ, given the totals of their gradients.

        What is gained goes to the first of equal rows: all of them were chosen from one row.
        """
        cdef const int64_t *entry
        cdef Spot source
        cdef int64_t i
        operands = launch[4]
        self.tell_apart(kept, run.rows, None)
        for i in range(len(run.recipe.unequal) // UNEQUAL):
            # What is done, number, type, elements, use, result.
            entry = of(run.recipe.unequal) + UNEQUAL * i
            source = run.spots[entry[1]]
            if source.base < 0:
                continue
            # Totals of rows that were put together may stand where these are.
            if entry[0] == PICK or (entry[0] == TOTAL and type(operands[entry[5]]) is self.slice):
                run.spots[entry[1]] = self.reserve(entry[4], run.size(entry[1]))
            self.rows_apart(entry[0], entry[2], entry[3], run.spots[entry[1]], source)
        return 0

    cdef int note_sums(self, Run run, launch, Spot kept) except -1:
        """Take note of what adds up to gradients, which has to stay until that is done."""
        cdef const int64_t *entry
        cdef int64_t *chunk
        cdef int64_t i, k, number
        cdef Spot target
        cdef Code chunks
        for number in run.recipe.added:
            if run.spots[number].base < 0:
                run.spots[number] = self.reserve(KEPT, run.size(number))
        for i in range(len(run.recipe.sums) // SUM):
            # Parameter or input, first byte, record, type, rows, columns, its last number, rows per
            # row, and twice number, first byte, elements.
            entry = of(run.recipe.sums) + SUM * i
            target = self.target(launch, entry[0], entry[1])
            key = (target.base, target.offset + entry[2], *run.recipe.sums[SUM * i + 3 : SUM * i + 8])
            chunks = self.sums.get(key)
            if chunks is None:
                chunks = self.sums[key] = Code()
            chunk = chunks.more(CHUNK)
            chunk[0], chunk[1], chunk[2] = run.rows * entry[8], kept.base, kept.offset
            for k in range(2):
                target = run.spots[entry[9 + 3 * k]]
                chunk[3 + 3 * k], chunk[4 + 3 * k] = target.base, target.offset + entry[10 + 3 * k]
                chunk[5 + 3 * k] = entry[11 + 3 * k]
        return 0

    cdef int finish(self) except -1:
        """Copy gradients of fills out that lie apart, and add up those of parameters."""
        plan = self.forward.plan
        for result, fill in zip(self.plan.results, plan.fills):
            arena = plan.arenas[fill.region.arena]
            self.apart(result, arena.dtype, arena.context)
        self.add_up(list(self.sums))
        return 0

    cdef int zero_targets(self, launch) except -1:
        """Set what adds up to zero: all that is trained, also if no gradient flows there."""
        number, segment, _, _, _, outputs = <tuple>launch
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
            if outputs[k] is None:
                base = self.target(launch, -1, k).base
                self.zero(base, size, (self.bases[base - self.first][1], True, None))
        return 0

    cdef int zero(self, int64_t base, int64_t size, tuple trained) except -1:
        """Set a gradient of so many bytes to zero, once."""
        if base not in self.zeroed:
            self.zeroed.add(base)
            self.move(ZERO, kind_of("uint8"), 1, size, Spot(base, 0), Spot(0, 0))
            self.trained.append((base - self.first, *trained))
        return 0

    cdef Spot target(self, launch, int64_t parameter, int64_t input) except *:
        """Return where the gradient of a parameter, or of an array that rows share, adds up."""
        number, segment, _, _, _, outputs = <tuple>launch
        if parameter >= 0:
            return Spot(self.gradients[segment][parameter], 0)
        if outputs[input] is not None:
            return self.region(outputs[input])
        operand = self.forward.plan.launches[number].operands[input]
        return Spot(self.base(("external gradient", operand[0])), 0)

    cdef int add_up(self, list keys) except -1:
        """Add up what is listed under some keys."""
        cdef Code chunks
        cdef int64_t *code
        cdef int64_t count
        for key in keys:
            base, offset, record, kind, rows, columns, last = key
            chunks = self.sums[key]
            count = chunks.size // CHUNK
            code = self.code.more(8)
            code[0], code[1], code[2], code[3] = record, kind, rows, columns
            code[4], code[5], code[6], code[7] = base, offset, last, count
            self.code.copy(chunks.numbers, chunks.size)
            self.scratch = max(self.scratch, executing.sum_scratch(kind, rows, columns, count))
        return 0

    cdef int add_up_shared(self, Recipe recipe, outputs) except -1:
        """Add up the gradients of operands that all rows share: launches to come read them."""
        cdef int64_t size
        cdef const int64_t *arena
        cdef Spot spot
        for k, region in enumerate(outputs):
            # Rows have gradients of their own.
            if region is not None and of(recipe.gradients)[k] < 0:
                spot = self.region(region)
                arena = of(self.arenas) + 3 * <int64_t>(<tuple>region)[0]
                size = <int64_t>(<tuple>region)[2] * arena[1] * arena[2]
                self.move(ZERO, kind_of("uint8"), 1, size, spot, Spot(0, 0))
                own = [
                    key for key in self.sums
                    if key[0] == spot.base and spot.offset <= key[1] < spot.offset + size
                ]
                self.add_up(own)
                for key in own:
                    del self.sums[key]
        return 0
