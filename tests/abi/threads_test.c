/* 64 threads on one engine: every error reaches the thread that caused it, every answer is right.
 * MOERT_SOAK_SECONDS lengthens it (default 2). */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "examples/c_host/tiny_experts.h"

enum { kThreads = 64 };

static moert_engine *shared_engine;
static double seconds;
static pthread_mutex_t result_mutex = PTHREAD_MUTEX_INITIALIZER;
static long calls_ok, calls_failed;

/* Expert 3 of layer 1 cannot be read every other time: an error that a thread meets by routing. */
static moert_code flaky_read(void *user_data, const moert_read *read, moert_failure *failure) {
  static int odd;
  (void)user_data;
  if (read->part == MOERT_PART_GATE_PROJ && read->layer == 1 && read->expert == 3) {
    int fail;
    pthread_mutex_lock(&result_mutex);
    fail = odd++ & 1;
    pthread_mutex_unlock(&result_mutex);
    if (fail) {
      moert_failure_set(failure, "injected");
      return MOERT_DATA_LOSS;
    }
  }
  return tiny_read(NULL, read, failure);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *work(void *argument) {
  const int id = (int)(intptr_t)argument;
  float x[kTinyHidden], y[kTinyHidden], expected[kTinyLayers][kTinyHidden];
  int known[kTinyLayers] = {0, 0};
  const double end = now() + seconds;
  long ok = 0, failed = 0, round = 0;
  char mine[32];
  int i;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i + 1000 * id);
  while (now() < end) {
    const int32_t layer = (int32_t)((id + round++) % 3);
    moert_step_options info;
    moert_step *step = NULL;
    moert_error *error = NULL;
    moert_code code;
    moert_step_options_init(&info, sizeof(info));
    if (layer == 2) { /* an error with this thread's number in it */
      info.rows = 100000 + id;
      code = moert_step_begin(shared_engine, &info, &step, &error);
      snprintf(mine, sizeof(mine), "of %d rows", 100000 + id);
      if (code != MOERT_INVALID_ARGUMENT || strstr(moert_error_message(error), mine) == NULL) {
        fprintf(stderr, "thread %d got: %s\n", id, moert_error_message(error));
        abort();
      }
      moert_error_destroy(error);
      ++failed;
      continue;
    }
    if (moert_step_begin(shared_engine, &info, &step, NULL) != MOERT_OK) abort();
    code = forward(step, layer, x, kTinyHidden, 1, y, &error);
    if (code == MOERT_OK) {
      if (known[layer] && memcmp(y, expected[layer], sizeof(y)) != 0) abort();
      memcpy(expected[layer], y, sizeof(y));
      known[layer] = 1;
      ++ok;
      if (moert_step_end(step, NULL) != MOERT_OK) abort();
    } else {
      if (code != MOERT_DATA_LOSS || layer != 1 ||
          strstr(moert_error_message(error), "injected") == NULL) {
        abort();
      }
      moert_error_destroy(error);
      ++failed;
      if (moert_step_end(step, NULL) != MOERT_DATA_LOSS) abort();
    }
  }
  pthread_mutex_lock(&result_mutex);
  calls_ok += ok;
  calls_failed += failed;
  pthread_mutex_unlock(&result_mutex);
  return NULL;
}

int main(void) {
  const char *text = getenv("MOERT_SOAK_SECONDS");
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_engine_options options;
  moert_source *source = NULL;
  pthread_t threads[kThreads];
  int i;
  seconds = text == NULL ? 2.0 : atof(text);
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = flaky_read;
  callbacks.weights_dtype = MOERT_F32;
  CHECK_OK(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.25;
  CHECK_OK(moert_engine_create(source, &options, &shared_engine, &error));
  moert_source_destroy(source);
  for (i = 0; i < kThreads; ++i) {
    if (pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i) != 0) abort();
  }
  for (i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  moert_engine_destroy(shared_engine);
  printf("%ld calls answered, %ld failed as they should\n", calls_ok, calls_failed);
  CHECK(calls_ok > 0 && calls_failed > 0);
  return check_failures != 0;
}
