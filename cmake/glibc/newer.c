/* Substitutes for what gcc 12 and its libstdc++ take from a glibc newer than 2.28. link_folder.py
   puts them into programs and libraries, hidden. */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#ifndef __x86_64__
#error "the number of struct stat's layout, 1, is that of x86-64"
#endif

/* 2.32. Where it is not 0 libstdc++ counts references without atomic instructions. */
char __libc_single_threaded = 0;

/* 2.33. Until then these were inline functions of glibc's headers. */
struct stat;
int __xstat(int layout, const char* path, struct stat* out);
int __lxstat(int layout, const char* path, struct stat* out);
int __fxstat(int layout, int file, struct stat* out);
int stat(const char* path, struct stat* out) { return __xstat(1, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(1, path, out); }
int fstat(int file, struct stat* out) { return __fxstat(1, file, out); }
int fstat64(int file, struct stat* out) { return __fxstat(1, file, out); }

/* 2.30: waits of a std::condition_variable by the steady clock. The condition counts by the wall
   clock, which somebody may set: no wait is longer than a second, and one that ends early ends as
   if it had been woken, which a caller has to expect anyhow. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* deadline) {
  const long second = 1000000000;
  struct timespec now, until;
  if (clock_gettime(clock, &now) != 0) return EINVAL;
  clock_gettime(CLOCK_REALTIME, &until);
  long wait = 0;
  if (deadline->tv_sec > now.tv_sec + 1) {
    wait = 2 * second;
  } else if (deadline->tv_sec >= now.tv_sec) {
    wait = (deadline->tv_sec - now.tv_sec) * second + deadline->tv_nsec - now.tv_nsec;
  }
  const int early = wait > second;
  if (early) wait = second;
  if (wait < 0) wait = 0;
  until.tv_nsec += wait;
  until.tv_sec += until.tv_nsec / second;
  until.tv_nsec %= second;
  const int result = pthread_cond_timedwait(condition, mutex, &until);
  return result == ETIMEDOUT && early ? 0 : result;
}
