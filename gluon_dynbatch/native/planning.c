/* The parts of planning that look at every unit, in C.
 *
 * The callers are named below.  Arguments are buffers of a fixed width, most often NumPy arrays;
 * results are written into buffers that the caller made, but for those of `resolve`.
 *
 *   order      plan/order.py: the order of units within their launches
 *   ancestors  plan/reach.py: the units that some units depend on
 *   resolve    plan/resolve.py: reads of rows as slices, gathers and sums
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_BUFFERS 24

/* The buffers of one call, so that all can be released at once. */
typedef struct {
    Py_buffer views[MAX_BUFFERS];
    int count;
} Buffers;

static void
release(Buffers *buffers)
{
    while (buffers->count)
        PyBuffer_Release(&buffers->views[--buffers->count]);
}

/* Opens arguments from `first` on.  The format has a character per argument: 'b' one byte, 'i' four
 * bytes, 'l' eight bytes; a capital letter is written to.  Stores the data and, in `sizes`, the
 * number of items. */
static int
open_buffers(Buffers *buffers, PyObject *args, const char *format, void **data, Py_ssize_t *sizes)
{
    Py_ssize_t wanted = (Py_ssize_t)strlen(format);
    buffers->count = 0;
    if (PyTuple_GET_SIZE(args) != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", PyTuple_GET_SIZE(args), wanted);
        return -1;
    }
    for (Py_ssize_t k = 0; k < wanted; k++) {
        Py_buffer *view = &buffers->views[k];
        int writes = format[k] < 'a';
        char kind = writes ? (char)(format[k] - 'A' + 'a') : format[k];
        Py_ssize_t width = kind == 'b' ? 1 : kind == 'i' ? 4 : 8;
        int flags = PyBUF_ND | (writes ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(args, k), view, flags) < 0) {
            release(buffers);
            return -1;
        }
        buffers->count++;
        if (view->itemsize != width) {
            PyErr_Format(PyExc_TypeError, "items of argument %zd have %zd bytes, not %zd", k,
                         view->itemsize, width);
            release(buffers);
            return -1;
        }
        data[k] = view->buf;
        sizes[k] = view->len / width;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------- order */

typedef struct {
    int64_t key, unit;
} Keyed;

/* Sorts `items` by key, equal keys as they come; `spare` has the same length. */
static void
merge_sort(Keyed *items, Keyed *spare, int64_t count)
{
    if (count < 12) {
        for (int64_t i = 1; i < count; i++) {
            Keyed item = items[i];
            int64_t k = i;
            for (; k > 0 && items[k - 1].key > item.key; k--)
                items[k] = items[k - 1];
            items[k] = item;
        }
        return;
    }
    int64_t half = count / 2;
    merge_sort(items, spare, half);
    merge_sort(items + half, spare, count - half);
    if (items[half - 1].key <= items[half].key)
        return;
    memcpy(spare, items, half * sizeof(Keyed));
    int64_t low = 0, high = half, to = 0;
    while (low < half && high < count)
        items[to++] = spare[low].key <= items[high].key ? spare[low++] : items[high++];
    memcpy(items + to, spare + low, (half - low) * sizeof(Keyed));
}

typedef struct {
    const int64_t *input0, *term0, *term, *slot_unit;
    const int32_t *groups;
    int64_t units, inputs, slots, launches, levels, ports;
    /* Per unit: whom it follows, and the place where that reads it; `unread` behind all others. */
    int64_t *leader, *place, *position, unread;
    int32_t *reads;
} Ordering;

static inline int64_t
inputs_end(const Ordering *s, int64_t unit)
{
    return unit + 1 < s->units ? s->input0[unit + 1] : s->inputs;
}

/* Lets what `unit` reads follow it: what follows nobody yet or, if `once`, results that nobody else
 * reads. */
static void
follow(Ordering *s, int64_t unit, int once)
{
    int64_t first = s->input0[unit], end = inputs_end(s, unit);
    for (int64_t i = first; i < end; i++) {
        int64_t place = (s->groups[unit] * s->ports + (i - first)) * s->levels;
        for (int64_t k = s->term0[i]; k < s->term0[i + 1]; k++, place++) {
            int64_t slot = s->term[k], maker = slot < 0 ? 0 : s->slot_unit[slot];
            if (slot < 0 || (once ? s->reads[slot] != 1 : s->place[maker] != s->unread))
                continue;
            s->leader[maker] = unit;
            s->place[maker] = place;
        }
    }
}

static int
order_units(Ordering *s, int64_t *order)
{
    int64_t n = s->units, widest = 0, most_extra = 0;
    int64_t *ends = PyMem_Calloc(s->launches + 1, sizeof(int64_t));
    if (ends == NULL)
        return -1;
    for (int64_t u = 0; u < n; u++)
        ends[s->groups[u]]++;
    for (int64_t k = 0, before = 0; k < s->launches; k++) {
        int64_t size = ends[k];
        widest = size > widest ? size : widest;
        ends[k] = before;
        before += size;
    }
    for (int64_t u = 0; u < n; u++)
        order[ends[s->groups[u]]++] = u;
    for (int once = 0; once < 2; once++)
        for (int64_t i = 0; i < n; i++)
            follow(s, order[i], once);
    for (int64_t u = 0; u < n; u++) {
        int64_t end = inputs_end(s, u);
        int64_t extra = s->term0[end] - s->term0[s->input0[u]] - (end - s->input0[u]);
        most_extra = extra > most_extra ? extra : most_extra;
    }
    Keyed *items = PyMem_Malloc((2 * widest + 1) * sizeof(Keyed));
    if (items == NULL) {
        PyMem_Free(ends);
        return -1;
    }
    for (int64_t k = s->launches - 1; k >= 0; k--) {
        int64_t low = k ? ends[k - 1] : 0, size = ends[k] - low;
        if (size < 2)
            continue;
        for (int64_t i = 0; i < size; i++) {
            int64_t u = order[low + i], end = inputs_end(s, u);
            int64_t extra = s->term0[end] - s->term0[s->input0[u]] - (end - s->input0[u]);
            int64_t rank = (most_extra - extra) * (s->unread + 1) + s->place[u];
            items[i].key = rank * n + s->position[s->leader[u]];
            items[i].unit = u;
        }
        merge_sort(items, items + widest, size);
        for (int64_t i = 0; i < size; i++) {
            order[low + i] = items[i].unit;
            s->position[items[i].unit] = i;
        }
    }
    PyMem_Free(items);
    PyMem_Free(ends);
    return 0;
}

static PyObject *
order(PyObject *Py_UNUSED(module), PyObject *args)
{
    Buffers buffers;
    void *data[6];
    Py_ssize_t sizes[6];
    if (open_buffers(&buffers, args, "illllL", data, sizes) < 0)
        return NULL;
    Ordering s = {.groups = data[0], .input0 = data[1], .term0 = data[2], .term = data[3],
                  .slot_unit = data[4], .units = sizes[0], .inputs = sizes[2] - 1,
                  .slots = sizes[4], .levels = 1, .ports = 1};
    for (int64_t u = 0; u < s.units; u++) {
        int64_t ports = inputs_end(&s, u) - s.input0[u];
        s.ports = ports > s.ports ? ports : s.ports;
        s.launches = s.groups[u] >= s.launches ? s.groups[u] + 1 : s.launches;
    }
    for (int64_t i = 0; i < s.inputs; i++) {
        int64_t levels = s.term0[i + 1] - s.term0[i];
        s.levels = levels > s.levels ? levels : s.levels;
    }
    s.leader = PyMem_Malloc((3 * s.units + 1) * sizeof(int64_t));
    s.reads = PyMem_Calloc(s.slots + 1, sizeof(int32_t));
    int failed = s.leader == NULL || s.reads == NULL;
    if (!failed) {
        s.place = s.leader + s.units;
        s.position = s.place + s.units;
        s.unread = s.launches * s.ports * s.levels;
        for (int64_t u = 0; u < s.units; u++) {
            s.leader[u] = s.position[u] = u;
            s.place[u] = s.unread;
        }
        for (int64_t k = 0; k < sizes[3]; k++)
            if (s.term[k] >= 0)
                s.reads[s.term[k]]++;
        failed = order_units(&s, data[5]) < 0;
    }
    PyMem_Free(s.leader);
    PyMem_Free(s.reads);
    release(&buffers);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------ ancestors */

static PyObject *
ancestors(PyObject *Py_UNUSED(module), PyObject *args)
{
    Buffers buffers;
    void *data[4];
    Py_ssize_t sizes[4];
    /* Predecessors; per unit whether to look behind it; per unit whether it is reached. */
    if (open_buffers(&buffers, args, "libB", data, sizes) < 0)
        return NULL;
    const int64_t *offsets = data[0];
    const int32_t *preds = data[1];
    const uint8_t *through = data[2];
    uint8_t *reached = data[3];
    for (Py_ssize_t u = sizes[3] - 1; u >= 0; u--)
        if (reached[u] && through[u])
            for (int64_t k = offsets[u]; k < offsets[u + 1]; k++)
                reached[preds[k]] = 1;
    release(&buffers);
    Py_RETURN_NONE;
}

/* -------------------------------------------------------------------------------- resolve */

/* Where a row is read; element -1 for a row of zeros. */
typedef struct {
    int64_t arena, element;
} Source;

typedef struct {
    /* The types of operands. */
    PyObject *slice, *gather, *mixed, *sum, *scatter;
    int64_t most_levels;
    /* Per read, and per arena. */
    const int64_t *target, *length, *arena, *element, *row_size;
    int64_t arenas;
    /* All gather indices; `lost` if there was no memory for one. */
    int32_t *index;
    int64_t indices, room;
    int lost;
} Resolving;

/* The rows of one target: per row how many sources it has, and where the first of them stands. */
typedef struct {
    int64_t rows, size, total, most;
    int64_t *count, *first, *row_at;
    Source *sources, *level;
} Target;

static int64_t
gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void
keep_index(Resolving *s, int64_t value)
{
    if (s->indices == s->room) {
        int64_t room = 2 * s->room + 1024;
        int32_t *moved = PyMem_Realloc(s->index, room * sizeof(int32_t));
        if (moved == NULL) {
            s->lost = 1;
            return;
        }
        s->index = moved;
        s->room = room;
    }
    s->index[s->indices++] = (int32_t)value;
}

/* Names rows that lie in one arena. */
static PyObject *
fetch_one(Resolving *s, int64_t arena, const Source *sources, int64_t count, int64_t size)
{
    int64_t row_size = s->row_size[arena], grain = gcd(size, row_size);
    int64_t start = sources[0].element < 0 ? 0 : sources[0].element, first = s->indices;
    int follows = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t element = sources[i].element;
        /* Row 0 of the arena has as many zeros as it is long. */
        if (element < 0) {
            follows &= size <= row_size;
            element = 0;
        }
        follows &= element == start + i * size;
        if (element % grain)
            grain = gcd(grain, element);
    }
    if (follows)
        return PyObject_CallFunction(s->slice, "LLLL", arena, start, count, size);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < size / grain; k++)
            keep_index(s, sources[i].element < 0 ? 0 : sources[i].element / grain + k);
    return PyObject_CallFunction(s->gather, "LLLLLL", arena, grain, first, s->indices - first,
                                 count, size);
}

/* Names rows that lie in several arenas; `arena` of rows of zeros is any of these. */
static PyObject *
fetch_mixed(Resolving *s, const Source *sources, int64_t count, int64_t size)
{
    Source *part = PyMem_Malloc(count * sizeof(Source));
    int64_t *place = PyMem_Malloc(count * sizeof(int64_t)), done = 0;
    PyObject *parts = PyList_New(0), *made = NULL;
    int failed = part == NULL || place == NULL || parts == NULL;
    for (int64_t arena = 0; !failed && arena < s->arenas; arena++) {
        int64_t members = 0;
        for (int64_t i = 0; i < count; i++)
            if (sources[i].arena == arena) {
                place[i] = done++;
                part[members++] = sources[i];
            }
        if (members) {
            PyObject *found = fetch_one(s, arena, part, members, size);
            failed = found == NULL || PyList_Append(parts, found) < 0;
            Py_XDECREF(found);
        }
    }
    if (!failed) {
        int64_t first = s->indices;
        for (int64_t i = 0; i < count; i++)
            keep_index(s, place[i]);
        made = PyObject_CallFunction(s->mixed, "NLLL", PyList_AsTuple(parts), first, count, size);
    }
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    PyMem_Free(part);
    PyMem_Free(place);
    Py_XDECREF(parts);
    return made;
}

static PyObject *
fetch(Resolving *s, Source *sources, int64_t count, int64_t size)
{
    int64_t arena = -1;
    int mixed = 0;
    for (int64_t i = 0; i < count; i++)
        if (sources[i].element >= 0) {
            mixed |= arena >= 0 && arena != sources[i].arena;
            arena = arena < 0 ? sources[i].arena : arena;
        }
    if (!mixed)
        return fetch_one(s, arena, sources, count, size);
    for (int64_t i = 0; i < count; i++)
        if (sources[i].element < 0)
            sources[i].arena = arena;
    return fetch_mixed(s, sources, count, size);
}

/* Finds the longest rows that every read of a target consists of, and makes room for them. */
static int
open_target(Resolving *s, Target *t, const int32_t *reads, int64_t count)
{
    int64_t grain = t->size, end = t->rows * t->size;
    for (int64_t i = 0; i < count; i++) {
        int64_t target = s->target[reads[i]], length = s->length[reads[i]];
        if (target < 0 || target + length > end) {
            PyErr_SetString(PyExc_ValueError, "a read leaves its target");
            return -1;
        }
        if (target % grain || length % grain)
            grain = gcd(gcd(grain, target), length);
        t->total += length;
    }
    t->rows = end / grain;
    t->total /= grain;
    t->size = grain;
    t->count = PyMem_Calloc(3 * t->rows + 2, sizeof(int64_t));
    t->sources = PyMem_Malloc((t->total + t->rows + 1) * sizeof(Source));
    if (t->count == NULL || t->sources == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    t->first = t->count + t->rows;
    t->row_at = t->first + t->rows + 1;
    t->level = t->sources + t->total;
    return 0;
}

/* Lists the sources of each row, as the reads come. */
static void
list_sources(Resolving *s, Target *t, const int32_t *reads, int64_t count)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < count; i++) {
            int64_t row = s->target[reads[i]] / t->size, rows = s->length[reads[i]] / t->size;
            for (int64_t k = 0; k < rows; k++, row++) {
                int64_t nth = t->count[row]++;
                if (pass)
                    t->sources[t->first[row] + nth] = (Source){
                        s->arena[reads[i]], s->element[reads[i]] + k * t->size};
            }
        }
        if (pass)
            break;
        for (int64_t row = 0; row < t->rows; row++) {
            t->most = t->count[row] > t->most ? t->count[row] : t->most;
            t->first[row + 1] = t->first[row] + t->count[row];
            t->count[row] = 0;
        }
    }
}

/* Lets rows with more sources come first, if levels would have many gaps; says whether it did. */
static int
order_rows(Target *t)
{
    int gaps = 0;
    for (int64_t row = 0; row < t->rows; row++) {
        t->row_at[row] = row;
        gaps |= row && t->count[row] > t->count[row - 1];
    }
    if (!gaps || t->most == 1 || t->most * t->rows <= 2 * t->total)
        return 0;
    int64_t at = 0;
    for (int64_t sources = t->most; sources >= 0; sources--)
        for (int64_t row = 0; row < t->rows; row++)
            if (t->count[row] == sources)
                t->row_at[at++] = row;
    return 1;
}

/* Names the levels of a target: of each row the first source, the second, ... */
static PyObject *
add_levels(Resolving *s, Target *t)
{
    PyObject *levels = PyTuple_New(t->most);
    for (int64_t level = 0; levels != NULL && level < t->most; level++) {
        int64_t reached = t->rows;
        while (level && t->count[t->row_at[reached - 1]] <= level)
            reached--;
        for (int64_t i = 0; i < reached; i++) {
            int64_t row = t->row_at[i];
            if (level < t->count[row])
                t->level[i] = t->sources[t->first[row] + level];
            else
                t->level[i].element = -1;
        }
        PyObject *found = fetch(s, t->level, reached, t->size);
        if (found == NULL)
            Py_CLEAR(levels);
        else if (t->most == 1) {
            Py_DECREF(levels);
            return found;
        }
        else
            PyTuple_SET_ITEM(levels, level, found);
    }
    return levels == NULL ? NULL : PyObject_CallFunction(s->sum, "(N)", levels);
}

/* Names what a target reads: `count` of all reads. */
static PyObject *
resolve_target(Resolving *s, Target *t, const int32_t *reads, int64_t count)
{
    if (open_target(s, t, reads, count) < 0)
        return NULL;
    list_sources(s, t, reads, count);
    if (t->most > s->most_levels) {
        PyObject *source = fetch(s, t->sources, t->total, t->size);
        int64_t first = s->indices;
        for (int64_t row = 0; row < t->rows; row++)
            for (int64_t k = 0; k < t->count[row]; k++)
                keep_index(s, row);
        return source == NULL ? NULL
                              : PyObject_CallFunction(s->scatter, "NLL", source, first, t->rows);
    }
    int moved = order_rows(t);
    PyObject *total = add_levels(s, t);
    if (total == NULL || !moved)
        return total;
    int64_t first = s->indices;
    /* The places of rows, where their sources were counted. */
    for (int64_t i = 0; i < t->rows; i++)
        t->count[t->row_at[i]] = i;
    for (int64_t row = 0; row < t->rows; row++)
        keep_index(s, t->count[row]);
    return PyObject_CallFunction(s->mixed, "(N)LLL", total, first, t->rows, t->size);
}

/* Sorts reads by target, as they come; returns the reads, and in `ends` where those of each end. */
static int32_t *
sort_reads(const int64_t *targets, int64_t count, int64_t *ends, int64_t groups)
{
    int32_t *reads = PyMem_Malloc((count + 1) * sizeof(int32_t));
    if (reads == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        if (targets[i] < 0 || targets[i] >= groups) {
            PyMem_Free(reads);
            PyErr_SetString(PyExc_ValueError, "a read without target");
            return NULL;
        }
        ends[targets[i] + 1]++;
    }
    for (int64_t k = 0; k < groups; k++)
        ends[k + 1] += ends[k];
    for (int64_t i = 0; i < count; i++)
        reads[ends[targets[i]]++] = (int32_t)i;
    return reads;
}

static PyObject *
resolve(PyObject *Py_UNUSED(module), PyObject *args)
{
    Buffers buffers;
    void *data[8];
    Py_ssize_t sizes[8];
    Resolving s = {.slice = NULL};
    PyObject *arrays = NULL, *made = NULL;
    if (!PyArg_ParseTuple(args, "(OOOOO)LO!", &s.slice, &s.gather, &s.mixed, &s.sum, &s.scatter,
                          &s.most_levels, &PyTuple_Type, &arrays))
        return NULL;
    /* Per target rows and row size; per read target, element, elements, arena and element there;
     * per arena its row size. */
    if (open_buffers(&buffers, arrays, "llllllll", data, sizes) < 0)
        return NULL;
    const int64_t *rows = data[0], *size = data[1];
    s.target = data[3], s.length = data[4], s.arena = data[5], s.element = data[6];
    s.row_size = data[7], s.arenas = sizes[7];
    int64_t *ends = PyMem_Calloc(sizes[0] + 1, sizeof(int64_t));
    if (ends == NULL) {
        release(&buffers);
        return PyErr_NoMemory();
    }
    int32_t *reads = sort_reads(data[2], sizes[2], ends, sizes[0]);
    PyObject *found = reads == NULL ? NULL : PyList_New(sizes[0]);
    for (Py_ssize_t k = 0; found != NULL && k < sizes[0]; k++) {
        int64_t low = k ? ends[k - 1] : 0;
        Target t = {.rows = rows[k], .size = size[k]};
        PyObject *operand = Py_None;
        if (ends[k] > low)
            operand = resolve_target(&s, &t, reads + low, ends[k] - low);
        else
            Py_INCREF(operand);
        PyMem_Free(t.count);
        PyMem_Free(t.sources);
        if (s.lost)
            PyErr_NoMemory();
        if (operand == NULL || s.lost) {
            Py_XDECREF(operand);
            Py_CLEAR(found);
        }
        else
            PyList_SET_ITEM(found, k, operand);
    }
    if (found != NULL)
        made = Py_BuildValue("(NN)", found,
                             PyByteArray_FromStringAndSize((char *)s.index,
                                                           s.indices * sizeof(int32_t)));
    PyMem_Free(ends);
    PyMem_Free(reads);
    PyMem_Free(s.index);
    release(&buffers);
    return made;
}

static PyMethodDef METHODS[] = {
    {"order", order, METH_VARARGS, NULL},
    {"ancestors", ancestors, METH_VARARGS, NULL},
    {"resolve", resolve, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gluon_dynbatch.native.planning",
    .m_size = -1,
    .m_methods = METHODS,
};

PyMODINIT_FUNC
PyInit_planning(void)
{
    return PyModule_Create(&MODULE);
}
