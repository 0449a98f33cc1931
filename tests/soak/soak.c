/* Mixed load over the C ABI for a while: threads of steps, split calls, leases, hints,
 * cancellations, budgets and statistics on one engine, while reads fail now and then, and engines
 * of another thread come and go. In rounds; after each everything is given back.
 *
 *   soak SECONDS
 *
 * Asserted: outputs that are OK have the bits of a fully resident engine; every failure has a code
 * that the load explains; after the first rounds memory, descriptors and threads stay where they
 * are. Exit status 1: something did not hold. */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "examples/c_host/tiny_experts.h"
#include "moert.h"
#include "tests/support/sanitized.h"
#include "tests/support/thread_caches.h"

#ifdef MOERT_THREAD_SANITIZER
enum { kSanitized = 1 };
/* Abseil's library is not instrumented: how it counts a status's references is not seen. */
const char* __tsan_default_suppressions(void);
const char* __tsan_default_suppressions(void) { return "race:absl::*::Status::Unref\n"; }
size_t __sanitizer_get_current_allocated_bytes(void);
static size_t heap_bytes(void) { return __sanitizer_get_current_allocated_bytes(); }
#else
enum { kSanitized = 0 };
static size_t heap_bytes(void) { return mallinfo2().uordblks + mallinfo2().hblkhd; }
#endif

enum { kThreads = 4, kRows = 4, kInputs = 8, kWarmRounds = 4 };
static const char* const strategies[] = {"on-demand", "fate", "on-demand+fate.prefetch", "resident"};
enum { kStrategies = (int)(sizeof(strategies) / sizeof(strategies[0])) };

static float expected[kInputs][kTinyLayers][kRows * kTinyHidden];
static atomic_long calls, wrong, failed_reads, refused, unexplained, engines;
static atomic_int stop, failing;
static int whole_budget; /* of the round's strategy: all experts, always */

static moert_code read_weights(void* user, const moert_read* read, moert_failure* failure) {
  static atomic_uint count;
  const unsigned n = atomic_fetch_add(&count, 1);
  if (failing && read->part <= MOERT_PART_DOWN_PROJ && n % 61 == 0) {
    ++failed_reads;
    moert_failure_set(failure, "the soak's own failure");
    return MOERT_UNAVAILABLE;
  }
  return tiny_read(user, read, failure);
}

/* The load explains these: refused for its size, cancelled, or a failed read. */
static int count_failure(moert_code code, moert_error* error, const char* call) {
  if (code == MOERT_OK) return 0;
  if (code == MOERT_CANCELLED || code == MOERT_UNAVAILABLE || code == MOERT_RESOURCE_EXHAUSTED ||
      code == MOERT_FAILED_PRECONDITION) {
    ++refused;
  } else if (++unexplained < 10) {
    fprintf(stderr, "%s: %s: %s\n", call, moert_code_name(code), moert_error_message(error));
  }
  moert_error_destroy(error);
  return 1;
}
#define FAILED(call) (error = NULL, code = (call), count_failure(code, error, #call))

static moert_source* open_source(void) {
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_source* source = NULL;
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = read_weights;
  callbacks.weights_dtype = MOERT_F32;
  if (moert_source_create("soak", layers, kTinyLayers, &callbacks, &source, NULL)) exit(3);
  return source;
}

static moert_engine* open_engine(const moert_source* source, const char* strategy,
                                 double fraction) {
  moert_engine_options options;
  moert_engine* engine = NULL;
  moert_error* error = NULL;
  moert_code code;
  moert_engine_options_init(&options, sizeof(options));
  options.backend = MOERT_BACKEND_CPU;
  options.strategy = strategy;
  options.budget_fraction = fraction;
  options.threads = 1;
  options.io_threads = 2;
  options.max_tokens_per_forward = kRows;
  (void)FAILED(moert_engine_create(source, &options, &engine, &error));
  engines += engine != NULL;
  return engine;
}

static void make_input(float* x, int input, int layer) {
  int i;
  for (i = 0; i < kRows * kTinyHidden; ++i) {
    x[i] = tiny_input((int64_t)(input * 131 + layer * 17) * 4096 + i);
  }
}

static int one_call(moert_step* step, int layer, int input, int split) {
  float x[kRows * kTinyHidden], y[kRows * kTinyHidden];
  moert_tensor in, out;
  moert_error* error;
  moert_code code;
  make_input(x, input, layer);
  memset(y, 0xff, sizeof(y));
  moert_tensor_init(&in, x, kRows, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, kRows, kTinyHidden, MOERT_F32);
  if (split) {
    moert_call* call = NULL;
    if (FAILED(moert_layer_begin(step, layer, &in, NULL, &out, NULL, &call, &error))) return 1;
    if (FAILED(moert_layer_finish(call, &error))) return 1;
  } else if (FAILED(moert_layer_forward(step, layer, &in, NULL, &out, &error))) {
    return 1;
  }
  ++calls;
  wrong += memcmp(y, expected[input][layer], sizeof(y)) != 0;
  return 0;
}

static void borrow(moert_step* step, int layer, unsigned* seed) {
  const int32_t expert = rand_r(seed) % kTinyExperts;
  static _Thread_local float weights[kTinyIntermediate * kTinyHidden];
  moert_lease* lease = NULL;
  moert_error* error;
  moert_code code;
  if (FAILED(moert_lease_acquire(step, layer, &expert, 1, &lease, &error))) return;
  (void)FAILED(moert_lease_read(lease, 0, MOERT_PART_GATE_PROJ, weights,
                                kTinyIntermediate * kTinyHidden, &error));
  moert_lease_release(lease);
}

static void something_else(moert_engine* engine, moert_step* step, int layer, unsigned* seed) {
  static const double fractions[] = {0.4, 0.5, 0.7, 1.0};
  const int32_t experts[2] = {rand_r(seed) % kTinyExperts, rand_r(seed) % kTinyExperts};
  uint8_t states[kTinyExperts];
  moert_stats stats;
  moert_error* error;
  moert_code code;
  switch (rand_r(seed) % 16) {
    case 0:
      borrow(step, layer, seed);
      break;
    case 1:
      (void)FAILED(moert_engine_prefetch(engine, layer, experts, 2, &error));
      break;
    case 2:
      if (whole_budget) break;
      (void)FAILED(moert_engine_set_budget(engine, 0, fractions[rand_r(seed) % 4], &error));
      break;
    case 3:
      moert_stats_init(&stats, sizeof(stats));
      (void)FAILED(moert_engine_stats(engine, &stats, &error));
      (void)FAILED(moert_engine_residency(engine, layer, states, kTinyExperts, &error));
      break;
    case 4:
      (void)FAILED(moert_step_cancel(step, &error));
      break;
    default:
      break;
  }
}

static void* work(void* argument) {
  moert_engine* const engine = argument;
  static atomic_uint seeds;
  unsigned seed = atomic_fetch_add(&seeds, 1) * 7919 + 1;
  while (!stop) {
    const int input = rand_r(&seed) % kInputs;
    moert_step_options options;
    moert_step* step = NULL;
    moert_error* error;
    moert_code code;
    int layer;
    moert_step_options_init(&options, sizeof(options));
    options.rows = kRows;
    if (FAILED(moert_step_begin(engine, &options, &step, &error))) continue;
    for (layer = 0; layer < kTinyLayers; ++layer) {
      if (one_call(step, layer, input, rand_r(&seed) % 4 == 0)) break;
      something_else(engine, step, layer, &seed);
    }
    (void)FAILED(moert_step_end(step, &error));
  }
  return NULL;
}

/* Engines that come and go over the same source. */
static void* churn(void* argument) {
  const moert_source* const source = argument;
  int n;
  for (n = 0; !stop; ++n) {
    moert_engine* const engine = open_engine(source, strategies[n % kStrategies], 1);
    moert_step* step = NULL;
    if (engine != NULL && moert_step_begin(engine, NULL, &step, NULL) == MOERT_OK) {
      (void)moert_step_end(step, NULL);
    }
    moert_engine_destroy(engine);
  }
  return NULL;
}

static void expect(const moert_source* source) {
  moert_engine* const engine = open_engine(source, "resident", 1);
  float x[kRows * kTinyHidden];
  int input, layer;
  if (engine == NULL) exit(3);
  for (input = 0; input < kInputs; ++input) {
    moert_step_options options;
    moert_step* step = NULL;
    moert_step_options_init(&options, sizeof(options));
    options.rows = kRows;
    if (moert_step_begin(engine, &options, &step, NULL)) exit(3);
    for (layer = 0; layer < kTinyLayers; ++layer) {
      moert_tensor in, out;
      make_input(x, input, layer);
      moert_tensor_init(&in, x, kRows, kTinyHidden, MOERT_F32);
      moert_tensor_init(&out, expected[input][layer], kRows, kTinyHidden, MOERT_F32);
      if (moert_layer_forward(step, layer, &in, NULL, &out, NULL)) exit(3);
    }
    if (moert_step_end(step, NULL)) exit(3);
  }
  moert_engine_destroy(engine);
}

static void run_round(int n, double seconds) {
  moert_source* const source = open_source();
  moert_engine* engine;
  pthread_t threads[kThreads + 1];
  struct timespec wait;
  int i;
  stop = failing = 0;
  whole_budget = strcmp(strategies[n % kStrategies], "resident") == 0;
  engine = open_engine(source, strategies[n % kStrategies], whole_budget ? 1 : 0.5);
  if (engine == NULL) exit(3);
  failing = 1;
  for (i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work, engine);
  pthread_create(&threads[kThreads], NULL, churn, source);
  wait.tv_sec = (time_t)seconds;
  wait.tv_nsec = (long)((seconds - (double)wait.tv_sec) * 1e9);
  nanosleep(&wait, NULL);
  stop = 1;
  for (i = 0; i <= kThreads; ++i) pthread_join(threads[i], NULL);
  failing = 0;
  moert_engine_destroy(engine);
  moert_source_destroy(source);
}

static int entries(const char* folder) {
  int n = 0;
  DIR* const dir = opendir(folder);
  while (dir != NULL && readdir(dir) != NULL) ++n;
  if (dir != NULL) closedir(dir);
  return n;
}

static long resident_kib(void) {
  long size = 0, pages = 0;
  FILE* const file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%ld %ld", &size, &pages) != 2) exit(3);
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

struct held {
  long kib;
  size_t heap;
  int descriptors, threads;
};
static struct held held_now(void) {
  struct held now;
  struct timespec moment = {0, 100000000}; /* threads that were joined leave /proc a little later */
  nanosleep(&moment, NULL);
  malloc_trim(0);
  now.heap = heap_bytes();
  now.kib = resident_kib();
  now.descriptors = entries("/proc/self/fd");
  now.threads = entries("/proc/self/task");
  return now;
}

int main(int argc, char** argv) {
  const double seconds = argc == 2 ? atof(argv[1]) : 0;
  const double round = seconds < 120 ? seconds / 20 : 6;
  const int rounds = round > 0 ? (int)(seconds / round) : 0;
  moert_source* source;
  struct held warm, now;
  int n, grown = 0;
  if (rounds <= kWarmRounds) return fprintf(stderr, "usage: soak SECONDS\n"), 2;
  run_without_thread_caches(argv);
  source = open_source();
  expect(source);
  moert_source_destroy(source);
  memset(&warm, 0, sizeof(warm));
  for (n = 0; n < rounds; ++n) {
    run_round(n, round);
    now = held_now();
    if (n < kWarmRounds) {
      if (now.heap > warm.heap) warm.heap = now.heap;
      if (now.kib > warm.kib) warm.kib = now.kib;
      warm.descriptors = now.descriptors;
      warm.threads = now.threads;
      continue;
    }
    /* a sanitizer's own memory is resident too */
    if (now.heap > warm.heap + 64 * 1024 || (!kSanitized && now.kib > warm.kib + 8 * 1024) ||
        now.descriptors != warm.descriptors || now.threads != warm.threads) {
      ++grown;
      fprintf(stderr,
              "round %d: heap %zu of %zu bytes, %ld of %ld KiB, %d of %d descriptors, %d of %d "
              "threads\n",
              n, now.heap, warm.heap, now.kib, warm.kib, now.descriptors, warm.descriptors,
              now.threads, warm.threads);
    }
  }
  printf(
      "%d rounds, %ld engines, %ld layer calls, %ld failed reads, %ld refused calls, %ld wrong, "
      "%ld unexplained; heap %zu bytes (%zu when warm), %ld KiB (%ld)\n",
      rounds, engines, calls, failed_reads, refused, wrong, unexplained, now.heap, warm.heap,
      now.kib, warm.kib);
  return wrong > 0 || unexplained > 0 || grown > 0 || calls == 0 || failed_reads == 0;
}
