/* Opaque records and slots, shards, and progress of create. C99, also compiled as C++. */
#include <stdint.h>
#include <stdlib.h>

#include "check.h"
#include "examples/c_host/tiny_experts.h"

enum { kLayers = 2, kExperts = 6, kTopK = 2, kBytes = 5000 };

static int destroyed = 0;

static unsigned char byte_of(int32_t layer, int32_t expert, int32_t part, int64_t i) {
  return (unsigned char)(layer * 97 + expert * 31 + part * 7 + i);
}

static moert_code read_part(void *user_data, int32_t layer, int32_t expert, int32_t part, void *dst,
                            int64_t bytes, moert_failure *failure) {
  int64_t i;
  if (*(int *)user_data) {
    moert_failure_set(failure, "the disk is gone");
    return MOERT_DATA_LOSS;
  }
  for (i = 0; i < bytes; ++i) ((unsigned char *)dst)[i] = byte_of(layer, expert, part, i);
  return MOERT_OK;
}

/* A row of results: its pair's input, and the first byte of the expert's second part. */
static moert_code multiply(void *user_data, const moert_cpu_job *job, moert_failure *failure) {
  int64_t e, i, c, pair = 0;
  (void)user_data;
  (void)failure;
  for (e = 0; e < job->num_experts; ++e) {
    for (i = 0; i < job->experts[e].pairs; ++i, ++pair) {
      const float *x = job->x + job->row_of[pair] * job->hidden;
      const float byte = (float)*(const unsigned char *)job->experts[e].part[1];
      for (c = 0; c < job->hidden; ++c) job->out[pair * job->hidden + c] = x[c] + byte;
    }
  }
  return MOERT_OK;
}

static void destroy(void *user_data) {
  (void)user_data;
  ++destroyed;
}

static void describe(moert_layer_spec *layers, moert_opaque_part *parts,
                     moert_opaque_options *options, int *broken) {
  int32_t l, p;
  for (l = 0; l < kLayers; ++l) {
    moert_layer_spec_init(&layers[l], sizeof(layers[l]));
    layers[l].model_layer = l;
    layers[l].num_experts = kExperts;
    layers[l].hidden = 16;
    layers[l].intermediate = 16;
    layers[l].routing = MOERT_ROUTING_EXTERNAL;
    layers[l].top_k = kTopK;
    for (p = 0; p < 2; ++p) {
      moert_opaque_part_init(&parts[2 * l + p], sizeof(parts[0]));
      parts[2 * l + p].layer = l;
      parts[2 * l + p].bytes = kBytes;
      parts[2 * l + p].alignment = 256;
    }
  }
  moert_opaque_options_init(options, sizeof(*options));
  options->read = read_part;
  options->user_data = broken;
  options->destroy = destroy;
  options->product = multiply;
}

static moert_code fetch(moert_step *step, int32_t layer, int32_t *ids, int64_t k,
                        moert_slots *slots, moert_error **error) {
  moert_fetch fetch;
  moert_fetch_init(&fetch, sizeof(fetch));
  moert_tensor_init(&fetch.ids, ids, 1, k, MOERT_I32);
  moert_slots_init(slots, sizeof(*slots));
  return moert_layer_fetch(step, layer, &fetch, slots, error);
}

static void test_copy(moert_step *step) {
  const int32_t some[2] = {1, kExperts};
  moert_slots slots;
  unsigned char *to;
  int32_t e;
  moert_slots_init(&slots, sizeof(slots));
  CHECK_OK(moert_layer_copy(step, 1, NULL, 0, NULL, &slots, &error));
  CHECK(slots.slots == kExperts);
  to = (unsigned char *)malloc((size_t)(slots.slots * slots.stride[0]));
  CHECK_OK(moert_layer_copy(step, 1, NULL, 0, to, &slots, &error));
  for (e = 0; e < kExperts; ++e) {
    const unsigned char *at = (const unsigned char *)slots.base[1] + e * slots.stride[1];
    CHECK(at > to && at[0] == byte_of(1, e, 1, 0) &&
          at[kBytes - 1] == byte_of(1, e, 1, kBytes - 1));
  }
  memset(to, 0xee, (size_t)(slots.slots * slots.stride[0]));
  CHECK_OK(moert_layer_copy(step, 1, some, 1, to, &slots, &error));
  for (e = 0; e < kExperts; ++e) {
    const unsigned char *at = (const unsigned char *)slots.base[1] + e * slots.stride[1];
    CHECK(e == some[0] ? at[0] == byte_of(1, e, 1, 0) : at[0] == 0xee && at[kBytes - 1] == 0xee);
  }
  CHECK_OK(moert_layer_copy(step, 1, some, 0, to, &slots, &error));
  CHECK_FAILS(moert_layer_copy(step, 1, some, 2, to, &slots, &error), MOERT_INVALID_ARGUMENT,
              "experts of layer 1", "moert_layer_copy");
  CHECK_FAILS(moert_layer_copy(step, 1, NULL, 1, to, &slots, &error), MOERT_INVALID_ARGUMENT,
              "num_experts is 1", "moert_layer_copy");
  free(to);
  CHECK_FAILS(moert_layer_copy(step, kLayers, NULL, 0, NULL, &slots, &error),
              MOERT_INVALID_ARGUMENT, "legal is 0 to 1", "moert_layer_copy");
}

/* On the CPU backend nothing is shared: what is asked is checked, and nothing is written. */
static void test_cpu_rows(moert_step *step) {
  float rows[kTopK * 16] = {0}, other[kTopK * 16] = {0};
  moert_tensor to;
  moert_fetch fetch;
  moert_slots slots;
  int32_t ids[kTopK] = {1, 4};
  moert_fetch_init(&fetch, sizeof(fetch));
  moert_slots_init(&slots, sizeof(slots));
  moert_tensor_init(&fetch.ids, ids, 1, kTopK, MOERT_I32);
  moert_tensor_init(&fetch.cpu_rows, rows, 1, 15, MOERT_F32);
  CHECK_FAILS(moert_layer_fetch(step, 1, &fetch, &slots, &error), MOERT_INVALID_ARGUMENT,
              "cpu_rows", "moert_layer_fetch");
  moert_tensor_init(&fetch.cpu_rows, rows, 1, 16, MOERT_F32);
  fetch.any_slot = 2;
  CHECK_FAILS(moert_layer_fetch(step, 1, &fetch, &slots, &error), MOERT_INVALID_ARGUMENT,
              "fetch.any_slot is 2", "moert_layer_fetch");
  fetch.any_slot = 1;
  CHECK_OK(moert_layer_fetch(step, 1, &fetch, &slots, &error));
  CHECK(slots.slot_of_expert[1] >= 0 && slots.slot_of_expert[4] >= 0);
  moert_tensor_init(&to, rows, kTopK, 16, MOERT_F32);
  CHECK_OK(moert_cpu_rows_take(step, 1, &to, &error));
  CHECK(memcmp(rows, other, sizeof(rows)) == 0);
  to.rows = 1;
  CHECK_FAILS(moert_cpu_rows_take(step, 1, &to, &error), MOERT_INVALID_ARGUMENT,
              "takes f32 [2, 16]", "moert_cpu_rows_take");
  to.rows = kTopK;
  to.dtype = MOERT_BF16;
  CHECK_FAILS(moert_cpu_rows_take(step, 1, &to, &error), MOERT_INVALID_ARGUMENT, "takes f32",
              "moert_cpu_rows_take");
  CHECK_FAILS(moert_cpu_rows_take(step, kLayers, &to, &error), MOERT_INVALID_ARGUMENT,
              "legal is 0 to 1", "moert_cpu_rows_take");
  CHECK_FAILS(moert_cpu_rows_take(step, 1, NULL, &error), MOERT_INVALID_ARGUMENT, "rows",
              "moert_cpu_rows_take");
  CHECK_OK(moert_slots_release(step, 1, &error));
}

/* Expert 4 of layer 1 is in a slot. */
static void test_cpu_multiply(moert_step *step) {
  const int32_t experts[2] = {4, 0}, row_of[3] = {1, 0, 1}, far[3] = {1, 2, 0};
  const int64_t pairs[2] = {2, 1}, none[2] = {3, 0};
  float x[2 * 16], out[3 * 16];
  moert_tensor from, to;
  int i;
  for (i = 0; i < 2 * 16; ++i) x[i] = (float)i;
  moert_tensor_init(&from, x, 2, 16, MOERT_F32);
  moert_tensor_init(&to, out, 3, 16, MOERT_F32);
  CHECK_OK(moert_cpu_multiply(step, 1, experts, pairs, 2, &from, row_of, &to, &error));
  for (i = 0; i < 3 * 16; ++i) {
    const int32_t expert = i < 2 * 16 ? 4 : 0;
    CHECK(out[i] == x[row_of[i / 16] * 16 + i % 16] + (float)byte_of(1, expert, 1, 0));
  }
  CHECK_FAILS(moert_cpu_multiply(step, 1, experts, pairs, 2, &from, far, &to, &error),
              MOERT_INVALID_ARGUMENT, "row_of", "moert_cpu_multiply");
  CHECK_FAILS(moert_cpu_multiply(step, 1, experts, none, 2, &from, row_of, &to, &error),
              MOERT_INVALID_ARGUMENT, "pairs is 0", "moert_cpu_multiply");
  CHECK_FAILS(moert_cpu_multiply(step, kLayers, experts, pairs, 2, &from, row_of, &to, &error),
              MOERT_INVALID_ARGUMENT, "legal is 0 to 1", "moert_cpu_multiply");
  CHECK_FAILS(moert_cpu_multiply(step, 1, experts, pairs, 2, NULL, row_of, &to, &error),
              MOERT_INVALID_ARGUMENT, "x", "moert_cpu_multiply");
  from.cols = 15;
  CHECK_FAILS(moert_cpu_multiply(step, 1, experts, pairs, 2, &from, row_of, &to, &error),
              MOERT_INVALID_ARGUMENT, "x: [2, 15]", "moert_cpu_multiply");
}

static void test_slots(void) {
  moert_layer_spec layers[kLayers];
  moert_opaque_part parts[2 * kLayers];
  moert_opaque_options from;
  moert_engine_options options;
  moert_source *source = NULL;
  moert_engine *engine = NULL;
  moert_step *step = NULL;
  moert_slots slots;
  int32_t ids[kExperts] = {1, 4, 0, 2, 3, 5};
  int32_t unknown[kTopK] = {1, kExperts};
  int broken = 0, p, i, same = 1;
  float x[16] = {0};

  describe(layers, parts, &from, &broken);
  CHECK_OK(moert_source_create_opaque("toy", layers, kLayers, parts, 2 * kLayers, &from, &source,
                                      &error));
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.34; /* of 12 experts, 4 */
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  moert_source_destroy(source);
  CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
  CHECK_OK(fetch(step, 1, ids, kTopK, &slots, &error));
  CHECK(slots.parts == 2);
  CHECK(slots.slot_of_expert[0] == -1);
  for (p = 0; p < 2; ++p) {
    for (i = 0; i < kTopK; ++i) {
      const int32_t slot = slots.slot_of_expert[ids[i]];
      const unsigned char *at = (const unsigned char *)slots.base[p] + slot * slots.stride[p];
      CHECK(slot >= 0 && slot < slots.slots);
      CHECK((uintptr_t)at % 256 == 0);
      same = same && at[0] == byte_of(1, ids[i], p, 0);
      same = same && at[kBytes - 1] == byte_of(1, ids[i], p, kBytes - 1);
    }
    CHECK(slots.bytes[p] == kBytes);
  }
  CHECK(same);
  test_cpu_multiply(step);
  CHECK_FAILS(fetch(step, 1, unknown, kTopK, &slots, &error), MOERT_INVALID_ARGUMENT,
              "expert 6 does not exist", "moert_layer_fetch");
  CHECK_FAILS(fetch(step, kLayers, ids, kTopK, &slots, &error), MOERT_INVALID_ARGUMENT,
              "legal is 0 to 1", "moert_layer_fetch");
  CHECK_FAILS(fetch(step, 0, ids, kExperts, &slots, &error), MOERT_RESOURCE_EXHAUSTED,
              "ask for at most 2 at once", "moert_layer_fetch");
  CHECK_OK(moert_slots_release(step, 1, &error));
  CHECK_OK(moert_slots_release(step, 1, &error)); /* nothing left */
  test_copy(step);
  test_cpu_rows(step);
  CHECK_FAILS(fetch(step, 0, ids, kExperts, &slots, &error), MOERT_RESOURCE_EXHAUSTED,
              "ask for at most 4 at once", "moert_layer_fetch");
  CHECK_FAILS(forward(step, 0, x, 16, 1, x, &error), MOERT_FAILED_PRECONDITION, "use Fetch",
              "moert_layer_forward");
  CHECK_OK(moert_step_end(step, &error)); /* nothing of this was a failure of the step */
  broken = 1;
  CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
  CHECK_FAILS(fetch(step, 0, ids, kTopK, &slots, &error), MOERT_DATA_LOSS, "the disk is gone",
              "moert_layer_fetch");
  CHECK(moert_step_end(step, NULL) == MOERT_DATA_LOSS);
  CHECK(destroyed == 0);
  moert_engine_destroy(engine);
  CHECK(destroyed == 1);
}

static void test_bad_sources(void) {
  moert_layer_spec layers[kLayers];
  moert_opaque_part parts[2 * kLayers];
  moert_opaque_options from;
  moert_source *source = NULL;
  int broken = 0;
  const char *files[1] = {"/no/such/file.gguf"};
#define REFUSED(text)                                                                       \
  CHECK_FAILS(moert_source_create_opaque("toy", layers, kLayers, parts, 2 * kLayers, &from, \
                                         &source, &error),                                  \
              MOERT_INVALID_ARGUMENT, text, "moert_source_create_opaque")
  describe(layers, parts, &from, &broken);
  destroyed = 0;
  parts[1].bytes = 0;
  REFUSED("toy layer 0: part 1: bytes is 0");
  parts[1].bytes = kBytes;
  parts[2].alignment = 96;
  REFUSED("toy layer 1: part 0: alignment is 96");
  parts[2].alignment = 256;
  parts[3].layer = 0;
  parts[3].file = 0;
  REFUSED("file is 0, there are 0");
  parts[3].file = -1;
  from.read = NULL;
  REFUSED("neither in memory nor in a file");
  from.read = read_part;
  layers[0].routing = MOERT_ROUTING_SOFTMAX_TOPK;
  REFUSED("needs the gate");
  layers[0].routing = MOERT_ROUTING_EXTERNAL;
  from.files = files;
  from.num_files = 1;
  CHECK_FAILS(moert_source_create_opaque("toy", layers, kLayers, parts, 2 * kLayers, &from, &source,
                                         &error),
              MOERT_NOT_FOUND, "/no/such/file.gguf", "moert_source_create_opaque");
#undef REFUSED
  CHECK(destroyed == 0); /* user_data stays ours on failure */
  CHECK(source == NULL);
}

static moert_code count_progress(void *user_data, int64_t loaded, int64_t total) {
  int *calls = (int *)user_data;
  CHECK(loaded > 0 && loaded <= total);
  return ++*calls == 2 ? MOERT_CANCELLED : MOERT_OK;
}

static void test_shards(void) {
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_source *source = NULL;
  moert_engine *engine = NULL;
  moert_engine_options options;
  moert_shard shards[2];
  int calls = 0, s;
  float x[kTinyHidden], y[kTinyHidden], sum[kTinyHidden], whole[kTinyHidden];
  int i;

  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = tiny_read;
  callbacks.weights_dtype = MOERT_F32;
  CHECK_OK(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  moert_shard_init(&shards[0], sizeof(shards[0]));
  moert_shard_init(&shards[1], sizeof(shards[1]));
  shards[0].num_experts = 3;
  shards[1].first_expert = 2;
  shards[1].num_experts = kTinyExperts - 2;
  shards[1].shared_experts = 0;
  CHECK_FAILS(moert_shards_check(source, shards, 2, &error), MOERT_INVALID_ARGUMENT,
              "shards 0 and 1 overlap: both own expert 2 of layer 0", "moert_shards_check");
  shards[1].first_expert = 3;
  shards[1].num_experts = kTinyExperts - 4;
  CHECK_FAILS(moert_shards_check(source, shards, 2, &error), MOERT_INVALID_ARGUMENT,
              "no shard owns expert", "moert_shards_check");
  shards[1].num_experts = kTinyExperts - 3;
  CHECK_OK(moert_shards_check(source, shards, 2, &error));

  for (i = 0; i < kTinyHidden; ++i) {
    x[i] = tiny_input(i);
    sum[i] = 0;
  }
  for (s = -1; s < 2; ++s) {
    moert_step *step = NULL;
    moert_engine_options_init(&options, sizeof(options));
    options.shard = s < 0 ? NULL : &shards[s];
    CHECK_OK(moert_engine_create(source, &options, &engine, &error));
    CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
    CHECK_OK(forward(step, 0, x, kTinyHidden, 1, s < 0 ? whole : y, &error));
    CHECK_OK(moert_step_end(step, &error));
    moert_engine_destroy(engine);
    for (i = 0; s >= 0 && i < kTinyHidden; ++i) sum[i] += y[i];
  }
  for (i = 0; i < kTinyHidden; ++i) {
    const float difference = sum[i] - whole[i];
    CHECK(difference < 1e-5f && difference > -1e-5f);
  }

  moert_engine_options_init(&options, sizeof(options));
  options.strategy = "resident";
  options.open_user_data = &calls;
  options.open_progress = count_progress;
  engine = NULL;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_CANCELLED,
              "open_progress gave up", "moert_engine_create");
  CHECK(engine == NULL);
  CHECK(calls == 2);
  options.open_progress = NULL;
  options.numa_node = 1000;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "numa_node 1000", "moert_engine_create");
  moert_source_destroy(source);
}

int main(void) {
  test_slots();
  test_bad_sources();
  test_shards();
  return check_failures == 0 ? 0 : 1;
}
