"""Assemble the program of a transposed plan: a part of `assembling.pyx`."""


cdef Spot spot_of_read(Run run, const Read *read) noexcept:
    cdef Spot spot = run.spots[read.number]
    spot.offset += read.first
    return spot


cdef class Backward(Assembler):
    """Assembles the program of a transposed plan.

    Owned by the function that assembles it, until it is assembled.
    """

    #: By the number among `bases` of each gradient that the program computes: the number of the
    #: array, among external arrays or else among forward bases; whether it is an external array;
    #: and its parameter, or None.
    cdef readonly dict trained
    #: The assembler of the forward program, which knows where that leaves its values.
    cdef Forward forward
    #: Entries of `SumChunk` that are still to be added up, by target and kind of sum.
    cdef dict sums
    #: Per segment, the bases of the gradients of its parameters.
    cdef dict gradients

    def __init__(self, plan, Forward forward not None):
        super().__init__(plan, forward.briefs, forward.stop)
        self.forward, self.looked_up = forward, forward.looked_up
        self.trained, self.sums, self.gradients = {}, {}, {}
        for launch in plan.order:
            if self.is_native(launch):
                self.zero_gradients(launch)

    cdef bint is_native(self, int64_t launch) except -1:
        return launch in self.forward.trained

    cdef int add_launch(self, int64_t launch) except -1:
        cdef list runs = self.forward.launches[launch]
        cdef Run first = self.place(runs, launch, 1), run
        cdef Spot kept = NOWHERE
        if launch in self.forward.apart:
            self.run_products(launch, first, first.recipe.products)
            return self.add_shared_sums(first.recipe, launch)
        if launch in self.forward.distinct:
            # Of equal rows, the first gets the gradient: all of them were chosen from one row.
            self.distinct[launch] = kept.base, kept.offset = self.forward.distinct[launch]
            self.add_distinct(first, launch, kept, None, first.recipe.direction(1))
        for run in runs:
            self.collect_sums(run, launch, kept)
        self.add_runs(runs, 1)
        self.add_shared_sums(first.recipe, launch)
        return 0

    cdef int run_products(self, int64_t launch, Run run, Products products) except -1:
        """Add a run whose products of one input have been computed on distinct rows of that only.

        Gradients of equal rows are added up before they are multiplied.
        """
        cdef Spot kept
        kept.base, kept.offset = self.forward.apart[launch]
        self.place_in_memory(run, products.gradients)
        self.collect_sums(run, launch, NOWHERE, products.input, False)
        self.begin_launch(1)
        self.add_part(run, products.rest_backward)
        self.add_distinct(run, launch, kept, None, products.products_backward)
        base, offset = self.forward.picked[launch]
        run.spots[products.input] = Spot(base, offset)
        self.collect_sums(run, launch, kept, products.input, True)
        self.begin_launch(1)
        return self.add_part(run, products.products_backward)

    cdef int collect_sums(
        self, Run run, int64_t launch, Spot kept, int64_t input=-1, bint reads=False
    ) except -1:
        """Collect the sums over rows of a run, and reserve memory for rows that are added later.

        If an input is given, only those that read it, or only those that do not.
        """
        cdef const SumEntry *sum_
        cdef int64_t i, number
        cdef Spot target
        cdef Code chunks
        for number in run.recipe.added:
            if run.spots[number].base < 0:
                run.spots[number] = self.reserve(KEPT, run.bytes_of(number))
        for i in range(entries(run.recipe.sums, sizeof(SumEntry))):
            sum_ = <const SumEntry *>data_of(run.recipe.sums) + i
            if input >= 0 and reads != (sum_.left.number == input or sum_.right.number == input):
                continue
            target = self.spot_of_gradient(launch, sum_.parameter, sum_.input)
            head = sum_.record, sum_.kind, sum_.rows, sum_.columns, sum_.last
            key = target.base, target.offset + sum_.first, head
            chunks = self.sums.get(key)
            if chunks is None:
                chunks = self.sums[key] = Code()
            (<SumChunk *>chunks.grow(sizeof(SumChunk)))[0] = SumChunk(
                run.rows * sum_.parts, kept, spot_of_read(run, &sum_.left),
                sum_.left.pitch, spot_of_read(run, &sum_.right), sum_.right.pitch)
        return 0

    cdef int finish(self) except -1:
        self.add_sums(list(self.sums))
        return 0

    cdef int zero_gradients(self, int64_t launch) except -1:
        """Set to zero the gradients that a launch adds to, also if no gradient reaches them."""
        cdef SegmentBrief segment = self.segment(launch)
        cdef Run run = self.forward.launches[launch][0]
        cdef int64_t base, array_base, i
        cdef array trained = run.recipe.trained, reached = run.recipe.reached
        cdef const Gradient *gradient = <const Gradient *>data_of(trained)
        if segment not in self.gradients:
            bases = self.gradients[segment] = {}
            for i in range(entries(trained, sizeof(Gradient))):
                parameter = segment.parameters[gradient[i].number]
                base = self.parameter_base(GRADIENT, segment, gradient[i].number)
                bases[gradient[i].number] = base
                array_base = self.forward.parameter_base(
                    PARAMETER, segment, gradient[i].number)
                self.zero_gradient(base, gradient[i].bytes, (array_base, False, parameter))
        gradient = <const Gradient *>data_of(reached)
        for i in range(entries(reached, sizeof(Gradient))):
            if self.output_of(launch, gradient[i].number).what == NOTHING:
                base = self.spot_of_gradient(launch, -1, gradient[i].number).base
                external = self.bases[base - self.first][1]
                self.zero_gradient(base, gradient[i].bytes, (external, True, None))
        return 0

    cdef int zero_gradient(self, int64_t base, int64_t size, tuple trained) except -1:
        """Set a gradient of so many bytes to zero, once, and add it to `trained`."""
        if base - self.first not in self.trained:
            self.trained[base - self.first] = trained
            self.add_bytes(ZERO, size, Spot(base, 0), NOWHERE)
        return 0

    cdef Spot spot_of_gradient(self, int64_t launch, int64_t parameter, int64_t input) except *:
        """Return the spot of the gradient of a parameter or, if that is -1, of a shared input."""
        if parameter >= 0:
            return Spot(self.gradients[self.segment(launch)][parameter], 0)
        if self.output_of(launch, input).what != NOTHING:
            return self.spot_of_region(self.output_of(launch, input))
        external = self.forward.operand_of(launch, input).first
        return Spot(self.base(("external gradient", external)), 0)

    cdef int add_sums(self, list keys) except -1:
        """Add the records of collected sums, which are no longer collected then."""
        cdef Code chunks
        cdef int64_t count
        for key in keys:
            base, offset, (record, kind, rows, columns, last) = key
            chunks = self.sums.pop(key)
            count = chunks.count(sizeof(SumChunk))
            (<SumRecord *>self.code.grow(sizeof(SumRecord)))[0] = SumRecord(
                record, kind, rows, columns, Spot(base, offset), last, count)
            self.code.append(chunks)
            self.scratch = max(self.scratch, executing.sum_scratch(kind, rows, columns, count))
        return 0

    cdef int add_shared_sums(self, Recipe recipe, int64_t launch) except -1:
        """Add the sums of operands that all rows of a launch share, as later launches read them."""
        cdef array results = recipe.direction(1).results
        cdef int64_t k, size
        cdef const TableRow *region
        cdef Spot spot
        for k in range(len(results)):
            region = self.output_of(launch, k)
            if region.what != NOTHING and data_of(results)[k] < 0:
                spot = self.spot_of_region(region)
                size = region.rows * region.row_size * self.arena(region.first).size
                self.add_bytes(ZERO, size, spot, NOWHERE)
                self.add_sums([
                    key for key in self.sums
                    if key[0] == spot.base and spot.offset <= key[1] < spot.offset + size
                ])
        return 0
