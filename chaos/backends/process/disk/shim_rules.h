/* Rules, table and trace of shim.c: what is asked before a call and noted after it. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31544252u /* "RBT1" */
#define SLOTS 4096
#define PATH_MAX_KEPT 464
#define GONE UINT64_MAX
#define RULES_MAX 64
#define CONTROL_MAX 16384

enum op { SYNC, SYNC_DIR, WRITE, TRUNCATE, ALLOCATE, RENAME, UNLINK, READ, OPS };
static const char *const OP_NAMES[OPS] = {"sync",     "sync_dir", "write", "truncate",
                                          "allocate", "rename",   "unlink", "read"};
enum effect { ERROR, LOSE, DELAY, CRASH };
static const char *const EFFECT_NAMES[] = {"error", "lose", "delay", "crash"};

struct slot {
    uint64_t device, inode;
    _Atomic uint64_t written_end, synced_end, synced_ns, reserved;
    char path[PATH_MAX_KEPT];
};

struct table {
    uint32_t magic, slots;
    _Atomic uint64_t rules_number; /* raised by the harness after it wrote the rules */
    _Atomic uint64_t events;       /* counted here, since the table was made */
    uint64_t reserved[61];
    struct slot slot[SLOTS];
};

struct rule {
    long id;
    int any_op;
    enum op op;
    enum effect effect;
    int error;
    long skip, times, delay_ms;
    long long after_bytes;
    char path[PATH_MAX];
    long seen, fired; /* since the rule with this id appeared */
    long long bytes;
};

static struct table *table;
static char root[PATH_MAX], control[PATH_MAX];
static size_t root_length;
static int trace = -1;
static struct rule rules[RULES_MAX];
static int rule_count, reads_fail;
static uint64_t rules_read;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int real_fsync(int fd) { REAL(fsync); return real(fd); }
static int real_fdatasync(int fd) { REAL(fdatasync); return real(fd); }

/* By system call: a faked clock must not reach the trace. */
static uint64_t now_ns(void) {
    struct timespec at;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void note(const char *format, ...) {
    char line[PATH_MAX + 200];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (size > 0 && trace >= 0) {
        if (size >= (int)sizeof line) size = sizeof line - 1;
        if (syscall(SYS_write, trace, line, (size_t)size) < 0) return;
    }
}

__attribute__((constructor)) static void begin(void) {
    const char *where = getenv("ROCKETBED_DISK_ROOT"), *rules_at = getenv("ROCKETBED_DISK_RULES");
    const char *table_at = getenv("ROCKETBED_DISK_TABLE"), *to = getenv("ROCKETBED_DISK_TRACE");
    if (!where || !rules_at || !table_at || !to) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, table_at, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at == MAP_FAILED) return;
    struct table *mapped = at;
    if (mapped->magic != MAGIC || mapped->slots != SLOTS) return;
    trace = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    snprintf(root, sizeof root, "%s", where);
    snprintf(control, sizeof control, "%s", rules_at);
    root_length = strlen(root);
    table = mapped;
    note("B %llu %d\n", (unsigned long long)now_ns(), (int)getpid());
}

/* --- files */

static int below_root(const char *path) {
    return !strncmp(path, root, root_length) &&
           (path[root_length] == '/' || path[root_length] == '\0');
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = '\0';
    return 1;
}

static unsigned first_slot(const struct stat *status) {
    return (unsigned)((status->st_ino * 0x9E3779B97F4A7C15u) >> 40);
}

/* Slot of an open file, made if need be; NULL when it is not below the root. Under the lock. */
static struct slot *slot_of(int fd, const struct stat *status) {
    struct slot *free = NULL;
    unsigned start = first_slot(status);
    for (unsigned step = 0; step < SLOTS; step++) {
        struct slot *slot = &table->slot[(start + step) % SLOTS];
        if (slot->inode == status->st_ino && slot->device == status->st_dev) return slot;
        if (!free && (!slot->inode || slot->device == GONE)) free = slot;
        if (!slot->inode) break;
    }
    char path[PATH_MAX];
    if (!free || !path_of(fd, path) || !below_root(path) || strlen(path) >= PATH_MAX_KEPT)
        return NULL; /* not kept: it costs a readlink each time, and is rare */
    memcpy(free->path, path, strlen(path) + 1);
    free->device = status->st_dev;
    free->inode = status->st_ino;
    return free;
}

/* A file that loses its name, or gets another: what is known of it follows. Under the lock. */
static void renamed(const struct stat *status, const char *path) {
    unsigned start = first_slot(status);
    for (unsigned step = 0; step < SLOTS; step++) {
        struct slot *slot = &table->slot[(start + step) % SLOTS];
        if (!slot->inode) return;
        if (slot->inode != status->st_ino || slot->device != status->st_dev) continue;
        if (path && strlen(path) < PATH_MAX_KEPT) {
            snprintf(slot->path, sizeof slot->path, "%s", path);
        } else { /* gone: its number may come back as another file */
            slot->written_end = slot->synced_end = slot->synced_ns = 0;
            slot->device = GONE;
        }
        return;
    }
}

static int all_zeros(const void *data, size_t size) {
    const char *bytes = data;
    return !size || (!bytes[0] && !memcmp(bytes, bytes + 1, size - 1));
}

static void wrote(struct slot *slot, uint64_t offset, uint64_t size, int zeros) {
    pthread_mutex_lock(&lock);
    uint64_t end = slot->written_end;
    if (!zeros && offset + size > end) slot->written_end = offset + size;
    if (zeros && offset < end && offset + size >= end) slot->written_end = offset;
    pthread_mutex_unlock(&lock);
}

/* --- rules */

static void parse_rule(char *line, struct rule *rule) {
    memset(rule, 0, sizeof *rule);
    rule->times = -1;
    rule->error = EIO;
    strcpy(rule->path, "*");
    char *path = strstr(line, " path=");
    if (path) {
        snprintf(rule->path, sizeof rule->path, "%s", path + 6);
        *path = '\0';
    }
    char *rest = NULL;
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        long long number = value ? atoll(value + 1) : 0;
        if (value) *value = '\0';
        if (!strcmp(word, "id")) rule->id = (long)number;
        else if (!strcmp(word, "skip")) rule->skip = (long)number;
        else if (!strcmp(word, "times")) rule->times = (long)number;
        else if (!strcmp(word, "delay_ms")) rule->delay_ms = (long)number;
        else if (!strcmp(word, "errno")) rule->error = (int)number;
        else if (!strcmp(word, "after_bytes")) rule->after_bytes = number;
        else if (!strcmp(word, "any")) rule->any_op = 1;
        for (int op = 0; op < OPS; op++)
            if (!strcmp(word, OP_NAMES[op])) rule->op = (enum op)op;
        for (int effect = ERROR; effect <= CRASH; effect++)
            if (!strcmp(word, EFFECT_NAMES[effect])) rule->effect = (enum effect)effect;
    }
}

/* Read the rules again; those that were there keep their counts. Under the lock. */
static void read_rules(uint64_t number) {
    static char text[CONTROL_MAX];
    static struct rule fresh[RULES_MAX];
    int count = 0;
    ssize_t size = 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0) {
        size = syscall(SYS_read, fd, text, sizeof text - 1);
        syscall(SYS_close, fd);
    }
    text[size > 0 ? size : 0] = '\0';
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && count < RULES_MAX;
         line = strtok_r(NULL, "\n", &rest)) {
        struct rule *rule = &fresh[count++];
        parse_rule(line, rule);
        for (int old = 0; old < rule_count; old++)
            if (rules[old].id == rule->id) {
                rule->seen = rules[old].seen;
                rule->fired = rules[old].fired;
                rule->bytes = rules[old].bytes;
            }
    }
    reads_fail = 0;
    for (int index = 0; index < count; index++) reads_fail |= fresh[index].op == READ;
    memcpy(rules, fresh, sizeof rules);
    rule_count = count;
    rules_read = number;
}

struct verdict {
    int hit;
    enum effect effect;
    int error;
    long delay_ms, id;
    long long room; /* bytes of a write that still fit; -1: all of it */
};

/* Count an event and ask the rules; `size` is that of a write. Under the lock. A read changes
 * nothing: it is no event, and only rules that name it apply. */
static struct verdict judge(enum op op, const char *path, long long size) {
    struct verdict verdict = {0, ERROR, 0, 0, 0, -1};
    uint64_t number = table->rules_number;
    if (number != rules_read) read_rules(number);
    table->events += op != READ;
    for (int index = 0; index < rule_count; index++) {
        struct rule *rule = &rules[index];
        if (!((rule->any_op && op != READ) || rule->op == op) || fnmatch(rule->path, path, 0)) continue;
        if (rule->times >= 0 && rule->fired >= rule->times) continue;
        if (rule->after_bytes) {
            long long room = rule->after_bytes - rule->bytes;
            rule->bytes += size < room ? size : (room > 0 ? room : 0);
            if (size <= room) continue;
            verdict.room = room > 0 ? room : 0;
        } else if (rule->seen++ < rule->skip) {
            continue;
        }
        if (verdict.room <= 0) rule->fired++;
        verdict.hit = 1;
        verdict.effect = rule->effect;
        verdict.error = rule->error;
        verdict.delay_ms = rule->delay_ms;
        verdict.id = rule->id;
        break;
    }
    return verdict;
}

static void wait_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &left, &left) == EINTR) continue;
}

static void die(void) {
    syscall(SYS_kill, (int)getpid(), SIGKILL);
    for (;;) pause();
}

/* Carry out what takes time or life; what is left is ERROR, LOSE or nothing. */
static void suffer(struct verdict *verdict, enum op op, const char *path) {
    if (!verdict->hit) return;
    note("X %llu %d %ld %s %s\n", (unsigned long long)now_ns(), (int)getpid(), verdict->id,
         OP_NAMES[op], path);
    if (verdict->effect == CRASH) die();
    if (verdict->effect == DELAY) {
        wait_ms(verdict->delay_ms);
        verdict->hit = 0;
    }
}
