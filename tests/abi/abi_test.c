/* The C ABI's contract, seen from a C99 host (also compiled as C++). */
#include <math.h>
#include <stdint.h>

#include "check.h"
#include "examples/c_host/tiny_experts.h"

/* A host's model whose reads fail on demand. */
typedef struct host_model {
  moert_dtype dtype;
  int fail;         /* every read of an expert fails */
  moert_code code;  /* with this */
  const char *why;  /* and this reason */
  int destroyed;
} host_model;

static uint16_t to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof(bits));
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static float from_bf16(uint16_t v) {
  const uint32_t bits = (uint32_t)v << 16;
  float f;
  memcpy(&f, &bits, sizeof(f));
  return f;
}

/* Normal numbers in f16's range, truncated: test weights need no more. */
static uint16_t to_f16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof(bits));
  if ((bits & 0x7fffffffu) < 0x38800000u) return (uint16_t)((bits >> 16) & 0x8000u);
  return (uint16_t)(((bits >> 16) & 0x8000u) | (((bits & 0x7fffffffu) - 0x38000000u) >> 13));
}

static float from_f16(uint16_t v) {
  const uint32_t magnitude = v & 0x7fffu;
  const uint32_t bits = ((uint32_t)(v & 0x8000u) << 16) |
                        (magnitude == 0 ? 0 : (magnitude << 13) + 0x38000000u);
  float f;
  memcpy(&f, &bits, sizeof(f));
  return f;
}

static moert_code host_read(void *user_data, const moert_read *read, moert_failure *failure) {
  const host_model *model = (const host_model *)user_data;
  const int64_t count = read->dst.rows * read->dst.cols;
  int64_t i;
  if (read->struct_size < sizeof(moert_read)) return MOERT_INTERNAL;
  if (model->fail && read->part <= MOERT_PART_DOWN_PROJ) {
    moert_failure_set(failure, model->why);
    return model->code;
  }
  if (read->part > MOERT_PART_DOWN_PROJ || model->dtype == MOERT_F32) {
    if (read->dst.dtype != MOERT_F32 || read->dst.place != MOERT_HOST) return MOERT_INTERNAL;
    return tiny_read(NULL, read, failure);
  }
  if (read->dst.dtype != model->dtype || read->dst.row_stride != read->dst.cols) {
    return MOERT_INTERNAL;
  }
  for (i = 0; i < count; ++i) {
    const float w =
        tiny_weight(read->layer, read->expert, read->part, read->first_row * read->dst.cols + i);
    ((uint16_t *)read->dst.data)[i] = model->dtype == MOERT_BF16 ? to_bf16(w) : to_f16(w);
  }
  return MOERT_OK;
}

static void host_destroy(void *user_data) { ++((host_model *)user_data)->destroyed; }

static moert_source *make_source(host_model *model) {
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_source *source = NULL;
  tiny_layers(layers);
  layers[1].shared_intermediate = 32;
  layers[1].shared_gate = 1;
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.user_data = model;
  callbacks.read = host_read;
  callbacks.destroy = host_destroy;
  callbacks.weights_dtype = model->dtype;
  CHECK_OK(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  return source;
}

static moert_step *begin(moert_engine *engine, int64_t rows) {
  moert_step_options options;
  moert_step *step = NULL;
  moert_step_options_init(&options, sizeof(options));
  options.rows = rows;
  CHECK_OK(moert_step_begin(engine, &options, &step, &error));
  return step;
}

/* ---- The same layer, written down plainly. */

static float weight(const host_model *model, int32_t layer, int32_t expert, int32_t part,
                    int64_t index) {
  const float w = tiny_weight(layer, expert, part, index);
  return from_bf16(to_bf16(model->dtype == MOERT_F16 ? from_f16(to_f16(w)) : w));
}

static void plain_expert(const host_model *model, int32_t layer, int32_t expert, int intermediate,
                         const float *x, double scale, double *out) {
  double h[kTinyIntermediate];
  int i, j;
  for (i = 0; i < intermediate; ++i) {
    double gate = 0, up = 0;
    for (j = 0; j < kTinyHidden; ++j) {
      gate += x[j] * weight(model, layer, expert, MOERT_PART_GATE_PROJ, i * kTinyHidden + j);
      up += x[j] * weight(model, layer, expert, MOERT_PART_UP_PROJ, i * kTinyHidden + j);
    }
    h[i] = gate / (1 + exp(-gate)) * up;
  }
  for (i = 0; i < kTinyHidden; ++i) {
    double sum = 0;
    for (j = 0; j < intermediate; ++j) {
      sum += h[j] * weight(model, layer, expert, MOERT_PART_DOWN_PROJ, i * intermediate + j);
    }
    out[i] += scale * sum;
  }
}

static void plain_layer(const host_model *model, int32_t layer, const float *x, double *out) {
  double score[kTinyExperts], total = 0;
  int first = 0, second = -1, e, j;
  for (e = 0; e < kTinyExperts; ++e) {
    double logit = 0;
    for (j = 0; j < kTinyHidden; ++j) {
      logit += x[j] * tiny_weight(layer, 0, MOERT_PART_ROUTER, e * kTinyHidden + j);
    }
    score[e] = exp(logit);
    total += score[e];
  }
  (void)total; /* cancels: the weights are renormalized */
  for (e = 1; e < kTinyExperts; ++e) {
    if (score[e] > score[first]) first = e;
  }
  for (e = 0; e < kTinyExperts; ++e) {
    if (e != first && (second < 0 || score[e] > score[second])) second = e;
  }
  for (j = 0; j < kTinyHidden; ++j) out[j] = 0;
  total = score[first] + score[second];
  plain_expert(model, layer, first, kTinyIntermediate, x, score[first] / total, out);
  plain_expert(model, layer, second, kTinyIntermediate, x, score[second] / total, out);
  if (layer == 1) {
    double gate = 0;
    for (j = 0; j < kTinyHidden; ++j) {
      gate += x[j] * tiny_weight(layer, 0, MOERT_PART_SHARED_GATE, j);
    }
    plain_expert(model, layer, MOERT_SHARED_EXPERT, 32, x, 1 / (1 + exp(-gate)), out);
  }
}

static void test_forward(moert_dtype dtype) {
  enum { kRows = 3, kStride = kTinyHidden + 5 };
  host_model model = {MOERT_F32, 0, MOERT_OK, "", 0};
  float x[kRows * kStride], y[kRows * kStride];
  moert_engine_options options;
  moert_engine *engine = NULL;
  moert_source *source;
  moert_step *step;
  moert_tensor in, out;
  int32_t layer;
  int t, i;
  model.dtype = dtype;
  source = make_source(&model);
  moert_engine_options_init(&options, sizeof(options));
  options.numerics = MOERT_NUMERICS_F32;
  options.budget_fraction = 0.25;
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  moert_source_destroy(source); /* the engine keeps it */
  CHECK(model.destroyed == 0);
  for (i = 0; i < kRows * kStride; ++i) x[i] = tiny_input(i);
  moert_tensor_init(&in, x, kRows, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, kRows, kTinyHidden, MOERT_F32);
  CHECK(in.data == x && in.row_stride == kTinyHidden && in.place == MOERT_HOST);
  in.row_stride = out.row_stride = kStride;
  step = begin(engine, kRows);
  for (layer = 0; layer < kTinyLayers; ++layer) {
    for (i = 0; i < kRows * kStride; ++i) y[i] = -777;
    CHECK_OK(moert_layer_forward(step, layer, &in, NULL, &out, &error));
    for (t = 0; t < kRows; ++t) {
      double expected[kTinyHidden];
      plain_layer(&model, layer, x + t * kStride, expected);
      for (i = 0; i < kTinyHidden; ++i) {
        CHECK(fabs(y[t * kStride + i] - expected[i]) < 1e-4 * (1 + fabs(expected[i])));
      }
      for (i = kTinyHidden; i < kStride; ++i) CHECK(y[t * kStride + i] == -777);
    }
  }
  CHECK_OK(moert_step_end(step, &error));
  moert_engine_destroy(engine);
  CHECK(model.destroyed == 1);
}

static void test_version_and_codes(void) {
  CHECK(moert_version() == MOERT_VERSION_MAJOR * 10000 + MOERT_VERSION_MINOR * 100 +
                               MOERT_VERSION_PATCH);
  CHECK(strcmp(moert_code_name(MOERT_OK), "OK") == 0);
  CHECK(strcmp(moert_code_name(MOERT_UNAUTHENTICATED), "UNAUTHENTICATED") == 0);
  CHECK(strcmp(moert_code_name(-17), "UNKNOWN") == 0);
  CHECK(strcmp(moert_code_name(1), "UNKNOWN") == 0);
  moert_error_destroy(NULL);
  CHECK(moert_error_code(NULL) == MOERT_OK);
  CHECK(strcmp(moert_error_message(NULL), "") == 0);
  CHECK(strcmp(moert_error_origin(NULL), "") == 0);
  moert_failure_set(NULL, "nobody listens");
}

static void test_struct_sizes(void) {
  host_model model = {MOERT_F32, 0, MOERT_OK, "", 0};
  struct {
    moert_memory known;
    int64_t from_the_future[3];
  } memory;
  struct {
    moert_engine_options known;
    int64_t from_the_future[2];
  } options;
  moert_source *source = make_source(&model);

  /* A newer host's larger struct is legal while its new fields are zero; ours come back zeroed. */
  memset(&memory, 0x55, sizeof(memory));
  moert_memory_init(&memory.known, sizeof(memory));
  CHECK(memory.known.struct_size == sizeof(memory));
  memory.from_the_future[1] = 7;
  moert_engine_options_init(&options.known, sizeof(options));
  CHECK_OK(moert_memory_plan(source, &options.known, &memory.known, &error));
  CHECK(memory.known.struct_size == sizeof(memory));
  CHECK(memory.known.total_experts == kTinyLayers * kTinyExperts);
  CHECK(memory.known.minimum_bytes > 0);
  CHECK(memory.from_the_future[1] == 0);
  options.from_the_future[1] = 1;
  CHECK_FAILS(moert_memory_plan(source, &options.known, &memory.known, &error), MOERT_INVALID_ARGUMENT,
              "options: byte", "moert_memory_plan");

  /* A struct nobody initialized. */
  memset(&options, 0, sizeof(options));
  CHECK_FAILS(moert_memory_plan(source, &options.known, &memory.known, &error), MOERT_INVALID_ARGUMENT,
              "call its _init function", "moert_memory_plan");
  memory.known.struct_size = 8;
  CHECK_FAILS(moert_memory_plan(source, NULL, &memory.known, &error), MOERT_INVALID_ARGUMENT,
              "memory.struct_size is 8", "moert_memory_plan");
  moert_memory_init(NULL, 100);
  moert_source_destroy(source);
  CHECK(model.destroyed == 1);
}

static void test_source_errors(void) {
  host_model model = {MOERT_F32, 0, MOERT_OK, "", 0};
  moert_layer_spec layers[kTinyLayers], spec;
  moert_source_callbacks callbacks;
  moert_source *source = (moert_source *)&model; /* untouched on failure */
  moert_source *const untouched = source;
  const char *const f = "moert_source_create";
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.user_data = &model;
  callbacks.destroy = host_destroy;
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "callbacks.read", f);
  callbacks.read = host_read;
  callbacks.weights_dtype = MOERT_U8;
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "weights_dtype is 4", f);
  callbacks.weights_dtype = MOERT_F32;
  callbacks.schemes = "bf16,w5a16";
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "w5a16", f);
  callbacks.schemes = NULL;
  CHECK_FAILS(moert_source_create("x", NULL, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "layers", f);
  CHECK_FAILS(moert_source_create("x", layers, 0, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "num_layers is 0", f);
  CHECK_FAILS(moert_source_create("x", layers, (uint64_t)1 << 60, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "num_layers", f);
  CHECK_FAILS(moert_source_create("x", layers, 2, NULL, &source, &error), MOERT_INVALID_ARGUMENT,
              "callbacks", f);
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, NULL, &error),
              MOERT_INVALID_ARGUMENT, "source", f);
  layers[1].struct_size += 8;
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "layers[1].struct_size", f);
  layers[1].struct_size -= 8;
  layers[1].top_k = 9;
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "top_k is 9", f);
  layers[1].top_k = 2;
  layers[1].renormalize = 2;
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "renormalize is 2", f);
  layers[1].renormalize = 1;
  layers[1].routing = 44;
  CHECK_FAILS(moert_source_create("x", layers, 2, &callbacks, &source, &error),
              MOERT_INVALID_ARGUMENT, "routing kind is 44", f);
  CHECK(source == untouched);
  CHECK(model.destroyed == 0); /* user_data stayed ours */

  source = make_source(&model);
  CHECK(moert_source_layer_count(source) == kTinyLayers);
  CHECK(strcmp(moert_source_name(source), "tiny") == 0);
  moert_layer_spec_init(&spec, sizeof(spec));
  CHECK_OK(moert_source_layer(source, 1, &spec, &error));
  CHECK(spec.hidden == kTinyHidden && spec.shared_intermediate == 32 && spec.shared_gate == 1);
  CHECK(spec.top_k == kTinyTopK && spec.renormalize == 1 && spec.scaling == 1.0f);
  CHECK_FAILS(moert_source_layer(source, 2, &spec, &error), MOERT_INVALID_ARGUMENT, "layer is 2",
              "moert_source_layer");
  moert_source_destroy(source);
  CHECK(model.destroyed == 1);
  CHECK(moert_source_layer_count(NULL) == 0);
  CHECK(strcmp(moert_source_name(NULL), "") == 0);
  moert_source_destroy(NULL);
}

static void test_layer_errors(moert_step *step, float *x, float *y) {
  const char *const f = "moert_layer_forward";
  moert_tensor in, out;
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, 1, kTinyHidden, MOERT_F32);
  CHECK_FAILS(moert_layer_forward(step, 2, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "layer is 2", f);
  CHECK_FAILS(moert_layer_forward(step, -1, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "layer is -1", f);
  CHECK_FAILS(moert_layer_forward(step, 0, NULL, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "x: must not be NULL", f);
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, NULL, &error), MOERT_INVALID_ARGUMENT,
              "out: must not be NULL", f);
  CHECK_FAILS(moert_layer_forward(NULL, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT, "step",
              f);
  in.place = MOERT_DEVICE;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "x.place is 1 (MOERT_DEVICE), the cpu backend takes MOERT_HOST", f);
  in.place = MOERT_HOST;
  out.place = 7;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "out.place is 7", f);
  out.place = MOERT_HOST;
  in.dtype = out.dtype = 6;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT, "dtype",
              f);
  in.dtype = MOERT_F32;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "out.dtype is 6, that of x is 0", f);
  out.dtype = MOERT_F32;
  in.row_stride = kTinyHidden - 1;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "row stride 63", f);
  in.row_stride = kTinyHidden;
  in.cols = kTinyHidden - 1;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "[1, 63]", f);
  in.cols = kTinyHidden;
  out.rows = 2;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT, "out",
              f);
  out.rows = 1;
  in.data = NULL;
  CHECK_FAILS(moert_layer_forward(step, 0, &in, NULL, &out, &error), MOERT_INVALID_ARGUMENT, "null",
              f);
  CHECK_OK(forward(step, 0, x, kTinyHidden, 1, x, &error)); /* in place */
}

static void test_engine_errors(void) {
  host_model model = {MOERT_BF16, 0, MOERT_OK, "", 0};
  float x[kTinyHidden], y[kTinyHidden];
  moert_source *source = make_source(&model);
  moert_engine_options options;
  moert_engine *engine = NULL;
  moert_memory memory, plan;
  moert_graph_needs needs;
  moert_step_options info;
  moert_step *step = NULL;
  int i;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  moert_memory_init(&memory, sizeof(memory));
  moert_memory_init(&plan, sizeof(plan));
  moert_engine_options_init(&options, sizeof(options));
  CHECK_FAILS(moert_engine_create(NULL, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "source", "moert_engine_create");
  options.strategy = "no-such";
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "on-demand", "moert_engine_create");
  options.strategy = NULL;
  options.clock = 5;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "options.clock is 5", "moert_engine_create");
  options.clock = MOERT_CLOCK_WALL;
  options.io_threads = 99;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "io_threads = 99", "moert_engine_create");
  options.io_threads = 2;
  CHECK_OK(moert_memory_plan(source, &options, &plan, &error));
  options.budget_bytes = plan.minimum_bytes - 1;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "below the minimum", "moert_engine_create");
  CHECK(engine == NULL);
  CHECK(moert_engine_create(source, &options, &engine, NULL) == MOERT_INVALID_ARGUMENT);

  options.budget_bytes = plan.minimum_bytes + 3 * plan.block_bytes;
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  CHECK_OK(moert_engine_memory(engine, &memory, &error));
  CHECK(memory.slots == 4 && memory.budget_bytes == options.budget_bytes);
  CHECK(moert_engine_exact(engine) == 1);
  CHECK(moert_engine_graph_safe(engine) == 0); /* there is no graph on a CPU */
  moert_graph_needs_init(&needs, sizeof(needs));
  needs.capturable = needs.eager_every = 7;
  CHECK_OK(moert_engine_graph_needs(engine, &needs, &error));
  CHECK(needs.capturable == 0 && needs.eager_every == 0);
  CHECK(strstr(needs.obstacle, "computes on the host") != NULL);
  CHECK_FAILS(moert_engine_graph_needs(NULL, &needs, &error), MOERT_INVALID_ARGUMENT, "engine",
              "moert_engine_graph_needs");
  CHECK(strcmp(moert_engine_strategy(engine), "on-demand") == 0);
  CHECK(moert_engine_layer_count(engine) == kTinyLayers);
  CHECK(moert_engine_now_ns(engine) >= 0);

  CHECK_FAILS(moert_engine_set_budget(engine, 100, 0, &error), MOERT_INVALID_ARGUMENT,
              "below the minimum", "moert_engine_set_budget");
  CHECK_FAILS(moert_engine_set_budget(engine, 0, 1.5, &error), MOERT_INVALID_ARGUMENT, "1.5",
              "moert_engine_set_budget");
  CHECK_OK(moert_engine_memory(engine, &memory, &error));
  CHECK(memory.slots == 4);
  CHECK_OK(moert_engine_set_budget(engine, plan.minimum_bytes, 0, &error));
  CHECK_OK(moert_engine_memory(engine, &memory, &error));
  CHECK(memory.slots == 1);
  CHECK_OK(moert_engine_set_budget(engine, 0, 1.0, &error));
  CHECK_OK(moert_engine_memory(engine, &memory, &error));
  CHECK(memory.slots == kTinyLayers * kTinyExperts);

  moert_step_options_init(&info, sizeof(info));
  CHECK(info.rows == 1 && info.phase == MOERT_DECODE);
  info.phase = 2;
  CHECK_FAILS(moert_step_begin(engine, &info, &step, &error), MOERT_INVALID_ARGUMENT,
              "options.phase is 2", "moert_step_begin");
  info.phase = MOERT_PREFILL;
  info.rows = -5;
  CHECK_FAILS(moert_step_begin(engine, &info, &step, &error), MOERT_INVALID_ARGUMENT,
              "options.rows is -5", "moert_step_begin");
  info.rows = 1000000;
  CHECK_FAILS(moert_step_begin(engine, &info, &step, &error), MOERT_INVALID_ARGUMENT, "1000000",
              "moert_step_begin");
  info.rows = 1;
  info.stream = (moert_stream)(void *)x;
  CHECK_FAILS(moert_step_begin(engine, &info, &step, &error), MOERT_INVALID_ARGUMENT, "stream",
              "moert_step_begin");
  CHECK(step == NULL);
  CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
  test_layer_errors(step, x, y);
  /* Misuse is not the step's failure. */
  CHECK_OK(moert_step_status(step, &error));

  /* A step keeps its engine alive, and the engine its source. */
  moert_engine_destroy(engine);
  moert_source_destroy(source);
  CHECK(model.destroyed == 0);
  CHECK_OK(forward(step, 1, x, kTinyHidden, 1, y, &error));
  CHECK_OK(moert_step_end(step, &error));
  CHECK(model.destroyed == 1);

  CHECK_OK(moert_step_end(NULL, &error));
  moert_engine_destroy(NULL);
  CHECK(moert_engine_layer_count(NULL) == 0 && moert_engine_exact(NULL) == 0);
  CHECK(moert_engine_graph_safe(NULL) == 0);
  CHECK_FAILS(moert_step_status(NULL, &error), MOERT_INVALID_ARGUMENT, "step", "moert_step_status");
}

/* ---- Resident-forward prediction. */

typedef struct forward_host {
  float x[kTinyLayers][kTinyHidden]; /* what the layers will get */
  int calls, refuse;
} forward_host;

static moert_code predict_next(void *user_data, int32_t layer, const moert_tensor *partial,
                               const moert_tensor *next_input) {
  forward_host *host = (forward_host *)user_data;
  int i;
  ++host->calls;
  CHECK(layer == 0 && partial->data != NULL && partial->dtype == MOERT_F32);
  CHECK(partial->rows == 1 && partial->cols == kTinyHidden);
  CHECK(next_input->rows == 1 && next_input->cols == kTinyHidden);
  if (host->refuse) return MOERT_UNAVAILABLE;
  for (i = 0; i < kTinyHidden; ++i) ((float *)next_input->data)[i] = host->x[1][i];
  return MOERT_OK;
}

static void test_predict_next(void) {
  host_model model = {MOERT_BF16, 0, MOERT_OK, "", 0};
  forward_host host;
  float y[kTinyHidden];
  moert_source *source = make_source(&model);
  moert_engine *engine = NULL;
  moert_engine_options options;
  moert_step_options info;
  moert_stats stats;
  int s, i, l;
  memset(&host, 0, sizeof(host));
  moert_engine_options_init(&options, sizeof(options));
  options.strategy = "importance:alpha=0";
  options.clock = MOERT_CLOCK_VIRTUAL;
  options.budget_fraction = 0.5;
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  for (s = 0; s < 20; ++s) {
    moert_step *step = NULL;
    moert_step_options_init(&info, sizeof(info));
    CHECK(info.predict_next == NULL && info.user_data == NULL);
    info.predict_next = predict_next;
    info.user_data = &host;
    host.refuse = s >= 10;
    for (l = 0; l < kTinyLayers; ++l) {
      for (i = 0; i < kTinyHidden; ++i) host.x[l][i] = tiny_input(i + 1000 * (s * kTinyLayers + l));
    }
    CHECK_OK(moert_step_begin(engine, &info, &step, &error));
    for (l = 0; l < kTinyLayers; ++l) {
      CHECK_OK(forward(step, l, host.x[l], kTinyHidden, 1, y, &error));
    }
    CHECK_OK(moert_step_end(step, &error));
  }
  moert_stats_init(&stats, sizeof(stats));
  CHECK_OK(moert_engine_stats(engine, &stats, &error));
  CHECK(host.calls == 20);
  CHECK(metric(engine, "moert_predictions_resident_forward_total") == 10);
  CHECK(metric(engine, "moert_predictions_next_gate_total") == 30);
  CHECK(metric(engine, "moert_lookups_total") == (double)stats.lookups);
  CHECK(metric(engine, "moert_no_such_metric") == -1);
  CHECK(stats.policy_fallbacks == 10);
  CHECK_FAILS(moert_metrics_visit(engine, NULL, NULL, &error), MOERT_INVALID_ARGUMENT, "visit",
              "moert_metrics_visit");
  moert_engine_destroy(engine);
  moert_source_destroy(source);
}

static void test_failing_reads(void) {
  host_model model = {MOERT_F32, 0, MOERT_DATA_LOSS, "the disk is gone", 0};
  float x[kTinyHidden], first[kTinyHidden], again[kTinyHidden];
  moert_source *source = make_source(&model);
  moert_engine *engine = NULL;
  moert_step *step;
  moert_stats stats;
  int i;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  CHECK_OK(moert_engine_create(source, NULL, &engine, &error));
  model.fail = 1;
  step = begin(engine, 1);
  CHECK_FAILS(forward(step, 0, x, kTinyHidden, 1, first, &error),
              MOERT_DATA_LOSS, "tiny layer 0 expert", "moert_layer_forward");
  CHECK_FAILS(forward(step, 0, x, kTinyHidden, 1, first, &error),
              MOERT_DATA_LOSS, "the disk is gone", "moert_layer_forward");
  CHECK_FAILS(moert_step_status(step, &error), MOERT_DATA_LOSS, "the disk is gone",
              "moert_step_status");
  CHECK_FAILS(moert_step_end(step, &error), MOERT_DATA_LOSS, "the disk is gone", "moert_step_end");
  model.code = 12345; /* not a code */
  step = begin(engine, 1);
  CHECK_FAILS(forward(step, 0, x, kTinyHidden, 1, first, &error),
              MOERT_INTERNAL, "12345", "moert_layer_forward");
  moert_step_end(step, NULL);

  model.fail = 0;
  step = begin(engine, 1);
  CHECK_OK(forward(step, 0, x, kTinyHidden, 1, first, &error));
  CHECK_OK(moert_step_end(step, &error));
  model.fail = 1; /* what is resident still answers */
  step = begin(engine, 1);
  CHECK_OK(forward(step, 0, x, kTinyHidden, 1, again, &error));
  CHECK_OK(moert_step_end(step, &error));
  CHECK(memcmp(first, again, sizeof(first)) == 0);
  moert_stats_init(&stats, sizeof(stats));
  CHECK_OK(moert_engine_stats(engine, &stats, &error));
  CHECK(stats.loads == kTinyTopK);
  CHECK(stats.hits_resident == kTinyTopK);
  CHECK(stats.peak_bytes > 0 && stats.peak_bytes <= stats.budget_bytes);
  moert_engine_destroy(engine);

  /* Fixed parts are read at create. */
  engine = NULL;
  model.code = MOERT_UNAVAILABLE;
  CHECK_FAILS(moert_engine_create(source, NULL, &engine, &error), MOERT_UNAVAILABLE,
              "the disk is gone", "moert_engine_create");
  CHECK(engine == NULL);
  moert_source_destroy(source);
  CHECK(model.destroyed == 1);
}

static int log_lines;
static void count_line(void *user_data, const char *line) {
  CHECK(user_data == &log_lines);
  CHECK(strlen(line) > 0);
  ++log_lines;
}

static void test_open(const char *model_dir, const char *cache_dir) {
  moert_source *source = NULL;
  moert_open_options options;
  moert_layer_spec spec;
  moert_open_options_init(&options, sizeof(options));
  options.cache_dir = cache_dir;
  options.mode = MOERT_OPEN_PACK;
  options.log = count_line;
  options.user_data = &log_lines;
  CHECK_FAILS(moert_source_open(cache_dir, &options, &source, &error), MOERT_NOT_FOUND,
              "config.json", "moert_source_open");
  CHECK_FAILS(moert_source_open_pack(cache_dir, &source, &error), MOERT_NOT_FOUND, "moert.json",
              "moert_source_open_pack");
  CHECK_FAILS(moert_source_open(NULL, &options, &source, &error), MOERT_INVALID_ARGUMENT,
              "model_dir", "moert_source_open");
  options.mode = 3;
  CHECK_FAILS(moert_source_open(model_dir, &options, &source, &error), MOERT_INVALID_ARGUMENT,
              "options.mode is 3", "moert_source_open");
  options.mode = MOERT_OPEN_PACK;
  CHECK(source == NULL);
  CHECK_OK(moert_source_open(model_dir, &options, &source, &error));
  CHECK(log_lines > 0);
  CHECK(moert_source_layer_count(source) > 1);
  moert_layer_spec_init(&spec, sizeof(spec));
  CHECK_OK(moert_source_layer(source, 0, &spec, &error));
  CHECK(spec.num_experts > spec.top_k && spec.hidden > 0);
  moert_source_destroy(source);
}

static void test_lists(void) {
  moert_probe_info probe;
  moert_strategy_info strategy;
  int32_t i, found = 0;
  moert_probe_info_init(&probe, sizeof(probe));
  CHECK_OK(moert_probe(&probe, &error));
  CHECK(probe.cpus >= 1);
  CHECK(probe.memory_bytes > 0 && probe.memory_available_bytes > 0);
  CHECK(probe.memory_available_bytes <= probe.memory_bytes);
  CHECK(strstr(probe.kernels, "reference") != NULL);
  CHECK(strncmp(probe.schemes, "bf16,", 5) == 0);
  moert_strategy_info_init(&strategy, sizeof(strategy));
  for (i = 0; i < moert_strategy_count(); ++i) {
    CHECK_OK(moert_strategy_at(i, &strategy, &error));
    CHECK(strlen(strategy.summary) > 0);
    if (strcmp(strategy.name, "on-demand") == 0) {
      ++found;
      CHECK(strstr(strategy.keys, "scheme") != NULL);
    }
  }
  CHECK(found == 1);
  CHECK_FAILS(moert_strategy_at(i, &strategy, &error), MOERT_INVALID_ARGUMENT, "index is",
              "moert_strategy_at");
  CHECK_FAILS(moert_strategy_at(-1, &strategy, &error), MOERT_INVALID_ARGUMENT, "index is -1",
              "moert_strategy_at");
}

int main(int argc, char **argv) {
  test_version_and_codes();
  test_struct_sizes();
  test_source_errors();
  test_engine_errors();
  test_predict_next();
  test_failing_reads();
  test_lists();
  if (argc != 3) {
    fprintf(stderr, "usage: abi_test MODEL_DIR EMPTY_DIR\n");
    return 2;
  }
  test_open(argv[1], argv[2]);
  test_forward(MOERT_F32);
  test_forward(MOERT_BF16);
  test_forward(MOERT_F16);
  if (check_failures != 0) fprintf(stderr, "%d checks failed\n", check_failures);
  return check_failures != 0;
}
