/* A CUDA driver that computes nothing and counts everything. A program that is linked to it at run time believes that
 * it has a GPU: memory can be taken, bytes come back as they were copied in, and kernels are compiled by the real
 * NVRTC. Kernels do not run, so that every result is wrong. tests/scripts/gpu-check.sh says how it is used.
 *
 * Switches, all by the environment:
 *   STUB_LOG=FILE      one line for each call that matters; the program under test adds lines "MARK name"
 *   STUB_PTX=DIR       the text of each module that is loaded, as DIR/0000.ptx and on
 *   STUB_ARCH=90       compute capability: 80, 90 or 120
 *   STUB_MEMORY=81559  MiB of memory
 *   STUB_TAKEN=0       MiB of it that another process has taken: they are never free
 *   STUB_MOST=BYTES    allocations beyond these fail, although the memory looks free
 *   STUB_FAIL=N        the N-th allocation and all later ones fail, from 1
 *   STUB_UNPINNED=1    no pinned memory is given
 *   STUB_GONE=N        another process takes all memory that is free, or becomes free, from the N-th launch on, from 1
 *   STUB_SHARED=FILE   processes with the same file share the memory; it keeps what those that are killed had taken
 *   STUB_LOST=N        the device is lost at the N-th launch, from 1: that call and all later ones fail
 *   STUB_LOST_AS=719   the error of these calls: 719 a kernel that failed, 214 memory, 999 a device that is gone
 *   STUB_VERSION=13990 the CUDA version that the driver has; if it is set, modules of a newer one are refused
 *   STUB_KEEP=0        large copies in are dropped, which saves this machine's memory with large models
 *   STUB_TALLY=1       the trainer's own count of launches (kernels/gpu/src/launches.rs) comes back as if they had run,
 *                      so that whole steps are counted; their reports stay without numbers
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* CUresult. */
enum { DONE = 0, WRONG_VALUE = 1, NO_MEMORY = 2, TOO_NEW = 222, NOT_THERE = 500 };
typedef uint64_t Address;

/* One capability and what a card of it has. */
struct card {
    int arch, major, minor, processors, threads, shared_optin, shared_each;
    const char *name;
};
static const struct card CARDS[] = {
    {80, 8, 0, 108, 2048, 166912, 167936, "stub of an A100"},
    {90, 9, 0, 132, 2048, 232448, 233472, "stub of an H100"},
    {120, 12, 0, 170, 1536, 101376, 102400, "stub of an RTX 5090"},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used, peak, allocations, launches, tallied;
static int lost, modules;

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static const struct card *card(void) {
    int arch = (int)number("STUB_ARCH", 90);
    for (size_t i = 0; i < sizeof CARDS / sizeof *CARDS; i++)
        if (CARDS[i].arch == arch) return &CARDS[i];
    fprintf(stderr, "STUB_ARCH=%d: take 80, 90 or 120\n", arch);
    exit(2);
}

static uint64_t memory(void) { return number("STUB_MEMORY", 81559) << 20; }

/* The file is opened for appending and written line by line, since the program under test writes its marks there. */
static void note(const char *form, ...) {
    static int file = -2;
    if (file == -2) {
        const char *path = getenv("STUB_LOG");
        file = path && *path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    }
    if (file < 0) return;
    va_list arguments;
    va_start(arguments, form);
    vdprintf(file, form, arguments);
    va_end(arguments);
}

/* The answer of a call that needs a living device. */
static int alive(void) { return __atomic_load_n(&lost, __ATOMIC_ACQUIRE) ? (int)number("STUB_LOST_AS", 719) : DONE; }

/* The device and its context. */

int cuInit(unsigned flags) { (void)flags; return DONE; }
int cuDriverGetVersion(int *version) { *version = (int)number("STUB_VERSION", 13990); return DONE; }
int cuDeviceGetCount(int *count) { *count = 1; return DONE; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? WRONG_VALUE : DONE; }
int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    snprintf(name, (size_t)length, "%s", card()->name);
    return DONE;
}
int cuDeviceGetUuid_v2(char *uuid, int device) { (void)device; memset(uuid, 7, 16); return DONE; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = memory(); return DONE; }

/* Numbers are those of CUdevice_attribute. One that is not known here is 0, and is told. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;  /* threads a block, and its x and y */
    case 4: *value = 64; break;                    /* z of a block */
    case 5: *value = 2147483647; break;            /* x of a grid */
    case 6: case 7: *value = 65535; break;         /* y and z of a grid */
    case 8: *value = 49152; break;                 /* shared memory a block */
    case 9: *value = 65536; break;                 /* constant memory */
    case 10: *value = 32; break;                   /* a warp */
    case 12: case 82: *value = 65536; break;       /* registers a block and a processor */
    case 14: *value = 512; break;                  /* alignment of textures */
    case 16: *value = card()->processors; break;
    case 39: *value = card()->threads; break;      /* threads a processor */
    case 38: *value = 50 << 20; break;             /* L2 */
    case 40: *value = 3; break;                    /* copy engines */
    case 41: case 95: case 115: *value = 1; break; /* one address space, cooperative launches, memory pools */
    case 75: *value = card()->major; break;
    case 76: *value = card()->minor; break;
    case 81: *value = card()->shared_each; break;
    case 97: *value = card()->shared_optin; break;
    case 106: *value = 32; break;                  /* blocks a processor */
    case 111: *value = 1024; break;                /* shared memory that the driver keeps for itself */
    default:
        *value = 0;
        note("ATTRIBUTE %d\n", attribute);
    }
    return DONE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)0x1000; return DONE; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return DONE; }
int cuCtxSetCurrent(void *context) { (void)context; return DONE; }
int cuCtxGetCurrent(void **context) { *context = (void *)0x1000; return DONE; }
int cuCtxGetDevice(int *device) { *device = 0; return DONE; }
int cuCtxSynchronize(void) { note("SYNC context\n"); return alive(); }

/* Streams and events. */

static void *handle(void) {
    static uint64_t next = 0x10000;
    return (void *)(uintptr_t)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
}
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = handle(); return alive(); }
int cuStreamCreateWithPriority(void **s, unsigned flags, int rank) { (void)rank; return cuStreamCreate(s, flags); }
int cuStreamDestroy_v2(void *stream) { (void)stream; return DONE; }
int cuStreamSynchronize(void *stream) { (void)stream; note("SYNC stream\n"); return alive(); }
int cuStreamGetCtx(void *stream, void **context) { (void)stream; *context = (void *)0x1000; return DONE; }
int cuStreamQuery(void *stream) { (void)stream; return alive(); }
int cuStreamWaitEvent(void *stream, void *event, unsigned f) { (void)stream, (void)event, (void)f; return alive(); }
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = handle(); return alive(); }
int cuEventRecord(void *event, void *stream) { (void)event, (void)stream; return alive(); }
int cuEventSynchronize(void *event) { (void)event; note("SYNC event\n"); return alive(); }
int cuEventQuery(void *event) { (void)event; return alive(); }
int cuEventElapsedTime_v2(float *ms, void *from, void *to) { (void)from, (void)to; *ms = 0.01f; return alive(); }
int cuEventDestroy_v2(void *event) { (void)event; return DONE; }

/* Memory. It is this machine's own, and untouched pages take none of it. */

struct block { Address at; size_t bytes; struct block *next; };
static struct block *blocks;

/* Bytes that all processes on this device have taken. */
static uint64_t *everyones(void) {
    static uint64_t *all;
    const char *path = getenv("STUB_SHARED");
    if (!path || !*path) return &used;
    if (all) return all;
    int file = open(path, O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, sizeof *all)) return &used;
    void *page = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) return &used;
    return all = page;
}
__attribute__((destructor)) static void leave(void) {
    if (everyones() != &used) __atomic_sub_fetch(everyones(), used, __ATOMIC_ACQ_REL);
}

/* Bytes that are free. */
static uint64_t unclaimed(void) {
    uint64_t gone = number("STUB_GONE", 0), away = *everyones() + (number("STUB_TAKEN", 0) << 20);
    if (gone && __atomic_load_n(&launches, __ATOMIC_ACQUIRE) >= gone) return 0;
    return away < memory() ? memory() - away : 0;
}

/* Notes what the process has taken more, or less. */
static void owns(uint64_t more) {
    if (everyones() != &used) __atomic_add_fetch(everyones(), more, __ATOMIC_ACQ_REL);
    used += more;
    peak = used > peak ? used : peak;
}

static int take(Address *at, size_t bytes) {
    if (alive()) return alive();
    pthread_mutex_lock(&lock);
    uint64_t fails = number("STUB_FAIL", 0), most = number("STUB_MOST", UINT64_MAX);
    void *pages = MAP_FAILED;
    allocations++;
    int fits = bytes <= unclaimed() && used + bytes <= most && (!fails || allocations < fails);
    int way = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (fits) pages = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, way, -1, 0);
    struct block *block = pages == MAP_FAILED ? NULL : malloc(sizeof *block);
    if (block) {
        *block = (struct block){(Address)(uintptr_t)pages, bytes, blocks};
        blocks = block;
        owns(bytes);
        *at = block->at;
        note("ALLOC %zu now %lu peak %lu\n", bytes, (unsigned long)used, (unsigned long)peak);
    } else {
        note("REFUSED %zu now %lu\n", bytes, (unsigned long)used);
    }
    pthread_mutex_unlock(&lock);
    return block ? DONE : NO_MEMORY;
}

static int give_back(Address at) {
    int done = at ? WRONG_VALUE : DONE;
    pthread_mutex_lock(&lock);
    for (struct block **place = &blocks; *place; place = &(*place)->next) {
        struct block *block = *place;
        if (block->at != at) continue;
        *place = block->next;
        owns(-(uint64_t)block->bytes);
        munmap((void *)(uintptr_t)at, block->bytes ? block->bytes : 1);
        note("FREE %zu now %lu\n", block->bytes, (unsigned long)used);
        free(block);
        done = DONE;
        break;
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int cuMemAlloc_v2(Address *at, size_t bytes) { return take(at, bytes); }
int cuMemAllocAsync(Address *at, size_t bytes, void *stream) { (void)stream; return take(at, bytes); }
int cuMemFree_v2(Address at) { return give_back(at); }
int cuMemFreeAsync(Address at, void *stream) { (void)stream; return give_back(at); }
int cuMemGetInfo_v2(size_t *unused, size_t *total) {
    pthread_mutex_lock(&lock);
    *total = memory();
    *unused = unclaimed();
    pthread_mutex_unlock(&lock);
    return alive();
}

/* Pinned memory of the host. Copies from and to other memory are noted as such. */
static struct block *pins;

int cuMemAllocHost_v2(void **at, size_t bytes) {
    if (alive()) return alive();
    struct block *block = number("STUB_UNPINNED", 0) ? NULL : malloc(sizeof *block);
    if (!block || posix_memalign(at, 4096, bytes ? bytes : 1)) {
        free(block);
        return NO_MEMORY;
    }
    note("PINNED %zu\n", bytes);
    pthread_mutex_lock(&lock);
    *block = (struct block){(Address)(uintptr_t)*at, bytes, pins};
    pins = block;
    pthread_mutex_unlock(&lock);
    return DONE;
}
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { (void)flags; return cuMemAllocHost_v2(at, bytes); }
int cuMemFreeHost(void *at) {
    int done = WRONG_VALUE;
    pthread_mutex_lock(&lock);
    for (struct block **place = &pins; *place && done; place = &(*place)->next) {
        struct block *block = *place;
        if (block->at != (Address)(uintptr_t)at) continue;
        *place = block->next;
        note("UNPINNED %zu\n", block->bytes);
        free(block);
        free(at);
        done = DONE;
        break;
    }
    pthread_mutex_unlock(&lock);
    return done;
}

/* What a copy is noted with beside its bytes. */
static const char *kind(const void *at, size_t bytes) {
    const char *found = "pageable";
    Address from = (Address)(uintptr_t)at;
    pthread_mutex_lock(&lock);
    for (struct block *pin = pins; pin; pin = pin->next)
        if (pin->at <= from && from + bytes <= pin->at + pin->bytes) found = "pinned";
    pthread_mutex_unlock(&lock);
    return found;
}

/* Copies. A tally goes in before the launches that it counts and comes out after them; its count is word 64. */

enum { SMALL = 4096, TALLY_BYTES = 512, TALLY_WORD = 64 };

static int copy_in(Address to, const void *from, size_t bytes) {
    if (alive()) return alive();
    note("IN %zu %s\n", bytes, kind(from, bytes));
    if (bytes == TALLY_BYTES) __atomic_store_n(&tallied, 0, __ATOMIC_RELEASE);
    if (bytes <= SMALL || number("STUB_KEEP", 1)) memcpy((void *)(uintptr_t)to, from, bytes);
    return DONE;
}
static int copy_out(void *to, Address from, size_t bytes) {
    if (alive()) return alive();
    note("OUT %zu %s\n", bytes, kind(to, bytes));
    memcpy(to, (void *)(uintptr_t)from, bytes);
    if (bytes == TALLY_BYTES && number("STUB_TALLY", 0))
        ((uint32_t *)to)[TALLY_WORD] = (uint32_t)__atomic_load_n(&tallied, __ATOMIC_ACQUIRE);
    return DONE;
}
int cuMemcpyHtoDAsync_v2(Address to, const void *at, size_t n, void *s) { (void)s; return copy_in(to, at, n); }
int cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) { return copy_in(to, from, bytes); }
int cuMemcpyDtoHAsync_v2(void *to, Address at, size_t n, void *s) { (void)s; return copy_out(to, at, n); }
int cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { return copy_out(to, from, bytes); }
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
    (void)stream, (void)to, (void)from;
    note("WITHIN %zu\n", bytes);
    return alive();
}
int cuMemsetD8Async(Address at, unsigned char value, size_t bytes, void *stream) {
    (void)stream, (void)at, (void)value;
    note("SET %zu\n", bytes);
    return alive();
}

/* CUDA_MEMCPY2D. */
struct rectangle {
    size_t from_x, from_y;
    int from_kind;
    const void *from_host;
    Address from_device;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    int to_kind;
    void *to_host;
    Address to_device;
    void *to_array;
    size_t to_pitch, width, height;
};
enum { HOST = 1 };

int cuMemcpy2DAsync_v2(const struct rectangle *r, void *stream) {
    (void)stream;
    if (alive()) return alive();
    int in = r->from_kind == HOST;
    if (r->height == 1 && in) return copy_in(r->to_device, r->from_host, r->width);
    if (r->height == 1) return copy_out(r->to_host, r->from_device, r->width);
    note("%s %zu\n", in ? "IN" : "OUT", r->width * r->height);
    const char *from = in ? r->from_host : (const void *)(uintptr_t)r->from_device;
    char *to = r->to_kind == HOST ? r->to_host : (void *)(uintptr_t)r->to_device;
    if (in && !number("STUB_KEEP", 1)) return DONE;
    for (size_t row = 0; row < r->height; row++) memcpy(to + row * r->to_pitch, from + row * r->from_pitch, r->width);
    return DONE;
}

/* Modules and launches. */

/* Kernels with an addition to memory that nothing else interrupts are those that tally themselves. */
struct module { int number, tallies; };
struct function { int tallies; char name[480]; };

static void dump(const char *image, int number) {
    const char *folder = getenv("STUB_PTX");
    char path[1024];
    if (!folder || !*folder) return;
    snprintf(path, sizeof path, "%s/%04d.ptx", folder, number);
    FILE *file = fopen(path, "w");
    if (!file) return;
    fputs(image, file);
    fclose(file);
}

/* Whether the text is of a later version than the driver knows. CUDA 13.n has PTX 9.n, and CUDA 12.n has PTX 8.n. */
static int too_new(const char *image) {
    int major, minor, version = (int)number("STUB_VERSION", 0);
    const char *line = strstr(image, ".version ");
    if (!version || !line || sscanf(line, ".version %d.%d", &major, &minor) != 2) return 0;
    return (major + 4) * 1000 + minor * 10 > version;
}

int cuModuleLoadData(void **module, const void *image) {
    if (alive()) return alive();
    if (too_new(image)) return TOO_NEW;
    struct module *made = malloc(sizeof *made);
    if (!made) return NO_MEMORY;
    made->number = __atomic_fetch_add(&modules, 1, __ATOMIC_RELAXED);
    made->tallies = strstr(image, "atom.") != NULL;
    dump(image, made->number);
    note("MODULE %d\n", made->number);
    *module = made;
    return DONE;
}
int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *names, void *values) {
    (void)count, (void)names, (void)values;
    return cuModuleLoadData(module, image);
}
int cuModuleUnload(void *module) { free(module); return DONE; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    struct function *made = malloc(sizeof *made);
    if (!made) return NO_MEMORY;
    made->tallies = ((struct module *)module)->tallies;
    snprintf(made->name, sizeof made->name, "%d:%s", ((struct module *)module)->number, name);
    *function = made;
    return DONE;
}
int cuFuncSetAttribute(void *function, int which, int value) { (void)function, (void)which, (void)value; return DONE; }
int cuFuncGetAttribute(int *value, int which, void *function) { (void)which, (void)function; *value = 0; return DONE; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)stream, (void)arguments, (void)extra;
    if (__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED) == number("STUB_LOST", 0))
        __atomic_store_n(&lost, 1, __ATOMIC_RELEASE);
    if (alive()) return alive();
    if (((struct function *)function)->tallies) __atomic_add_fetch(&tallied, 1, __ATOMIC_RELAXED);
    note("LAUNCH %s grid %ux%ux%u block %ux%ux%u shared %u\n", ((struct function *)function)->name, gx, gy, gz, bx, by,
         bz, shared);
    return DONE;
}

/* Maps for the copy engine of tensors have 128 bytes that only the device reads. */
int cuTensorMapEncodeTiled(void *map, ...) { memset(map, 0, 128); note("MAP\n"); return DONE; }
int cuTensorMapEncodeIm2col(void *map, ...) { memset(map, 0, 128); return DONE; }
int cuTensorMapEncodeIm2colWide(void *map, ...) { memset(map, 0, 128); return DONE; }

static const char *words(int error, int plain) {
    switch (error) {
    case NO_MEMORY: return plain ? "out of memory" : "CUDA_ERROR_OUT_OF_MEMORY";
    case 719: return plain ? "unspecified launch failure" : "CUDA_ERROR_LAUNCH_FAILED";
    case TOO_NEW: return plain ? "a PTX of a later toolchain" : "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    default: return plain ? "an error of the stub" : "CUDA_ERROR_OF_THE_STUB";
    }
}
int cuGetErrorName(int error, const char **text) { *text = words(error, 0); return DONE; }
int cuGetErrorString(int error, const char **text) { *text = words(error, 1); return DONE; }

/* NVRTC 13 asks for tables of the driver, and crashes where it cannot ask. None is there. */
int cuGetExportTable(const void **table, const void *id) { (void)id; *table = NULL; return NOT_THERE; }
