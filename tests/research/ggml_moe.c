// Times an expert layer of ggml on the CPU in each kind of weight buffer that it offers, the repacked ones
// included: gate, up, SiLU and down, without the weighted sum. cpu_rivals.py sets it beside libmoert's.
//
//   cc -O2 tests/research/ggml_moe.c -IGGML/include -LBUILD/bin -lggml -lggml-base -lm -Wl,-rpath,BUILD/bin -o ggml_moe
//   ./ggml_moe [THREADS [TOKENS,... [SECONDS [COPIES]]]]
//
// 128 experts, 8 a token, 768 x 2048 (Qwen3-30B-A3B's); a graph has several layers, which take turns with COPIES
// of the weights and choose other experts, so that caches do not hold them. A line of JSON for each type, buffer and number of tokens; us: the median of at least 5 graphs.
// differs: how far the first output row is from that of plain buffers, relative to its norm.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXPERTS = 128, USED = 8, HIDDEN = 2048, INNER = 768, MOST_COPIES = 16, MOST_LAYERS = 32, MOST_RUNS = 400, MOST_TOKENS = 8 };

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

struct Case {
  ggml_backend_t backend;
  ggml_backend_buffer_type_t buffers;
  enum ggml_type type;
  int copies, tokens;
  double seconds;
};

/* Gate, up and down of each copy. */
typedef struct ggml_tensor *Layer[3];

static void SetWeights(struct ggml_tensor *tensor) {
  const size_t bytes = ggml_row_size(tensor->type, tensor->ne[0]) * (size_t)tensor->ne[1];
  const size_t values = (size_t)(tensor->ne[0] * tensor->ne[1]);
  float *rows = malloc(sizeof(float) * values);
  srand(2);
  for (size_t i = 0; i < values; ++i) rows[i] = 0.04f * Uniform();
  char *all = malloc(bytes * EXPERTS);
  ggml_quantize_chunk(tensor->type, rows, all, 0, tensor->ne[1], tensor->ne[0], NULL);
  for (size_t e = 1; e < EXPERTS; ++e) memcpy(all + bytes * e, all, bytes);
  ggml_backend_tensor_set(tensor, all, 0, bytes * EXPERTS);
  free(rows), free(all);
}

static void SetRows(struct ggml_tensor *x) {
  for (int64_t i = 0; i < ggml_nelements(x); ++i) {
    const float value = Uniform();
    ggml_backend_tensor_set(x, &value, sizeof value * (size_t)i, sizeof value);
  }
}

/* A token takes one expert from each of 8 blocks of 16. */
static void SetChoice(struct ggml_tensor *ids) {
  for (int64_t i = 0; i < ggml_nelements(ids); ++i) {
    const int32_t expert = (int32_t)(i % USED) * (EXPERTS / USED) + rand() % (EXPERTS / USED);
    ggml_backend_tensor_set(ids, &expert, sizeof expert * (size_t)i, sizeof expert);
  }
}

/* Computes the graph again and again; the times of a layer, sorted. */
static int Times(const struct Case *of, struct ggml_cgraph *graph, int layers, double *times) {
  int runs = 0;
  ggml_backend_graph_compute(of->backend, graph);
  for (double begin = Now(); runs < MOST_RUNS && (runs < 5 || Now() - begin < of->seconds); ++runs) {
    const double t = Now();
    ggml_backend_graph_compute(of->backend, graph);
    times[runs] = 1e6 * (Now() - t) / layers;
  }
  qsort(times, (size_t)runs, sizeof *times, ByValue);
  return runs;
}

/* The first buffers of a type leave their first output row, for a comparison. */
static void Print(const struct Case *of, const double *times, int runs, struct ggml_tensor *out, float *first) {
  float row[HIDDEN];
  double far = 0, norm = 0, before = 0;
  ggml_backend_tensor_get(out, row, 0, sizeof row);
  for (int i = 0; i < HIDDEN; ++i) before += fabs(first[i]);
  if (before == 0) memcpy(first, row, sizeof row);
  for (int i = 0; i < HIDDEN; ++i) far += pow(row[i] - first[i], 2), norm += pow(first[i], 2);
  printf("{\"type\": \"%s\", \"buffer\": \"%s\", \"tokens\": %d, \"us\": %.1f, \"min\": %.1f, \"max\": %.1f, "
         "\"runs\": %d, \"differs\": %.2g}\n", ggml_type_name(of->type), ggml_backend_buft_name(of->buffers), of->tokens,
         times[runs / 2], times[0], times[runs - 1], runs, sqrt(far / norm));
  fflush(stdout);
}

/* One layer of the graph. */
static struct ggml_tensor *Output(struct ggml_context *context, const Layer layer, struct ggml_tensor *x, struct ggml_tensor *ids) {
  struct ggml_tensor *gate = ggml_mul_mat_id(context, layer[0], x, ids), *up = ggml_mul_mat_id(context, layer[1], x, ids);
  return ggml_mul_mat_id(context, layer[2], ggml_swiglu_split(context, gate, up), ids);
}

/* Whether the weights' buffers multiply this type. */
static int Supported(const struct Case *of, const Layer layer) {
  struct ggml_init_params params = {ggml_tensor_overhead() * 8, NULL, true};
  struct ggml_context *context = ggml_init(params);
  struct ggml_tensor *x = ggml_new_tensor_3d(context, GGML_TYPE_F32, HIDDEN, 1, 1);
  struct ggml_tensor *y = Output(context, layer, x, ggml_new_tensor_2d(context, GGML_TYPE_I32, USED, 1));
  const int supported = ggml_backend_dev_supports_op(ggml_backend_get_device(of->backend), y);
  ggml_free(context);
  return supported;
}

static void MeasureTokens(const struct Case *of, const Layer *layers, float *first) {
  struct ggml_init_params params = {ggml_tensor_overhead() * 8 * MOST_LAYERS + ggml_graph_overhead(), NULL, true};
  struct ggml_context *context = ggml_init(params);
  struct ggml_tensor *x = ggml_new_tensor_3d(context, GGML_TYPE_F32, HIDDEN, 1, of->tokens);
  struct ggml_tensor *ids[MOST_LAYERS], *out = NULL;
  struct ggml_cgraph *graph = ggml_new_graph(context);
  const int few = MOST_LAYERS / of->tokens, count = few > of->copies ? few : of->copies;
  for (int i = 0; i < count; ++i) {
    ids[i] = ggml_new_tensor_2d(context, GGML_TYPE_I32, USED, of->tokens);
    struct ggml_tensor *y = Output(context, layers[i % of->copies], x, ids[i]);
    ggml_build_forward_expand(graph, y);
    if (i == 0) out = y;
  }
  ggml_backend_buffer_t data = ggml_backend_alloc_ctx_tensors(context, of->backend);
  if (data != NULL) {
    srand(1);
    SetRows(x);
    for (int i = 0; i < count; ++i) SetChoice(ids[i]);
    double times[MOST_RUNS];
    const int runs = Times(of, graph, count, times);
    Print(of, times, runs, out, first);
    ggml_backend_buffer_free(data);
  }
  ggml_free(context);
}

/* `first`: a row for each number of tokens. */
static void Measure(struct Case *of, char *tokens, float (*first)[HIDDEN]) {
  struct ggml_init_params params = {ggml_tensor_overhead() * 3 * MOST_COPIES, NULL, true};
  struct ggml_context *context = ggml_init(params);
  Layer layers[MOST_COPIES];
  for (int c = 0; c < of->copies; ++c) {
    for (int p = 0; p < 3; ++p) {
      layers[c][p] = ggml_new_tensor_3d(context, of->type, p < 2 ? HIDDEN : INNER, p < 2 ? INNER : HIDDEN, EXPERTS);
    }
  }
  ggml_backend_buffer_t held = ggml_backend_alloc_ctx_tensors_from_buft(context, of->buffers);
  const int supported = held != NULL && Supported(of, layers[0]);
  for (int c = 0; c < of->copies && supported; ++c) {
    for (int p = 0; p < 3; ++p) SetWeights(layers[c][p]);
  }
  for (char *next = tokens; supported && *next != '\0'; next += *next == ',', ++first) {
    of->tokens = (int)strtol(next, &next, 10);
    MeasureTokens(of, (const Layer *)layers, *first);
  }
  if (held != NULL) ggml_backend_buffer_free(held);
  ggml_free(context);
}

int main(int argc, char **argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 16, copies = argc > 4 ? atoi(argv[4]) : 2;
  char *tokens = argc > 2 ? argv[2] : "1";
  if (threads < 1 || copies < 1 || copies > MOST_COPIES || strspn(tokens, "0123456789,") != strlen(tokens)) {
    return fprintf(stderr, "bad arguments\n"), 2;
  }
  ggml_backend_load_all();
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
  struct Case of = {.backend = ggml_backend_dev_init(device, NULL), .copies = copies, .seconds = argc > 3 ? atof(argv[3]) : 0.5};
  ggml_backend_set_n_threads_t set_threads =
      (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
  set_threads(of.backend, threads);
  ggml_backend_dev_get_extra_bufts_t extra =
      (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
  const enum ggml_type types[] = {GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_MXFP4};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    float first[MOST_TOKENS][HIDDEN] = {0};
    of.type = types[i], of.buffers = ggml_backend_dev_buffer_type(device);
    Measure(&of, tokens, first);
    for (ggml_backend_buffer_type_t *more = extra != NULL ? extra(device) : NULL; more != NULL && *more != NULL; ++more) {
      of.buffers = *more;
      Measure(&of, tokens, first);
    }
  }
  ggml_backend_free(of.backend);
  return 0;
}
