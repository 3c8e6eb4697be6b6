# cython: language_level=3, boundscheck=False, wraparound=False, binding=False, auto_pickle=False
"""The part of recording that runs once per call.

`call` records a call, `call_hook` finds those of blocks, `index` makes a view that is known; what is
new is left to Python, before there is a node.  `LazyNDArray` is a Python class: its slots are read
and written where they lie.
"""

cimport cython
from cpython.array cimport array, clone, resize_smart
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport int32_t, int64_t

from gluon_dynbatch.errors import Where
from gluon_dynbatch.modes import RECORDING, TRAINING

import gc
import time
from types import MemberDescriptorType

import numpy as np
from greenlet import getcurrent


cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member


cdef extern from "Python.h":
    ctypedef struct arrayobject:
        int ob_exports
    ctypedef struct PySliceObject:
        PyObject *start
        PyObject *stop
        PyObject *step
    object PyType_GenericAlloc(type cls, Py_ssize_t items)
    void PyObject_GC_UnTrack(PyObject *tracked)
    PyObject *PyList_GET_ITEM(list items, Py_ssize_t i)
    Py_ssize_t Py_REFCNT(PyObject *item)
    object PyObject_GenericGetDict(object owner, void *context)
    void *PyEval_GetFrame()
    ctypedef struct PyCodeObject
    int PyCode_Addr2Line(PyCodeObject *code, int instruction)


# ------------------------------------------------------------------ what the Python side tells

cdef struct Library:
    int (*shape)(void *, int *, const int64_t **) noexcept
    int (*dtype)(void *, int *) noexcept
    int (*context)(void *, int *, int *) noexcept
    int (*data)(void *, void **) noexcept nogil
    int (*wait)(void *) noexcept nogil
    int (*rows)(void *, unsigned, unsigned, void **) noexcept nogil
    int (*row)(void *, unsigned, void **) noexcept nogil
    int (*is_recording)(unsigned char *) noexcept
    int (*is_training)(unsigned char *) noexcept
    int (*set_recording)(int, int *) noexcept nogil


#: Functions of MXNet's.
cdef Library mxnet
cdef type lazy_type, array_type
#: What ctypes takes for handles.
cdef object handle_type
#: By id of a code object, itself, as hashing it would read all of it; whether it is the user's; and
#: its places by instruction.
cdef dict known_code = {}
#: What `type_of` has told, by what MXNet's functions tell.
cdef dict known_types = {}
cdef int recording_bit = RECORDING, training_bit = TRAINING
#: What a thread knows of its scope: `record.state.STATE`.
cdef object state
#: Where the slots of lazy arrays lie, in bytes, and those of plain ones.
cdef Py_ssize_t owner_at, value_at, offset_at, type_at, uncut_at
cdef Py_ssize_t handle_at, writable_at
#: Where an array of MXNet's has its node in the tape: `record.types.NODE_AT`.
cdef Py_ssize_t node_at

# What the modules of `record` assign: see there.
libraries = ()
ignored = frozenset()
check_array = type_of = class_of = call_stock = describe = number_of = give = None
#: Views that are known, by `view_key`: see `TypeTable.view`.
views = {}


def connect(
    state_, type lazy not None, type array_ not None, handle, Py_ssize_t node, array library not None
):
    """Take what is to be known of lazy and plain arrays; once per process."""
    global mxnet, state, lazy_type, array_type, handle_type, node_at
    global owner_at, value_at, offset_at, type_at, uncut_at, handle_at, writable_at
    state, lazy_type, array_type, handle_type = state_, lazy, array_, handle
    owner_at, value_at, offset_at, type_at, uncut_at = [
        slot_offset(lazy, name)
        for name in ("_owner", "_value", "_offset", "_type", "_uncut")
    ]
    handle_at, writable_at = slot_offset(array_, "handle"), slot_offset(array_, "writable")
    node_at, mxnet = node, (<Library *>library.data.as_voidptr)[0]


cpdef int current_mode() noexcept:
    """Return autograd's mode in this thread, as bits of `modes`."""
    cdef unsigned char recording = 0, training = 0
    mxnet.is_recording(&recording)
    mxnet.is_training(&training)
    return recording_bit * recording | training_bit * training


def surroundings(list kept not None, missing):
    """Return autograd's mode, and what MXNet keeps as ``value`` in dictionaries of this thread."""
    found = [current_mode()]
    for own in kept:
        found.append((<dict?>own).get("value", missing))
    return found


cdef Py_ssize_t slot_offset(type owner, str name) except -1:
    member = getattr(owner, name)
    if type(member) is not MemberDescriptorType:
        raise TypeError(f"{name} is not a slot")
    return (<PyMemberDescrObject *>member).d_member.offset


# ---------------------------------------------------------------------------- flat arrays

cdef class Owner:
    """What lazy arrays belong to until they are real."""

    #: The lazy arrays that have belonged to this: of a tape themselves, so nobody else holds one of
    #: a single reference; else weak references.
    cdef public list lazies

    cdef int add(self, lazy) except -1:
        self.lazies.append(lazy)
        return 0


#: Calls after each so many the recorder is asked whether they are to run by now.
LOOK = 1024


cdef class Tape(Owner):
    """The flat arrays of `record.tape.Tape`."""

    #: Whether calls may still be recorded.
    cdef public bint open
    #: Who computes the values when one of the arrays handed out is asked for its own.
    cdef public object recorder
    #: Why there are no values, if there are none.
    cdef public object error
    #: When the first call was recorded, by ``time.perf_counter``, moved by the time that was
    #: spent waiting for values since; 0 before.
    cdef public double started
    #: Number of calls from which on the recorder is asked that.
    cdef public Py_ssize_t ask_at
    #: Per node: id of its entry, and its first value.
    cdef readonly array node_entry, node_value0
    #: Per operand, nodes one after another: value and offset in elements.
    cdef readonly array sources, offsets
    #: Per value: type id.
    cdef readonly array value_type
    #: Entries used, by id.
    cdef readonly dict entries
    #: Per node: the `Place` of the user's call.
    cdef readonly list wheres
    #: Arrays from outside, as calls were given them, and what stands for each; their values; and
    #: these values by id of the array given, which is held so that its id stays its own.
    cdef readonly list given
    cdef public list externals
    cdef readonly array external_values
    cdef readonly dict external_ids

    def __cinit__(self):
        self.open = True
        self.node_entry, self.node_value0 = array("i"), array("i")
        self.sources, self.offsets = array("i"), array("q")
        self.value_type, self.external_values = array("i"), array("i")
        self.entries, self.external_ids = {}, {}
        self.wheres, self.lazies, self.externals, self.given = [], [], [], []
        self.ask_at = LOOK

    def __init__(self, recorder=None):
        self.recorder = recorder

    @property
    def external_type(self):
        """Numbers of the types of the arrays from outside; shape (externals,), int32."""
        return np.array(self.value_type)[np.array(self.external_values)]

    def realise(self, lazy):
        """Compute a lazy array: it belongs to a `Keeper` then, or is real."""
        self.recorder.compute(lazy)

    def close(self, error=None):
        """Let go of what only a flush needs; `error` says why arrays handed out have no value."""
        self.open, self.error = False, error
        # Who computed them may have the lists.
        self.externals, self.lazies = [], []
        self.given.clear()
        self.wheres.clear()

    def held(self, Py_ssize_t first=0):
        """Return the lazy arrays, from one on, that somebody still holds and that are not computed.

        Let go of those that nobody else holds.
        """
        cdef Py_ssize_t i
        # From the last on: arrays hold those that they are cut from.
        for i in range(len(self.lazies) - 1, first - 1, -1):
            if Py_REFCNT(PyList_GET_ITEM(self.lazies, i)) == 1:
                self.lazies[i] = None
        self.lazies[first:] = [lazy for lazy in self.lazies[first:] if lazy is not None]
        return [
            lazy for lazy in self.lazies[first:] if slot(lazy, owner_at)[0] is <PyObject *>self
        ]


cdef int reserve(array numbers, Py_ssize_t more) except -1:
    """Make room, so that so many numbers can be put without an error."""
    cdef Py_ssize_t count = numbers.ob_size
    if (<arrayobject *>numbers).ob_exports:
        raise BufferError("cannot grow while a buffer is exported")
    resize_smart(numbers, count + more)
    numbers.ob_size = count
    return 0


cdef inline void put(array numbers, int32_t number) noexcept:
    numbers.data.as_ints[numbers.ob_size] = number
    numbers.ob_size += 1


cdef inline void put_wide(array numbers, int64_t number) noexcept:
    numbers.data.as_longlongs[numbers.ob_size] = number
    numbers.ob_size += 1


# ---------------------------------------------------------------------------- lazy arrays

cdef inline PyObject **slot(object lazy, Py_ssize_t offset) noexcept:
    return <PyObject **>(<char *><PyObject *>lazy + offset)


cdef inline void fill_slot(object lazy, Py_ssize_t offset, object value) noexcept:
    """Write to a slot that is still empty."""
    Py_INCREF(value)
    slot(lazy, offset)[0] = <PyObject *>value


cdef object new_lazy(Owner owner, object value, object offset, object type_id):
    lazy = PyType_GenericAlloc(lazy_type, 0)
    fill_slot(lazy, owner_at, owner)
    fill_slot(lazy, value_at, value)
    fill_slot(lazy, offset_at, offset)
    fill_slot(lazy, type_at, type_id)
    fill_slot(lazy, uncut_at, None)
    # A tape lets go of all when it is closed.  Thousands of them per flush would make the collector
    # look through the whole heap again and again.
    PyObject_GC_UnTrack(<PyObject *>lazy)
    return lazy


cpdef object make_lazy(
    Owner owner, object value, object offset, object type_id, object uncut=None
):
    """Return a new lazy array; see `record.lazy.LazyNDArray`."""
    lazy = new_lazy(owner, value, offset, type_id)
    if uncut is not None:
        change_slot(lazy, uncut_at, uncut)
    owner.add(lazy)
    return lazy


def without_collector(work):
    """Return what a function returns that is called while Python's collector rests.

    Here, no interrupt comes between the end of `work` and the collector's return.
    """
    cdef bint collects = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if collects:
            gc.enable()


def untrack(data):
    """Let the collector look no more at tuples in tuples, which are in no cycle, but live long."""
    if isinstance(data, tuple):
        PyObject_GC_UnTrack(<PyObject *>data)
        for item in <tuple>data:
            untrack(item)


# ----------------------------------------------------------------------- the user's line

@cython.final
cdef class Place:
    """A place in the user's program, an instruction of a code object; there is one for each."""

    cdef object code, known
    cdef int instruction

    def __init__(self, code, int instruction):
        self.code, self.instruction = code, instruction

    @property
    def where(self):
        """The line as `errors.Where`."""
        if self.known is None:
            line = PyCode_Addr2Line(<PyCodeObject *>self.code, self.instruction)
            # What the first instructions do stands in no line.
            line = line if line > 0 else self.code.co_firstlineno
            self.known = Where(self.code.co_filename, line, self.code.co_name)
        return self.known


cpdef Place user_place():
    """Return the nearest place outside the libraries; without one, that of the outermost frame."""
    current, fiber, outermost = PyEval_GetFrame(), None, None
    frame = None if current is NULL else <object>current
    while True:
        while frame is not None:
            code = frame.f_code
            if is_user(code):
                return place_of(code, frame.f_lasti)
            frame, outermost = frame.f_back, frame
        # The frames of a fiber end where it began; they go on where it was begun.
        fiber = getcurrent().parent if fiber is None else fiber.parent
        if fiber is None:
            return place_of(outermost.f_code, outermost.f_lasti)
        frame = fiber.gr_frame


cdef Place place_of(object code, object instruction):
    """Return the place of an instruction of code that is known."""
    places = <dict>(<tuple>known_code[<size_t><PyObject *>code])[2]
    place = places.get(instruction)
    if place is None:
        place = places[instruction] = Place(code, instruction)
    return <Place>place


cpdef bint is_user(object code) except -1:
    """Whether a code object is the user's."""
    known = known_code.get(<size_t><PyObject *>code)
    if known is None:
        name = code.co_filename
        # Functions that MXNet generates have no file.
        user = not (name.startswith(libraries) or name == "<string>")
        known = known_code[<size_t><PyObject *>code] = code, user, {}
    return (<tuple>known)[1]


include "nests.pxi"
include "calls.pxi"
include "outside.pxi"
include "views.pxi"
include "structures.pxi"
include "pieces.pxi"
include "statement.pxi"
