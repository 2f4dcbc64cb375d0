/* C versions of the two loops over all records: `RecordScanner.scan` (scan.py) and
   `IndexFile.put_entries` (indexfile.py), which are the references: read those first.

   `scan` takes plain records, whose entries follow from tables that Python has filled, and stops
   at the first other one: Python reads it, or reports what is wrong with it. `put_keys` stops when
   slots have to be read. tests/property/test_log_native.py compares both versions. */

#include "native.h"

enum { MAGIC_V1 = -626843481, MAGIC_V2 = -626843477, TOPIC_V1_MAX = 127 };
enum { HEAD = 48, BODY_AT = 88, RECORD_MIN = 91, CRC_PROPERTY = 20 };
enum { TRANSACTION = 0xC, INNER_BATCH = 0x80 };
enum { PAGE_BITS = 10, PAGE_SLOTS = 1 << PAGE_BITS, ENTRY_SIZE = 20, SECONDS_MAX = 0x7FFFFFFF };
static const char unique_name[] = "UNIQ_KEY\x01", crc_name[] = "__CRC32#\x01";
static const char delay_topic[] = "SCHEDULE_TOPIC_XXXX";
static PyObject *key_state;

static int32_t signed_at(const char *at)
{
    return (int32_t)number_at(at);
}

static long long long_at(const char *at)
{
    return (long long)((uint64_t)number_at(at) << 32 | number_at(at + 4));
}

static uint32_t short_at(const char *at)
{
    return (uint32_t)(unsigned char)at[0] << 8 | (unsigned char)at[1];
}

/* --- scan */

typedef struct { /* constant during one call, and data of the previous record */
    Span data;
    long long base, segment_end;
    int check_crc;
    PyObject *topics, *shapes, *read_properties, *entries;
    Span topic, front, back; /* back and front: properties without the unique key */
    PyObject *topic_object, *code, *others; /* borrowed from the tables */
} Scan;

typedef struct {
    long long queue_offset, physical, store_ms;
    int32_t size, queue_id;
    Span topic, properties;
} Fields;

/* Read the record at a position, if it is plain so far: whole, of a message, its lengths adding
   up to its size, its checksum correct, and without a zero that may mean it was never written. */
static Outcome read_fields(const Scan *scan, Py_ssize_t position, Fields *fields)
{
    Py_ssize_t left = scan->data.size - position;
    const char *at = scan->data.at + position;
    if (left < RECORD_MIN)
        return LEFT;
    int32_t magic = signed_at(at + 4), sys_flag = signed_at(at + 36);
    int32_t body_size = signed_at(at + 84);
    fields->size = signed_at(at);
    fields->queue_id = signed_at(at + 12);
    fields->queue_offset = long_at(at + 20);
    fields->physical = long_at(at + 28);
    fields->store_ms = long_at(at + 56);
    Py_ssize_t size = fields->size;
    int width = magic == MAGIC_V2 ? 2 : 1;
    if ((magic != MAGIC_V1 && magic != MAGIC_V2) || fields->physical != scan->base + position
        || size < RECORD_MIN || size > left || size > scan->segment_end - fields->physical
        || sys_flag & (TRANSACTION | INNER_BATCH | BORN_IPV6 | STORE_IPV6) || fields->queue_id < 0
        || body_size < 0 || body_size > size - BODY_AT - width - 2)
        return LEFT;
    const char *topic_at = at + BODY_AT + body_size, *end = at + size;
    Py_ssize_t topic_size = width == 2 ? (Py_ssize_t)short_at(topic_at) : (unsigned char)*topic_at;
    topic_at += width;
    if ((width == 1 && topic_size > TOPIC_V1_MAX) || topic_size > end - topic_at - 2)
        return LEFT;
    const char *properties_at = topic_at + topic_size + 2;
    Span body = {at + BODY_AT, body_size}, properties = {properties_at, end - properties_at};
    if (short_at(properties_at - 2) != (size_t)properties.size
        || !properties.size || memchr(properties_at, 0, (size_t)properties.size) != NULL)
        return LEFT;
    fields->topic.at = topic_at;
    fields->topic.size = topic_size;
    fields->properties = properties;
    if (!scan->check_crc)
        return TAKEN;
    Py_ssize_t name_size = sizeof(crc_name) - 1;
    const char *last = properties.size > CRC_PROPERTY ? end - CRC_PROPERTY : properties_at;
    int has_crc = end - last >= name_size && memcmp(last, crc_name, (size_t)name_size) == 0;
    int is_right = !body_size || (crc32(body) & CRC_MASK) == number_at(at + 8);
    return has_crc || !is_right ? LEFT : TAKEN;
}

/* Find the topic's text; LEFT for one that no record had, that no queue can have, or that has
   delays. */
static Outcome find_topic(Scan *scan, Span topic)
{
    if (scan->topic_object != NULL && is_same(scan->topic, topic))
        return TAKEN;
    Span delays = {delay_topic, sizeof(delay_topic) - 1};
    PyObject *key = bytes_of(topic);
    PyObject *found = key ? PyDict_GetItemWithError(scan->topics, key) : NULL;
    Py_XDECREF(key);
    if (found == NULL || !topic.size || is_same(topic, delays) || PyObject_IsTrue(found) != 1)
        return PyErr_Occurred() ? FAILED : LEFT;
    scan->topic = topic;
    scan->topic_object = found;
    return TAKEN;
}

/* Position of the last unique key's name in properties; -1 without one. */
static Py_ssize_t find_unique(Span properties)
{
    Py_ssize_t size = sizeof(unique_name) - 1;
    for (Py_ssize_t at = properties.size - size; at >= 0; at--)
        if (properties.at[at] == 'U' && memcmp(properties.at + at, unique_name, (size_t)size) == 0)
            return at;
    return -1;
}

/* Find tag code and further keys of properties that equal earlier ones, except for the unique
   key. LEFT: Python has to read them. */
static Outcome find_shape(Scan *scan, Span properties, Span *unique)
{
    Py_ssize_t at = find_unique(properties), key_at = at + (Py_ssize_t)sizeof(unique_name) - 1;
    if (at < 0 || key_at == properties.size || (at > 0 && properties.at[at - 1] != 2))
        return LEFT;
    const char *key = properties.at + key_at, *end = properties.at + properties.size;
    const char *stop = memchr(key, 2, (size_t)(end - key));
    if (stop == NULL || stop == key)
        return LEFT;
    Span front = {properties.at, at}, back = {stop, end - stop};
    unique->at = key;
    unique->size = stop - key;
    if (scan->code != NULL && is_same(front, scan->front) && is_same(back, scan->back))
        return TAKEN;
    PyObject *rest = PyBytes_FromStringAndSize(NULL, front.size + back.size);
    if (rest == NULL)
        return FAILED;
    put(put(PyBytes_AsString(rest), front), back);
    PyObject *shape = PyDict_GetItemWithError(scan->shapes, rest);
    Py_DECREF(rest);
    if (shape == NULL)
        return PyErr_Occurred() ? FAILED : LEFT;
    if (!PyArg_ParseTuple(shape, "OO!", &scan->code, &PyTuple_Type, &scan->others))
        return FAILED;
    scan->front = front;
    scan->back = back;
    return TAKEN;
}

/* Return a new tuple; NULL: FAILED. */
static PyObject *keys_of(Span unique, PyObject *others)
{
    Py_ssize_t count = PyTuple_Size(others);
    PyObject *keys = PyTuple_New(count + 1);
    if (keys != NULL && !give(keys, 0, PyUnicode_DecodeUTF8(unique.at, unique.size, "replace")))
        Py_CLEAR(keys);
    for (Py_ssize_t i = 0; keys != NULL && i < count; i++) {
        PyObject *other = PyTuple_GetItem(others, i);
        Py_INCREF(other);
        if (!give(keys, i + 1, other))
            Py_CLEAR(keys);
    }
    return keys;
}

/* Call `_tag_and_keys` itself. */
static Outcome read_by_python(const Scan *scan, Span properties, PyObject **made_ref)
{
    PyObject *bytes = bytes_of(properties);
    if (bytes != NULL)
        *made_ref = PyObject_CallFunctionObjArgs(scan->read_properties, bytes, NULL);
    Py_XDECREF(bytes);
    return *made_ref ? TAKEN : FAILED;
}

static Outcome take_record(Scan *scan, Py_ssize_t *position)
{
    Fields fields;
    Span unique;
    PyObject *made = NULL, *keys = NULL, *code = NULL;
    Outcome outcome = read_fields(scan, *position, &fields);
    if (outcome == TAKEN)
        outcome = find_topic(scan, fields.topic);
    if (outcome != TAKEN)
        return outcome;
    outcome = find_shape(scan, fields.properties, &unique);
    if (outcome == TAKEN) {
        code = scan->code;
        keys = keys_of(unique, scan->others);
    } else if (outcome == LEFT) {
        scan->code = NULL; /* Python may drop their owner */
        if (read_by_python(scan, fields.properties, &made) == TAKEN
            && PyArg_ParseTuple(made, "OO!", &code, &PyTuple_Type, &keys))
            Py_INCREF(keys);
    }
    PyObject *row = NULL;
    if (keys != NULL)
        row = Py_BuildValue("OiLLiOLOO", scan->topic_object, (int)fields.queue_id,
                            fields.queue_offset, fields.physical, (int)fields.size, code,
                            fields.store_ms, keys, one_unit);
    outcome = append_entry(scan->entries, row);
    Py_XDECREF(keys);
    Py_XDECREF(made);
    if (outcome == TAKEN)
        *position += fields.size;
    return outcome;
}

static PyObject *scan_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    Scan scan;
    memset(&scan, 0, sizeof(scan));
    PyObject *data;
    Py_ssize_t position;
    if (!PyArg_ParseTuple(args, "SnLLpO!O!OO!", &data, &position, &scan.base, &scan.segment_end,
                          &scan.check_crc, &PyDict_Type, &scan.topics, &PyDict_Type, &scan.shapes,
                          &scan.read_properties, &PyList_Type, &scan.entries))
        return NULL;
    scan.data = span_of(data);
    if (position < 0 || position > scan.data.size) {
        PyErr_SetString(PyExc_ValueError, "a place outside of what there is");
        return NULL;
    }
    Outcome outcome;
    do
        outcome = take_record(&scan, &position);
    while (outcome == TAKEN);
    return outcome == LEFT ? PyLong_FromSsize_t(position) : NULL;
}

/* --- put_keys */

typedef struct {
    PyObject *pages, *dirty, *buffer;
    long long slots, room, number, begin_ms;
    PyObject *topic; /* of the previous key, borrowed from its entry */
    uint32_t topic_state; /* of the topic and `#` */
    int is_topic_plain;
    Buffer made;
    long long used, missing, end_offset, end_ms;
} Keys;

/* Continue a hash with a text; false if it is not ASCII. */
static int extend_state(PyObject *text, uint32_t *state)
{
    Py_ssize_t size;
    const char *at = PyUnicode_AsUTF8AndSize(text, &size);
    if (at == NULL) {
        PyErr_Clear(); /* half of a surrogate pair: handled by Python */
        return 0;
    }
    uint32_t hash = *state;
    unsigned char all = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        all |= (unsigned char)at[i];
        hash = 31 * hash + (unsigned char)at[i];
    }
    *state = hash;
    return all < 0x80;
}

static Outcome find_state(Keys *keys, PyObject *topic, PyObject *key, uint32_t *state)
{
    if (topic != keys->topic) {
        keys->topic = topic;
        keys->topic_state = 0;
        keys->is_topic_plain = extend_state(topic, &keys->topic_state);
        keys->topic_state = 31 * keys->topic_state + '#';
    }
    *state = keys->topic_state;
    if (keys->is_topic_plain && extend_state(key, state))
        return TAKEN;
    PyObject *found = PyObject_CallFunctionObjArgs(key_state, topic, key, NULL);
    if (found == NULL)
        return FAILED;
    *state = (uint32_t)PyLong_AsUnsignedLongMask(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? FAILED : TAKEN;
}

static int32_t seconds_since(long long begin_ms, long long store_ms)
{
    if (begin_ms <= 0 || store_ms <= begin_ms)
        return 0;
    long long seconds = (store_ms - begin_ms) / 1000;
    return seconds > SECONDS_MAX ? SECONDS_MAX : (int32_t)seconds;
}

/* Put the entry's number into its slot; return the slot's former content. LEFT: the slot's page
   is not loaded. */
static Outcome change_slot(Keys *keys, long long slot, int32_t *previous)
{
    PyObject *number = PyLong_FromLongLong(slot >> PAGE_BITS);
    PyObject *page = number ? PyDict_GetItemWithError(keys->pages, number) : NULL;
    Py_buffer view;
    if (page == NULL || PyObject_GetBuffer(page, &view, PyBUF_WRITABLE) != 0) {
        Py_XDECREF(number);
        keys->missing = slot >> PAGE_BITS;
        return PyErr_Occurred() ? FAILED : LEFT;
    }
    Py_ssize_t at = (Py_ssize_t)(slot & (PAGE_SLOTS - 1)) * 4;
    Outcome outcome = FAILED;
    if (view.len < at + 4)
        PyErr_SetString(PyExc_ValueError, "a page of slots is too short");
    else if (PyDict_SetItem(keys->dirty, number, Py_None) == 0) {
        int32_t count = (int32_t)keys->number;
        memcpy(previous, (char *)view.buf + at, 4);
        memcpy((char *)view.buf + at, &count, 4);
        outcome = TAKEN;
    }
    PyBuffer_Release(&view);
    Py_DECREF(number);
    return outcome;
}

static Outcome put_key(Keys *keys, PyObject *topic, PyObject *key, long long offset,
                       long long store_ms)
{
    uint32_t hash;
    int32_t previous;
    if (keys->number >= keys->room)
        return LEFT;
    if (find_state(keys, topic, key, &hash) != TAKEN)
        return FAILED;
    hash = hash & 0x80000000 ? 0 - hash : hash;
    hash = hash == 0x80000000 ? 0 : hash;
    char *to = extend(&keys->made, ENTRY_SIZE);
    Outcome outcome = to ? change_slot(keys, hash % keys->slots, &previous) : FAILED;
    if (outcome != TAKEN) {
        keys->made.size -= to ? ENTRY_SIZE : 0;
        return outcome;
    }
    if (previous <= 0 || previous > keys->number) {
        previous = 0;
        keys->used++;
    }
    to = put_number(to, 4, hash);
    to = put_number(to, 8, (uint64_t)offset);
    to = put_number(to, 4, (uint64_t)seconds_since(keys->begin_ms, store_ms));
    put_number(to, 4, (uint64_t)previous);
    keys->number++;
    keys->end_offset = offset;
    keys->end_ms = store_ms;
    return TAKEN;
}

/* Put all keys of one entry, from number `done` on, which counts them. */
static Outcome put_entry(Keys *keys, PyObject *entry, Py_ssize_t *done)
{
    PyObject *topic = PyTuple_GetItem(entry, 0), *texts = PyTuple_GetItem(entry, 7);
    if (topic == NULL || texts == NULL)
        return FAILED;
    Py_ssize_t count = PyTuple_Size(texts);
    long long offset = PyLong_AsLongLong(PyTuple_GetItem(entry, 3));
    long long store_ms = PyLong_AsLongLong(PyTuple_GetItem(entry, 6));
    if (PyErr_Occurred())
        return FAILED;
    for (; *done < count; ++*done) {
        Outcome outcome = put_key(keys, topic, PyTuple_GetItem(texts, *done), offset, store_ms);
        if (outcome != TAKEN)
            return outcome;
    }
    return TAKEN;
}

static int append_made(Keys *keys)
{
    Py_ssize_t size = PyByteArray_Size(keys->buffer);
    if (!keys->made.size)
        return 1;
    if (PyByteArray_Resize(keys->buffer, size + keys->made.size) != 0)
        return 0;
    memcpy(PyByteArray_AsString(keys->buffer) + size, keys->made.bytes, (size_t)keys->made.size);
    return 1;
}

static PyObject *put_keys(PyObject *Py_UNUSED(module), PyObject *args)
{
    Keys keys;
    memset(&keys, 0, sizeof(keys));
    keys.missing = -1;
    PyObject *waiting;
    Py_ssize_t first, done;
    if (!PyArg_ParseTuple(args, "O!nnO!O!O!LLLLLL", &PyList_Type, &waiting, &first, &done,
                          &PyDict_Type, &keys.pages, &PyDict_Type, &keys.dirty, &PyByteArray_Type,
                          &keys.buffer, &keys.slots, &keys.room, &keys.number, &keys.begin_ms,
                          &keys.end_offset, &keys.end_ms))
        return NULL;
    if (first < 0 || done < 0 || keys.slots < 1) {
        PyErr_SetString(PyExc_ValueError, "places and slots are positive");
        return NULL;
    }
    Outcome outcome = TAKEN;
    while (outcome == TAKEN && first < PyList_Size(waiting)) {
        outcome = put_entry(&keys, PyList_GetItem(waiting, first), &done);
        if (outcome == TAKEN) {
            first++;
            done = 0;
        }
    }
    PyObject *result = NULL;
    if (outcome != FAILED && append_made(&keys))
        result = Py_BuildValue("nnLLLLL", first, done, keys.number, keys.used, keys.end_offset,
                               keys.end_ms, keys.missing);
    PyMem_Free(keys.made.bytes);
    return result;
}

/* --- the module */

static PyMethodDef methods[] = {
    {"scan", scan_records, METH_VARARGS, "Plain records of RecordScanner.scan."},
    {"put_keys", put_keys, METH_VARARGS, "As IndexFile.put_entries, but for reading slots."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "log_native", "The native bodies of scan and index.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_log_native(void)
{
    if (!import_common() || !(key_state = import("rocketbed.wire.javahash", "key_state")))
        return NULL;
    return make_module(&definition);
}
