# cython: language_level=3, boundscheck=False, wraparound=False, binding=False, auto_pickle=False
"""The part of recording that runs once per call.

`call` records a call, `call_hook` intercepts calls of blocks, `index` makes a view that was made
before.  Keys that are new are left to Python, before a node is added.  `LazyNDArray` is a Python
class: its slots are read and written directly in memory.
"""

cimport cython
from cpython.array cimport array, clone, extend, resize_smart
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Update
from cpython.exc cimport PyErr_Clear
from cpython.list cimport PyList_SetSlice
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.weakref cimport PyWeakref_GetObject, PyWeakref_NewRef
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from gluon_dynbatch.errors import NestingError, Where
from gluon_dynbatch.modes import MODE_BITS, NUMPY_ARRAY, NUMPY_SHAPE, RECORDING, TRAINING

import enum
import gc
import time
from bisect import bisect_right
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
    const char *utf8_of "PyUnicode_AsUTF8AndSize"(object text, Py_ssize_t *size) noexcept
    PyObject *PyList_GET_ITEM(list items, Py_ssize_t i)
    Py_ssize_t Py_REFCNT(PyObject *item)
    PyObject *PySequence_Fast_GET_ITEM(object items, Py_ssize_t i)
    Py_ssize_t PySequence_Fast_GET_SIZE(object items)
    object PyObject_GenericGetDict(object owner, void *context)
    PyObject **_PyObject_GetDictPtr(object owner) noexcept
    void *PyEval_GetFrame()
    ctypedef struct PyCodeObject
    int PyCode_Addr2Line(PyCodeObject *code, int instruction)
    ctypedef struct PyDictObject:
        uint64_t ma_version_tag


# -------------------------------------------------------------- provided by the Python side

cdef struct Functions:
    # Plain values: addresses in MXNet's library, which stays loaded.
    int (*shape)(void *, int *, const int64_t **) noexcept
    int (*dtype)(void *, int *) noexcept
    int (*context)(void *, int *, int *) noexcept
    int (*data)(void *, void **) noexcept nogil
    int (*wait)(void *) noexcept nogil
    int (*rows)(void *, unsigned, unsigned, void **) noexcept nogil
    int (*row)(void *, unsigned, void **) noexcept nogil
    int (*create)(const int64_t *, int, int, int, int, int, void **) noexcept nogil
    int (*reshape)(void *, int, const int64_t *, bint, void **) noexcept nogil
    int (*is_recording)(unsigned char *) noexcept
    int (*is_training)(unsigned char *) noexcept
    int (*set_recording)(int, int *) noexcept nogil
    int (*set_training)(int, int *) noexcept
    int (*is_numpy_shape)(int *) noexcept
    int (*set_numpy_shape)(int, int *) noexcept
    int (*share)(void *, void **) noexcept


#: C functions of MXNet.
cdef Functions mxnet
cdef type lazy_type, array_type
#: Those of ``mx.np``.
cdef type lazy_numpy_type, numpy_type
#: `record.lazy.Borrowed`.
cdef type borrowed_type
#: The ctypes class of array handles.
cdef object handle_type
cdef type numpy_array = np.ndarray
#: By id of a code object: the object itself, whether it is the user's, and its places by
#: instruction.  By id, because hashing a code object reads all of it.
cdef dict known_code = {}
#: Type ids by shape, dtype and context, as MXNet's functions return them.
cdef dict known_types = {}
cdef int recording_bit = RECORDING, training_bit = TRAINING
cdef int numpy_shape_bit = NUMPY_SHAPE, numpy_array_bit = NUMPY_ARRAY, mode_bits = MODE_BITS
#: MXNet's object with the NumPy semantics of each thread; the semantics that were seen last, which
#: never change, and their bits; and the semantics without NumPy's arrays, and with them.
cdef object numpy_scopes, numpy_scope = None
cdef tuple numpy_choices
cdef int numpy_scope_bits = 0
#: `record.state.STATE`.
cdef object state
#: Offsets in bytes of the slots of lazy arrays, and of plain ones.
cdef Py_ssize_t owner_at, value_at, offset_at, type_at, detached_from_at
cdef Py_ssize_t handle_at, writable_at, lender_at
#: Offset of the list of weak references to a lazy array, and to one of ``mx.np``.
cdef Py_ssize_t weak_at, weak_numpy_at
#: `record.types.NODE_AT`.
cdef Py_ssize_t node_at

# Assigned by the modules of `record`.
libraries = ()
ignored = frozenset()
check_array = type_of = classify_forward = is_one_call = describe = number_of = give = None
check_call = ended_scope = realise_constant = store_constant = as_numpy = without_axes = None
describe_type = type_of_parts = current_context = context_type = None
#: Offset and type id of views by `view_key`; `TypeTable.view` fills it.
known_views = {}
#: The same for arrays of ``mx.np``, whose single elements have no axes.
known_numpy_views = {}


def connect(
    state_, tuple lazy not None, tuple arrays not None, handle, numpy_scopes_,
    tuple choices not None, Py_ssize_t node, array functions not None,
):
    """Set the classes of arrays and the addresses of MXNet's functions; once per process.

    There are two classes of lazy arrays, and two of arrays: those of ``mx.nd``, and those of
    ``mx.np``; and `Borrowed`.
    """
    global mxnet, state, lazy_type, array_type, handle_type, node_at, lazy_numpy_type, numpy_type
    global owner_at, value_at, offset_at, type_at, detached_from_at, handle_at, writable_at, weak_at
    global numpy_scopes, numpy_choices, weak_numpy_at, borrowed_type, lender_at
    state, handle_type, numpy_scopes, numpy_choices = state_, handle, numpy_scopes_, choices
    lazy_type, lazy_numpy_type = lazy
    array_type, numpy_type, borrowed_type = arrays
    slots = [
        [slot_offset(class_, name)
         for name in ("_owner", "_value", "_offset", "_type", "_detached_from")]
        for class_ in lazy
    ]
    if slots[0] != slots[1]:
        raise ImportError("the two classes of lazy arrays differ in the places of their slots")
    owner_at, value_at, offset_at, type_at, detached_from_at = slots[0]
    handle_at, writable_at = [slot_offset(arrays[0], name) for name in ("handle", "writable")]
    lender_at = slot_offset(arrays[2], "_lender")
    weak_at, weak_numpy_at = lazy[0].__weakrefoffset__, lazy[1].__weakrefoffset__
    node_at, mxnet = node, (<Functions *>functions.data.as_voidptr)[0]
    probe = handle(12345)
    if <size_t>content_of(<PyObject *>probe) != 12345:
        raise ImportError("the handles of ctypes have another layout than in Python 3.8 to 3.11")


def current_mode():
    """Return autograd's mode and the NumPy semantics in this thread, as bits of `modes`."""
    return mode_in(numpy_scopes.__dict__)


cdef int mode_in(dict numpy_settings) except -1:
    """Do as `current_mode`, given the attributes of `numpy_scopes` in this thread.

    It runs no Python code that was not MXNet's.
    """
    global numpy_scope, numpy_scope_bits
    cdef unsigned char recording = 0, training = 0
    cdef int numpy_shape = 0
    mxnet.is_recording(&recording)
    mxnet.is_training(&training)
    mxnet.is_numpy_shape(&numpy_shape)
    cdef int mode = recording_bit * recording | training_bit * training
    if numpy_shape:
        mode |= numpy_shape_bit
        # MXNet allows NumPy's arrays only with NumPy's shapes.
        scope = numpy_settings.get("value")
        if scope is None:
            return mode
        if scope is not numpy_scope:
            numpy_scope_bits = numpy_array_bit if scope._is_np_array else 0
            numpy_scope = scope
        mode |= numpy_scope_bits
    return mode


def set_mode(int mode):
    """Set autograd's mode and NumPy's semantics in this thread, as bits of `modes`.

    MXNet's own functions in Python take ten times as long.
    """
    cdef int before = 0
    cdef bint shapes = (mode & numpy_shape_bit) != 0, arrays = (mode & numpy_array_bit) != 0
    mxnet.set_recording((mode & recording_bit) != 0, &before)
    mxnet.set_training((mode & training_bit) != 0, &before)
    mxnet.is_numpy_shape(&before)
    if (before != 0) != shapes:
        # MXNet refuses to switch off shapes before arrays.
        check_call(mxnet.set_numpy_shape(shapes, &before))
        numpy_scopes.value = numpy_choices[1 if arrays else 0]


def thread_settings(list dictionaries not None, missing):
    """Return autograd's mode, and the ``value`` in each of some dictionaries."""
    return [current_mode()] + [(<dict?>each).get("value", missing) for each in dictionaries]


cdef Py_ssize_t slot_offset(type owner, str name) except -1:
    """Return the offset in bytes of a slot in the instances of a class."""
    member = getattr(owner, name)
    if type(member) is not MemberDescriptorType:
        raise TypeError(f"{name} is not a slot")
    return (<PyMemberDescrObject *>member).d_member.offset


# ---------------------------------------------------------------------------- flat arrays

cdef class Owner:
    """The owner of lazy arrays until they are real.

    Owned by its arrays: each holds a reference to it, in a slot.
    """

    #: The lazy arrays that were ever added.  A tape holds references, so an array whose reference
    #: count is 1 is held by the tape alone; other owners hold weak references.
    cdef public list lazies

    cdef object member(self, lazy):
        """Return what has to be appended to `lazies` to add a lazy array."""
        return lazy


#: After so many calls, the recorder decides whether to compute them during recording.
CALLS_PER_CHECK = 1024


cdef class Tape(Owner):
    """The flat arrays of `record.tape.Tape`.

    Owned by its recorder while it takes calls, and by each flush while it computes them.  It is in
    cycles with its recorder and with its lazy arrays, which the collector does not see; `close`
    ends both.  The flat arrays only grow, and stay when it is closed; their addresses are valid
    until they grow.
    """

    #: Whether calls may still be recorded; and whether one of its values may get a gradient.
    cdef public bint open
    cdef bint trained
    #: Computes the values when a lazy array of this tape is read.
    cdef public object recorder
    #: Why the lazy arrays have no values, if computing them failed.
    cdef public object error
    #: Time of the first call, by ``time.perf_counter``, plus the time spent waiting for values
    #: since then; 0 before the first call.
    cdef public double started
    #: Number of calls at which the recorder is asked next: see `CALLS_PER_CHECK`.
    cdef public Py_ssize_t next_check
    #: Per node: id of its entry, and its first value.
    cdef readonly array node_entry, node_value0
    #: Per operand, in the order of nodes: value and offset in elements.
    cdef readonly array sources, offsets
    #: Per value: type id.
    cdef readonly array value_type
    #: The entries of all nodes, by id.
    cdef readonly dict entries
    #: Per node: the `Place` of the user's call.
    cdef readonly list places
    #: Per external array: the array that was passed, held so that its id is not reused.
    cdef readonly list originals
    #: Per external array: the array that a flush reads, see `external`; and its value.
    cdef public list externals
    cdef readonly array external_values
    #: Values of the arrays in `originals`, by id of the array.
    cdef readonly dict external_ids
    #: See `next_serial`.
    cdef uint64_t serial
    #: By dtype and device, the chunk that takes the next constant; and, by value, the chunk or
    #: constant that it is.
    cdef dict chunks, holders

    def __cinit__(self):
        self.open, self.serial = True, next_serial()
        self.chunks, self.holders = {}, {}
        self.node_entry, self.node_value0 = array("i"), array("i")
        self.sources, self.offsets = array("i"), array("q")
        self.value_type, self.external_values = array("i"), array("i")
        self.entries, self.external_ids = {}, {}
        self.places, self.lazies, self.externals, self.originals = [], [], [], []
        self.next_check = CALLS_PER_CHECK

    def __init__(self, recorder=None):
        self.recorder = recorder

    @property
    def external_type(self):
        """Type ids of the external arrays; shape (externals,), int32."""
        return np.array(self.value_type)[np.array(self.external_values)]

    def constant_at(self, value, offset):
        """Return the `Constant` that has an element of a value, and its first one; None if none."""
        holder = self.holders.get(value)
        if type(holder) is not Chunk:
            return None if holder is None else (holder, 0)
        at = bisect_right((<Chunk>holder).starts, offset) - 1
        return (<Chunk>holder).constants[at], (<Chunk>holder).starts[at]

    def realise(self, lazy):
        """Compute a lazy array: from then on, its owner is a `Keeper`, or it is real."""
        self.recorder.compute(lazy)

    def close(self, error=None):
        """Stop recording and drop the arrays; `error` says why lazy arrays have no values."""
        self.open, self.error = False, error
        # Not cleared, as others may still use these lists: the flush, and code in the middle of
        # which the collector has run the flush.
        self.externals, self.lazies, self.originals, self.places = [], [], [], []
        self.chunks, self.holders = {}, {}

    def held(self, Py_ssize_t first=0):
        """Return the lazy arrays from index `first` on that are referenced elsewhere and pending.

        Drops those that only the tape references.
        """
        cdef list lazies = self.lazies, held = [], dropped = []
        cdef PyObject *item
        cdef Py_ssize_t i, count = len(lazies)
        # Backwards, as a detached array references an earlier one.  Python code, such as callbacks
        # of weak references, runs only once the list is complete.
        for i in range(count - 1, first - 1, -1):
            item = PyList_GET_ITEM(lazies, i)
            if Py_REFCNT(item) > 1:
                held.append(<object>item)
            else:
                drop(<object>item, self, dropped)
        held.reverse()
        PyList_SetSlice(lazies, first, count, held)
        dropped.clear()
        return [lazy for lazy in held if slot(lazy, owner_at)[0] is <PyObject *>self]


cdef void *grow(array numbers, Py_ssize_t more) except NULL:
    """Append `more` numbers that are yet to be written; return their address."""
    if (<arrayobject *>numbers).ob_exports:
        raise BufferError("cannot grow while a buffer is exported")
    resize_smart(numbers, numbers.ob_size + more)
    return numbers.data.as_chars + (numbers.ob_size - more) * numbers.ob_descr.itemsize


cdef int reserve(array numbers, Py_ssize_t more) except -1:
    """Make room for `more` numbers, which `put` and `take_room` need."""
    grow(numbers, more)
    numbers.ob_size -= more
    return 0


cdef inline void *take_room(array numbers, Py_ssize_t more) noexcept:
    """Append `more` numbers that are yet to be written, and have room; return their address."""
    cdef char *end = numbers.data.as_chars + numbers.ob_size * numbers.ob_descr.itemsize
    numbers.ob_size += more
    return end


cdef inline void put(array numbers, int32_t number) noexcept:
    """Append to an array of 32-bit integers that has room."""
    numbers.data.as_ints[numbers.ob_size] = number
    numbers.ob_size += 1


cdef inline void put_wide(array numbers, int64_t number) noexcept:
    """Append to an array of 64-bit integers that has room."""
    numbers.data.as_longlongs[numbers.ob_size] = number
    numbers.ob_size += 1


def without_collector(work):
    """Call a function with Python's garbage collector disabled, and return its result.

    In native code, no interrupt can come between the end of `work` and enabling the collector.
    """
    cdef bint enabled = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if enabled:
            gc.enable()


def locked(lock, work):
    """Call a function while a lock is held, and return its result.

    In native code, no interrupt can leave the lock held.
    """
    lock.acquire()
    try:
        return work()
    finally:
        lock.release()


def untrack(data):
    """Remove nested tuples, which live long and are in no cycle, from the garbage collector."""
    if isinstance(data, tuple):
        PyObject_GC_UnTrack(<PyObject *>data)
        for item in <tuple>data:
            untrack(item)


# ----------------------------------------------------------------------- the user's line

@cython.final
cdef class Place:
    """An instruction of the user's program; each instruction has one `Place`.

    Owned by the table of its code object, which is never freed, nor is that code.
    """

    cdef object code, line
    cdef int instruction

    def __init__(self, code, int instruction):
        self.code, self.instruction = code, instruction

    @property
    def where(self):
        """The line as `errors.Where`."""
        if self.line is None:
            number = PyCode_Addr2Line(<PyCodeObject *>self.code, self.instruction)
            # The first instructions of a code object have no line.
            number = number if number > 0 else self.code.co_firstlineno
            self.line = Where(self.code.co_filename, number, self.code.co_name)
        return self.line


#: Places that were found last, by code and instruction.
cdef list found_places = [Place(None, 0)] * 64


cpdef Place user_place():
    """Return the nearest place outside the libraries, or else the place in the outermost frame."""
    cdef int instruction
    current, fiber, outermost = PyEval_GetFrame(), None, None
    frame = None if current is NULL else <object>current
    while True:
        while frame is not None:
            code, instruction = frame.f_code, frame.f_lasti
            at = (<size_t><PyObject *>code // 64 + instruction) % 64
            place = <Place>found_places[at]
            if place.code is code and place.instruction == instruction:
                return place
            if is_user(code):
                found_places[at] = place = place_of(code, instruction)
                return place
            frame, outermost = frame.f_back, frame
        # The frames of a fiber end where it started; its parent has those below.
        fiber = getcurrent().parent if fiber is None else fiber.parent
        if fiber is None:
            return place_of(outermost.f_code, outermost.f_lasti)
        frame = fiber.gr_frame


cdef Place place_of(object code, object instruction):
    """Return the place of an instruction of a code object that is in `known_code`."""
    places = <dict>(<tuple>known_code[<size_t><PyObject *>code])[2]
    place = places.get(instruction)
    if place is None:
        place = places[instruction] = Place(code, instruction)
    return <Place>place


cpdef bint is_user(object code) except -1:
    """Return whether a code object is the user's."""
    entry = known_code.get(<size_t><PyObject *>code)
    if entry is None:
        name = code.co_filename
        # The functions that MXNet generates are in no file.
        user = not (name.startswith(libraries) or name == "<string>")
        entry = known_code[<size_t><PyObject *>code] = code, user, {}
    return (<tuple>entry)[1]


include "lazies.pxi"
include "nests.pxi"
include "calls.pxi"
include "constants.pxi"
include "externals.pxi"
include "views.pxi"
include "numbers.pxi"
include "structures.pxi"
include "pieces.pxi"
include "statement.pxi"
