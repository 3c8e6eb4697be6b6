"""Assemble the program of a transposed plan: a part of `assembling.pyx`."""


cdef Spot spot_of_read(Run run, const Read *read) noexcept:
    cdef Spot spot = run.spots[read.number]
    spot.offset += read.first
    return spot


cdef tuple GRADIENT_BASE = ("gradient",)


cdef class Backward(Assembler):
    """Assembles the program of a transposed plan.

    Owned by the function that assembles it, until it is assembled.
    """

    #: Per gradient that the program computes: its number among `bases`; and that of the array, among
    #: external arrays or else among forward bases.
    cdef readonly array gradients, arrays
    #: For each of them a byte: whether the array is an external one, and whether the gradient is
    #: known to be dense, as that of some parameters.
    cdef readonly bytearray external, dense
    #: The assembler of the forward program, which knows where that leaves its values.
    cdef Forward forward
    #: The sums that are still to be added up.
    cdef CollectedSums sums
    #: Per forward base that is a parameter, the base of its gradient; otherwise, -1.
    cdef int64_t[::1] gradient_of
    #: Per segment, whether the gradients of its parameters have bases.
    cdef bytearray has_gradients

    def __init__(self, plan, Forward forward not None):
        cdef int64_t i
        cdef const int64_t[:] order = plan.order
        super().__init__(plan, forward.briefs, forward.stop)
        self.forward, self.looked_up = forward, forward.looked_up
        self.gradients, self.arrays = array("q"), array("q")
        self.external, self.dense, self.sums = bytearray(), bytearray(), CollectedSums()
        self.gradient_of = clone(LONG, max(forward.stop, 1), False)
        self.gradient_of[:] = -1
        self.has_gradients = bytearray(len(self.briefs))
        for i in range(order.shape[0]):
            if self.is_native(order[i]):
                self.zero_gradients(order[i])

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
        cdef SumKey key
        cdef SumChunk chunk
        for number in run.recipe.added:
            if run.spots[number].base < 0:
                run.spots[number] = self.reserve(KEPT, run.bytes_of(number))
        for i in range(entries(run.recipe.sums, sizeof(SumEntry))):
            sum_ = <const SumEntry *>data_of(run.recipe.sums) + i
            if input >= 0 and reads != (sum_.left.number == input or sum_.right.number == input):
                continue
            key = SumKey(
                self.spot_of_gradient(launch, sum_.parameter, sum_.input), sum_.record, sum_.kind,
                sum_.rows, sum_.columns, sum_.last)
            key.target.offset += sum_.first
            chunk = SumChunk(
                run.rows * sum_.parts, kept, spot_of_read(run, &sum_.left),
                sum_.left.pitch, spot_of_read(run, &sum_.right), sum_.right.pitch)
            self.sums.add(&key, &chunk)
        return 0

    cdef int finish(self) except -1:
        cdef int64_t i
        for i in range(self.sums.total()):
            if self.sums.at(i).count:
                self.sums.write(i, self.code)
        self.scratch = self.sums.scratch
        return 0

    cdef int zero_gradients(self, int64_t launch) except -1:
        """Set to zero the gradients that a launch adds to, also if no gradient reaches them."""
        cdef Run run = self.forward.launches[launch][0]
        cdef int64_t segment = self.part_segment[self.part0[launch]], base, parameter, i
        cdef SegmentBrief brief = self.briefs[segment]
        cdef array trained = run.recipe.trained, reached = run.recipe.reached
        cdef const Gradient *gradient = <const Gradient *>data_of(trained)
        for i in range(0 if self.has_gradients[segment] else entries(trained, sizeof(Gradient))):
            parameter = self.forward.parameter_at(segment, gradient[i].number)
            if self.gradient_of[parameter] < 0:
                base = self.gradient_of[parameter] = self.add_base(GRADIENT_BASE)
                self.zero_gradient(
                    base, gradient[i].bytes, parameter, False, brief.dense[gradient[i].number])
        self.has_gradients[segment] = True
        gradient = <const Gradient *>data_of(reached)
        for i in range(entries(reached, sizeof(Gradient))):
            if self.output_of(launch, gradient[i].number).what == NOTHING:
                base = self.stop
                if self.spot_of_gradient(launch, -1, gradient[i].number).base == base:
                    external = self.bases[base - self.first][1]
                    self.zero_gradient(base, gradient[i].bytes, external, True, False)
        return 0

    cdef int zero_gradient(
        self, int64_t base, int64_t size, int64_t array_, bint external, bint dense
    ) except -1:
        """Set a new gradient of so many bytes to zero, and note whose it is."""
        append_to(self.gradients, base - self.first)
        append_to(self.arrays, array_)
        self.external.append(external)
        self.dense.append(dense)
        self.add_bytes(ZERO, size, Spot(base, 0), NOWHERE)
        return 0

    cdef Spot spot_of_gradient(self, int64_t launch, int64_t parameter, int64_t input) except *:
        """Return the spot of the gradient of a parameter or, if that is -1, of a shared input."""
        cdef int64_t segment, number
        if parameter >= 0:
            segment = self.part_segment[self.part0[launch]]
            number = self.forward.parameter_at(segment, parameter)
            return Spot(self.gradient_of[number], 0)
        if self.output_of(launch, input).what != NOTHING:
            return self.spot_of_region(self.output_of(launch, input))
        external = self.forward.operand_of(launch, input).first
        return Spot(self.base(("external gradient", external)), 0)

    cdef int add_shared_sums(self, Recipe recipe, int64_t launch) except -1:
        """Add the sums of operands that all rows of a launch share, as later launches read them."""
        cdef array results = recipe.direction(1).results
        cdef int64_t k, i, size
        cdef const TableRow *region
        cdef const CollectedSum *collected
        cdef Spot spot
        for k in range(len(results)):
            region = self.output_of(launch, k)
            if region.what != NOTHING and data_of(results)[k] < 0:
                spot = self.spot_of_region(region)
                size = region.rows * region.row_size * self.arena(region.first).size
                self.add_bytes(ZERO, size, spot, NOWHERE)
                for i in range(self.sums.total()):
                    collected = self.sums.at(i)
                    if collected.count and collected.key.target.base == spot.base and (
                        spot.offset <= collected.key.target.offset < spot.offset + size
                    ):
                        self.sums.write(i, self.code)
        return 0
