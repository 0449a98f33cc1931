/* A host's mistakes are refused by name, value and legal range, and nothing else happens. */
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"

enum { kRows = 2, kWidth = 128, kExperts = 32 };

static float input[kRows * kWidth], output[kRows * kWidth];

static moert_tensor rows_of(float* data) {
  moert_tensor tensor;
  moert_tensor_init(&tensor, data, kRows, kWidth, MOERT_F32);
  return tensor;
}

static void refuses_sources(const char* model, const moert_open_options* options) {
  moert_source* source = NULL;
  char file[4096];
  snprintf(file, sizeof(file), "%s/model.safetensors", model);
  CHECK_FAILS(moert_source_open("", options, &source, &error), MOERT_INVALID_ARGUMENT,
              "model_dir is empty, legal is a folder", "moert_source_open");
  CHECK_FAILS(moert_source_open("/no/such/folder", options, &source, &error), MOERT_NOT_FOUND,
              "there is no such folder", "moert_source_open");
  CHECK_FAILS(moert_source_open(file, options, &source, &error), MOERT_FAILED_PRECONDITION,
              "a checkpoint is a folder, this is a file", "moert_source_open");
  CHECK_FAILS(moert_source_open_pack("", &source, &error), MOERT_INVALID_ARGUMENT,
              "pack_dir is empty, legal is a folder", "moert_source_open_pack");
  CHECK_FAILS(moert_source_open_pack(model, &source, &error), MOERT_NOT_FOUND,
              "an expert pack is a folder that moert-pack quantize or QuantizeJob writes, this one "
              "is a checkpoint",
              "moert_source_open_pack");
  CHECK(source == NULL);
}

/* Parts of opaque records whose place makes no sense. */
static void refuses_parts(void) {
  static char memory[4096];
  const struct {
    const void* memory;
    int64_t offset, stride;
    int32_t file;
    const char* text;
  } cases[] = {
      {memory, 0, 0, -2, "part 0: file is -2, there are 0; -1: none"},
      {memory, 0, 63, -1, "stride is 63, legal is 0 or at least the 64 bytes of an expert"},
      {memory, INT64_MAX - 64, 0, -1, "ends behind the last address"},
      {memory, 0, INT64_MAX / 4, -1, "ends behind the last address"},
  };
  moert_layer_spec layer;
  size_t i;
  moert_layer_spec_init(&layer, sizeof(layer));
  layer.hidden = layer.intermediate = 64;
  layer.num_experts = 8;
  layer.routing = MOERT_ROUTING_EXTERNAL;
  for (i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    moert_source* source = NULL;
    moert_opaque_part part;
    moert_opaque_part_init(&part, sizeof(part));
    part.bytes = 64;
    part.memory = cases[i].memory;
    part.offset = cases[i].offset;
    part.stride = cases[i].stride;
    part.file = cases[i].file;
    CHECK_FAILS(moert_source_create_opaque("mine", &layer, 1, &part, 1, NULL, &source, &error),
                MOERT_INVALID_ARGUMENT, cases[i].text, "moert_source_create_opaque");
    CHECK(source == NULL);
  }
}

static void refuses_strategies(void) {
  moert_strategy_info info;
  moert_strategy_info_init(&info, sizeof(info));
  CHECK_FAILS(moert_strategy_register(&info, NULL, NULL, &error), MOERT_INVALID_ARGUMENT,
              "info.name: must not be NULL", "moert_strategy_register");
}

static void refuses_options(const moert_source* source) {
  moert_engine* engine = NULL;
  moert_engine_options options;
  moert_shard shard;
  const int32_t list[] = {0};
  moert_engine_options_init(&options, sizeof(options));
  options.cpus = "0-";
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "'0-' is no CPU or range of CPUs", "moert_engine_create");
  options.cpus = NULL;
  options.link_gbps = 1e-300; /* the first transfer would never end */
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "link_gbps = 1e-300: must be in [1e-9, 1e6], or 0", "moert_engine_create");
  options.link_gbps = 0;
  options.shard = &shard;
  moert_shard_init(&shard, sizeof(shard));
  shard.first_expert = 16; /* "from 16 on" is not what 0 experts mean */
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "first_expert is 16, and num_experts is 0", "moert_engine_create");
  shard.first_expert = 0;
  shard.expert_list = list;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "expert_list_size is 0", "moert_engine_create");
  CHECK(engine == NULL);
}

/* A budget that is too small by a byte does not read "1.4 MiB is below the minimum of 1.4 MiB". */
static void tells_budgets_apart(moert_engine* engine) {
  moert_memory memory;
  char bytes[64];
  moert_memory_init(&memory, sizeof(memory));
  CHECK_OK(moert_engine_memory(engine, &memory, &error));
  snprintf(bytes, sizeof(bytes), "below the minimum of %lld bytes",
           (long long)memory.minimum_bytes);
  CHECK_FAILS(moert_engine_set_budget(engine, memory.minimum_bytes - 1, 0, &error),
              MOERT_INVALID_ARGUMENT, bytes, "moert_engine_set_budget");
}

static void refuses_tensors(moert_step* step) {
  moert_tensor x = rows_of(input), out = rows_of(output);
  x.dtype = 99;
  CHECK_FAILS(moert_layer_forward(step, 0, &x, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "x.dtype is 99, legal is MOERT_F32, MOERT_BF16 or MOERT_F16", "moert_layer_forward");
  x.dtype = out.dtype = 256; /* 0, if it were cut to a byte */
  CHECK_FAILS(moert_layer_forward(step, 0, &x, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "x.dtype is 256", "moert_layer_forward");
  x = rows_of(input);
  out = rows_of(output);
  x.row_stride = INT64_MAX; /* the second row would lie before the first */
  CHECK_FAILS(moert_layer_forward(step, 0, &x, NULL, &out, &error), MOERT_INVALID_ARGUMENT,
              "with row stride 9223372036854775807", "moert_layer_forward");
}

static void refuses_completions(moert_step* step) {
  /* No descriptor, no eventfd (a write would raise SIGPIPE), one that blocks when it is full. */
  static const char* const why[] = {"not an open descriptor", "not an open descriptor",
                                    "no eventfd", "an eventfd that blocks"};
  int32_t wrong[] = {-2, 1 << 20, -1, -1};
  int ends[2];
  moert_tensor x = rows_of(input), out = rows_of(output);
  moert_completion completion;
  moert_call* call = NULL;
  int i;
  CHECK(pipe(ends) == 0);
  close(ends[0]);
  wrong[2] = ends[1];
  wrong[3] = eventfd(0, 0);
  moert_completion_init(&completion, sizeof(completion));
  for (i = 0; i < 4; ++i) {
    completion.eventfd = wrong[i];
    CHECK_FAILS(moert_layer_begin(step, 0, &x, NULL, &out, &completion, &call, &error),
                MOERT_INVALID_ARGUMENT, why[i], "moert_layer_begin");
  }
  CHECK(call == NULL);
  close(wrong[2]);
  close(wrong[3]);
}

/* Leases that leave no block: the message says who holds them and what to do. */
static void says_who_holds_the_blocks(moert_engine* engine, moert_step* step) {
  int32_t experts[kExperts], layer, e;
  moert_lease* leases[2] = {NULL, NULL};
  moert_tensor x = rows_of(input), out = rows_of(output);
  for (e = 0; e < kExperts; ++e) experts[e] = e;
  for (layer = 0; layer < 2; ++layer) {
    CHECK_OK(moert_lease_acquire(step, layer, experts, kExperts, &leases[layer], &error));
  }
  CHECK_FAILS(moert_layer_forward(step, 5, &x, NULL, &out, &error), MOERT_RESOURCE_EXHAUSTED,
              "layer 5: no block of the budget is free for a missing expert: leases or fetches "
              "hold them; release some, or raise the budget",
              "moert_layer_forward");
  CHECK_FAILS(moert_engine_set_budget(engine, 0, 0.1, &error), MOERT_FAILED_PRECONDITION,
              "64 experts are in use by layer calls, leases or fetches", "moert_engine_set_budget");
  for (layer = 0; layer < 2; ++layer) moert_lease_release(leases[layer]);
}

int main(int argc, char** argv) {
  moert_open_options open;
  moert_engine_options options;
  moert_step_options rows;
  moert_source* source;
  moert_engine* engine;
  moert_step* step;
  if (argc != 3) return fprintf(stderr, "usage: %s MODEL_DIR CACHE\n", argv[0]), 2;
  moert_open_options_init(&open, sizeof(open));
  open.cache_dir = argv[2];
  refuses_sources(argv[1], &open);
  refuses_parts();
  refuses_strategies();
  CHECK_OK(moert_source_open(argv[1], &open, &source, &error));
  refuses_options(source);
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.25;
  options.max_tokens_per_forward = kRows;
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  tells_budgets_apart(engine);
  moert_step_options_init(&rows, sizeof(rows));
  rows.rows = kRows;
  CHECK_OK(moert_step_begin(engine, &rows, &step, &error));
  refuses_tensors(step);
  refuses_completions(step);
  CHECK_OK(moert_step_status(step, &error));
  says_who_holds_the_blocks(engine, step);
  (void)moert_step_end(step, NULL);
  moert_engine_destroy(engine);
  moert_source_destroy(source);
  return check_failures != 0;
}
