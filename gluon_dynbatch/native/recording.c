/* The part of recording that runs once per call, in C.
 *
 * It does what record.py and lazy.py do, for the common kinds of arguments: arrays, and lists of
 * arrays.  For anything else it returns NotImplemented before it has changed anything, and the
 * Python code takes over.  Nothing here is needed: without a C compiler, or with
 * GLUON_DYNBATCH_NATIVE=0, Python does everything.
 *
 *   Integers   a vector of 4- or 8-byte integers with the buffer protocol, as array.array
 *   Tape       the flat arrays of one recording; base class of record.Recording
 *   call       records one call
 *   index      lazy[i], lazy[i:j]: installed as LazyNDArray.__getitem__
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

/* ------------------------------------------------------------------------------- Integers */

typedef struct {
    PyObject_HEAD
    char *data;
    Py_ssize_t count, capacity, exports;
    Py_ssize_t width; /* bytes per integer: 4 or 8 */
} Integers;

static PyTypeObject IntegersType;

static int
integers_reserve(Integers *self, Py_ssize_t more)
{
    if (self->count + more <= self->capacity)
        return 0;
    if (self->exports) {
        PyErr_SetString(PyExc_BufferError, "cannot grow while a buffer is exported");
        return -1;
    }
    Py_ssize_t capacity = self->capacity * 2 > 64 ? self->capacity * 2 : 64;
    if (capacity < self->count + more)
        capacity = self->count + more;
    char *data = PyMem_Realloc(self->data, capacity * self->width);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->data = data;
    self->capacity = capacity;
    return 0;
}

/* Room must have been reserved. */
static inline void
integers_put(Integers *self, long long value)
{
    if (self->width == 4)
        ((int32_t *)self->data)[self->count++] = (int32_t)value;
    else
        ((int64_t *)self->data)[self->count++] = (int64_t)value;
}

static inline long long
integers_get(Integers *self, Py_ssize_t i)
{
    return self->width == 4 ? ((int32_t *)self->data)[i] : ((int64_t *)self->data)[i];
}

static Integers *
integers_make(Py_ssize_t width)
{
    Integers *self = PyObject_New(Integers, &IntegersType);
    if (self != NULL) {
        self->data = NULL;
        self->count = self->capacity = self->exports = 0;
        self->width = width;
    }
    return self;
}

static void
integers_dealloc(Integers *self)
{
    PyMem_Free(self->data);
    PyObject_Free(self);
}

static PyObject *
integers_append(Integers *self, PyObject *value)
{
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (integers_reserve(self, 1) < 0)
        return NULL;
    integers_put(self, number);
    Py_RETURN_NONE;
}

static PyObject *
integers_extend(Integers *self, PyObject *values)
{
    PyObject *items = PySequence_Fast(values, "extend takes a sequence");
    if (items == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
        PyObject *done = integers_append(self, PySequence_Fast_GET_ITEM(items, i));
        if (done == NULL) {
            Py_DECREF(items);
            return NULL;
        }
        Py_DECREF(done);
    }
    Py_DECREF(items);
    Py_RETURN_NONE;
}

static Py_ssize_t
integers_length(Integers *self)
{
    return self->count;
}

static PyObject *
integers_item(Integers *self, Py_ssize_t i)
{
    if (i < 0 || i >= self->count) {
        PyErr_SetString(PyExc_IndexError, "index out of range");
        return NULL;
    }
    return PyLong_FromLongLong(integers_get(self, i));
}

static int
integers_getbuffer(Integers *self, Py_buffer *view, int flags)
{
    static char empty[8];
    char *data = self->data ? self->data : empty;
    if (PyBuffer_FillInfo(view, (PyObject *)self, data, self->count * self->width, 1, flags) < 0)
        return -1;
    view->itemsize = self->width;
    view->format = (flags & PyBUF_FORMAT) ? (self->width == 4 ? "i" : "q") : NULL;
    if (flags & PyBUF_ND) {
        view->ndim = 1;
        view->shape = &self->count; /* cannot change while exports > 0 */
        view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &self->width : NULL;
    }
    self->exports++;
    return 0;
}

static void
integers_releasebuffer(Integers *self, Py_buffer *view)
{
    self->exports--;
}

static PyMethodDef integers_methods[] = {
    {"append", (PyCFunction)integers_append, METH_O, "Add one integer."},
    {"extend", (PyCFunction)integers_extend, METH_O, "Add the integers of a sequence."},
    {NULL},
};
static PySequenceMethods integers_sequence = {
    .sq_length = (lenfunc)integers_length,
    .sq_item = (ssizeargfunc)integers_item,
};
static PyBufferProcs integers_buffer = {
    .bf_getbuffer = (getbufferproc)integers_getbuffer,
    .bf_releasebuffer = (releasebufferproc)integers_releasebuffer,
};
static PyTypeObject IntegersType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gluon_dynbatch.native.recording.Integers",
    .tp_basicsize = sizeof(Integers),
    .tp_dealloc = (destructor)integers_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A vector of integers with the buffer protocol.",
    .tp_methods = integers_methods,
    .tp_as_sequence = &integers_sequence,
    .tp_as_buffer = &integers_buffer,
};

/* ----------------------------------------------------------------------------------- Tape */

typedef struct {
    PyObject_HEAD
    char open;
    Integers *node_entry, *node_value0, *sources, *offsets, *value_type, *external_values;
    PyObject *entries; /* dict: id -> Entry */
    PyObject *wheres;  /* list of (code, instruction) */
    PyObject *lazies;  /* list of weak references */
    PyObject *externals;    /* list of arrays */
    PyObject *handles;      /* list of their handles when they were recorded */
    PyObject *external_ids; /* dict: id of an array -> value */
} Tape;

static PyTypeObject TapeType;

static int
tape_clear(Tape *self)
{
    Py_CLEAR(self->node_entry);
    Py_CLEAR(self->node_value0);
    Py_CLEAR(self->sources);
    Py_CLEAR(self->offsets);
    Py_CLEAR(self->value_type);
    Py_CLEAR(self->external_values);
    Py_CLEAR(self->externals);
    Py_CLEAR(self->handles);
    Py_CLEAR(self->external_ids);
    Py_CLEAR(self->entries);
    Py_CLEAR(self->wheres);
    Py_CLEAR(self->lazies);
    return 0;
}

static int
tape_traverse(Tape *self, visitproc visit, void *arg)
{
    Py_VISIT(self->entries);
    Py_VISIT(self->wheres);
    Py_VISIT(self->lazies);
    Py_VISIT(self->externals);
    Py_VISIT(self->handles);
    Py_VISIT(self->external_ids);
    return 0;
}

static void
tape_dealloc(Tape *self)
{
    PyObject_GC_UnTrack(self);
    tape_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Tape *self = (Tape *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->open = 1;
    self->node_entry = integers_make(4);
    self->node_value0 = integers_make(4);
    self->sources = integers_make(4);
    self->offsets = integers_make(8);
    self->value_type = integers_make(4);
    self->external_values = integers_make(4);
    self->externals = PyList_New(0);
    self->handles = PyList_New(0);
    self->external_ids = PyDict_New();
    self->entries = PyDict_New();
    self->wheres = PyList_New(0);
    self->lazies = PyList_New(0);
    if (!self->node_entry || !self->node_value0 || !self->sources || !self->offsets ||
        !self->value_type || !self->external_values || !self->externals ||
        !self->handles || !self->external_ids || !self->entries || !self->wheres || !self->lazies) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *tape_held(Tape *self, PyObject *unused);

static PyMethodDef tape_methods[] = {
    {"held", (PyCFunction)tape_held, METH_NOARGS,
     "The lazy arrays that somebody still holds and that are not computed yet."},
    {NULL},
};

static PyMemberDef tape_members[] = {
    {"open", T_BOOL, offsetof(Tape, open), 0, NULL},
    {"node_entry", T_OBJECT_EX, offsetof(Tape, node_entry), READONLY, NULL},
    {"node_value0", T_OBJECT_EX, offsetof(Tape, node_value0), READONLY, NULL},
    {"sources", T_OBJECT_EX, offsetof(Tape, sources), READONLY, NULL},
    {"offsets", T_OBJECT_EX, offsetof(Tape, offsets), READONLY, NULL},
    {"value_type", T_OBJECT_EX, offsetof(Tape, value_type), READONLY, NULL},
    {"entries", T_OBJECT_EX, offsetof(Tape, entries), READONLY, NULL},
    {"wheres", T_OBJECT_EX, offsetof(Tape, wheres), READONLY, NULL},
    {"lazies", T_OBJECT_EX, offsetof(Tape, lazies), READONLY, NULL},
    {"external_values", T_OBJECT_EX, offsetof(Tape, external_values), READONLY, NULL},
    {"externals", T_OBJECT_EX, offsetof(Tape, externals), 0, NULL},
    {"handles", T_OBJECT_EX, offsetof(Tape, handles), READONLY, NULL},
    {"external_ids", T_OBJECT_EX, offsetof(Tape, external_ids), READONLY, NULL},
    {NULL},
};

static PyTypeObject TapeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gluon_dynbatch.native.recording.Tape",
    .tp_basicsize = sizeof(Tape),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "The flat arrays of one recording.",
    .tp_new = tape_new,
    .tp_dealloc = (destructor)tape_dealloc,
    .tp_traverse = (traverseproc)tape_traverse,
    .tp_clear = (inquiry)tape_clear,
    .tp_members = tape_members,
    .tp_methods = tape_methods,
};

/* -------------------------------------------------------------- what the Python side tells */

static struct {
    PyTypeObject *lazy;   /* LazyNDArray */
    PyTypeObject *array;  /* NDArray */
    PyObject *views;      /* dict: (type, start, stop) -> (offset, type) */
    PyObject *row;        /* stands for a stop if one row is meant */
    PyObject *user_code;  /* callable: is this code object the user's? */
    PyObject *user_known; /* dict: id of a code object -> (is the user's, code) */
    PyObject *types;      /* dict: (element type, device, number, *shape) -> type id */
    PyObject *type_of;    /* callable: type id of an array */
    Py_ssize_t recording, value, offset, type, real; /* slots of LazyNDArray, in bytes */
    Py_ssize_t handle;                               /* slot of NDArray, in bytes */
} py;

/* MXNet's C functions that tell what an array is. */
static struct {
    int (*shape)(void *handle, int *dimensions, const int64_t **sizes);
    int (*dtype)(void *handle, int *dtype);
    int (*context)(void *handle, int *device, int *number);
} mxnet;

static PyObject *text_open, *text_close, *text_external, *text_index, *text_recorded, *no_arguments;

#define SLOT(object, at) (*(PyObject **)((char *)(object) + (at)))

/* ------------------------------------------------------------------------------ lazy arrays */

static PyObject *
tape_held(Tape *self, PyObject *unused)
{
    Py_ssize_t count = PyList_GET_SIZE(self->lazies);
    PyObject *found = PyList_New(0);
    if (found == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        /* Borrowed, but nothing here lets go of anything; None once it is gone. */
        PyObject *lazy = PyWeakref_GET_OBJECT(PyList_GET_ITEM(self->lazies, i));
        if (lazy != Py_None && SLOT(lazy, py.real) == Py_None &&
            PyList_Append(found, lazy) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    }
    return found;
}

/* Steals the references to `value`, `offset` and `type`; the array goes to tape->lazies, too. */
static PyObject *
lazy_make(Tape *tape, PyObject *value, PyObject *offset, PyObject *type)
{
    PyObject *made = NULL, *reference;
    if (value == NULL || offset == NULL || type == NULL)
        goto failed;
    made = py.lazy->tp_new(py.lazy, no_arguments, NULL);
    if (made == NULL)
        goto failed;
    Py_INCREF(tape);
    Py_INCREF(Py_None);
    SLOT(made, py.recording) = (PyObject *)tape;
    SLOT(made, py.value) = value;
    SLOT(made, py.offset) = offset;
    SLOT(made, py.type) = type;
    SLOT(made, py.real) = Py_None;
    reference = PyWeakref_NewRef(made, NULL);
    if (reference == NULL || PyList_Append(tape->lazies, reference) < 0) {
        Py_XDECREF(reference);
        Py_DECREF(made);
        return NULL;
    }
    /* Neither can be part of a cycle: what they refer to never refers back to them.  Thousands of
       them per flush would make the collector look through the whole heap again and again. */
    PyObject_GC_UnTrack(reference);
    PyObject_GC_UnTrack(made);
    Py_DECREF(reference);
    return made;
failed:
    Py_XDECREF(value);
    Py_XDECREF(offset);
    Py_XDECREF(type);
    return NULL;
}

/* lazy[key] for whole numbers and slices without a step that are known from before. */
static PyObject *
lazy_index(PyObject *self, PyObject *key)
{
    Tape *tape = (Tape *)SLOT(self, py.recording);
    PyObject *start = key, *stop = py.row, *query, *found;
    /* The offset of what a creation operator made is of a type of its own: no views of that. */
    if (!PyObject_TypeCheck((PyObject *)tape, &TapeType) || !tape->open ||
        !PyLong_CheckExact(SLOT(self, py.offset)))
        goto python;
    if (PySlice_Check(key)) {
        if (((PySliceObject *)key)->step != Py_None)
            goto python;
        start = ((PySliceObject *)key)->start;
        stop = ((PySliceObject *)key)->stop;
    }
    else if (!PyLong_CheckExact(key))
        goto python;
    query = PyTuple_Pack(3, SLOT(self, py.type), start, stop);
    if (query == NULL)
        return NULL;
    found = PyDict_GetItemWithError(py.views, query);
    Py_DECREF(query);
    if (found == NULL) {
        PyErr_Clear(); /* an index that cannot be hashed */
        goto python;
    }
    PyObject *value = SLOT(self, py.value), *type = PyTuple_GET_ITEM(found, 1);
    PyObject *offset = PyNumber_Add(SLOT(self, py.offset), PyTuple_GET_ITEM(found, 0));
    Py_INCREF(value);
    Py_INCREF(type);
    return lazy_make(tape, value, offset, type);
python:
    return PyObject_CallMethodObjArgs(self, text_index, key, NULL);
}

static PyMethodDef index_method = {
    "__getitem__", (PyCFunction)lazy_index, METH_O, "Return rows as a view."};

/* ----------------------------------------------------------------------- the user's place */

static PyFrameObject *
frame_back(PyFrameObject *frame) /* steals `frame`, returns a new reference or NULL */
{
#if PY_VERSION_HEX >= 0x03090000
    PyFrameObject *back = PyFrame_GetBack(frame);
#else
    PyFrameObject *back = frame->f_back;
    Py_XINCREF(back);
#endif
    Py_DECREF(frame);
    return back;
}

static PyObject *
frame_code(PyFrameObject *frame) /* new reference */
{
#if PY_VERSION_HEX >= 0x03090000
    return (PyObject *)PyFrame_GetCode(frame);
#else
    Py_INCREF(frame->f_code);
    return (PyObject *)frame->f_code;
#endif
}

static long
frame_instruction(PyFrameObject *frame)
{
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#elif PY_VERSION_HEX >= 0x030A0000
    return frame->f_lasti * 2L;
#else
    return frame->f_lasti;
#endif
}

static int
is_user_code(PyObject *code)
{
    PyObject *number = PyLong_FromVoidPtr(code);
    if (number == NULL)
        return -1;
    PyObject *known = PyDict_GetItemWithError(py.user_known, number);
    Py_DECREF(number);
    if (known != NULL)
        return PyTuple_GET_ITEM(known, 0) == Py_True;
    if (PyErr_Occurred())
        return -1;
    PyObject *answer = PyObject_CallFunctionObjArgs(py.user_code, code, NULL);
    if (answer == NULL)
        return -1;
    int user = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return user;
}

/* (code, instruction) of the nearest caller outside the libraries; the outermost if none is. */
static PyObject *
user_place(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *code = NULL, *place;
    long instruction = 0;
    int user = 0;
    Py_XINCREF(frame);
    while (frame != NULL && !user) {
        Py_XDECREF(code);
        code = frame_code(frame);
        instruction = frame_instruction(frame);
        user = is_user_code(code);
        if (user < 0) {
            Py_DECREF(frame);
            Py_DECREF(code);
            return NULL;
        }
        if (user)
            Py_DECREF(frame);
        else
            frame = frame_back(frame);
    }
    if (code == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no Python frame");
        return NULL;
    }
    place = Py_BuildValue("(Nl)", code, instruction);
    return place;
}

/* ---------------------------------------------------------------------------------- calls */

#define FEW 64

/* The operands of one call and the key of its entry, while they are collected. */
typedef struct {
    Tape *tape;
    PyObject *few_keys[FEW], **keys; /* owned */
    long long few_sources[FEW], *sources, few_offsets[FEW], *offsets;
    Py_ssize_t key_count, count, capacity;
} Call;

static int
call_begin(Call *call, Tape *tape, PyObject *args)
{
    Py_ssize_t size = PyTuple_GET_SIZE(args) + 2;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
        if (PyList_CheckExact(PyTuple_GET_ITEM(args, i)))
            size += PyList_GET_SIZE(PyTuple_GET_ITEM(args, i)) + 1;
    call->tape = tape;
    call->key_count = call->count = 0;
    call->capacity = size;
    call->keys = call->few_keys;
    call->sources = call->few_sources;
    call->offsets = call->few_offsets;
    if (size > FEW) {
        call->keys = PyMem_Malloc(size * sizeof(PyObject *));
        call->sources = PyMem_Malloc(2 * size * sizeof(long long));
        call->offsets = call->sources + size;
        if (call->keys == NULL || call->sources == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static void
call_end(Call *call)
{
    for (Py_ssize_t i = 0; i < call->key_count; i++)
        Py_DECREF(call->keys[i]);
    if (call->capacity > FEW) {
        PyMem_Free(call->keys);
        PyMem_Free(call->sources);
    }
}

static inline void
call_key(Call *call, PyObject *key)
{
    Py_INCREF(key);
    call->keys[call->key_count++] = key;
}

/* Key of an array's type; NULL, perhaps without an error, if MXNet does not tell. */
static PyObject *
array_key(PyObject *array)
{
    PyObject *holder = SLOT(array, py.handle);
    Py_buffer view;
    void *handle;
    int dimensions, dtype, device, number;
    const int64_t *sizes;
    if (holder == NULL || PyObject_GetBuffer(holder, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    int is_pointer = view.len == sizeof(handle);
    if (is_pointer)
        memcpy(&handle, view.buf, sizeof(handle));
    PyBuffer_Release(&view);
    if (!is_pointer || mxnet.shape(handle, &dimensions, &sizes) != 0 || dimensions < 0 ||
        mxnet.dtype(handle, &dtype) != 0 || mxnet.context(handle, &device, &number) != 0)
        return NULL;
    PyObject *key = PyTuple_New(dimensions + 3);
    if (key == NULL)
        return NULL;
    PyTuple_SET_ITEM(key, 0, PyLong_FromLong(dtype));
    PyTuple_SET_ITEM(key, 1, PyLong_FromLong(device));
    PyTuple_SET_ITEM(key, 2, PyLong_FromLong(number));
    for (int i = 0; i < dimensions; i++)
        PyTuple_SET_ITEM(key, 3 + i, PyLong_FromLongLong(sizes[i]));
    for (int i = 0; i < dimensions + 3; i++)
        if (PyTuple_GET_ITEM(key, i) == NULL) {
            Py_DECREF(key);
            return NULL;
        }
    return key;
}

/* Type id of an array, a new reference. */
static PyObject *
array_type(PyObject *array)
{
    PyObject *key = array_key(array);
    if (key == NULL) {
        if (PyErr_Occurred())
            return NULL;
        return PyObject_CallFunctionObjArgs(py.type_of, array, NULL);
    }
    PyObject *type = PyDict_GetItemWithError(py.types, key);
    Py_XINCREF(type);
    if (type == NULL && !PyErr_Occurred()) {
        type = PyObject_CallFunctionObjArgs(py.type_of, array, NULL);
        if (type != NULL && PyDict_SetItem(py.types, key, type) < 0)
            Py_CLEAR(type);
    }
    Py_DECREF(key);
    return type;
}

/* Value of an array from outside; -1 on error. */
static long long
tape_external(Tape *tape, PyObject *array)
{
    PyObject *id = PyLong_FromVoidPtr(array), *value = NULL, *type = NULL;
    long long number = -1;
    if (id == NULL)
        return -1;
    value = PyDict_GetItemWithError(tape->external_ids, id);
    Py_XINCREF(value);
    if (value == NULL && PyErr_Occurred())
        goto end;
    if (value == NULL && Py_TYPE(array) == py.array && SLOT(array, py.handle) != NULL) {
        type = array_type(array);
        value = type ? PyLong_FromSsize_t(tape->value_type->count) : NULL;
        if (value == NULL || integers_reserve(tape->value_type, 1) < 0 ||
            integers_reserve(tape->external_values, 1) < 0 ||
            PyList_Append(tape->externals, array) < 0 ||
            PyList_Append(tape->handles, SLOT(array, py.handle)) < 0 ||
            PyDict_SetItem(tape->external_ids, id, value) < 0)
            goto end;
        integers_put(tape->external_values, tape->value_type->count);
        integers_put(tape->value_type, PyLong_AsLongLong(type));
    }
    else if (value == NULL)
        value = PyObject_CallMethodObjArgs((PyObject *)tape, text_external, array, NULL);
    if (value != NULL)
        number = PyLong_AsLongLong(value);
end:
    Py_DECREF(id);
    Py_XDECREF(value);
    Py_XDECREF(type);
    return number;
}

/* Adds an array: 1 if done, 0 if it is something else, -1 on error. */
static int
call_array(Call *call, PyObject *array)
{
    if (call->key_count >= call->capacity)
        return 0; /* a list grew meanwhile */
    if (Py_TYPE(array) == py.lazy && SLOT(array, py.recording) == (PyObject *)call->tape) {
        call_key(call, SLOT(array, py.type));
        call->sources[call->count] = PyLong_AsLongLong(SLOT(array, py.value));
        call->offsets[call->count++] = PyLong_AsLongLong(SLOT(array, py.offset));
        return 1;
    }
    if (!PyObject_TypeCheck(array, py.array))
        return 0;
    long long number = tape_external(call->tape, array);
    if (number < 0 || number >= call->tape->value_type->count)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *type = PyLong_FromLongLong(integers_get(call->tape->value_type, number));
    if (type == NULL)
        return -1;
    call->keys[call->key_count++] = type;
    call->sources[call->count] = number;
    call->offsets[call->count++] = 0;
    return 1;
}

/* Adds all arguments: 1 if done, 0 if there is something else than arrays and lists, -1. */
static int
call_arguments(Call *call, PyObject *args)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *arg = PyTuple_GET_ITEM(args, i);
        int done = 1;
        if (PyList_CheckExact(arg)) {
            call_key(call, text_open);
            for (Py_ssize_t k = 0; done == 1 && k < PyList_GET_SIZE(arg); k++)
                done = call_array(call, PyList_GET_ITEM(arg, k));
            if (done == 1 && call->key_count < call->capacity)
                call_key(call, text_close);
        }
        else
            done = call_array(call, arg);
        if (done != 1)
            return done;
    }
    return 1;
}

static PyObject *
call_find_entry(Call *call, PyObject *known) /* borrowed; NULL without an error if not known */
{
    PyObject *key = PyTuple_New(call->key_count);
    if (key == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < call->key_count; i++) {
        Py_INCREF(call->keys[i]);
        PyTuple_SET_ITEM(key, i, call->keys[i]);
    }
    PyObject *entry = PyDict_GetItemWithError(known, key);
    Py_DECREF(key);
    return entry;
}

static int
call_write(Call *call, PyObject *entry, PyObject *number, PyObject *types)
{
    Tape *tape = call->tape;
    Py_ssize_t results = PyTuple_GET_SIZE(types);
    PyObject *place = user_place();
    if (place == NULL)
        return -1;
    int failed = PyList_Append(tape->wheres, place);
    Py_DECREF(place);
    if (failed || PyDict_SetItem(tape->entries, number, entry) < 0 ||
        integers_reserve(tape->node_entry, 1) < 0 || integers_reserve(tape->node_value0, 1) < 0 ||
        integers_reserve(tape->sources, call->count) < 0 ||
        integers_reserve(tape->offsets, call->count) < 0 ||
        integers_reserve(tape->value_type, results) < 0)
        return -1;
    integers_put(tape->node_entry, PyLong_AsLongLong(number));
    integers_put(tape->node_value0, tape->value_type->count);
    for (Py_ssize_t i = 0; i < call->count; i++) {
        integers_put(tape->sources, call->sources[i]);
        integers_put(tape->offsets, call->offsets[i]);
    }
    for (Py_ssize_t i = 0; i < results; i++)
        integers_put(tape->value_type, PyLong_AsLongLong(PyTuple_GET_ITEM(types, i)));
    return 0;
}

/* Lazy arrays for the results, in the structure the callee returns. */
static PyObject *
call_results(Tape *tape, Py_ssize_t first, PyObject *types, PyObject *rebuild)
{
    Py_ssize_t count = PyTuple_GET_SIZE(types);
    int as_tuple = rebuild == (PyObject *)&PyTuple_Type;
    PyObject *made = as_tuple ? PyTuple_New(count) : PyList_New(count);
    if (made == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *type = PyTuple_GET_ITEM(types, i);
        Py_INCREF(type);
        PyObject *lazy =
            lazy_make(tape, PyLong_FromSsize_t(first + i), PyLong_FromLong(0), type);
        if (lazy == NULL) {
            Py_DECREF(made);
            return NULL;
        }
        if (rebuild == Py_None) { /* the result is the array itself */
            Py_DECREF(made);
            return lazy;
        }
        if (as_tuple)
            PyTuple_SET_ITEM(made, i, lazy);
        else
            PyList_SET_ITEM(made, i, lazy);
    }
    if (as_tuple)
        return made;
    PyObject *built = PyObject_CallFunctionObjArgs(rebuild, made, NULL);
    Py_DECREF(made);
    return built;
}

static PyObject *
record_call(Call *call, PyObject *known, PyObject *token, PyObject *mode, PyObject *args)
{
    call_key(call, token);
    call_key(call, mode);
    int done = call_arguments(call, args);
    if (done < 0)
        return NULL;
    PyObject *entry = done ? call_find_entry(call, known) : NULL;
    if (entry == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NOTIMPLEMENTED;
    }
    /* (id, types of the results, None for a single array or what builds the structure) */
    PyObject *recorded = PyObject_GetAttr(entry, text_recorded);
    if (recorded == NULL)
        return NULL;
    PyObject *types = PyTuple_GET_ITEM(recorded, 1), *result = NULL;
    Py_ssize_t first = call->tape->value_type->count;
    if (call_write(call, entry, PyTuple_GET_ITEM(recorded, 0), types) == 0)
        result = call_results(call->tape, first, types, PyTuple_GET_ITEM(recorded, 2));
    Py_DECREF(recorded);
    return result;
}

/* call(tape, entries, token, mode, args): what the call returns, or NotImplemented. */
static PyObject *
native_call(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (count != 5 || !PyObject_TypeCheck(given[0], &TapeType) || !PyDict_Check(given[1]) ||
        !PyTuple_Check(given[4])) {
        PyErr_SetString(PyExc_TypeError, "call takes a tape, entries, a token, a mode, arguments");
        return NULL;
    }
    Call call;
    PyObject *result = NULL;
    if (call_begin(&call, (Tape *)given[0], given[4]) == 0)
        result = record_call(&call, given[1], given[2], given[3], given[4]);
    call_end(&call);
    return result;
}

/* -------------------------------------------------------------------------------- set-up */

static Py_ssize_t
slot_of(PyObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString(type, name);
    Py_ssize_t at = -1;
    if (found != NULL && Py_TYPE(found) == &PyMemberDescr_Type)
        at = ((PyMemberDescrObject *)found)->d_member->offset;
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s is not a slot", name);
    Py_XDECREF(found);
    return at;
}

/* connect(lazy type, array type, views, row, is user code, known code, types, type of an array,
   addresses of MXNet's functions): once per process. */
static PyObject *
native_connect(PyObject *module, PyObject *args)
{
    PyObject *lazy, *array, *views, *row, *user_code, *user_known, *types, *type_of;
    unsigned long long shape, dtype, context;
    if (!PyArg_ParseTuple(args, "O!O!O!OOO!O!O(KKK)", &PyType_Type, &lazy, &PyType_Type, &array,
                          &PyDict_Type, &views, &row, &user_code, &PyDict_Type, &user_known,
                          &PyDict_Type, &types, &type_of, &shape, &dtype, &context))
        return NULL;
    mxnet.shape = (int (*)(void *, int *, const int64_t **))(uintptr_t)shape;
    mxnet.dtype = (int (*)(void *, int *))(uintptr_t)dtype;
    mxnet.context = (int (*)(void *, int *, int *))(uintptr_t)context;
    if ((py.recording = slot_of(lazy, "_tape")) < 0 ||
        (py.value = slot_of(lazy, "_value")) < 0 || (py.offset = slot_of(lazy, "_offset")) < 0 ||
        (py.type = slot_of(lazy, "_type")) < 0 || (py.real = slot_of(lazy, "_real")) < 0 ||
        (py.handle = slot_of(array, "handle")) < 0)
        return NULL;
    PyObject *index = PyDescr_NewMethod((PyTypeObject *)lazy, &index_method);
    if (index == NULL || PyObject_SetAttrString(lazy, "__getitem__", index) < 0) {
        Py_XDECREF(index);
        return NULL;
    }
    Py_DECREF(index);
    /* Held for ever, as the classes and tables of the package are. */
    Py_INCREF(lazy);
    Py_INCREF(array);
    Py_INCREF(views);
    Py_INCREF(row);
    Py_INCREF(user_code);
    Py_INCREF(user_known);
    Py_INCREF(types);
    Py_INCREF(type_of);
    py.types = types;
    py.type_of = type_of;
    py.lazy = (PyTypeObject *)lazy;
    py.array = (PyTypeObject *)array;
    py.views = views;
    py.row = row;
    py.user_code = user_code;
    py.user_known = user_known;
    Py_RETURN_NONE;
}

static PyMethodDef native_methods[] = {
    {"call", (PyCFunction)(void (*)(void))native_call, METH_FASTCALL, "Record one call."},
    {"connect", native_connect, METH_VARARGS, "Tell what is to be known of the Python side."},
    {NULL},
};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gluon_dynbatch.native.recording",
    .m_doc = "Recording, the part that runs once per call.",
    .m_size = -1,
    .m_methods = native_methods,
};

PyMODINIT_FUNC
PyInit_recording(void)
{
    PyObject *module = PyModule_Create(&native_module);
    if (module == NULL)
        return NULL;
    text_open = PyUnicode_InternFromString("[");
    text_close = PyUnicode_InternFromString("]");
    text_external = PyUnicode_InternFromString("external");
    text_index = PyUnicode_InternFromString("_index");
    text_recorded = PyUnicode_InternFromString("recorded");
    no_arguments = PyTuple_New(0);
    if (!text_open || !text_close || !text_external || !text_index || !text_recorded ||
        !no_arguments || PyType_Ready(&IntegersType) < 0 || PyType_Ready(&TapeType) < 0)
        return NULL;
    Py_INCREF(&TapeType);
    Py_INCREF(&IntegersType);
    if (PyModule_AddObject(module, "Tape", (PyObject *)&TapeType) < 0 ||
        PyModule_AddObject(module, "Integers", (PyObject *)&IntegersType) < 0)
        return NULL;
    return module;
}
