/* The parts of planning that look at every unit, in C.
 *
 * Each function does what the NumPy code beside its caller does, in one pass; the callers are named
 * below.  All arguments are buffers of a fixed width, most often NumPy arrays; results are written
 * into buffers that the caller made.  Nothing here is needed: without a C compiler, or with
 * GLUON_DYNBATCH_NATIVE=0, NumPy does everything.
 *
 *   survey     expand.py: which arguments all calls share, and who delivers which argument
 *   unused     expand.py: calls whose results nobody reads
 *   wire       wiring.py: numbers units, slots, inputs and terms
 *   order      order.py: the order of units within their launches
 *   resolve    plan.py: where the operands of launches lie
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

/* --------------------------------------------------------------------------------- survey */

static PyObject *
survey(PyObject *Py_UNUSED(module), PyObject *args)
{
    Buffers buffers;
    void *data[16];
    Py_ssize_t sizes[16];
    /* Per node; per operand; per entry; places of arguments; per value; results. */
    if (open_buffers(&buffers, args, "iiiliiiiiiibBBIB", data, sizes) < 0)
        return NULL;
    const int32_t *entry = data[0], *value0 = data[1], *sources = data[2];
    const int64_t *offsets = data[3];
    const int32_t *kind_of = data[4], *callee_of = data[5], *arity = data[6], *results = data[7];
    const int32_t *place0 = data[8], *places = data[9], *argument0 = data[10];
    const uint8_t *weights = data[11];
    uint8_t *same = data[12], *weight = data[13], *edges = data[15];
    int32_t *count = data[14];
    Py_ssize_t nodes = sizes[0], values = sizes[11], flags = sizes[12], edge_count = sizes[15];
    /* edges[(producer * callees + consumer) * width + place]; its shape is in its size. */
    Py_ssize_t callees = 0, width = 1;
    for (Py_ssize_t e = 0; e < sizes[5]; e++)
        if (callee_of[e] >= callees)
            callees = callee_of[e] + 1;
    for (Py_ssize_t p = 0; p < sizes[9]; p++)
        if (places[p] >= width)
            width = places[p] + 1;
    int64_t *first = PyMem_Malloc((2 * flags + 1) * sizeof(int64_t));
    int32_t *made_by = PyMem_Malloc((values + 1) * sizeof(int32_t));
    if (first == NULL || made_by == NULL || (edge_count && edge_count != callees * callees * width)) {
        PyMem_Free(first);
        PyMem_Free(made_by);
        release(&buffers);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    memset(made_by, -1, values * sizeof(int32_t));
    memset(same, 1, flags);
    memset(weight, 1, flags);
    for (Py_ssize_t i = 0, operand = 0; i < nodes; i++) {
        int32_t e = entry[i], kind = kind_of[e], from = argument0[kind];
        int known = count[kind]++ > 0;
        for (int32_t a = 0; a < arity[e]; a++, operand++) {
            int32_t value = sources[operand];
            int64_t offset = offsets[operand], *seen = first + 2 * (from + a);
            if (!known) {
                seen[0] = value;
                seen[1] = offset;
            }
            else if (seen[0] != value || seen[1] != offset)
                same[from + a] = 0;
            if (!weights[value] || offset)
                weight[from + a] = 0;
            if (edge_count && made_by[value] >= 0)
                edges[(made_by[value] * callees + callee_of[e]) * width + places[place0[e] + a]] = 1;
        }
        for (int32_t r = 0; r < results[e]; r++)
            made_by[value0[i] + r] = callee_of[e];
    }
    PyMem_Free(first);
    PyMem_Free(made_by);
    release(&buffers);
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------------------------- wire */

static PyObject *
wire(PyObject *Py_UNUSED(module), PyObject *args)
{
    Buffers buffers;
    void *data[22];
    Py_ssize_t sizes[22];
    if (open_buffers(&buffers, args, "iiiliiiiiiILLLLLLLLLLI", data, sizes) < 0)
        return NULL;
    const int32_t *entry = data[0], *value0 = data[1], *sources = data[2];
    const int64_t *offsets = data[3];
    const int32_t *externals = data[4], *arity = data[5], *rows_of = data[6], *code_of = data[7];
    /* Per cut: uses, heads, then of each use segment, whether it counts rows, outputs, inputs, and
     * of each input its number of terms and (from a segment?, which, output) of each; then of each
     * head use and output. */
    const int32_t *code = data[8];
    const int32_t *most_uses = data[9];
    int32_t *segment = data[10], *preds = data[21];
    int64_t *node = data[11], *rows = data[12], *slot0 = data[13], *input0 = data[14];
    int64_t *term0 = data[15], *term = data[16], *term_offset = data[17], *slot_unit = data[18];
    int64_t *value_term = data[19], *pred0 = data[20];
    Py_ssize_t nodes = sizes[0];
    int64_t *first_slot = PyMem_Malloc((most_uses[0] + 1) * sizeof(int64_t));
    if (first_slot == NULL) {
        release(&buffers);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t v = 0; v < sizes[19]; v++)
        value_term[v] = INT64_MIN;
    for (Py_ssize_t e = 0; e < sizes[4]; e++)
        value_term[externals[e]] = -1 - (int64_t)e;
    int64_t units = 0, slots = 0, inputs = 0, terms = 0, edges = 0, operand = 0;
    for (Py_ssize_t i = 0; i < nodes; i++) {
        int32_t e = entry[i];
        const int32_t *at = code + code_of[e];
        int32_t uses = *at++, heads = *at++;
        for (int32_t u = 0; u < uses; u++) {
            int32_t outputs = at[2], ports = at[3];
            segment[units] = at[0];
            rows[units] = at[1] ? rows_of[e] : 1;
            node[units] = i;
            slot0[units] = first_slot[u] = slots;
            input0[units] = inputs;
            pred0[units] = edges;
            at += 4;
            for (int32_t p = 0; p < ports; p++) {
                term0[inputs++] = terms;
                for (int32_t t = *at++; t > 0; t--, at += 3, terms++) {
                    if (at[0]) {
                        term[terms] = first_slot[at[1]] + at[2];
                        term_offset[terms] = 0;
                    }
                    else {
                        term[terms] = value_term[sources[operand + at[1]]];
                        term_offset[terms] = offsets[operand + at[1]];
                    }
                    if (term[terms] >= 0)
                        preds[edges++] = (int32_t)slot_unit[term[terms]];
                }
            }
            for (int32_t o = 0; o < outputs; o++)
                slot_unit[slots++] = units;
            units++;
        }
        for (int32_t h = 0; h < heads; h++, at += 2)
            value_term[value0[i] + h] = first_slot[at[0]] + at[1];
        operand += arity[e];
    }
    term0[inputs] = terms;
    pred0[units] = edges;
    PyMem_Free(first_slot);
    release(&buffers);
    return PyLong_FromLongLong(edges);
}

/* --------------------------------------------------------------------------------- unused */

static PyObject *
unused(PyObject *Py_UNUSED(module), PyObject *args)
{
    Buffers buffers;
    void *data[7];
    Py_ssize_t sizes[7];
    /* Per node entry and first value; operands; per entry its arguments and results; results. */
    if (open_buffers(&buffers, args, "iiiiiBB", data, sizes) < 0)
        return NULL;
    const int32_t *entry = data[0], *value0 = data[1], *sources = data[2];
    const int32_t *arity = data[3], *outputs = data[4];
    uint8_t *used = data[5], *unused_nodes = data[6];
    Py_ssize_t operand = sizes[2], found = 0;
    for (Py_ssize_t n = sizes[0] - 1; n >= 0; n--) {
        int alive = 0;
        for (int32_t out = 0; out < outputs[entry[n]]; out++)
            alive |= used[value0[n] + out];
        operand -= arity[entry[n]];
        for (int32_t k = 0; alive && k < arity[entry[n]]; k++)
            used[sources[operand + k]] = 1;
        unused_nodes[n] = !alive;
        found += !alive;
    }
    release(&buffers);
    return PyLong_FromSsize_t(found);
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

/* -------------------------------------------------------------------------------- resolve */

typedef struct {
    const int64_t *order, *input0, *term0, *element, *arena;
    const int32_t *arena_unit;
    int32_t *index;
    int64_t indices;
} Resolving;

/* Finds the rows that one summand of one operand has for the first `count` members: a slice
 * (arena, element, -1, rows), indices (arena, first, count, rows), or None if it is neither. */
static PyObject *
resolve_summand(Resolving *s, int64_t low, int64_t count, int64_t port, int64_t level, int64_t unit)
{
    int64_t arena = -1, start = 0, before = 0, first = s->indices;
    int follows = 1;
    for (int64_t j = 0; j < count; j++) {
        int64_t input = s->input0[s->order[low + j]] + port;
        int64_t term = s->term0[input] + level;
        int64_t element = s->element[term];
        if (term >= s->term0[input + 1] || (j && s->arena[term] != arena))
            goto other;
        if (j == 0) {
            arena = s->arena[term];
            start = element;
        }
        else if (element != before + unit)
            follows = 0;
        before = element;
        if (s->arena_unit[arena] != unit || element % unit) {
            if (!follows)
                goto other;
            s->index[first + j] = -1;
        }
        else
            s->index[first + j] = (int32_t)(element / unit);
    }
    if (follows)
        return Py_BuildValue("(LLLL)", arena, start, -1LL, count);
    for (int64_t j = 0; j < count; j++)
        if (s->index[first + j] < 0)
            goto other;
    s->indices = first + count;
    return Py_BuildValue("(LLLL)", arena, first, count, count);
other:
    Py_RETURN_NONE;
}

/* Returns the summands of an operand of the members from `low` to `high`, or None. */
static PyObject *
resolve_operand(Resolving *s, int64_t low, int64_t high, int64_t port, int64_t unit)
{
    int64_t levels = 0, kept = s->indices;
    for (int64_t i = low; i < high; i++) {
        int64_t input = s->input0[s->order[i]] + port;
        int64_t summands = s->term0[input + 1] - s->term0[input];
        levels = summands > levels ? summands : levels;
    }
    PyObject *list = PyList_New(0);
    for (int64_t level = 0; list != NULL && level < levels; level++) {
        int64_t count = high - low;
        while (count > 1) {
            int64_t input = s->input0[s->order[low + count - 1]] + port;
            if (s->term0[input + 1] - s->term0[input] > level)
                break;
            count--;
        }
        PyObject *found = resolve_summand(s, low, count, port, level, unit);
        if (found == NULL || found == Py_None) {
            s->indices = kept;
            Py_CLEAR(list);
            return found;
        }
        if (PyList_Append(list, found) < 0)
            Py_CLEAR(list);
        Py_DECREF(found);
    }
    return list;
}

static PyObject *
resolve(PyObject *Py_UNUSED(module), PyObject *args)
{
    Buffers buffers;
    void *data[13];
    Py_ssize_t sizes[13];
    if (open_buffers(&buffers, args, "llillllliibiI", data, sizes) < 0)
        return NULL;
    const int64_t *first = data[1], *rows = data[3];
    const int32_t *segment = data[2], *port0 = data[8], *port_unit = data[9];
    const uint8_t *shared = data[10];
    Resolving s = {.order = data[0], .input0 = data[4], .term0 = data[5], .element = data[6],
                   .arena = data[7], .arena_unit = data[11], .index = data[12]};
    PyObject *launches = PyList_New(0);
    for (Py_ssize_t k = 0; launches != NULL && k + 1 < sizes[1]; k++) {
        int64_t low = first[k], high = first[k + 1];
        int32_t number = segment[s.order[low]];
        int single = 1;
        for (int64_t i = low; single && i < high; i++)
            single = rows[s.order[i]] == 1;
        PyObject *operands = PyList_New(0);
        for (int32_t p = port0[number]; operands != NULL && p < port0[number + 1]; p++) {
            PyObject *found = Py_None;
            if (single && !shared[p])
                found = resolve_operand(&s, low, high, p - port0[number], port_unit[p]);
            else
                Py_INCREF(found);
            if (found == NULL || PyList_Append(operands, found) < 0)
                Py_CLEAR(operands);
            Py_XDECREF(found);
        }
        if (operands == NULL || PyList_Append(launches, operands) < 0)
            Py_CLEAR(launches);
        Py_XDECREF(operands);
    }
    release(&buffers);
    if (launches == NULL)
        return NULL;
    return Py_BuildValue("(NL)", launches, s.indices);
}

static PyMethodDef METHODS[] = {
    {"survey", survey, METH_VARARGS, NULL},
    {"unused", unused, METH_VARARGS, NULL},
    {"wire", wire, METH_VARARGS, NULL},
    {"order", order, METH_VARARGS, NULL},
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
