/* Disk faults and a trace of syncs inside an unchanged process, by LD_PRELOAD.
 *
 * It stands between the process and the C library for the calls that change files below one
 * directory. Rules come from a text file; they are read again when the number in the shared table
 * changes, so that asking whether there are new ones costs one load. The table, a mapped file,
 * also holds for each file how far it has been written, which survives SIGKILL of the process.
 *
 * The written end of a file is the highest offset up to which something other than zeros was
 * written; zeros written over the end, as stores cut their tails, lower it.
 *
 * Formats of table, trace and rules: chaos/backends/process/disk/format.py, which must agree.
 * Not seen: stores through mappings, io_uring, writes inside stdio; reads by sendfile.
 */
#define _GNU_SOURCE
#include "shim_rules.h"

/* --- calls on open files */

static int synced(int fd, int (*real)(int)) {
    struct stat status;
    if (!table || fstat(fd, &status) || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)))
        return real(fd);
    int saved = errno;
    enum op op = S_ISDIR(status.st_mode) ? SYNC_DIR : SYNC;
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    struct slot *slot = slot_of(fd, &status);
    if (!slot) {
        pthread_mutex_unlock(&lock);
        return real(fd);
    }
    snprintf(path, sizeof path, "%s", slot->path);
    struct verdict verdict = judge(op, path, 0);
    uint64_t began = now_ns(), end = slot->written_end;
    pthread_mutex_unlock(&lock);
    suffer(&verdict, op, path);
    int result = 0, error = 0;
    if (!verdict.hit) {
        result = real(fd);
        error = errno;
    } else if (verdict.effect == ERROR) {
        result = -1;
        error = verdict.error;
    }
    uint64_t ended = now_ns();
    char kind = result ? 'E' : verdict.hit ? 'L' : op == SYNC ? 'F' : 'D';
    if (kind == 'F') {
        slot->synced_end = end;
        slot->synced_ns = ended;
    }
    note("%c %llu %d %llu %llu %s\n", kind, (unsigned long long)ended, (int)getpid(),
         (unsigned long long)began, (unsigned long long)end, path);
    errno = result ? error : saved;
    return result;
}

int fsync(int fd) { return synced(fd, real_fsync); }
int fdatasync(int fd) { return synced(fd, real_fdatasync); }

/* Ask before a change of an open file. Returns its slot, locked for nobody; NULL: none of ours. */
static struct slot *before(int fd, enum op op, long long size, struct verdict *verdict) {
    struct stat status;
    verdict->hit = 0;
    if (!table || fstat(fd, &status) || !S_ISREG(status.st_mode)) return NULL;
    pthread_mutex_lock(&lock);
    struct slot *slot = slot_of(fd, &status);
    if (slot) *verdict = judge(op, slot->path, size);
    pthread_mutex_unlock(&lock);
    if (slot && verdict->hit && verdict->room <= 0) suffer(verdict, op, slot->path);
    return slot;
}

static ssize_t positioned(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off64_t, int);
    if (!real)
        real = (ssize_t(*)(int, const struct iovec *, int, off64_t, int))dlsym(RTLD_NEXT,
                                                                              "pwritev64v2");
    return real(fd, parts, count, offset, flags);
}

static ssize_t write_parts(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    struct verdict verdict;
    long long size = 0;
    int zeros = 1;
    for (int index = 0; index < count; index++) size += (long long)parts[index].iov_len;
    struct slot *slot = before(fd, WRITE, size, &verdict);
    if (!slot) return positioned(fd, parts, count, offset, flags);
    struct iovec first;
    if (verdict.hit) {
        if (verdict.room > 0) { /* a first part, from the first buffer */
            first = parts[0];
            if (first.iov_len > (size_t)verdict.room) first.iov_len = (size_t)verdict.room;
            parts = &first;
            count = 1;
        } else if (verdict.effect == ERROR) {
            errno = verdict.error;
            return -1;
        }
    }
    if (offset < 0) { /* write(): at the file's own position */
        struct stat status;
        offset = fcntl(fd, F_GETFL) & O_APPEND && !fstat(fd, &status) ? status.st_size
                                                                      : lseek(fd, 0, SEEK_CUR);
        ssize_t done = syscall(SYS_writev, fd, parts, count);
        if (done > 0) wrote(slot, (uint64_t)offset, (uint64_t)done, 0);
        return done;
    }
    ssize_t done = positioned(fd, parts, count, offset, flags);
    int error = errno;
    for (int index = 0; zeros && index < count; index++)
        zeros = all_zeros(parts[index].iov_base, parts[index].iov_len);
    if (done > 0) wrote(slot, (uint64_t)offset, (uint64_t)done, zeros);
    errno = error;
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    struct iovec part = {(void *)data, size};
    return write_parts(fd, &part, 1, offset, 0);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    return pwrite64(fd, data, size, offset);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    return write_parts(fd, parts, count, offset, flags);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return write_parts(fd, parts, count, offset, flags);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return write_parts(fd, parts, count, offset, 0);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return write_parts(fd, parts, count, offset, 0);
}
ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    struct stat status;
    if (!table || fstat(fd, &status) || !S_ISREG(status.st_mode)) return real(fd, data, size);
    char path[PATH_MAX];
    if (!path_of(fd, path) || !below_root(path)) return real(fd, data, size);
    struct iovec part = {(void *)data, size};
    return write_parts(fd, &part, 1, -1, 0);
}

static ssize_t read_parts(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off64_t, int);
    struct verdict verdict = {0};
    if (!real)
        real = (ssize_t(*)(int, const struct iovec *, int, off64_t, int))dlsym(RTLD_NEXT,
                                                                              "preadv64v2");
    if (table && (reads_fail || table->rules_number != rules_read)) before(fd, READ, 0, &verdict);
    if (verdict.hit && verdict.effect == ERROR) {
        errno = verdict.error;
        return -1;
    }
    return real(fd, parts, count, offset, flags);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
    struct iovec part = {data, size};
    return read_parts(fd, &part, 1, offset, 0);
}
ssize_t pread(int fd, void *data, size_t size, off_t offset) {
    return pread64(fd, data, size, offset);
}
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    return read_parts(fd, parts, count, offset, flags);
}
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return read_parts(fd, parts, count, offset, flags);
}
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return read_parts(fd, parts, count, offset, 0);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset) {
    return read_parts(fd, parts, count, offset, 0);
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    struct verdict verdict;
    struct slot *slot = before(fd, TRUNCATE, 0, &verdict);
    if (verdict.hit && verdict.effect == ERROR) {
        errno = verdict.error;
        return -1;
    }
    int result = real(fd, size);
    if (slot && !result && slot->written_end > (uint64_t)size) slot->written_end = (uint64_t)size;
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    REAL(posix_fallocate64);
    struct verdict verdict;
    before(fd, ALLOCATE, size, &verdict);
    if (verdict.hit && verdict.effect == ERROR) return verdict.error;
    return real(fd, offset, size);
}
int posix_fallocate(int fd, off_t offset, off_t size) {
    return posix_fallocate64(fd, offset, size);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    REAL(fallocate64);
    struct verdict verdict;
    struct slot *slot = before(fd, ALLOCATE, mode ? 0 : size, &verdict);
    if (verdict.hit && verdict.effect == ERROR) {
        errno = verdict.error;
        return -1;
    }
    int result = real(fd, mode, offset, size);
    if (slot && !result && mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        wrote(slot, (uint64_t)offset, (uint64_t)size, 1);
    return result;
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
    return fallocate64(fd, mode, offset, size);
}

/* --- calls on names */

/* Ask before a change of names. False: fail with errno. */
static int before_name(enum op op, const char *name, char *path) {
    path[0] = '\0';
    if (!table) return 1;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 1;
        if (snprintf(path, PATH_MAX, "%s/%s", here, name) >= PATH_MAX) path[0] = '\0';
    }
    if (!below_root(path)) {
        path[0] = '\0';
        return 1;
    }
    pthread_mutex_lock(&lock);
    struct verdict verdict = judge(op, path, 0);
    pthread_mutex_unlock(&lock);
    suffer(&verdict, op, path);
    if (!verdict.hit || verdict.effect != ERROR) return 1;
    errno = verdict.error;
    return 0;
}

int rename(const char *old, const char *new) {
    REAL(rename);
    struct stat moved, replaced;
    char path[PATH_MAX];
    if (!before_name(RENAME, new, path)) return -1;
    int known = path[0] && !stat(old, &moved), over = path[0] && !stat(new, &replaced);
    int result = real(old, new);
    if (!result && (known || over)) {
        pthread_mutex_lock(&lock);
        if (over && !(known && replaced.st_ino == moved.st_ino)) renamed(&replaced, NULL);
        if (known) renamed(&moved, path);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int unlink(const char *name) {
    REAL(unlink);
    struct stat status;
    char path[PATH_MAX];
    if (!before_name(UNLINK, name, path)) return -1;
    int known = path[0] && !stat(name, &status);
    int result = real(name);
    if (!result && known) {
        pthread_mutex_lock(&lock);
        renamed(&status, NULL);
        pthread_mutex_unlock(&lock);
    }
    return result;
}
