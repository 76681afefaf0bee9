/* Faults of disks and clocks: the lab loads this library into a node before libc (LD_PRELOAD), and steers it while the
/* node
* runs.
*
* STARLING_LAB_FAULTS names a file of five 64-bit integers in the machine's byte order. The library maps it, and reads
* the first four at each call: 0 microseconds that each write and each sync of a file below the folder takes longer 1
* the errno of refused calls 2 a mask of the refused calls: 1 syncs, 2 writes, 4 calls that change names (open for
* writing, rename, unlink, mkdir) 3 nanoseconds by which the wall clock is wrong The library writes the fifth once, when
* it has been loaded: the process's id. STARLING_LAB_FOLDER is the folder. While the four are zero, calls go straight to
* libc.
*
* The library sees the calls of libc's symbols: all of Rust's standard library, and of RocksDB all but its own log
* (stdio). It does not see the system calls that rustix makes by itself (locks, free space, the ballast). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SYNCS = 1, WRITES = 2, NAMES = 4 };
enum { DELAY_US = 0, ERRNO = 1, CALLS = 2, CLOCK_NS = 3, LOADED = 4, WORDS = 5 };

static volatile int64_t *control;
static const char *folder;
static size_t folder_length;

#define REAL(name)                                                                                                     \
    static __typeof__(name) *real;                                                                                     \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("STARLING_LAB_FAULTS");
    folder = getenv("STARLING_LAB_FOLDER");
    int fd = path && folder ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, WORDS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "the lab's faults cannot be had: %s: %s\n", path ? path : "STARLING_LAB_FAULTS", strerror(errno));
        _exit(127);
    }
    close(fd);
    folder_length = strlen(folder);
    control = mapped;
    control[LOADED] = getpid();
}

static int64_t word(int n) { return control ? control[n] : 0; }

static int below(const char *path) {
    return strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '/' || !path[folder_length]);
}

/* Whether it is a file or folder below the folder: sockets, pipes and other files of the machine have no fault. */
static int ours(int fd) {
    struct stat found;
    if (fstat(fd, &found) || !(S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path);
}

static int refused(int calls) {
    if (!(word(CALLS) & calls) || !word(ERRNO)) return 0;
    errno = (int)word(ERRNO);
    return 1;
}

/* Delays the call, then returns whether it fails. */
static int struck(int calls, int fd) {
    int64_t delay = word(DELAY_US);
    if (!delay && !(word(CALLS) & calls)) return 0;
    int before = errno;
    if (!ours(fd)) {
        errno = before;
        return 0;
    }
    struct timespec left = {delay / 1000000, delay % 1000000 * 1000};
    while (delay && nanosleep(&left, &left) && errno == EINTR) {
    }
    errno = before;
    return refused(calls);
}

static int name_struck(int at, const char *path) {
    if (!(word(CALLS) & NAMES)) return 0;
    int inside = path[0] == '/' ? below(path) : at != AT_FDCWD && ours(at);
    return inside && refused(NAMES);
}

#define ON_FD(type, name, calls, parameters, ...)                                                                      \
    type name parameters {                                                                                             \
        REAL(name);                                                                                                    \
        return struck(calls, fd) ? -1 : real(__VA_ARGS__);                                                             \
    }

ON_FD(ssize_t, write, WRITES, (int fd, const void *bytes, size_t count), fd, bytes, count)
ON_FD(ssize_t, writev, WRITES, (int fd, const struct iovec *parts, int count), fd, parts, count)
ON_FD(ssize_t, pwrite, WRITES, (int fd, const void *bytes, size_t count, off_t at), fd, bytes, count, at)
ON_FD(ssize_t, pwrite64, WRITES, (int fd, const void *bytes, size_t count, off64_t at), fd, bytes, count, at)
ON_FD(int, ftruncate, WRITES, (int fd, off_t length), fd, length)
ON_FD(int, ftruncate64, WRITES, (int fd, off64_t length), fd, length)
ON_FD(int, fallocate, WRITES, (int fd, int mode, off_t at, off_t length), fd, mode, at, length)
ON_FD(int, fallocate64, WRITES, (int fd, int mode, off64_t at, off64_t length), fd, mode, at, length)
ON_FD(int, fsync, SYNCS, (int fd), fd)
ON_FD(int, fdatasync, SYNCS, (int fd), fd)
ON_FD(int, sync_file_range, SYNCS, (int fd, off64_t at, off64_t count, unsigned int flags), fd, at, count, flags)

#define OPEN(name, at, parameters, ...)                                                                                \
    int name parameters {                                                                                              \
        REAL(name);                                                                                                    \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) && name_struck(at, path)) return -1;                       \
        return real(__VA_ARGS__, flags, mode);                                                                         \
    }

OPEN(open, AT_FDCWD, (const char *path, int flags, ...), path)
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), path)
OPEN(openat, at, (int at, const char *path, int flags, ...), at, path)
OPEN(openat64, at, (int at, const char *path, int flags, ...), at, path)

#define ON_NAME(name, at, parameters, ...)                                                                             \
    int name parameters {                                                                                              \
        REAL(name);                                                                                                    \
        return name_struck(at, path) ? -1 : real(__VA_ARGS__);                                                         \
    }

ON_NAME(rename, AT_FDCWD, (const char *path, const char *to), path, to)
ON_NAME(unlink, AT_FDCWD, (const char *path), path)
ON_NAME(unlinkat, at, (int at, const char *path, int flags), at, path, flags)
ON_NAME(mkdir, AT_FDCWD, (const char *path, mode_t mode), path, mode)
ON_NAME(rmdir, AT_FDCWD, (const char *path), path)

static void shift(struct timespec *time, int64_t by) {
    int64_t nanos = time->tv_nsec + by % 1000000000;
    time->tv_sec += by / 1000000000 + (nanos >= 1000000000) - (nanos < 0);
    time->tv_nsec = nanos - ((nanos >= 1000000000) - (nanos < 0)) * (int64_t)1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(clock_gettime);
    int result = real ? real(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
    int64_t by = word(CLOCK_NS);
    if (!result && by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(time, by);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (!result) *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return result;
}

time_t time(time_t *into) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

/* A wait until a time of the wall clock must end when the shifted clock shows it, but the kernel's clock shows another
/* time.
* A time too small for the wall clock is one of a monotonic clock, and stays. */
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
    static __typeof__(pthread_cond_timedwait) *real;
    /* If there are two versions, dlsym may return the older one, which is for another layout of the condition. */
    if (!real) real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec shown = *until;
    if (word(CLOCK_NS) && until->tv_sec > 1000000000 + word(CLOCK_NS) / 1000000000) shift(&shown, -word(CLOCK_NS));
    return real(cond, mutex, &shown);
}
