/* Common code of the C modules: bytes and checksums, Python objects, and the check that a build
   matches the Python modules next to it.

   A function that can fail returns TAKEN, LEFT (left to Python's version, nothing is raised) or
   FAILED (a Python exception is set). Fields and parameters whose names end in _ref are owned
   references, released on every path; all other fields are borrowed from something that outlives
   their use. A function releases what it creates. Spans point into objects that stay referenced.
   Only the limited API is used, so that one build serves every CPython from 3.11 on. */

#define _GNU_SOURCE /* memmem */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#ifndef SOURCE
#define SOURCE "" /* which state of the sources was built: hatch_build.py */
#endif

typedef enum { FAILED = -1, LEFT = 0, TAKEN = 1 } Outcome;

typedef struct {
    const char *at;
    Py_ssize_t size;
} Span;

typedef struct { /* bytes that grow at their end */
    char *bytes;
    Py_ssize_t size, room;
} Buffer;

enum { CRC_MASK = 0x7FFFFFFF, BORN_IPV6 = 1 << 4, STORE_IPV6 = 1 << 5 };
#define ENTRY "topic queue_id queue_offset physical_offset size tag_code store_ms keys units"

static PyObject *entry_type, *one_unit;
static uint32_t crc_table[8][256];

/* --- bytes */

static inline Span span_of(PyObject *bytes)
{
    Span span = {PyBytes_AsString(bytes), PyBytes_Size(bytes)};
    return span;
}

static inline int is_same(Span one, Span other)
{
    return one.size == other.size && memcmp(one.at, other.at, (size_t)one.size) == 0;
}

/* Return room for `size` more bytes, to be filled by the caller; NULL with MemoryError. */
static inline char *extend(Buffer *buffer, Py_ssize_t size)
{
    if (size > buffer->room - buffer->size) {
        if (size > PY_SSIZE_T_MAX / 2 - buffer->size) {
            PyErr_NoMemory();
            return NULL;
        }
        Py_ssize_t room = 2 * (buffer->size + size);
        char *bytes = PyMem_Realloc(buffer->bytes, (size_t)room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        buffer->bytes = bytes;
        buffer->room = room;
    }
    char *at = buffer->bytes + buffer->size;
    buffer->size += size;
    return at;
}

static inline char *put(char *to, Span span)
{
    memcpy(to, span.at, (size_t)span.size);
    return to + span.size;
}

static inline char *put_number(char *to, int bytes, uint64_t number) /* big-endian */
{
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
        *to++ = (char)(number >> shift);
    return to;
}

static inline uint32_t number_at(const char *at) /* big-endian, 4 bytes */
{
    const unsigned char *bytes = (const unsigned char *)at;
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* zlib's checksum, eight bytes a step. Not zlib itself, so that nothing has to be linked. */
static inline uint32_t crc32(Span span)
{
    const unsigned char *at = (const unsigned char *)span.at, *end = at + span.size;
    uint32_t crc = 0xFFFFFFFF;
    for (; end - at >= 8; at += 8) {
        uint32_t low = crc;
        low ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255]
            ^ crc_table[5][low >> 16 & 255] ^ crc_table[4][low >> 24]
            ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]] ^ crc_table[0][at[7]];
    }
    for (; at < end; at++)
        crc = crc_table[0][(crc ^ *at) & 255] ^ crc >> 8;
    return ~crc;
}

static inline void fill_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
        crc_table[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_table[table - 1][byte];
            crc_table[table][byte] = crc_table[0][crc & 255] ^ crc >> 8;
        }
}

static inline int is_ascii(Span span)
{
    unsigned char all = 0;
    for (Py_ssize_t i = 0; i < span.size; i++)
        all |= (unsigned char)span.at[i];
    return all < 0x80;
}

/* --- Python objects */

static inline PyObject *bytes_of(Span span)
{
    return PyBytes_FromStringAndSize(span.at, span.size);
}

static inline PyObject *text_of(Span span)
{
    return PyUnicode_DecodeUTF8(span.at, span.size, "strict");
}

/* Put an owned object into a tuple, which then owns it; false if there is none. */
static inline int give(PyObject *tuple, Py_ssize_t index, PyObject *item)
{
    return item != NULL && PyTuple_SetItem(tuple, index, item) == 0;
}

static inline void replace(PyObject **ref, PyObject *owned)
{
    PyObject *old = *ref;
    *ref = owned;
    Py_XDECREF(old);
}

/* --- one state of everything */

static inline void other_state(const char *name)
{
    PyErr_Format(PyExc_ImportError, "%s is not what the native body was built for: build it again"
                 " (pip install, or python hatch_build.py)", name);
}

static inline PyObject *import(const char *module, const char *name)
{
    PyObject *found = PyImport_ImportModule(module);
    PyObject *value = found ? PyObject_GetAttrString(found, name) : NULL;
    if (found != NULL && value == NULL)
        other_state(name);
    Py_XDECREF(found);
    return value;
}

/* True if a named tuple has exactly these fields: a build may be older than the modules beside
   it. */
static inline int check_fields(PyObject *type, const char *name, const char *wanted)
{
    PyObject *fields = PyObject_GetAttrString(type, "_fields");
    PyObject *space = fields ? PyUnicode_FromString(" ") : NULL;
    PyObject *text = space ? PyUnicode_Join(space, fields) : NULL;
    int is_same = text != NULL && PyUnicode_CompareWithASCIIString(text, wanted) == 0;
    if (text != NULL && !is_same)
        other_state(name);
    Py_XDECREF(text);
    Py_XDECREF(space);
    Py_XDECREF(fields);
    return is_same;
}

/* Append `tuple.__new__(Entry, row)` to a list; gives up the row. */
static inline Outcome append_entry(PyObject *list, PyObject *row_ref)
{
    static newfunc new_tuple = NULL;
    if (new_tuple == NULL)
        new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *args = row_ref ? PyTuple_Pack(1, row_ref) : NULL;
    PyObject *entry = args ? new_tuple((PyTypeObject *)entry_type, args, NULL) : NULL;
    int done = entry ? PyList_Append(list, entry) : -1;
    Py_XDECREF(entry);
    Py_XDECREF(args);
    Py_XDECREF(row_ref);
    return done == 0 ? TAKEN : FAILED;
}

/* Import what both modules need; false with an exception. */
static inline int import_common(void)
{
    fill_crc_table();
    return (entry_type = import("rocketbed.node.store.entry", "Entry"))
        && (one_unit = import("rocketbed.node.store.entry", "ONE_UNIT"))
        && check_fields(entry_type, "Entry", ENTRY);
}

static inline PyObject *make_module(struct PyModuleDef *definition)
{
    PyObject *module = PyModule_Create(definition);
    if (module != NULL && PyModule_AddStringConstant(module, "SOURCE", SOURCE) != 0)
        Py_CLEAR(module);
    return module;
}
