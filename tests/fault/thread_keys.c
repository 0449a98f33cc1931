/* The first exceptions of threads while no memory is left, in a process that loads the library, and
 * where the library's thread key comes late or not at all: every call says RESOURCE_EXHAUSTED.
 *
 *   thread_keys LIBRARY first|late|none     late: behind those that take no memory
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "inject.h"
#include "moert.h"

enum { kThreads = 8, kRounds = 200, kCalls = 3 };

static moert_code (*source_open)(const char*, const moert_open_options*, moert_source**,
                                 moert_error**);
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* faults are the whole process's */
static int failures;

static void* Call(void* barrier) {
  for (int i = 0; i < kCalls; ++i) {
    moert_source* source = NULL;
    pthread_mutex_lock(&one);
    fault_arm(FAULT_MALLOC, 1, 1);
    const moert_code code =
        source_open("/a/folder/that/is/not/there/with/a/long/name", NULL, &source, NULL);
    const long met = fault_disarm();
    if (code != MOERT_RESOURCE_EXHAUSTED || met == 0) ++failures;
    pthread_mutex_unlock(&one);
  }
  if (barrier != NULL) pthread_barrier_wait(barrier); /* all of a round live together */
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int keys = strcmp(argv[2], "none") == 0 ? -1 : strcmp(argv[2], "late") == 0 ? 64 : 0;
  pthread_key_t key;
  for (int i = 0; i != keys && pthread_key_create(&key, NULL) == 0; ++i) continue;
  void* const library = dlopen(argv[1], RTLD_NOW);
  if (library == NULL || (*(void**)& source_open = dlsym(library, "moert_source_open")) == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  Call(NULL);
  for (int round = 0; round < kRounds; ++round) {
    pthread_t threads[kThreads];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, kThreads);
    pthread_mutex_lock(&one); /* to start a thread takes memory */
    for (int i = 0; i < kThreads; ++i) {
      if (pthread_create(&threads[i], NULL, Call, &barrier) != 0) return 2;
    }
    pthread_mutex_unlock(&one);
    for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
  }
  if (failures != 0) fprintf(stderr, "%d calls did not say RESOURCE_EXHAUSTED\n", failures);
  return failures != 0;
}
