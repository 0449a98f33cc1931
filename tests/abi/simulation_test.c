/* Engines that simulate, what a trace sink sees, and policies over two versions of every expert: all
 * without a record being read. C99, also compiled as C++. */
#include <math.h>
#include <stdint.h>

#include "check.h"
#include "examples/c_host/tiny_experts.h"

enum { kSteps = 40 };

/* A simulation reads nothing but what always stays in the fast tier. */
static moert_code read_constants(void *user_data, const moert_read *read, moert_failure *failure) {
  (void)user_data;
  if (read->expert == 0 && read->part != MOERT_PART_RECORD) return tiny_read(NULL, read, failure);
  moert_failure_set(failure, "an expert was read");
  return MOERT_INTERNAL;
}

/* Two versions of every expert. */
static moert_source *make_source(void) {
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_source *source = NULL;
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = read_constants;
  callbacks.schemes = "bf16,w4a16_g128";
  CHECK_OK(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  return source;
}

static moert_engine *make_engine(const char *strategy, double fraction,
                                 const moert_policies *policies, const moert_trace_sink *sink) {
  moert_source *source = make_source();
  moert_engine_options options;
  moert_engine *engine = NULL;
  moert_engine_options_init(&options, sizeof(options));
  options.clock = MOERT_CLOCK_SIMULATION;
  options.strategy = strategy;
  options.budget_fraction = fraction;
  options.policies = policies;
  options.trace_sink = sink;
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  moert_source_destroy(source);
  if (engine == NULL) exit(1); /* nothing below makes sense */
  return engine;
}

/* A routing of one token that wanders over the experts. */
static void route(int step, int32_t layer, int32_t ids[kTinyTopK], float weights[kTinyTopK],
                  moert_routing *routing) {
  ids[0] = (step * step + layer) % kTinyExperts;
  ids[1] = (ids[0] + 1 + step % 3) % kTinyExperts;
  weights[0] = 0.75f;
  weights[1] = 0.25f;
  moert_routing_init(routing, sizeof(*routing));
  moert_tensor_init(&routing->ids, ids, 1, kTinyTopK, MOERT_I32);
  moert_tensor_init(&routing->weights, weights, 1, kTinyTopK, MOERT_F32);
}

static void decode(moert_engine *engine) {
  int s;
  for (s = 0; s < kSteps; ++s) {
    moert_step_options options;
    moert_step *step = NULL;
    const int64_t request = 7;
    int32_t layer;
    moert_step_options_init(&options, sizeof(options));
    options.request_ids = &request;
    CHECK_OK(moert_step_begin(engine, &options, &step, &error));
    for (layer = 0; layer < kTinyLayers; ++layer) {
      int32_t ids[kTinyTopK];
      float weights[kTinyTopK];
      moert_routing routing;
      route(s, layer, ids, weights, &routing);
      CHECK_OK(moert_layer_forward(step, layer, NULL, &routing, NULL, &error));
    }
    CHECK_OK(moert_step_end(step, &error));
  }
}

static moert_stats stats_of(const moert_engine *engine) {
  moert_stats stats;
  moert_stats_init(&stats, sizeof(stats));
  CHECK_OK(moert_engine_stats(engine, &stats, &error));
  return stats;
}

static void test_simulation(void) {
  moert_engine *engine = make_engine(NULL, 0.5, NULL, NULL);
  moert_engine *again = make_engine(NULL, 0.5, NULL, NULL);
  moert_step *step = NULL;
  moert_lease *lease = NULL;
  moert_stats stats;
  const int32_t expert = 0;
  decode(engine);
  decode(again);
  stats = stats_of(engine);
  CHECK(stats.lookups == kSteps * kTinyLayers * kTinyTopK);
  CHECK(stats.loads > 0 && stats.evictions > 0 && stats.hits_resident > 0 && stats.stalled_ns > 0);
  CHECK(stats.peak_bytes <= stats.budget_bytes);
  /* To the nanosecond, every time. */
  CHECK(moert_engine_now_ns(engine) > 0);
  CHECK(moert_engine_now_ns(engine) == moert_engine_now_ns(again));
  moert_engine_destroy(again);
  CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
  CHECK_FAILS(moert_layer_forward(step, 0, NULL, NULL, NULL, &error), MOERT_FAILED_PRECONDITION,
              "simulate", "moert_layer_forward");
  CHECK_FAILS(moert_lease_acquire(step, 0, &expert, 1, &lease, &error), MOERT_FAILED_PRECONDITION,
              "simulate", "moert_lease_acquire");
  CHECK_OK(moert_step_end(step, &error));
  moert_engine_destroy(engine);
}

/* Recorded times are charged in place of the profile's costs. */
static void test_recorded_times(void) {
  moert_engine *engine = make_engine("resident", 1, NULL, NULL);
  moert_step *step = NULL;
  moert_call_times times;
  moert_memory memory;
  moert_routing routing;
  int32_t ids[kTinyTopK];
  float weights[kTinyTopK];
  int64_t before;
  /* Every expert has a block of its own. */
  moert_memory_init(&memory, sizeof(memory));
  CHECK_OK(moert_engine_memory(engine, &memory, &error));
  CHECK(memory.own_bytes == kTinyLayers * kTinyExperts * memory.block_bytes);
  moert_call_times_init(&times, sizeof(times));
  times.end_ns = 7000000;
  times.multiply_ns = 4000000;
  times.route_ns = 1000000;
  CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
  route(1, 0, ids, weights, &routing);
  routing.times = &times;
  routing.idle_before_ns = 5000;
  before = moert_engine_now_ns(engine);
  CHECK_OK(moert_layer_forward(step, 0, NULL, &routing, NULL, &error));
  CHECK(moert_engine_now_ns(engine) - before == 7005000);
  times.struct_size = 3;
  CHECK_FAILS(moert_layer_forward(step, 0, NULL, &routing, NULL, &error), MOERT_INVALID_ARGUMENT,
              "routing.times.struct_size is 3", "moert_layer_forward");
  CHECK_OK(moert_step_end(step, &error));
  moert_engine_destroy(engine);
}

/* ---- A sink. */

typedef struct seen {
  int calls, loads, layer_spans, destroyed;
  int64_t last_end;
} seen;

static void on_call(void *user_data, const moert_trace_call *call) {
  seen *s = (seen *)user_data;
  CHECK(call->struct_size == sizeof(*call) && call->times->struct_size == sizeof(*call->times));
  CHECK(call->tokens == 1 && call->top_k == kTinyTopK && call->phase == MOERT_DECODE);
  CHECK(call->request_ids != NULL && call->request_ids[0] == 7);
  CHECK(call->step == s->calls / kTinyLayers && call->layer == s->calls % kTinyLayers);
  CHECK(call->weights[0] == 0.75f && call->ids[0] == (call->step * call->step + call->layer) % 8);
  CHECK(call->scores == NULL && call->num_experts == 0); /* the routing came without */
  CHECK(call->times->begin_ns >= s->last_end && call->times->end_ns >= call->times->begin_ns);
  s->last_end = call->times->end_ns;
  ++s->calls;
}

static void on_span(void *user_data, const moert_trace_span *span) {
  seen *s = (seen *)user_data;
  CHECK(span->end_ns >= span->begin_ns && strlen(span->name) > 0);
  if (span->track == MOERT_TRACK_LINK) {
    CHECK(span->bytes > 0 && span->expert >= 0 && span->expert < kTinyExperts);
    ++s->loads;
  }
  s->layer_spans += span->track == MOERT_TRACK_LAYERS;
}

static void count_destroyed(void *user_data) { ++((seen *)user_data)->destroyed; }

static void test_sink(const char *folder) {
  moert_trace_sink sink;
  moert_engine *engine;
  moert_engine_options options;
  moert_source *source;
  seen s;
  char path[4096];
  memset(&s, 0, sizeof(s));
  moert_trace_sink_init(&sink, sizeof(sink));
  sink.user_data = &s;
  sink.on_call = on_call;
  sink.on_span = on_span;
  sink.destroy = count_destroyed;
  engine = make_engine(NULL, 0.5, NULL, &sink);
  decode(engine);
  CHECK(s.calls == kSteps * kTinyLayers && s.layer_spans > 0);
  CHECK(s.loads == stats_of(engine).loads);
  CHECK_FAILS(moert_engine_close_trace(engine, &error), MOERT_FAILED_PRECONDITION, "trace_path",
              "moert_engine_close_trace");
  CHECK(s.destroyed == 0);
  moert_engine_destroy(engine);
  CHECK(s.destroyed == 1);

  /* Beside files; a failed create leaves the sink to its host. */
  snprintf(path, sizeof(path), "%s/with_sink.trace", folder);
  moert_engine_options_init(&options, sizeof(options));
  options.clock = MOERT_CLOCK_SIMULATION;
  options.budget_fraction = 0.5;
  options.trace_sink = &sink;
  options.trace_path = path;
  options.trace_replace = 1;
  source = make_source();
  options.strategy = "no-such";
  CHECK(moert_engine_create(source, &options, &engine, NULL) == MOERT_INVALID_ARGUMENT);
  CHECK(s.destroyed == 1);
  options.strategy = NULL;
  memset(&s, 0, sizeof(s));
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  moert_source_destroy(source);
  decode(engine);
  CHECK_OK(moert_engine_close_trace(engine, &error));
  CHECK(s.calls == kSteps * kTinyLayers);
  s.calls = 0;
  s.last_end = 0;
  moert_engine_destroy(engine);
  CHECK(s.destroyed == 1);
}

/* ---- Policies over two versions. */

typedef struct two_versions {
  int initial, decided, valued, transferred, upgrades, placed, backfills, checked;
  int fail;         /* precision_initial fails */
  int64_t first;    /* what precision_initial names */
  int32_t capacity; /* of each layer */
} two_versions;

static moert_code initial(void *user_data, const int32_t *high_capacity, int32_t num_layers,
                          int64_t total_experts, int64_t *high, int64_t *num_high,
                          moert_failure *failure) {
  two_versions *p = (two_versions *)user_data;
  ++p->initial;
  CHECK(num_layers == kTinyLayers && total_experts == kTinyLayers * kTinyExperts);
  CHECK(high_capacity[0] >= 1 && high_capacity[0] < kTinyExperts);
  p->capacity = high_capacity[0];
  high[0] = p->first;
  *num_high = 1;
  if (p->fail) {
    moert_failure_set(failure, "the hot set is not known yet");
    return MOERT_UNAVAILABLE;
  }
  return MOERT_OK;
}

static moert_code decide(void *user_data, const moert_precision_snapshot *snapshot,
                         int64_t *promote, int64_t *num_promote, int64_t *demote,
                         int64_t *num_demote) {
  two_versions *p = (two_versions *)user_data;
  int64_t e;
  CHECK(snapshot->total_experts == kTinyLayers * kTinyExperts);
  CHECK(snapshot->num_layers == kTinyLayers && snapshot->context->now_ns > 0);
  if (p->decided++ > 0) return MOERT_OK;
  /* Layer 0: its last expert in place of one that is high. */
  for (e = 0; e < kTinyExperts && !snapshot->high[e]; ++e) continue;
  demote[(*num_demote)++] = e;
  promote[(*num_promote)++] = kTinyExperts - 1;
  return MOERT_OK;
}

static moert_code worth(void *user_data, const moert_precision_snapshot *snapshot, double *worth) {
  int64_t e;
  ++((two_versions *)user_data)->valued;
  for (e = 0; e < snapshot->total_experts; ++e) worth[e] = (double)e;
  return MOERT_OK;
}

static int high_experts(const moert_engine *engine, int32_t layer, uint8_t *states) {
  int e, high = 0;
  CHECK_OK(moert_engine_residency(engine, layer, states, kTinyExperts, &error));
  for (e = 0; e < kTinyExperts; ++e) high += states[e] == MOERT_RESIDENT_HIGH;
  return high;
}

static void test_precision(void) {
  moert_policies policies;
  moert_engine *engine = NULL;
  moert_source *source;
  moert_engine_options options;
  moert_memory memory;
  two_versions p;
  uint8_t states[kTinyExperts];
  int before;
  memset(&p, 0, sizeof(p));
  moert_policies_init(&policies, sizeof(policies));
  policies.user_data = &p;
  policies.precision_initial = initial;
  policies.precision_decide = decide;
  policies.precision_worth = worth;
  p.first = 5;
  engine = make_engine("dynaexq:hi=bf16,lo=w4a16_g128,interval_ms=1,spare=1", 0.9,
                       &policies, NULL);
  CHECK(p.initial == 1 && moert_engine_exact(engine) == 0);
  before = high_experts(engine, 0, states);
  CHECK(states[5] == MOERT_RESIDENT_HIGH && before == p.capacity);
  decode(engine);
  CHECK(p.decided > 1);
  high_experts(engine, 0, states);
  CHECK(states[kTinyExperts - 1] == MOERT_RESIDENT_HIGH); /* as decided */
  moert_memory_init(&memory, sizeof(memory));
  CHECK_OK(moert_engine_memory(engine, &memory, &error));
  CHECK(memory.low_slots > 0 && memory.low_block_bytes < memory.block_bytes);
  /* A smaller budget: those worth least go. */
  CHECK_OK(moert_engine_set_budget(engine, memory.budget_bytes - 2 * memory.block_bytes, 0, &error));
  CHECK(p.valued > 0 && high_experts(engine, 0, states) < before);
  CHECK(states[kTinyExperts - 1] == MOERT_RESIDENT_HIGH); /* worth most of its layer */
  CHECK(stats_of(engine).policy_fallbacks == 0);
  moert_engine_destroy(engine);

  /* An answer that is missing or illegal refuses the engine. */
  source = make_source();
  moert_engine_options_init(&options, sizeof(options));
  options.clock = MOERT_CLOCK_SIMULATION;
  options.strategy = "dynaexq:hi=bf16,lo=w4a16_g128,spare=1";
  options.budget_fraction = 0.9;
  options.policies = &policies;
  engine = NULL;
  p.fail = 1;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_UNAVAILABLE,
              "the hot set is not known yet", "moert_engine_create");
  p.fail = 0;
  p.first = kTinyLayers * kTinyExperts;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "precision_initial", "moert_engine_create");
  CHECK(engine == NULL);
  moert_source_destroy(source);
}

static moert_code transfer(void *user_data, const moert_transfer_snapshot *snapshot,
                           int32_t *version) {
  two_versions *p = (two_versions *)user_data;
  CHECK(snapshot->num_versions == 2 && snapshot->context->layer < kTinyLayers);
  CHECK(snapshot->expert >= 0 && snapshot->expert < kTinyExperts && snapshot->tokens >= 0);
  CHECK(snapshot->layer_counts == NULL || snapshot->num_experts == kTinyExperts);
  ++p->transferred;
  *version = 1;
  return MOERT_OK;
}

static moert_code upgrades(void *user_data, const moert_policy_context *context, int32_t *yes) {
  two_versions *p = (two_versions *)user_data;
  ++p->upgrades;
  CHECK(context->num_request_ids == 1);
  *yes = 1;
  return MOERT_OK;
}

static void test_transfers(void) {
  moert_policies policies;
  moert_engine *engine;
  two_versions p;
  memset(&p, 0, sizeof(p));
  moert_policies_init(&policies, sizeof(policies));
  policies.user_data = &p;
  policies.precision_transfer = transfer;
  policies.precision_upgrades = upgrades;
  engine = make_engine("fate:scheme=bf16,low=w4a16_g128,control=0", 0.5, &policies, NULL);
  decode(engine);
  CHECK(p.transferred > 0 && p.upgrades > 0);
  CHECK(metric(engine, "moert_low_loads_total") > 0);
  CHECK(stats_of(engine).policy_fallbacks == 0);
  moert_engine_destroy(engine);
}

/* ---- Misses, and what a model allows. */

static moert_code place(void *user_data, const moert_placement_snapshot *snapshot,
                        moert_placement *decisions) {
  two_versions *p = (two_versions *)user_data;
  int64_t i;
  CHECK(snapshot->num_misses >= 1 && snapshot->link_busy_ns >= 0);
  for (i = 0; i < snapshot->num_misses; ++i) {
    const moert_miss *miss = &snapshot->misses[i];
    CHECK(miss->tokens == 1 && miss->bytes > 0 && miss->load_ns > 0 && miss->mass > 0);
    CHECK(miss->arriving == 0 || miss->arriving == 1);
    CHECK(miss->cpu_ns < 0); /* the reference profile has no CPU beside its device */
    decisions[i] = MOERT_LOAD_MISS;
  }
  ++p->placed;
  return MOERT_OK;
}

static moert_code backfills(void *user_data, const moert_policy_context *context,
                            int32_t free_slots, int32_t *yes) {
  CHECK(free_slots == 0 || free_slots == 1);
  CHECK(context->layer < kTinyLayers);
  ++((two_versions *)user_data)->backfills;
  *yes = 1;
  return MOERT_OK;
}

static moert_code check_model(void *user_data, const moert_layer_spec *layers, int32_t num_layers,
                              moert_failure *failure) {
  two_versions *p = (two_versions *)user_data;
  ++p->checked;
  CHECK(num_layers == kTinyLayers && layers[1].struct_size == sizeof(moert_layer_spec));
  CHECK(layers[0].num_experts == kTinyExperts && layers[1].model_layer == 1);
  if (!p->fail) return MOERT_OK;
  moert_failure_set(failure, "these rules need 16 experts");
  return MOERT_FAILED_PRECONDITION;
}

static moert_code keep_rule(void *user_data, const moert_policy_context *context,
                            moert_routing_rule *rule) {
  (void)user_data;
  CHECK(context->layer < kTinyLayers && rule->struct_size == sizeof(*rule));
  return MOERT_OK;
}

static void test_placement_and_check(void) {
  moert_policies policies;
  moert_engine *engine;
  moert_engine_options options;
  moert_source *source = make_source();
  two_versions p;
  memset(&p, 0, sizeof(p));
  moert_policies_init(&policies, sizeof(policies));
  policies.user_data = &p;
  policies.placement = place;
  policies.placement_backfills = backfills;
  policies.routing_check = check_model;
  policies.routing_rule = keep_rule;
  engine = make_engine(NULL, 0.5, &policies, NULL);
  decode(engine);
  CHECK(p.placed > 0 && p.checked == 1 && stats_of(engine).policy_fallbacks == 0);
  moert_engine_destroy(engine);
  moert_engine_options_init(&options, sizeof(options));
  options.clock = MOERT_CLOCK_SIMULATION;
  options.policies = &policies;
  p.fail = 1;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_FAILED_PRECONDITION,
              "these rules need 16 experts", "moert_engine_create");
  moert_source_destroy(source);
}

/* ---- Records. */

static void test_records(void) {
  moert_source *source = make_source();
  moert_record_info info;
  char byte;
  CHECK(moert_source_version_count(source) == 2 && moert_source_version_count(NULL) == 0);
  moert_record_info_init(&info, sizeof(info));
  CHECK_OK(moert_source_record(source, 1, 7, 1, &info, &error));
  CHECK(strcmp(info.version, "w4a16_g128") == 0 && strcmp(info.down.scheme, "w4a16_g128") == 0);
  CHECK(info.gate.rows == kTinyIntermediate && info.gate.k == kTinyHidden && info.hadamard == 0);
  CHECK(info.down.scale_bytes > 0 && info.down.scale_offset + info.down.scale_bytes <= info.bytes);
  CHECK_FAILS(moert_source_record(source, 2, 0, 0, &info, &error), MOERT_INVALID_ARGUMENT,
              "layer is 2, legal is 0 to 1", "moert_source_record");
  CHECK_FAILS(moert_source_record(source, 0, 8, 0, &info, &error), MOERT_INVALID_ARGUMENT,
              "expert is 8, legal is 0 to 7", "moert_source_record");
  CHECK_FAILS(moert_source_record(source, 0, 0, 2, &info, &error), MOERT_INVALID_ARGUMENT,
              "version is 2, legal is 0 to 1", "moert_source_record");
  CHECK_FAILS(moert_source_read(source, 0, 0, 0, &byte, 1, &error), MOERT_INVALID_ARGUMENT,
              "dst_bytes is 1, the record takes", "moert_source_read");
  moert_source_destroy(source);
}

/* Experts given by rows, read as the record that the library packs. */
static void test_read_record(void) {
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_source *source = NULL;
  moert_record_info info;
  unsigned char *record;
  uint32_t bits;
  float first;
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = tiny_read;
  callbacks.weights_dtype = MOERT_F32;
  CHECK_OK(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  moert_record_info_init(&info, sizeof(info));
  CHECK_OK(moert_source_record(source, 1, 3, 0, &info, &error));
  record = (unsigned char *)malloc((size_t)info.bytes + 1);
  record[info.bytes] = 77;
  CHECK_OK(moert_source_read(source, 1, 3, 0, record, (uint64_t)info.bytes, &error));
  CHECK(record[info.bytes] == 77); /* not a byte more */
  bits = (uint32_t)record[info.up.weight_offset] << 16 |
         (uint32_t)record[info.up.weight_offset + 1] << 24;
  memcpy(&first, &bits, sizeof(first));
  CHECK(fabs(first - tiny_weight(1, 3, MOERT_PART_UP_PROJ, 0)) <= fabs(first) / 256);
  free(record);
  moert_source_destroy(source);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: simulation_test FOLDER\n");
    return 2;
  }
  test_simulation();
  test_recorded_times();
  test_sink(argv[1]);
  test_precision();
  test_transfers();
  test_placement_and_check();
  test_records();
  test_read_record();
  if (check_failures != 0) fprintf(stderr, "%d checks failed\n", check_failures);
  return check_failures != 0;
}
