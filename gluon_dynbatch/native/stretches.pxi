"""Rows that a launch reads where they are, although they lie apart: a part of `assembling.pyx`."""


cdef class Stretches(Fills):
    """Cuts launches into parts whose rows lie side by side.

    Owned as its subclass `Forward` is.
    """

    cdef array find_far(self, Run run, int64_t launch):
        """Return where rows are that lie apart and that a forward kernel reads there, or None.

        That is the number of each such operand, then its first piece, and its elements in a row.
        Their spots are set to somewhere, so that nothing puts them together.
        """
        cdef array found = array("q"), operands = run.recipe.direction(0).operands
        cdef const OperandEntry *operand
        cdef const TableRow *place
        cdef const PieceRow *piece
        cdef int64_t k, i, whole
        for k in range(entries(operands, sizeof(OperandEntry))):
            place, operand = self.operand_of(launch, k), <const OperandEntry *>data_of(operands) + k
            if place.what != TOGETHER or operand.number not in run.recipe.far:
                continue
            whole = 0
            for i in range(place.first, place.first + place.second):
                piece = self.piece(i)
                if piece.action != COPY or piece.target != whole or piece.length % place.row_size:
                    break
                whole += piece.length
            if whole == run.rows * place.row_size:
                found.extend(array("q", (operand.number, place.first, place.row_size)))
                run.spots[operand.number] = Spot(0, 0)
        return found if len(found) else None

    cdef list cut_far(self, Run run, array far):
        """Cut a run into parts whose rows lie side by side, given what `find_far` returns."""
        cdef list parts = []
        cdef const PieceRow *piece
        cdef ArenaRows *arena
        cdef Run part
        cdef int64_t *each
        cdef int64_t row = 0, stop, i
        while row < run.rows:
            part, stop = run.resized(0), run.rows
            part.move(row)
            for i in range(0, len(far), 3):
                each = data_of(far) + i
                piece = self.piece(each[1])
                if piece.target + piece.length <= row * each[2]:
                    each[1] += 1
                    piece = self.piece(each[1])
                arena = self.arena(piece.arena)
                part.spots[each[0]] = Spot(
                    arena.base, (piece.element + row * each[2] - piece.target) * arena.size)
                stop = min(stop, (piece.target + piece.length) // each[2])
            part.rows = stop - row
            parts.append(part)
            row = stop
        return parts
