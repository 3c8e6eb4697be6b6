# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Make the plans of both directions: order units, list reads, and resolve operands from them.

Arrays and tables of places are as in `plan.plan.Plan` and in `Graph`.  Numbers of elements have 32
bits, as arrays of MXNet have no more elements: tables of half the size stay in the cache.
"""

cimport cython
from cpython.array cimport array, clone, resize_smart
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

import numpy

from ..errors import LaunchError
from . cimport tables
from .tables cimport FIRST, ROW_SIZE, ROWS, SECOND, TYPE, PieceRow, TableRow

cdef array INT = array("i"), LONG = array("q")

#: Actions of pieces, and types of places.
COPY, ADD, ZERO = tables.COPY, tables.ADD, tables.ZERO
WHOLE, SLICE, TOGETHER = tables.WHOLE, tables.SLICE, tables.TOGETHER
#: The columns of the tables of places and of pieces, as native code has them.
PLACE, PIECE = tuple(<dict>TableRow(0, 0, 0, 0, 0)), tuple(<dict>PieceRow(0, 0, 0, 0, 0))


cdef struct PortRow:
    # An input or output of a segment; the kind is the number of its dtype and context.  Plain
    # values in tables that are owned by segments, as bytes; pointers to entries are valid while the caller holds the table.
    int64_t row_size, kind, shared, differentiable, concat


#: The names of its members, which are columns of `plan.plan.Ports`.
cdef tuple PORT = tuple(<dict>PortRow(0, 0, 0, 0, 0))


def port_table(ports, kinds):
    """Return inputs or outputs of a segment as a table of `PortRow`, with the kind of each."""
    cdef bytearray table = bytearray(len(ports) * sizeof(PortRow))
    cdef PortRow *entry = <PortRow *><char *>table
    for port, kind in zip(ports, kinds):
        entry[0] = PortRow(
            row_size=port.row_size, kind=kind, shared=port.shared,
            differentiable=port.differentiable, concat=port.concat)
        entry += 1
    return bytes(table)


cdef inline const PortRow *ports_in(bytes table) noexcept:
    return <const PortRow *><const char *>table


cdef inline int64_t count_ports(bytes table) noexcept:
    return len(table) // sizeof(PortRow)


cdef int check_size(int64_t elements) except -1:
    """Raise unless an array can have so many elements."""
    if elements > INT32_MAX:
        raise LaunchError(
            f"no memory for an array of {elements} elements",
            advice="record less in one scope, for example with smaller minibatches")
    return 0


include "sorting.pxi"
include "ordering.pxi"
include "reading.pxi"
include "resolving.pxi"
include "flow.pxi"
