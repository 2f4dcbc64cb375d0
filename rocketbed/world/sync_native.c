/* fdatasync of several files, for a thread beside a busy loop. Python's own gives the interpreter's
   lock away for each file, and gets it back a switch interval later (0.5 ms). Where this was not
   built, that is what happens (real.py). */

#define _GNU_SOURCE /* sync_file_range */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#ifndef SOURCE
#define SOURCE "" /* which state of the sources was built: hatch_build.py */
#endif
#ifdef __APPLE__
#define fdatasync fsync
#endif

/* Have a file's bytes written from now on, which finds its blocks: ext4 commits the new blocks of all
   files at once then, in place of those of each by itself, which takes as long. The errno of what
   failed, which has to be believed: where ext4 finds no blocks, it tells just who asked for them, and
   forgets the bytes, so that fdatasync succeeds. */
static int begin_write(int file)
{
#ifdef SYNC_FILE_RANGE_WRITE
    while (sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE) != 0)
        switch (errno) {
        case EINTR:
            break;
        case ENOSYS: /* not there, or not for such a file: fdatasync does all of it */
        case EINVAL:
        case ESPIPE:
        case EPERM:
        case EOPNOTSUPP:
            return 0;
        default:
            return errno;
        }
#else
    (void)file;
#endif
    return 0;
}

static PyObject *sync_each(PyObject *module, PyObject *descriptors)
{
    (void)module;
    Py_ssize_t size, at = 0;
    char *bytes;
    int failed = 0;
    if (PyBytes_AsStringAndSize(descriptors, &bytes, &size) < 0)
        return NULL;
    const int *files = (const int *)bytes; /* an array's bytes, which begin where an int may */
    Py_ssize_t count = size / (Py_ssize_t)sizeof(int);
    Py_BEGIN_ALLOW_THREADS
    if (count > 1)
        while (at < count && (failed = begin_write(files[at])) == 0)
            at++;
    if (failed == 0)
        at = 0;
    while (at < count && failed == 0)
        if (fdatasync(files[at]) == 0)
            at++;
        else if (errno != EINTR)
            failed = errno;
    Py_END_ALLOW_THREADS
    return Py_BuildValue("ni", at, failed);
}

static PyMethodDef methods[] = {
    {"sync_each", sync_each, METH_O, "fdatasync of each descriptor, in order."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "sync_native", "fdatasync of several files.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_sync_native(void)
{
    PyObject *made = PyModule_Create(&definition);
    if (made != NULL && PyModule_AddStringConstant(made, "SOURCE", SOURCE) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
