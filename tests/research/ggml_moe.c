// Times ggml's MUL_MAT_ID on the CPU in each kind of weight buffer that it offers, the repacked ones
// included: what docs/results/cpu.md sets beside libmoert's products.
//
//   cc -O2 tests/research/ggml_moe.c -IGGML/include -LBUILD/bin -lggml -lggml-base -lm -Wl,-rpath,BUILD/bin -o ggml_moe
//   ./ggml_moe [THREADS [COPIES [SECONDS]]]
//
// 128 experts, 8 a token, 768 x 2048 (gate or up of Qwen3-30B-A3B); COPIES of the weights in turn, so that
// caches do not hold them. One line a type, buffer and number of tokens: the median of at least 5 graphs.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXPERTS = 128, USED = 8, ROWS = 768, COLS = 2048, MOST_COPIES = 16, MOST_RUNS = 400 };

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ByValue(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static float Uniform(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

/* The first token's first output row, for a comparison of buffers. Negative: not supported. */
static int Measure(ggml_backend_t backend, ggml_backend_buffer_type_t buft, enum ggml_type type, int tokens,
                   int copies, double seconds, const void *expert, float *first) {
  ggml_backend_dev_t dev = ggml_backend_get_device(backend);
  struct ggml_init_params params = {ggml_tensor_overhead() * 64 + ggml_graph_overhead(), NULL, true};
  struct ggml_context *weights = ggml_init(params), *rest = ggml_init(params);
  struct ggml_tensor *as[MOST_COPIES], *out[MOST_COPIES];
  for (int c = 0; c < copies; ++c) as[c] = ggml_new_tensor_3d(weights, type, COLS, ROWS, EXPERTS);
  struct ggml_tensor *b = ggml_new_tensor_3d(rest, GGML_TYPE_F32, COLS, 1, tokens);
  struct ggml_tensor *ids = ggml_new_tensor_2d(rest, GGML_TYPE_I32, USED, tokens);
  ggml_backend_buffer_t held = ggml_backend_alloc_ctx_tensors_from_buft(weights, buft);
  struct ggml_cgraph *graph = ggml_new_graph(rest);
  int supported = held != NULL;
  for (int c = 0; c < copies && supported; ++c) {
    out[c] = ggml_mul_mat_id(rest, as[c], b, ids);
    supported = ggml_backend_dev_supports_op(dev, out[c]);
    ggml_build_forward_expand(graph, out[c]);
  }
  ggml_backend_buffer_t data = supported ? ggml_backend_alloc_ctx_tensors(rest, backend) : NULL;
  if (data != NULL) {
    const size_t bytes = ggml_row_size(type, COLS) * ROWS;
    char *all = malloc(bytes * EXPERTS);
    for (int e = 0; e < EXPERTS; ++e) memcpy(all + bytes * (size_t)e, expert, bytes);
    for (int c = 0; c < copies; ++c) ggml_backend_tensor_set(as[c], all, 0, bytes * EXPERTS);
    free(all);
    srand(1);
    float *x = malloc(sizeof(float) * COLS * (size_t)tokens);
    int32_t *chosen = malloc(sizeof(int32_t) * USED * (size_t)tokens);
    for (int i = 0; i < COLS * tokens; ++i) x[i] = Uniform();
    for (int t = 0; t < tokens; ++t) { /* distinct: of 8 blocks of 16 experts one each */
      for (int k = 0; k < USED; ++k) chosen[t * USED + k] = k * (EXPERTS / USED) + rand() % (EXPERTS / USED);
    }
    ggml_backend_tensor_set(b, x, 0, sizeof(float) * COLS * (size_t)tokens);
    ggml_backend_tensor_set(ids, chosen, 0, sizeof(int32_t) * USED * (size_t)tokens);
    free(x), free(chosen);
    double times[MOST_RUNS];
    int runs = 0;
    ggml_backend_graph_compute(backend, graph);
    for (double begin = Now(); runs < MOST_RUNS && (runs < 5 || Now() - begin < seconds); ++runs) {
      const double t = Now();
      ggml_backend_graph_compute(backend, graph);
      times[runs] = (Now() - t) / copies;
    }
    qsort(times, (size_t)runs, sizeof *times, ByValue);
    const double flop = 2.0 * ROWS * COLS * USED * tokens;
    printf("%-5s %-12s %5d tokens %9.1f us %8.0f GFLOP/s (%.0f .. %.0f, %d runs)", ggml_type_name(type),
           ggml_backend_buft_name(buft), tokens, 1e6 * times[runs / 2], 1e-9 * flop / times[runs / 2],
           1e-9 * flop / times[runs - 1], 1e-9 * flop / times[0], runs);
    float row[ROWS];
    ggml_backend_tensor_get(out[0], row, 0, sizeof row);
    double far = 0, norm = 0;
    for (int i = 0; i < ROWS; ++i) {
      far += pow(row[i] - first[i], 2), norm += pow(first[i], 2);
      if (norm == 0) first[i] = row[i];
    }
    if (first[ROWS - 1] != row[ROWS - 1]) printf(", differs by %.2g", sqrt(far / norm));
    printf("\n");
    fflush(stdout);
    ggml_backend_buffer_free(data);
  }
  if (held != NULL) ggml_backend_buffer_free(held);
  ggml_free(weights), ggml_free(rest);
  return data != NULL ? 0 : -1;
}

int main(int argc, char **argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 16, copies = argc > 2 ? atoi(argv[2]) : 4;
  const double seconds = argc > 3 ? atof(argv[3]) : 0.5;
  if (threads < 1 || copies < 1 || copies > MOST_COPIES) return fprintf(stderr, "bad arguments\n"), 2;
  ggml_backend_load_all();
  ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ggml_backend_t backend = ggml_backend_dev_init(dev, NULL);
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
  ggml_backend_set_n_threads_t set_threads =
      (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
  set_threads(backend, threads);
  ggml_backend_dev_get_extra_bufts_t extra =
      (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
  ggml_backend_buffer_type_t *more = extra != NULL ? extra(dev) : NULL;
  printf("ggml %s, %s, %d threads, %d copies\n", ggml_version(), ggml_backend_dev_description(dev), threads, copies);
  const enum ggml_type types[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0};
  const int tokens[] = {1, 8, 32, 512};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    float *row = malloc(sizeof(float) * ROWS * COLS);
    for (int j = 0; j < ROWS * COLS; ++j) row[j] = Uniform();
    void *expert = malloc(ggml_row_size(types[i], COLS) * ROWS);
    ggml_quantize_chunk(types[i], row, expert, 0, ROWS, COLS, NULL);
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; ++t) {
      float first[ROWS] = {0};
      Measure(backend, ggml_backend_dev_buffer_type(dev), types[i], tokens[t], copies, seconds, expert, first);
      for (ggml_backend_buffer_type_t *buft = more; buft != NULL && *buft != NULL; ++buft) {
        if (Measure(backend, *buft, types[i], tokens[t], copies, seconds, expert, first) < 0 && t == 0) {
          printf("%-5s %-12s does not multiply it\n", ggml_type_name(types[i]), ggml_backend_buft_name(*buft));
        }
      }
    }
    free(row), free(expert);
  }
  ggml_backend_free(backend);
  return 0;
}
