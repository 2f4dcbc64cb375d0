/* C version of `take` in plain_run.py, which is the reference: read that one first.

   The functions here follow its lines, in its order and under its names, with the same results for
   any bytes: tests/property/test_plain_native.py compares both versions. Where C would gain little
   they call Python: a miss of a cache, a header in msgpack, a JSON text with \u escapes beyond
   ASCII, the hash of a tag. */

#include "../store/native.h"

enum { JSON = 0, BINARY = 1 }; /* kinds of headers that are cut here */
enum { PROPERTIES_MAX = 32767 };
#define END_OF_LOG "position limit now_ms store_host host_text body_max record_max index_tags"
enum { BORN_DIGITS = 13, JSON_PARTS = 6, BINARY_PARTS = 7 };

/* Looked up at the import of the module. */
static PyObject *tag_code, *tag_key;
static Span json_answer[JSON_PARTS], binary_answer[BINARY_PARTS];

typedef struct { /* constant during one call of `take` */
    PyObject *headers, *names, *offsets, *next_offsets;
    Span born_host, store_host, host_text;
    PyObject *host_text_object, *now_object_ref;
    long long position, limit, now_ms, body_max, record_max;
    int index_tags, hosts;
    Py_ssize_t fixed_size;
    /* Shapes and form of the previous message's kind. */
    long kind;
    PyObject *shapes_ref, *form_ref;
    /* Property names of the previous message, and their shape. */
    PyObject *names_key_ref, *names_shape_ref;
    /* Parts of the present property string, and its text if the header has it escaped. */
    Span *parts;
    Py_ssize_t parts_room;
    Buffer text;
    /* Results. */
    Buffer records, answers;
    PyObject *entries_ref;
} Call;

typedef struct { /* one frame, and its parsed contents */
    Span header, body;
    uint32_t word;
    PyObject *key_ref;
    long long born_ms;
    PyObject *cut_ref; /* of a header that Python has cut: it owns string and opaque */
    Span string, opaque;
    PyObject *opaque_object;
    /* Of the header's shape. */
    PyObject *shape_ref, *queue, *topic, *queue_id_object;
    long queue_id, magic, flag, sys_flag;
    int is_oneway;
    Span topic_head;
    /* Of the properties. */
    Span unique, suffix;
    PyObject *code_ref, *keys_ref;
} Message;

/* --- bytes */

static char *put_hex(char *to, uint64_t number) /* %016X */
{
    for (int shift = 60; shift >= 0; shift -= 4)
        *to++ = "0123456789ABCDEF"[number >> shift & 15];
    return to;
}

enum { DECIMAL_MAX = 20 };

static char *put_decimal(char *to, long long number)
{
    char digits[DECIMAL_MAX];
    int at = DECIMAL_MAX;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        *to++ = '-';
    memcpy(to, digits + at, (size_t)(DECIMAL_MAX - at));
    return to + DECIMAL_MAX - at;
}

/* As bytes.partition: `before` and `after` the mark; without one all is before it. */
static int partition(Span whole, const char *mark, Py_ssize_t size, Span *before, Span *after)
{
    const char *end = whole.at + whole.size;
    const char *found = NULL;
    if (whole.size > 0)
        found = memmem(whole.at, (size_t)whole.size, mark, (size_t)size);
    before->at = whole.at;
    before->size = (found ? found : end) - whole.at;
    after->at = found ? found + size : end;
    after->size = end - after->at;
    return found != NULL;
}

#define PARTITION(whole, mark, before, after) \
    partition(whole, mark, (Py_ssize_t)sizeof(mark) - 1, before, after)

static int is_digits(Span span)
{
    for (Py_ssize_t i = 0; i < span.size; i++)
        if (span.at[i] < '0' || span.at[i] > '9')
            return 0;
    return span.size > 0;
}

static long long decimal(Span digits) /* at most 18 of them */
{
    long long number = 0;
    for (Py_ssize_t i = 0; i < digits.size; i++)
        number = 10 * number + (digits.at[i] - '0');
    return number;
}

/* --- Python objects */

/* Return the outcome of `except (LookupError, ValueError, TypeError)` for the present exception. */
static Outcome left_or_failed(void)
{
    if (PyErr_ExceptionMatches(PyExc_LookupError) || PyErr_ExceptionMatches(PyExc_ValueError)
        || PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        return LEFT;
    }
    return FAILED;
}

static PyObject *tuple_of_bytes(const Span *spans, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++)
        if (!give(tuple, i, bytes_of(spans[i])))
            Py_CLEAR(tuple);
    return tuple;
}

/* --- cutting a header: wire/send_headers.py */

/* Cut a header of any encoding with the form's own function. */
static Outcome cut_by_form(Call *call, Message *message)
{
    PyObject *header = bytes_of(message->header);
    PyObject *cut = header ? PyObject_GetAttrString(call->form_ref, "cut") : NULL;
    if (cut != NULL)
        message->cut_ref = PyObject_CallFunctionObjArgs(cut, header, NULL);
    Py_XDECREF(cut);
    Py_XDECREF(header);
    PyObject *string;
    if (message->cut_ref == NULL
        || !PyArg_ParseTuple(message->cut_ref, "OLUO", &message->key_ref, &message->born_ms,
                             &string, &message->opaque_object)) {
        message->key_ref = NULL;
        return left_or_failed();
    }
    Py_INCREF(message->key_ref);
    message->string.at = PyUnicode_AsUTF8AndSize(string, &message->string.size);
    if (message->string.at == NULL)
        return left_or_failed();
    if (PyBytes_Check(message->opaque_object))
        message->opaque = span_of(message->opaque_object);
    return TAKEN;
}

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Decode a JSON escape, and its length after the backslash; -1 if it is not an ASCII character
   or not an escape at all. */
static int escaped(const char *at, const char *end, int *size)
{
    static const char letters[] = "\\/bfnrt", meant[] = "\\/\b\f\n\r\t";
    if (at == end)
        return -1;
    *size = 1;
    const char *found = *at ? strchr(letters, *at) : NULL;
    if (found != NULL)
        return meant[found - letters];
    if (*at != 'u' || end - at < 5 || at[1] != '0' || at[2] != '0')
        return -1;
    *size = 5;
    int high = hex_digit(at[3]), low = hex_digit(at[4]);
    return high >= 0 && high < 8 && low >= 0 ? 16 * high + low : -1;
}

/* Decode a JSON text, without its quotes. LEFT: Python has to read it, or refuse it. */
static Outcome unescape(Buffer *text, Span raw, Span *string)
{
    const char *at = raw.at, *end = raw.at + raw.size;
    text->size = 0;
    char *to = extend(text, raw.size + 1), *start = to;
    if (to == NULL)
        return FAILED;
    while (at < end) {
        unsigned char byte = (unsigned char)*at++;
        if (byte < 0x20)
            return LEFT;
        if (byte == '\\') {
            int size = 0, character = escaped(at, end, &size);
            if (character < 0)
                return LEFT;
            at += size;
            byte = (unsigned char)character;
        }
        *to++ = (char)byte;
    }
    string->at = start;
    string->size = to - start;
    return TAKEN;
}

/* True if a text is UTF-8, as required: by Python's own decoder. */
static Outcome check_utf8(Span span)
{
    if (is_ascii(span))
        return TAKEN;
    PyObject *text = text_of(span);
    if (text == NULL)
        return left_or_failed();
    Py_DECREF(text);
    return TAKEN;
}

static Outcome cut_json(Call *call, Message *message)
{
    Span before, born, between, string, behind, opaque, end, rest, front;
    PARTITION(message->header, "\"g\":\"", &before, &rest);
    PARTITION(rest, "\"", &born, &rest);
    PARTITION(rest, "\"i\":\"", &between, &rest);
    PARTITION(rest, "\"", &string, &rest);
    int is_behind = PARTITION(rest, "\"opaque\":", &behind, &rest);
    PARTITION(rest, ",", &opaque, &end);
    if (!is_behind) { /* it may be in front, as in Go's client */
        PARTITION(before, "\"opaque\":", &front, &rest);
        PARTITION(rest, ",", &opaque, &before);
    }
    if (!is_digits(born) || !is_digits(opaque) || born.size >= 19 || opaque.size >= 10
        || (opaque.at[0] == '0' && opaque.size != 1))
        return LEFT;
    Outcome outcome = unescape(&call->text, string, &message->string);
    if (outcome == LEFT)
        return cut_by_form(call, message);
    if (outcome == TAKEN)
        outcome = check_utf8(message->string);
    if (outcome != TAKEN)
        return outcome;
    Span behind_all = {end.at, 0};
    Span java[] = {before, between, behind, end};
    Span go[] = {front, before, between, behind, behind_all};
    message->key_ref = is_behind ? tuple_of_bytes(java, 4) : tuple_of_bytes(go, 5);
    message->born_ms = decimal(born);
    message->opaque = opaque;
    return message->key_ref ? TAKEN : FAILED;
}

/* End of a mark in a header, from `from` on; -1 without one. A header without one is not a plain
   send, whatever Python reads at that place. */
static Py_ssize_t end_of(Span header, Py_ssize_t from, const char *mark, Py_ssize_t size)
{
    Span tail = {header.at + from, header.size - from}, before, after;
    return partition(tail, mark, size, &before, &after) ? after.at - header.at : -1;
}

static Outcome cut_binary(Message *message)
{
    static const char born_entry[] = "\0\1g\0\0\0\r", string_entry[] = "\0\1i";
    Span header = message->header;
    Py_ssize_t born = end_of(header, 0, born_entry, 7), born_end = born + BORN_DIGITS;
    if (header.size < 21 || born < 0 || born_end > header.size)
        return LEFT;
    Py_ssize_t length_at = end_of(header, born_end, string_entry, 3), string = length_at + 4;
    /* The entry may have been found within the fixed fields, where Python's slices would end
       before they begin; such a header is no plain send either. */
    if (length_at < 0 || string > header.size || born < 21)
        return LEFT;
    Span born_text = {header.at + born, BORN_DIGITS};
    Py_ssize_t string_size = number_at(header.at + length_at);
    /* No remark, entries to the very end: their length follows from what stands in the key. */
    if (!is_digits(born_text) || string_size > header.size - string
        || number_at(header.at + 17) != (uint64_t)(header.size - 21))
        return LEFT;
    Py_ssize_t string_end = string + string_size;
    message->string.at = header.at + string;
    message->string.size = string_size;
    Outcome outcome = check_utf8(message->string);
    if (outcome != TAKEN)
        return outcome;
    Span key[] = {
        {header.at, 5},
        {header.at + 9, 8},
        {header.at + 21, born - 21},
        {header.at + born_end, length_at - born_end},
        {header.at + string_end, header.size - string_end},
    };
    message->key_ref = tuple_of_bytes(key, 5);
    message->born_ms = decimal(born_text);
    message->opaque.at = header.at + 5;
    message->opaque.size = 4;
    return message->key_ref ? TAKEN : FAILED;
}

static Outcome cut(Call *call, Message *message)
{
    if (call->kind == JSON)
        return cut_json(call, message);
    if (call->kind == BINARY)
        return cut_binary(message);
    return cut_by_form(call, message);
}

/* --- what is known of it: plain_shapes.py */

/* Find the kind's `Headers`, and their form; LEFT for a kind without them. */
static Outcome find_shapes(Call *call, long kind)
{
    if (call->shapes_ref != NULL && call->kind == kind)
        return TAKEN;
    PyObject *number = PyLong_FromLong(kind);
    if (number == NULL)
        return FAILED;
    PyObject *shapes = PyObject_GetItem(call->headers, number);
    Py_DECREF(number);
    if (shapes == NULL)
        return left_or_failed();
    PyObject *form = PyObject_GetAttrString(shapes, "form");
    replace(&call->shapes_ref, shapes);
    replace(&call->form_ref, form);
    call->kind = kind;
    if (form == NULL) {
        replace(&call->shapes_ref, NULL);
        return FAILED;
    }
    return TAKEN;
}

/* Unpack `shapes[key]`. On a miss Python parses it in the general way. */
static Outcome find_shape(Call *call, Message *message)
{
    PyObject *topic_head;
    message->shape_ref = PyObject_GetItem(call->shapes_ref, message->key_ref);
    if (message->shape_ref == NULL)
        return left_or_failed();
    if (!PyArg_ParseTuple(message->shape_ref, "O!lSlli", &PyTuple_Type, &message->queue,
                          &message->magic, &topic_head, &message->flag, &message->sys_flag,
                          &message->is_oneway)
        || !PyArg_ParseTuple(message->queue, "UO", &message->topic, &message->queue_id_object))
        return FAILED;
    message->topic_head = span_of(topic_head);
    message->queue_id = PyLong_AsLong(message->queue_id_object);
    return message->queue_id == -1 && PyErr_Occurred() ? FAILED : TAKEN;
}

/* --- properties: `_properties` of plain_run.py */

static Outcome add_part(Call *call, Py_ssize_t count, const char *at, const char *end)
{
    if (count == call->parts_room) {
        Py_ssize_t room = 2 * count + 32;
        Span *parts = PyMem_Realloc(call->parts, (size_t)room * sizeof(Span));
        if (parts == NULL) {
            PyErr_NoMemory();
            return FAILED;
        }
        call->parts = parts;
        call->parts_room = room;
    }
    call->parts[count].at = at;
    call->parts[count].size = end - at;
    return TAKEN;
}

/* Cut a property string at its name ends (1), and before its pair ends (2), as the reference
   does with `replace` and `split`. Return the number of parts, and of pair ends; -1: FAILED. */
static Py_ssize_t split(Call *call, Span string, Py_ssize_t *pair_ends)
{
    const char *part = string.at, *end = string.at + string.size;
    Py_ssize_t count = 0;
    *pair_ends = 0;
    for (const char *at = string.at; at < end; at++) {
        if ((unsigned char)*at > 2 || *at == 0)
            continue;
        if (add_part(call, count++, part, at) != TAKEN)
            return -1;
        *pair_ends += *at == 2;
        part = *at == 1 ? at + 1 : at;
    }
    return add_part(call, count++, part, end) == TAKEN ? count : -1;
}

/* True if the names, which are at even places, are those of the previous message. */
static int has_same_names(Call *call, Py_ssize_t count)
{
    PyObject *key = call->names_key_ref;
    if (key == NULL || PyTuple_Size(key) != (count + 1) / 2)
        return 0;
    for (Py_ssize_t i = 0; i < count; i += 2) {
        Span name;
        name.at = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(key, i / 2), &name.size);
        if (name.at == NULL) {
            PyErr_Clear(); /* no memory: then they are looked up */
            return 0;
        }
        if (!is_same(name, call->parts[i]))
            return 0;
    }
    return 1;
}

/* Look up `names[...]` into `names_shape_ref`. */
static Outcome find_names(Call *call, Py_ssize_t count)
{
    if (has_same_names(call, count))
        return TAKEN;
    PyObject *key = PyTuple_New((count + 1) / 2);
    for (Py_ssize_t i = 0; key != NULL && i < count; i += 2)
        if (!give(key, i / 2, text_of(call->parts[i])))
            Py_CLEAR(key);
    PyObject *shape = key ? PyObject_GetItem(call->names, key) : NULL;
    if (shape == NULL) {
        Py_XDECREF(key);
        return left_or_failed();
    }
    replace(&call->names_key_ref, key);
    replace(&call->names_shape_ref, shape);
    return TAKEN;
}

static int is_letters_and_digits(Span span)
{
    for (Py_ssize_t i = 0; i < span.size; i++) {
        char byte = span.at[i], letter = byte | 0x20;
        if (!((byte >= '0' && byte <= '9') || (letter >= 'a' && letter <= 'z')))
            return 0;
    }
    return span.size > 0;
}

static int append_text(PyObject *list, PyObject *text_ref)
{
    int done = text_ref == NULL ? -1 : PyList_Append(list, text_ref);
    Py_XDECREF(text_ref);
    return done;
}

/* Return `index_keys`, and the tag's key after them if there is one. A new tuple; NULL: FAILED. */
static PyObject *keys_of(Span unique, Span keys, PyObject *tag)
{
    if (!keys.size && tag == NULL) {
        PyObject *tuple = PyTuple_New(1);
        if (tuple != NULL && !give(tuple, 0, text_of(unique)))
            Py_CLEAR(tuple);
        return tuple;
    }
    PyObject *list = PyList_New(0);
    if (list == NULL)
        return NULL;
    int done = append_text(list, text_of(unique));
    while (done == 0 && keys.size) {
        Span key;
        PARTITION(keys, " ", &key, &keys);
        if (key.size)
            done = append_text(list, text_of(key));
    }
    if (done == 0 && tag != NULL)
        done = append_text(list, PyObject_CallFunctionObjArgs(tag_key, tag, NULL));
    PyObject *tuple = done == 0 ? PyList_AsTuple(list) : NULL;
    Py_DECREF(list);
    return tuple;
}

/* Read tag code and keys at their known places; 0: absent. */
static Outcome find_tag_and_keys(
    Call *call, Message *message, Py_ssize_t tag_at, Py_ssize_t keys_at)
{
    Span keys = {NULL, 0};
    PyObject *tag = NULL;
    if (keys_at)
        keys = call->parts[keys_at];
    if (tag_at && call->parts[tag_at].size) {
        tag = text_of(call->parts[tag_at]);
        if (tag == NULL)
            return FAILED;
    }
    message->code_ref = PyObject_CallFunctionObjArgs(tag_code, tag ? tag : Py_None, NULL);
    if (message->code_ref != NULL)
        message->keys_ref = keys_of(message->unique, keys, call->index_tags ? tag : NULL);
    Py_XDECREF(tag);
    return message->keys_ref ? TAKEN : FAILED;
}

static Outcome read_properties(Call *call, Message *message)
{
    Py_ssize_t unique_at, tag_at, keys_at, wait_at, wanted_ends, wanted, pair_ends;
    PyObject *suffix;
    if (message->string.size > PROPERTIES_MAX)
        return LEFT;
    Py_ssize_t count = split(call, message->string, &pair_ends);
    if (count < 0)
        return FAILED;
    Outcome outcome = find_names(call, count);
    if (outcome != TAKEN)
        return outcome;
    if (call->names_shape_ref == Py_None)
        return LEFT; /* not plain */
    if (!PyArg_ParseTuple(call->names_shape_ref, "nnnnnnS", &unique_at, &tag_at, &keys_at,
                          &wait_at, &wanted_ends, &wanted, &suffix))
        return FAILED;
    if (pair_ends != wanted_ends || count != wanted)
        return LEFT; /* a name without a value */
    message->suffix = span_of(suffix);
    message->unique = call->parts[unique_at];
    if (!is_letters_and_digits(message->unique))
        return LEFT; /* a key that answers have to escape */
    Span yes = {"true", 4};
    if (wait_at && !is_same(call->parts[wait_at], yes))
        return LEFT; /* it does not wait */
    return find_tag_and_keys(call, message, tag_at, keys_at);
}

/* --- record, answer and entry */

static Outcome add_record(
    Call *call, const Message *message, long long size, long long queue_offset)
{
    char *to = extend(&call->records, (Py_ssize_t)size);
    if (to == NULL)
        return FAILED;
    to = put_number(to, 4, (uint64_t)size);
    to = put_number(to, 4, (uint64_t)message->magic);
    to = put_number(to, 4, crc32(message->body) & CRC_MASK);
    to = put_number(to, 4, (uint64_t)message->queue_id);
    to = put_number(to, 4, (uint64_t)message->flag);
    to = put_number(to, 8, (uint64_t)queue_offset);
    to = put_number(to, 8, (uint64_t)call->position);
    to = put_number(to, 4, (uint64_t)(message->sys_flag | call->hosts));
    to = put_number(to, 8, (uint64_t)message->born_ms);
    to = put(to, call->born_host);
    to = put_number(to, 8, (uint64_t)call->now_ms);
    to = put(to, call->store_host);
    to = put_number(to, 4, 0); /* reconsume times */
    to = put_number(to, 8, 0); /* offset of a prepared transaction */
    to = put_number(to, 4, (uint64_t)message->body.size);
    to = put(to, message->body);
    to = put(to, message->topic_head);
    to = put_number(to, 2, (uint64_t)(message->string.size + message->suffix.size));
    to = put(to, message->string);
    put(to, message->suffix);
    return TAKEN;
}

static char *put_json_answer(
    char *to, const Call *call, const Message *message, long long queue_offset)
{
    to = put(to, json_answer[0]);
    to = put(to, call->host_text);
    to = put_hex(to, (uint64_t)call->position);
    to = put(to, json_answer[1]);
    to = put_decimal(to, message->queue_id);
    to = put(to, json_answer[2]);
    to = put_decimal(to, queue_offset);
    to = put(to, json_answer[3]);
    to = put(to, message->unique);
    to = put(to, json_answer[4]);
    to = put(to, message->opaque);
    return put(to, json_answer[5]);
}

static char *put_binary_decimal(char *to, long long number)
{
    char *end = put_decimal(to + 4, number);
    put_number(to, 4, (uint64_t)(end - to - 4));
    return end;
}

static char *put_binary_answer(
    char *to, const Call *call, const Message *message, long long queue_offset)
{
    to = put(to, binary_answer[0]);
    to = put(to, message->opaque);
    to = put(to, binary_answer[1]);
    char *length_at = to;
    to = put(to + 4, binary_answer[2]);
    to = put_number(to, 4, (uint64_t)(call->host_text.size + 16));
    to = put(to, call->host_text);
    to = put_hex(to, (uint64_t)call->position);
    to = put_binary_decimal(put(to, binary_answer[3]), message->queue_id);
    to = put_binary_decimal(put(to, binary_answer[4]), queue_offset);
    to = put_number(put(to, binary_answer[5]), 4, (uint64_t)message->unique.size);
    to = put(to, message->unique);
    to = put(to, binary_answer[6]);
    put_number(length_at, 4, (uint64_t)(to - length_at - 4));
    return to;
}

/* Build an answer with the form's own function. */
static PyObject *answer_by_form(
    const Call *call, const Message *message, PyObject *position, PyObject *queue_offset)
{
    PyObject *answer = PyObject_GetAttrString(call->form_ref, "answer");
    PyObject *unique = bytes_of(message->unique), *made = NULL;
    if (answer != NULL && unique != NULL)
        made = PyObject_CallFunctionObjArgs(answer, call->host_text_object, position,
                                            message->queue_id_object, queue_offset, unique,
                                            message->opaque_object, NULL);
    Py_XDECREF(unique);
    Py_XDECREF(answer);
    if (made != NULL && !PyBytes_Check(made)) {
        PyErr_SetString(PyExc_TypeError, "an answer is not bytes");
        Py_CLEAR(made);
    }
    return made;
}

/* Most bytes of the fixed parts of an answer. */
static Py_ssize_t answer_room(const Call *call, const Message *message)
{
    Py_ssize_t room = 64 + call->host_text.size + message->unique.size + message->opaque.size;
    room += 2 * DECIMAL_MAX;
    for (int i = 0; i < (call->kind == JSON ? JSON_PARTS : BINARY_PARTS); i++)
        room += call->kind == JSON ? json_answer[i].size : binary_answer[i].size;
    return room;
}

static Outcome add_answer(Call *call, const Message *message, long long queue_offset,
                          PyObject *position_object, PyObject *queue_offset_object)
{
    PyObject *made = NULL;
    Py_ssize_t room, start = call->answers.size;
    if (call->kind != JSON && call->kind != BINARY) {
        made = answer_by_form(call, message, position_object, queue_offset_object);
        if (made == NULL)
            return FAILED;
        room = 8 + PyBytes_Size(made);
    } else
        room = answer_room(call, message);
    char *at = extend(&call->answers, room), *to = at ? at + 8 : NULL;
    if (to == NULL) {
        Py_XDECREF(made);
        return FAILED;
    }
    if (made != NULL)
        to = put(to, span_of(made));
    else if (call->kind == JSON)
        to = put_json_answer(to, call, message, queue_offset);
    else
        to = put_binary_answer(to, call, message, queue_offset);
    Py_XDECREF(made);
    uint32_t length = (uint32_t)(to - at - 8);
    put_number(at, 4, length + 4);
    put_number(at + 4, 4, (message->word & 0xFF000000) | length);
    call->answers.size = start + (to - at);
    return TAKEN;
}

static Outcome add_entry(Call *call, const Message *message, long long size,
                         PyObject *position, PyObject *queue_offset)
{
    PyObject *size_object = PyLong_FromLongLong(size), *row = NULL;
    if (size_object != NULL)
        row = PyTuple_Pack(9, message->topic, message->queue_id_object, queue_offset, position,
                           size_object, message->code_ref, call->now_object_ref,
                           message->keys_ref, one_unit);
    Py_XDECREF(size_object);
    return append_entry(call->entries_ref, row);
}

/* Return the queue's next offset, and raise it by one; a new number, NULL: FAILED. */
static PyObject *next_offset(Call *call, PyObject *queue, long long *offset)
{
    PyObject *found = PyDict_GetItemWithError(call->offsets, queue);
    if (found == NULL && !PyErr_Occurred())
        found = PyDict_GetItemWithError(call->next_offsets, queue);
    if (found == NULL && PyErr_Occurred())
        return NULL;
    *offset = found ? PyLong_AsLongLong(found) : 0;
    if (*offset == -1 && PyErr_Occurred())
        return NULL;
    PyObject *after = PyLong_FromLongLong(*offset + 1);
    PyObject *object = after ? PyLong_FromLongLong(*offset) : NULL;
    if (object != NULL && PyDict_SetItem(call->offsets, queue, after) != 0)
        Py_CLEAR(object);
    Py_XDECREF(after);
    return object;
}

static Outcome add(Call *call, const Message *message, long long size)
{
    long long queue_offset;
    PyObject *offset_object = next_offset(call, message->queue, &queue_offset);
    if (offset_object == NULL)
        return FAILED;
    PyObject *position = PyLong_FromLongLong(call->position);
    Outcome outcome = position ? add_record(call, message, size, queue_offset) : FAILED;
    if (outcome == TAKEN)
        outcome = add_entry(call, message, size, position, offset_object);
    if (outcome == TAKEN && !message->is_oneway)
        outcome = add_answer(call, message, queue_offset, position, offset_object);
    Py_XDECREF(position);
    Py_DECREF(offset_object);
    return outcome;
}

/* --- the loop */

static Outcome take_message(Call *call, Message *message)
{
    Outcome outcome = find_shapes(call, message->word >> 24);
    if (outcome == TAKEN)
        outcome = cut(call, message);
    if (outcome == TAKEN)
        outcome = find_shape(call, message);
    if (outcome == TAKEN)
        outcome = read_properties(call, message);
    if (outcome != TAKEN)
        return outcome;
    Py_ssize_t properties = message->string.size + message->suffix.size;
    long long size = call->fixed_size + message->body.size + message->topic_head.size + properties;
    if (size > call->limit - call->position || properties > PROPERTIES_MAX
        || message->body.size > call->body_max || size > call->record_max)
        return LEFT;
    outcome = add(call, message, size);
    call->position += size;
    return outcome;
}

/* Return the end of the frame at `at`, if there is a whole one with a body, or -1. */
static Py_ssize_t cut_frame(Span data, Py_ssize_t at, Message *message)
{
    if (data.size - at < 8)
        return -1;
    int64_t length = (int32_t)number_at(data.at + at);
    message->word = number_at(data.at + at + 4);
    int64_t body_at = (int64_t)at + 8 + (message->word & 0xFFFFFF), stop = (int64_t)at + 4 + length;
    if (body_at >= stop || stop > data.size)
        return -1;
    message->header.at = data.at + at + 8;
    message->header.size = (Py_ssize_t)(body_at - at - 8);
    message->body.at = data.at + body_at;
    message->body.size = (Py_ssize_t)(stop - body_at);
    return (Py_ssize_t)stop;
}

static Outcome take_all(Call *call, Span data, Py_ssize_t *at)
{
    for (;;) {
        Message message;
        memset(&message, 0, sizeof(message));
        Py_ssize_t stop = cut_frame(data, *at, &message);
        if (stop < 0)
            return LEFT;
        Outcome outcome = take_message(call, &message);
        Py_XDECREF(message.key_ref);
        Py_XDECREF(message.cut_ref);
        Py_XDECREF(message.shape_ref);
        Py_XDECREF(message.code_ref);
        Py_XDECREF(message.keys_ref);
        if (outcome != TAKEN)
            return outcome;
        *at = stop;
    }
}

/* Unpack a tuple like `EndOfLog`, and the sender. */
static int open_call(Call *call, PyObject *born_host, PyObject *end_of_log)
{
    PyObject *store_host, *host_text;
    if (!PyArg_ParseTuple(end_of_log, "LLLSSLLp", &call->position, &call->limit, &call->now_ms,
                          &store_host, &host_text, &call->body_max, &call->record_max,
                          &call->index_tags))
        return 0;
    call->born_host = span_of(born_host);
    call->store_host = span_of(store_host);
    call->host_text = span_of(host_text);
    call->host_text_object = host_text;
    call->hosts = (call->born_host.size == 20 ? BORN_IPV6 : 0)
        | (call->store_host.size == 20 ? STORE_IPV6 : 0);
    call->fixed_size = 74 + call->born_host.size + call->store_host.size;
    call->now_object_ref = PyLong_FromLongLong(call->now_ms);
    call->entries_ref = PyList_New(0);
    return call->now_object_ref != NULL && call->entries_ref != NULL;
}

static void close_call(Call *call)
{
    Py_XDECREF(call->now_object_ref);
    Py_XDECREF(call->shapes_ref);
    Py_XDECREF(call->form_ref);
    Py_XDECREF(call->names_key_ref);
    Py_XDECREF(call->names_shape_ref);
    Py_XDECREF(call->entries_ref);
    PyMem_Free(call->parts);
    PyMem_Free(call->text.bytes);
    PyMem_Free(call->records.bytes);
    PyMem_Free(call->answers.bytes);
}

static PyObject *take(PyObject *Py_UNUSED(module), PyObject *args)
{
    Call call;
    memset(&call, 0, sizeof(call));
    PyObject *data, *born_host, *end_of_log, *result = NULL;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "SnOOO!O!SO!", &data, &at, &call.headers, &call.names,
                          &PyDict_Type, &call.offsets, &PyDict_Type, &call.next_offsets,
                          &born_host, &PyTuple_Type, &end_of_log))
        return NULL;
    if (at < 0) {
        PyErr_SetString(PyExc_ValueError, "a place before the first byte");
        return NULL;
    }
    if (open_call(&call, born_host, end_of_log) && take_all(&call, span_of(data), &at) == LEFT)
        result = Py_BuildValue("ny#Oy#", at, call.records.bytes ? call.records.bytes : "",
                               call.records.size, call.entries_ref,
                               call.answers.bytes ? call.answers.bytes : "", call.answers.size);
    close_call(&call);
    return result;
}

/* --- the module */

/* Fixed parts of an answer; they live for ever. */
static int import_parts(const char *name, Span *parts, Py_ssize_t count)
{
    PyObject *tuple = import("rocketbed.wire.send_headers", name);
    if (tuple == NULL)
        return 0;
    if (PyTuple_Size(tuple) != count) {
        other_state(name);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        parts[i] = span_of(PyTuple_GetItem(tuple, i));
    return !PyErr_Occurred();
}

static PyMethodDef methods[] = {
    {"take", take, METH_VARARGS, "As rocketbed.node.broker.plain_run.take."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "plain_native", "The native body of plain_run.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_plain_native(void)
{
    PyObject *end_of_log = NULL;
    if (!import_common() || !(tag_code = import("rocketbed.wire.javahash", "tag_code"))
        || !(tag_key = import("rocketbed.wire.properties", "tag_key"))
        || !(end_of_log = import("rocketbed.node.broker.plain_run", "EndOfLog"))
        || !check_fields(end_of_log, "EndOfLog", END_OF_LOG)
        || !import_parts("JSON_ANSWER", json_answer, JSON_PARTS)
        || !import_parts("BINARY_ANSWER", binary_answer, BINARY_PARTS))
        return NULL;
    return make_module(&definition);
}
