#define _GNU_SOURCE 1
#include "inject.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc's own allocator behind the names that are taken over here. */
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static atomic_long calls[FAULT_KINDS];
static atomic_long failed, live, live_bytes, peak_bytes, mapped, nth;
static atomic_int armed = -1, lasting;
static const char* _Atomic flip_folder;

static const char* const names[FAULT_KINDS] = {
    "malloc", "thread",     "open", "stat",   "read",  "short", "eof",      "flip", "interrupt",
    "write",  "zero-write", "sync", "rename", "mkdir", "map",   "truncate", "lock", "close"};

void fault_arm(int kind, long n, int persistent) {
  int i;
  armed = -1;
  for (i = 0; i < FAULT_KINDS; ++i) calls[i] = 0;
  failed = 0;
  peak_bytes = live_bytes;
  nth = n;
  lasting = persistent;
  if (n > 0) armed = kind;
}

long fault_disarm(void) {
  armed = -1;
  return failed;
}

long fault_calls(int kind) { return calls[kind]; }
void fault_flip_below(const char* folder) { flip_folder = folder; }
const char* fault_name(int kind) { return names[kind]; }
long fault_live_blocks(void) { return live; }
long fault_live_bytes(void) { return live_bytes; }
long fault_peak_bytes(void) { return peak_bytes; }
long fault_mappings(void) { return mapped; }

int fault_kind_of(const char* name) {
  int i;
  for (i = 0; i < FAULT_KINDS; ++i) {
    if (strcmp(names[i], name) == 0) return i;
  }
  return -1;
}

static int entries(const char* folder) {
  int n = 0;
  DIR* dir = opendir(folder);
  if (dir == NULL) return -1;
  while (readdir(dir) != NULL) ++n;
  closedir(dir);
  return n;
}
int fault_descriptors(void) { return entries("/proc/self/fd"); }
int fault_threads(void) { return entries("/proc/self/task"); }

static int fails(int kind) {
  const long call = atomic_fetch_add(&calls[kind], 1) + 1;
  if (armed != kind || (lasting ? call < nth : call != nth)) return 0;
  ++failed;
  return 1;
}

/* ---- Memory. */

static void* counted(void* block) {
  long now;
  if (block == NULL) return NULL;
  ++live;
  now = live_bytes += (long)malloc_usable_size(block);
  if (now > peak_bytes) peak_bytes = now; /* near enough where threads meet */
  return block;
}
static void uncounted(void* block) {
  if (block == NULL) return;
  --live;
  live_bytes -= (long)malloc_usable_size(block);
}
static int no_memory(void) {
  if (!fails(FAULT_MALLOC)) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return no_memory() ? NULL : counted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) {
  return no_memory() ? NULL : counted(__libc_calloc(count, size));
}
void* realloc(void* old, size_t size) {
  void* block;
  if (no_memory()) return NULL;
  uncounted(old);
  block = __libc_realloc(old, size);
  if (block != NULL) return counted(block);
  return size == 0 ? NULL : (counted(old), NULL);
}
void* memalign(size_t alignment, size_t size) {
  return no_memory() ? NULL : counted(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** block, size_t alignment, size_t size) {
  void* made;
  if (no_memory()) return ENOMEM;
  made = counted(__libc_memalign(alignment, size));
  if (made == NULL) return ENOMEM;
  *block = made;
  return 0;
}
void free(void* block) {
  uncounted(block);
  __libc_free(block);
}
void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (fails(FAULT_MAP)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  at = (void*)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
  mapped += at != MAP_FAILED;
  return at;
}
int munmap(void* at, size_t size) {
  const int result = (int)syscall(SYS_munmap, at, size);
  mapped -= result == 0;
  return result;
}

/* ---- Threads. */

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "pthread_create");
  return fails(FAULT_THREAD) ? EAGAIN : real(thread, attributes, start, argument);
}

/* ---- Files. */

/* A call that is interrupted for ever never returns, and is no fault of who repeats it. */
static int interrupted(void) {
  const int hit = fails(FAULT_INTERRUPT);
  if (hit && lasting && failed % 2 == 0) return 0;
  return hit;
}

static int fail_with(int error) {
  errno = error;
  return -1;
}

int open(const char* path, int flags, ...) {
  va_list more;
  mode_t mode;
  va_start(more, flags);
  mode = va_arg(more, mode_t);
  va_end(more);
  if (fails(FAULT_OPEN)) return fail_with(EMFILE);
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
  static FILE* (*real)(const char*, const char*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fopen");
  if (!fails(FAULT_OPEN)) return real(path, mode);
  errno = EMFILE;
  return NULL;
}
int fstat(int fd, struct stat* out) {
  return fails(FAULT_STAT) ? fail_with(EIO) : (int)syscall(SYS_fstat, fd, out);
}

static int may_flip(int fd) {
  const char* const folder = flip_folder;
  char link[40], path[1000];
  ssize_t length;
  if (folder == NULL) return 1;
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = 0;
  return strncmp(path, folder, strlen(folder)) == 0;
}

ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  ssize_t got;
  if (interrupted()) return fail_with(EINTR);
  if (fails(FAULT_READ)) return fail_with(EIO);
  if (fails(FAULT_EOF)) return 0;
  if (fails(FAULT_SHORT_READ) && size > 1) size = size > 8192 ? 4096 : size / 2;
  got = syscall(SYS_pread64, fd, to, size, offset);
  if (got > 0 && may_flip(fd) && fails(FAULT_FLIP)) ((unsigned char*)to)[got * 7 / 11] ^= 0x10;
  return got;
}
ssize_t write(int fd, const void* from, size_t size) {
  if (fd > 2 && interrupted()) return fail_with(EINTR);
  if (fd > 2 && fails(FAULT_WRITE)) return fail_with(ENOSPC);
  if (fd > 2 && fails(FAULT_ZERO_WRITE)) return 0;
  return syscall(SYS_write, fd, from, size);
}
size_t fwrite(const void* from, size_t size, size_t count, FILE* file) {
  static size_t (*real)(const void*, size_t, size_t, FILE*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fwrite");
  if (file == stdout || file == stderr || !fails(FAULT_WRITE)) {
    return real(from, size, count, file);
  }
  errno = ENOSPC;
  return 0;
}
/* Not really: a sweep would take minutes. */
int fsync(int fd) { return fd >= 0 && fails(FAULT_SYNC) ? fail_with(EIO) : 0; }
int rename(const char* from, const char* to) {
  return fails(FAULT_RENAME) ? fail_with(EIO) : (int)syscall(SYS_rename, from, to);
}
int mkdir(const char* path, mode_t mode) {
  return fails(FAULT_MKDIR) ? fail_with(EACCES) : (int)syscall(SYS_mkdir, path, mode);
}
int ftruncate(int fd, off_t size) {
  return fails(FAULT_TRUNCATE) ? fail_with(EIO) : (int)syscall(SYS_ftruncate, fd, size);
}
int flock(int fd, int operation) {
  if (interrupted()) return fail_with(EINTR);
  return fails(FAULT_LOCK) ? fail_with(ENOLCK) : (int)syscall(SYS_flock, fd, operation);
}
int close(int fd) {
  const int result = (int)syscall(SYS_close, fd);
  return fd > 2 && fails(FAULT_CLOSE) ? fail_with(EIO) : result;
}

/* The same calls under their names for large files. */
ssize_t pread64(int fd, void* to, size_t size, off_t offset) { return pread(fd, to, size, offset); }
void* mmap64(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  return mmap(at, size, protection, flags, fd, offset);
}
