# cython: language_level=3, boundscheck=False, wraparound=False, binding=False, auto_pickle=False
"""The part of recording that runs once per call.

`call` records a call, `call_hook` intercepts calls of blocks, `index` makes a view that was made
before.  Keys that are new are left to Python, before a node is added.  `LazyNDArray` is a Python
class: its slots are read and written directly in memory.
"""

cimport cython
from cpython.array cimport array, clone, extend, resize_smart
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_Clear
from cpython.list cimport PyList_SetSlice
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.weakref cimport PyWeakref_GetObject, PyWeakref_NewRef
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport getenv
from libc.string cimport memcmp, memcpy, memset

from .executing cimport run_graph
from .lowering cimport ParameterPlace, SegmentBrief

from .recency cimport Recency

from gluon_dynbatch.errors import NestingError, Where
from gluon_dynbatch.modes import MODE_BITS, NUMPY_ARRAY, NUMPY_SHAPE, RECORDING, TRAINING

import enum
import gc
import time
from bisect import bisect_right
from types import MemberDescriptorType

import numpy as np
from greenlet import GreenletExit, getcurrent


cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *address) noexcept nogil

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member


cdef extern from "Python.h":
    ctypedef struct arrayobject:
        Py_ssize_t allocated
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
    PyObject *PyDict_GetItem(dict items, object key)
    PyObject *PyThreadState_GetDict() noexcept
    PyTypeObject *type_pointer "Py_TYPE"(object item) noexcept
    PyObject *PySequence_Fast_GET_ITEM(object items, Py_ssize_t i)
    Py_ssize_t PySequence_Fast_GET_SIZE(object items)
    int PyBUF_WRITE
    object PyMemoryView_FromMemory(char *memory, Py_ssize_t size, int flags)
    PyObject *PyTuple_GET_ITEM(tuple items, Py_ssize_t i)
    object PyObject_GenericGetDict(object owner, void *context)
    PyObject **_PyObject_GetDictPtr(object owner) noexcept
    void *PyEval_GetFrame()
    ctypedef struct PyCodeObject
    int PyCode_Addr2Line(PyCodeObject *code, int instruction)
    ctypedef struct TypeObject "PyTypeObject":
        void *tp_finalize
    ctypedef struct PyDictObject:
        Py_ssize_t ma_used
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
    int (*gradient)(void *, void **) noexcept
    int (*storage)(void *, int *) noexcept
    int (*mark_fresh)(void *, int) noexcept
    int (*free)(void *) noexcept


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
#: Exceptions of functions that refuse their arguments.  Others, such as ``TimeoutError``, may come
#: from the user's handler of a signal, which Python runs anywhere.
cdef tuple REFUSALS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    Warning,
)
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
ignored = names = frozenset()
check_array = type_of = classify_forward = callee_of_stock = describe = number_of = give = None
check_call = ended_scope = realise_constant = store_constant = as_numpy = without_axes = None
describe_type = type_of_parts = current_context = context_type = None
realise_excerpt = callee_of_take = view_of_type = numbers_of_rows = None
array_of_kind = None
cached_op_methods = []
parameter_types = ()
#: Array types, and numbers of elements, by type id.
cdef object array_types
cdef array element_counts
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
    # Their ``__del__`` does nothing, and to call it takes a third of the time of freeing an array.
    for class_ in (*lazy, borrowed_type):
        (<TypeObject *><PyObject *>class_).tp_finalize = NULL
    node_at, mxnet = node, (<Functions *>functions.data.as_voidptr)[0]
    probe = handle(12345)
    if <size_t>content_of(<PyObject *>probe) != 12345:
        raise ImportError("the handles of ctypes have another layout than in Python 3.8 to 3.11")


def connect_types(types not None, array counts not None):
    """Set the table of array types, and the numbers of elements; once per process."""
    global array_types, element_counts
    array_types, element_counts = types, counts


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


#: In `thread_settings`, instead of a ``value`` that is missing.
absent = object()


def thread_settings(list dictionaries not None):
    """Return autograd's mode, and the ``value`` in each of some dictionaries, or else `absent`."""
    return [current_mode()] + [(<dict?>each).get("value", absent) for each in dictionaries]


cdef Py_ssize_t slot_offset(type owner, str name) except -1:
    """Return the offset in bytes of a slot in the instances of a class."""
    member = getattr(owner, name)
    if type(member) is not MemberDescriptorType:
        raise TypeError(f"{name} is not a slot")
    return (<PyMemberDescrObject *>member).d_member.offset


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


def environment_variable(str name not None):
    """Return a variable of the environment; None if there is none."""
    cdef const char *found = getenv(utf8_of(name, NULL))
    return None if found is NULL else (<bytes>found).decode("utf-8", "surrogateescape")


def untrack(data):
    """Remove nested tuples, which live long and are in no cycle, from the garbage collector."""
    if isinstance(data, tuple):
        PyObject_GC_UnTrack(<PyObject *>data)
        for item in <tuple>data:
            untrack(item)


include "tapes.pxi"
include "places.pxi"
include "lazies.pxi"
include "nests.pxi"
include "routes.pxi"
include "keys.pxi"
include "at_once.pxi"
include "calls.pxi"
include "constants.pxi"
include "graph.pxi"
include "spares.pxi"
include "externals.pxi"
include "parameters.pxi"
include "gathering.pxi"
include "views.pxi"
include "plain.pxi"
include "excerpts.pxi"
include "numpy.pxi"
include "numbers.pxi"
include "structures.pxi"
include "pieces.pxi"
include "statement.pxi"
include "fibers.pxi"
