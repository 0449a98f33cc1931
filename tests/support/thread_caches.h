/* Heap figures that do not count what malloc keeps for threads. C and C++. */
#ifndef MOERT_TESTS_SUPPORT_THREAD_CACHES_H_
#define MOERT_TESTS_SUPPORT_THREAD_CACHES_H_

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Starts the program again with malloc's caches of threads off: mallinfo2 counts what they hold, up
 * to 235 KiB a thread, as in use. glibc reads the setting before main. */
static inline void run_without_thread_caches(char** argv) {
  static const char kSetting[] = "glibc.malloc.tcache_count=0";
  const char* set = getenv("GLIBC_TUNABLES");
  if (set != NULL && strstr(set, kSetting) != NULL) return;
  setenv("GLIBC_TUNABLES", kSetting, /*overwrite=*/1);
  execv("/proc/self/exe", argv);
}

#endif /* MOERT_TESTS_SUPPORT_THREAD_CACHES_H_ */
