/* A host's own parts and requests through the C ABI: policies, threads, memory, a log; split calls,
 * routings of its own, leases, hints, cancellation, traces. C99, also compiled as C++. */
#define _GNU_SOURCE 1
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "examples/c_host/tiny_experts.h"

static moert_source* make_source(void) {
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_source* source = NULL;
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = tiny_read;
  callbacks.weights_dtype = MOERT_F32;
  CHECK_OK(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  return source;
}

static moert_engine_options default_options(void) {
  moert_engine_options options;
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.25;
  options.clock = MOERT_CLOCK_VIRTUAL;
  return options;
}

static moert_engine* make_engine(const moert_engine_options* options) {
  moert_source* source = make_source();
  moert_engine* engine = NULL;
  CHECK_OK(moert_engine_create(source, options, &engine, &error));
  moert_source_destroy(source);
  return engine;
}

static moert_step* begin(moert_engine* engine) {
  moert_step* step = NULL;
  CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
  return step;
}

/* `tokens` decode steps over both layers; all outputs one after the other into out. */
enum { kOutputs = kTinyLayers * kTinyHidden };
static void decode(moert_engine* engine, int tokens, float* out) {
  float x[kTinyHidden];
  int token, i;
  for (token = 0; token < tokens; ++token) {
    moert_step* step = begin(engine);
    int32_t layer;
    for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(token * kTinyHidden + i);
    for (layer = 0; layer < kTinyLayers; ++layer, out += kTinyHidden) {
      CHECK_OK(forward(step, layer, x, kTinyHidden, 1, out, &error));
    }
    CHECK_OK(moert_step_end(step, &error));
  }
}

static moert_stats stats_of(const moert_engine* engine) {
  moert_stats stats;
  moert_stats_init(&stats, sizeof(stats));
  CHECK_OK(moert_engine_stats(engine, &stats, &error));
  return stats;
}

enum { kTokens = 12 };
static float expected[kTokens * kOutputs];
static moert_stats plain_stats; /* at half the experts: a choice between victims */

/* ---- Policies. */

typedef struct host_policies {
  int destroyed, observed, inserted, evicted, asked;
  int fail; /* every decision fails */
  int wild; /* every decision is out of range */
  moert_phase phase;
} host_policies;

static void policies_destroy(void* user_data) { ++((host_policies*)user_data)->destroyed; }

static void observe(void* user_data, const moert_policy_context* context,
                    const moert_routing_view* routing) {
  host_policies* host = (host_policies*)user_data;
  int32_t e, total = 0;
  CHECK(context->struct_size >= sizeof(*context));
  CHECK(routing->tokens == 1 && routing->top_k == kTinyTopK);
  CHECK(routing->num_experts == kTinyExperts && routing->scores != NULL);
  for (e = 0; e < kTinyExperts; ++e) total += routing->counts[e];
  CHECK(total == kTinyTopK);
  CHECK(routing->weights[0] >= routing->weights[1]);
  CHECK(fabs(routing->weights[0] + routing->weights[1] - 1.0f) < 1e-6f);
  host->phase = context->phase;
  ++host->observed;
}

static moert_code evict_newest(void* user_data, const moert_victim_snapshot* snapshot,
                               int64_t* victim) {
  host_policies* host = (host_policies*)user_data;
  int64_t i, best = 0;
  ++host->asked;
  CHECK(snapshot->num_candidates >= 1);
  CHECK(snapshot->context->struct_size == sizeof(moert_policy_context));
  for (i = 1; i < snapshot->num_candidates; ++i) {
    if (snapshot->candidates[i].last_used > snapshot->candidates[best].last_used) best = i;
  }
  if (host->fail) return MOERT_UNAVAILABLE;
  *victim = host->wild ? 1000000 : best;
  return MOERT_OK;
}

static void count_insert(void* user_data, int32_t layer, int32_t expert, int32_t prefetch) {
  CHECK(layer >= 0 && layer < kTinyLayers && expert >= 0 && expert < kTinyExperts);
  CHECK(prefetch == 0 || prefetch == 1);
  ++((host_policies*)user_data)->inserted;
}

static void count_evict(void* user_data, int32_t layer, int32_t expert) {
  CHECK(layer >= 0 && layer < kTinyLayers && expert >= 0 && expert < kTinyExperts);
  ++((host_policies*)user_data)->evicted;
}

static moert_code lopsided(void* user_data, const moert_capacity_snapshot* snapshot,
                           int32_t* capacity) {
  host_policies* host = (host_policies*)user_data;
  CHECK(snapshot->num_layers == kTinyLayers && snapshot->slots == 4);
  CHECK(snapshot->prefetch == NULL); /* the strategy has none */
  capacity[0] = 1;
  capacity[1] = host->wild ? 77 : 3;
  return host->fail ? MOERT_INTERNAL : MOERT_OK;
}

static moert_code rank_all(void* user_data, const moert_prefetch_snapshot* snapshot,
                           moert_prediction* ranked, int32_t capacity, int32_t* count) {
  host_policies* host = (host_policies*)user_data;
  int32_t e;
  CHECK(snapshot->target_experts == kTinyExperts && capacity == kTinyExperts);
  CHECK(snapshot->target_layer == (snapshot->context->layer + 1) % kTinyLayers);
  CHECK(snapshot->routing->tokens == 1 && snapshot->target_capacity > 0);
  CHECK(snapshot->predicted_scores != NULL); /* prefetch_wants_next_gate */
  ++host->asked;
  for (e = 0; e < kTinyExperts; ++e) {
    ranked[e].expert = host->wild ? 99 : e;
    ranked[e].score = (float)(kTinyExperts - e);
    ranked[e].tokens = 1;
  }
  *count = kTinyExperts;
  return host->fail ? MOERT_ABORTED : MOERT_OK;
}

static moert_code cache_rule(void* user_data, const moert_policy_context* context,
                             moert_routing_rule* rule) {
  host_policies* host = (host_policies*)user_data;
  CHECK(context->layer >= 0);
  CHECK(rule->kind == MOERT_RULE_TOPK);
  ++host->asked;
  rule->kind = host->wild ? 9 : MOERT_RULE_EXPERT_CACHE;
  rule->alpha = 1.0f;
  return host->fail ? MOERT_UNKNOWN : MOERT_OK;
}

static void test_residency_policy(int fail, int wild) {
  host_policies host;
  moert_policies policies;
  moert_engine_options options = default_options();
  moert_engine* engine;
  moert_stats stats;
  float out[kTokens * kOutputs];
  memset(&host, 0, sizeof(host));
  host.fail = fail;
  host.wild = wild;
  moert_policies_init(&policies, sizeof(policies));
  policies.user_data = &host;
  policies.destroy = policies_destroy;
  policies.observe = observe;
  policies.residency_victim = evict_newest;
  policies.residency_insert = count_insert;
  policies.residency_evict = count_evict;
  options.policies = &policies;
  options.budget_fraction = 0.5;
  engine = make_engine(&options);
  CHECK(moert_engine_exact(engine) == 1);
  decode(engine, kTokens, out);
  CHECK(memcmp(out, expected, sizeof(out)) == 0); /* exact, whatever the policy */
  stats = stats_of(engine);
  CHECK(host.asked > 0);
  CHECK(host.observed == kTokens * kTinyLayers);
  CHECK(host.phase == MOERT_DECODE);
  CHECK(host.inserted == stats.loads && host.evicted == stats.evictions);
  if (fail || wild) {
    /* The default decided: as without a policy, and it is counted. */
    CHECK(stats.policy_fallbacks == host.asked);
    CHECK(stats.hits_resident == plain_stats.hits_resident);
  } else {
    CHECK(stats.policy_fallbacks == 0);
    CHECK(stats.hits_resident != plain_stats.hits_resident);
  }
  CHECK(host.destroyed == 0);
  moert_engine_destroy(engine);
  CHECK(host.destroyed == 1);
}

static void test_capacity_policy(void) {
  int mode;
  for (mode = 0; mode < 3; ++mode) {
    host_policies host;
    moert_policies policies;
    moert_engine_options options = default_options();
    moert_engine* engine;
    float out[kTokens * kOutputs];
    uint8_t states[kTinyExperts];
    int e, held = 0;
    memset(&host, 0, sizeof(host));
    host.fail = mode == 1;
    host.wild = mode == 2;
    moert_policies_init(&policies, sizeof(policies));
    policies.user_data = &host;
    policies.residency_capacity = lopsided;
    options.policies = &policies;
    engine = make_engine(&options);
    decode(engine, kTokens, out);
    CHECK(memcmp(out, expected, sizeof(out)) == 0);
    CHECK_OK(moert_engine_residency(engine, 1, states, kTinyExperts, &error));
    for (e = 0; e < kTinyExperts; ++e) held += states[e] == MOERT_RESIDENT_HIGH;
    CHECK(held == (mode == 0 ? 3 : 2));
    CHECK(stats_of(engine).policy_fallbacks == (mode == 1));
    CHECK_FAILS(moert_engine_residency(engine, 1, states, 3, &error), MOERT_INVALID_ARGUMENT,
                "8 experts", "moert_engine_residency");
    CHECK_FAILS(moert_engine_residency(engine, 2, states, kTinyExperts, &error),
                MOERT_INVALID_ARGUMENT, "layer 2", "moert_engine_residency");
    moert_engine_destroy(engine);
  }
}

static void test_prefetch_policy(void) {
  int mode;
  for (mode = 0; mode < 3; ++mode) {
    host_policies host;
    moert_policies policies;
    moert_engine_options options = default_options();
    moert_engine* engine;
    moert_stats stats;
    float out[kTokens * kOutputs];
    memset(&host, 0, sizeof(host));
    host.fail = mode == 1;
    host.wild = mode == 2;
    moert_policies_init(&policies, sizeof(policies));
    policies.user_data = &host;
    policies.prefetch_rank = rank_all;
    policies.prefetch_wants_next_gate = 1;
    options.policies = &policies;
    engine = make_engine(&options);
    decode(engine, kTokens, out);
    CHECK(memcmp(out, expected, sizeof(out)) == 0);
    stats = stats_of(engine);
    CHECK(host.asked == kTokens * kTinyLayers);
    if (mode == 0) {
      CHECK(stats.prefetches > 0 && stats.policy_fallbacks == 0);
    } else {
      CHECK(stats.prefetches == 0 && stats.policy_fallbacks >= host.asked);
    }
    moert_engine_destroy(engine);
  }
}

static void test_routing_policy(void) {
  int mode;
  for (mode = 0; mode < 3; ++mode) {
    host_policies host;
    moert_policies policies;
    moert_engine_options options = default_options();
    moert_engine* engine;
    moert_stats stats;
    float out[kTokens * kOutputs];
    memset(&host, 0, sizeof(host));
    host.fail = mode == 1;
    host.wild = mode == 2;
    moert_policies_init(&policies, sizeof(policies));
    policies.user_data = &host;
    policies.routing_rule = cache_rule;
    options.policies = &policies;
    engine = make_engine(&options);
    CHECK(moert_engine_exact(engine) == 0); /* such a policy may change the output */
    decode(engine, kTokens, out);
    stats = stats_of(engine);
    CHECK(host.asked == kTokens * kTinyLayers);
    if (mode == 0) {
      CHECK(stats.substituted > 0 && stats.policy_fallbacks == 0);
    } else {
      CHECK(memcmp(out, expected, sizeof(out)) == 0);
      CHECK(stats.substituted == 0 && stats.policy_fallbacks == host.asked);
    }
    moert_engine_destroy(engine);
  }
}

static void test_ownership_on_failure(void) {
  host_policies host;
  moert_policies policies;
  moert_engine_options options = default_options();
  moert_source* source = make_source();
  moert_engine* engine = NULL;
  moert_memory memory;
  memset(&host, 0, sizeof(host));
  moert_policies_init(&policies, sizeof(policies));
  policies.user_data = &host;
  policies.destroy = policies_destroy;
  options.policies = &policies;
  moert_memory_init(&memory, sizeof(memory));
  CHECK_OK(moert_memory_plan(source, &options, &memory, &error)); /* borrows only */
  options.budget_bytes = 1;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "below the minimum", "moert_engine_create");
  policies.struct_size = 3;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "options.policies.struct_size", "moert_engine_create");
  CHECK(host.destroyed == 0);
  moert_source_destroy(source);
}

/* ---- Threads, memory, log. */

static int pool_runs, services_destroyed;
static void run_jobs(void* user_data, int64_t num_jobs, moert_job job, void* job_data) {
  int64_t i;
  CHECK(user_data == &pool_runs);
  for (i = num_jobs; i-- > 0;) job(job_data, i, (int32_t)(i & 1));
  ++pool_runs;
}
static void destroy_service(void* user_data) {
  (void)user_data;
  ++services_destroyed;
}

static uint64_t held, most_held;
static void* allocate(void* user_data, uint64_t bytes, uint64_t alignment) {
  void* memory = NULL;
  CHECK(user_data == &held);
  if (posix_memalign(&memory, (size_t)alignment, (size_t)bytes) != 0) return NULL;
  held += bytes;
  if (held > most_held) most_held = held;
  return memory;
}
static void deallocate(void* user_data, void* memory, uint64_t bytes) {
  CHECK(user_data == &held);
  held -= bytes;
  free(memory);
}

static int log_lines;
static void log_line(void* user_data, moert_log_level level, const char* line) {
  CHECK(user_data == &log_lines);
  CHECK(level == MOERT_LOG_INFO && strlen(line) > 10);
  ++log_lines;
}

static void test_services(void) {
  moert_engine_options options = default_options();
  moert_thread_pool pool;
  moert_allocator allocator;
  moert_logger logger;
  moert_engine* engine = NULL;
  moert_source* source = make_source();
  float out[kTokens * kOutputs];
  moert_thread_pool_init(&pool, sizeof(pool));
  moert_allocator_init(&allocator, sizeof(allocator));
  moert_logger_init(&logger, sizeof(logger));
  pool.user_data = &pool_runs;
  pool.destroy = allocator.destroy = logger.destroy = destroy_service;
  allocator.user_data = &held;
  logger.user_data = &log_lines;
  options.thread_pool = &pool;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "thread_pool.run", "moert_engine_create");
  pool.run = run_jobs;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "num_threads is 0", "moert_engine_create");
  pool.num_threads = 2;
  options.allocator = &allocator;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "allocator.allocate", "moert_engine_create");
  allocator.allocate = allocate;
  allocator.deallocate = deallocate;
  options.logger = &logger;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "logger.log", "moert_engine_create");
  CHECK(services_destroyed == 0);
  logger.log = log_line;
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  moert_source_destroy(source);
  CHECK(log_lines == 1);
  decode(engine, kTokens, out);
  CHECK(memcmp(out, expected, sizeof(out)) == 0);
  CHECK(pool_runs > 0);
  CHECK(held > 0 && (int64_t)held == (int64_t)metric(engine, "moert_pool_bytes"));
  CHECK_OK(moert_engine_set_budget(engine, 0, 0.125, &error));
  CHECK(log_lines == 2);
  CHECK((int64_t)held == (int64_t)metric(engine, "moert_pool_bytes"));
  moert_engine_destroy(engine);
  CHECK(held == 0 && most_held > 0);
  CHECK(services_destroyed == 3);

  options = default_options();
  options.cpus = "0-0";
  options.threads = 2;
  engine = make_engine(&options);
  decode(engine, 2, out);
  CHECK(memcmp(out, expected, 2 * kOutputs * sizeof(float)) == 0);
  moert_engine_destroy(engine);
  source = make_source();
  options.cpus = "2-1";
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "'2-1'", "moert_engine_create");
  options.cpus = "0,x";
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT, "'x'",
              "moert_engine_create");
  moert_source_destroy(source);
}

/* ---- Routings of the host. */

static void test_forward_routed(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  float x[kTinyHidden], gated[kTinyHidden], routed[kTinyHidden];
  int32_t ids[2], used[2] = {-1, -1};
  float weights[2];
  double score[kTinyExperts];
  moert_tensor in, out;
  moert_routing routing;
  const char* const f = "moert_layer_forward";
  int e, i;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  CHECK_OK(forward(step, 1, x, kTinyHidden, 1, gated, &error));
  /* The gate, written down. */
  for (e = 0; e < kTinyExperts; ++e) {
    double logit = 0;
    for (i = 0; i < kTinyHidden; ++i) {
      logit += x[i] * tiny_weight(1, 0, MOERT_PART_ROUTER, e * kTinyHidden + i);
    }
    score[e] = exp(logit);
  }
  ids[0] = 0;
  for (e = 1; e < kTinyExperts; ++e) {
    if (score[e] > score[ids[0]]) ids[0] = e;
  }
  ids[1] = ids[0] == 0 ? 1 : 0;
  for (e = 0; e < kTinyExperts; ++e) {
    if (e != ids[0] && score[e] > score[ids[1]]) ids[1] = e;
  }
  weights[0] = (float)(score[ids[0]] / (score[ids[0]] + score[ids[1]]));
  weights[1] = (float)(score[ids[1]] / (score[ids[0]] + score[ids[1]]));
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, routed, 1, kTinyHidden, MOERT_F32);
  moert_routing_init(&routing, sizeof(routing));
  CHECK(routing.struct_size == sizeof(routing) && routing.scores.data == NULL);
  moert_tensor_init(&routing.ids, ids, 1, 2, MOERT_I32);
  moert_tensor_init(&routing.weights, weights, 1, 2, MOERT_F32);
  moert_tensor_init(&routing.used_ids, used, 1, 2, MOERT_I32);
  CHECK_OK(moert_layer_forward(step, 1, &in, &routing, &out, &error));
  CHECK(used[0] == ids[0] && used[1] == ids[1]);
  for (i = 0; i < kTinyHidden; ++i) {
    CHECK(fabs(routed[i] - gated[i]) <= 1e-5 * (1 + fabs(gated[i])));
  }
  routing.ids.cols = 3;
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "routing.ids: [1, 3]; this layer of this step takes [1, 2]", f);
  routing.ids.cols = 2;
  routing.weights.rows = INT64_MAX / 2;
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "routing.weights", f);
  routing.weights.rows = 1;
  routing.ids.dtype = MOERT_F32;
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "routing.ids.dtype is 0, legal is MOERT_I32", f);
  routing.ids.dtype = MOERT_I32;
  routing.ids.place = MOERT_DEVICE;
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "routing.ids.place is 1 (MOERT_DEVICE), the cpu backend takes MOERT_HOST", f);
  routing.ids.place = MOERT_HOST;
  routing.scores.rows = 1; /* a shape without data */
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "routing.scores.data", f);
  routing.scores.rows = 0;
  ids[1] = -1;
  CHECK_OK(moert_layer_forward(step, 1, &in, &routing, &out, &error)); /* another rank's */
  ids[1] = -2;
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "or -1: not here", f);
  ids[1] = ids[0];
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "twice", f);
  ids[1] = kTinyExperts;
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "does not exist", f);
  routing.ids.data = NULL;
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "routing.ids.data", f);
  memset(&routing, 0, sizeof(routing));
  CHECK_FAILS(moert_layer_forward(step, 1, &in, &routing, &out, &error), MOERT_INVALID_ARGUMENT,
              "routing.struct_size is 0", f);
  moert_step_end(step, NULL);
  moert_engine_destroy(engine);
}

/* ---- Split calls. */

typedef struct finished {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int calls;
  moert_code code;
  moert_call* to_finish; /* finished from inside the callback */
} finished;

static void on_done(void* user_data, moert_code code) {
  finished* f = (finished*)user_data;
  pthread_mutex_lock(&f->mutex);
  ++f->calls;
  f->code = code;
  pthread_cond_signal(&f->changed);
  pthread_mutex_unlock(&f->mutex);
}

static void test_split_calls(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  moert_completion completion;
  moert_call *first = NULL, *second = NULL;
  finished f;
  float x[kTinyHidden], y[2][kTinyHidden];
  moert_tensor in, out[2];
  struct pollfd ready;
  eventfd_t count = 0;
  int i;
  memset(&f, 0, sizeof(f));
  pthread_mutex_init(&f.mutex, NULL);
  pthread_cond_init(&f.changed, NULL);
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  moert_completion_init(&completion, sizeof(completion));
  CHECK(completion.eventfd == -1);
  completion.eventfd = eventfd(0, EFD_NONBLOCK);
  completion.done = on_done;
  completion.user_data = &f;
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  for (i = 0; i < 2; ++i) moert_tensor_init(&out[i], y[i], 1, kTinyHidden, MOERT_F32);
  /* Two layers begun at once run in order; the host's own work would be here. */
  CHECK_OK(moert_layer_begin(step, 0, &in, NULL, &out[0], &completion, &first, &error));
  CHECK_OK(moert_layer_begin(step, 1, &in, NULL, &out[1], NULL, &second, &error));
  ready.fd = completion.eventfd;
  ready.events = POLLIN;
  CHECK(poll(&ready, 1, 60000) == 1);
  CHECK(eventfd_read(completion.eventfd, &count) == 0 && count == 1);
  CHECK(moert_call_done(first) == 1);
  CHECK_OK(moert_layer_finish(second, &error));
  CHECK_OK(moert_layer_finish(first, &error));
  CHECK(memcmp(y, expected, sizeof(y)) == 0);
  pthread_mutex_lock(&f.mutex);
  while (f.calls == 0) pthread_cond_wait(&f.changed, &f.mutex);
  CHECK(f.calls == 1 && f.code == MOERT_OK);
  pthread_mutex_unlock(&f.mutex);

  /* Errors come with the finish, and to the callback. */
  in.rows = 7;
  CHECK_OK(moert_layer_begin(step, 0, &in, NULL, &out[0], &completion, &first, &error));
  CHECK_FAILS(moert_layer_finish(first, &error), MOERT_INVALID_ARGUMENT, "row",
              "moert_layer_finish");
  pthread_mutex_lock(&f.mutex);
  while (f.calls == 1) pthread_cond_wait(&f.changed, &f.mutex);
  CHECK(f.code == MOERT_INVALID_ARGUMENT);
  pthread_mutex_unlock(&f.mutex);
  in.rows = 1;
  CHECK_FAILS(moert_layer_begin(step, 9, &in, NULL, &out[0], NULL, &first, &error),
              MOERT_INVALID_ARGUMENT, "layer is 9", "moert_layer_begin");
  { /* with a routing, whose struct is copied */
    int32_t ids[2] = {6, 1};
    float weights[2] = {0.25f, 0.75f}, whole[kTinyHidden];
    moert_routing routing;
    moert_routing_init(&routing, sizeof(routing));
    moert_tensor_init(&routing.ids, ids, 1, 2, MOERT_I32);
    moert_tensor_init(&routing.weights, weights, 1, 2, MOERT_F32);
    CHECK_OK(moert_layer_begin(step, 0, &in, &routing, &out[0], NULL, &first, &error));
    out[1].data = whole;
    CHECK_OK(moert_layer_forward(step, 0, &in, &routing, &out[1], &error));
    memset(&routing, 0x55, sizeof(routing));
    CHECK_OK(moert_layer_finish(first, &error));
    CHECK(memcmp(whole, y[0], sizeof(whole)) == 0);
  }
  CHECK_OK(moert_layer_finish(NULL, &error));
  CHECK(moert_call_done(NULL) == 1);
  CHECK_OK(moert_step_end(step, &error));
  moert_engine_destroy(engine);
  close(completion.eventfd);
}

/* The last reference to everything dies on the library's own thread. */
static void finish_in_callback(void* user_data, moert_code code) {
  finished* f = (finished*)user_data;
  moert_call* call;
  pthread_mutex_lock(&f->mutex);
  while (f->to_finish == NULL) pthread_cond_wait(&f->changed, &f->mutex);
  call = f->to_finish;
  pthread_mutex_unlock(&f->mutex);
  CHECK_OK(moert_layer_finish(call, &error));
  on_done(user_data, code);
}

static void test_finish_in_callback(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  moert_completion completion;
  moert_call* call = NULL;
  finished f;
  float x[kTinyHidden], y[kTinyHidden];
  moert_tensor in, out;
  int i;
  memset(&f, 0, sizeof(f));
  pthread_mutex_init(&f.mutex, NULL);
  pthread_cond_init(&f.changed, NULL);
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  moert_completion_init(&completion, sizeof(completion));
  completion.done = finish_in_callback;
  completion.user_data = &f;
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, 1, kTinyHidden, MOERT_F32);
  CHECK_OK(moert_layer_begin(step, 0, &in, NULL, &out, &completion, &call, &error));
  while (!moert_call_done(call)) usleep(100);
  CHECK_FAILS(moert_step_end(step, &error), MOERT_FAILED_PRECONDITION, "1 split calls",
              "moert_step_end");
  moert_engine_destroy(engine);
  pthread_mutex_lock(&f.mutex);
  f.to_finish = call;
  pthread_cond_broadcast(&f.changed);
  while (f.calls == 0) pthread_cond_wait(&f.changed, &f.mutex);
  pthread_mutex_unlock(&f.mutex);
  CHECK(memcmp(y, expected, sizeof(y)) == 0);
}

/* `done` may run before moert_layer_begin has returned, and finds the call all the same. */
typedef struct stored {
  moert_call* call;
  int missing;
} stored;

static void find_call(void* user_data, moert_code code) {
  stored* s = (stored*)user_data;
  (void)code;
  if (s->call == NULL) s->missing = 1;
}

static void test_call_stored_before_done(void) {
  enum { kCalls = 2000 };
  static stored all[kCalls];
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  moert_completion completion;
  float x[kTinyHidden], y[kTinyHidden];
  moert_tensor in, out;
  int i, missing = 0;
  memset(all, 0, sizeof(all));
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  moert_completion_init(&completion, sizeof(completion));
  completion.done = find_call;
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, 1, kTinyHidden, MOERT_F32);
  CHECK_OK(moert_step_cancel(step, &error)); /* calls that return at once */
  for (i = 0; i < kCalls; ++i) {
    completion.user_data = &all[i];
    CHECK_OK(moert_layer_begin(step, 0, &in, NULL, &out, &completion, &all[i].call, &error));
  }
  for (i = 0; i < kCalls; ++i) {
    CHECK_FAILS(moert_layer_finish(all[i].call, &error), MOERT_CANCELLED, "cancelled",
                "moert_layer_finish");
  }
  CHECK_FAILS(moert_step_end(step, &error), MOERT_CANCELLED, "cancelled", "moert_step_end");
  moert_engine_destroy(engine); /* behind the last `done` */
  for (i = 0; i < kCalls; ++i) missing += all[i].missing;
  CHECK(missing == 0);
}

/* A counter that is full delays nobody, and the host's descriptor may be closed at once. */
static void test_full_eventfd(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  moert_completion completion;
  moert_call* call = NULL;
  float x[kTinyHidden], y[kTinyHidden];
  moert_tensor in, out;
  const int full = eventfd(0, EFD_NONBLOCK);
  int i;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  CHECK(eventfd_write(full, UINT64_MAX - 1) == 0);
  moert_completion_init(&completion, sizeof(completion));
  completion.eventfd = full;
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, 1, kTinyHidden, MOERT_F32);
  CHECK_OK(moert_layer_begin(step, 0, &in, NULL, &out, &completion, &call, &error));
  close(full);
  CHECK_OK(moert_layer_finish(call, &error));
  CHECK(memcmp(y, expected, sizeof(y)) == 0);
  CHECK_OK(moert_step_end(step, &error));
  moert_engine_destroy(engine);
}

/* ---- Leases, hints, cancellation. */

static void test_lease(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  moert_lease* lease = NULL;
  moert_expert_view view;
  const int32_t experts[2] = {6, 1};
  float* up = (float*)malloc(kTinyIntermediate * kTinyHidden * sizeof(float));
  uint8_t states[kTinyExperts];
  int32_t many[5] = {0, 1, 2, 3, 4};
  int i;
  CHECK_OK(moert_lease_acquire(step, 1, experts, 2, &lease, &error));
  moert_expert_view_init(&view, sizeof(view));
  CHECK_OK(moert_lease_view(lease, 0, &view, &error));
  CHECK(view.expert == 6 && view.version == 0 && view.record != NULL);
  CHECK(((uintptr_t)view.record & 4095) == 0);
  CHECK(strcmp(view.up.scheme, "bf16") == 0);
  CHECK(view.up.rows == kTinyIntermediate && view.up.k == kTinyHidden);
  CHECK(view.down.rows == kTinyHidden && view.down.k == kTinyIntermediate);
  CHECK(view.down.weight_offset + view.down.weight_bytes <= view.bytes);
  CHECK_OK(
      moert_lease_read(lease, 0, MOERT_PART_UP_PROJ, up, kTinyIntermediate * kTinyHidden, &error));
  for (i = 0; i < kTinyIntermediate * kTinyHidden; ++i) {
    CHECK(fabs(up[i] - tiny_weight(1, 6, MOERT_PART_UP_PROJ, i)) <= fabs(up[i]) / 256);
  }
  CHECK_OK(moert_engine_residency(engine, 1, states, kTinyExperts, &error));
  CHECK(states[6] == MOERT_RESIDENT_HIGH && states[1] == MOERT_RESIDENT_HIGH);
  CHECK_FAILS(moert_lease_view(lease, 2, &view, &error), MOERT_INVALID_ARGUMENT, "2 experts",
              "moert_lease_view");
  CHECK_FAILS(moert_lease_read(lease, 0, MOERT_PART_ROUTER, up, 1, &error), MOERT_INVALID_ARGUMENT,
              "part is 3", "moert_lease_read");
  CHECK_FAILS(moert_lease_read(lease, 0, MOERT_PART_UP_PROJ, up, 5, &error), MOERT_INVALID_ARGUMENT,
              "[48, 64]", "moert_lease_read");
  moert_lease_release(lease);
  lease = NULL;
  CHECK_FAILS(moert_lease_acquire(step, 0, many, 5, &lease, &error), MOERT_RESOURCE_EXHAUSTED,
              "every block", "moert_lease_acquire");
  CHECK_FAILS(moert_lease_acquire(step, 0, many, 0, &lease, &error), MOERT_INVALID_ARGUMENT,
              "count is 0", "moert_lease_acquire");
  many[0] = 8;
  CHECK_FAILS(moert_lease_acquire(step, 0, many, 1, &lease, &error), MOERT_INVALID_ARGUMENT,
              "expert 8", "moert_lease_acquire");
  CHECK(lease == NULL);
  many[0] = 0;
  CHECK_OK(moert_lease_acquire(step, 0, many, 3, &lease, &error));
  CHECK_OK(moert_step_end(step, &error)); /* ends the lease */
  CHECK_FAILS(moert_lease_view(lease, 0, &view, &error), MOERT_FAILED_PRECONDITION, "has ended",
              "moert_lease_view");
  CHECK_FAILS(
      moert_lease_read(lease, 0, MOERT_PART_UP_PROJ, up, kTinyIntermediate * kTinyHidden, &error),
      MOERT_FAILED_PRECONDITION, "has ended", "moert_lease_read");
  decode(engine, 1, up); /* its blocks are free again */
  moert_engine_destroy(engine);
  moert_lease_release(lease);
  moert_lease_release(NULL);
  free(up);
}

/* A step that ends first takes the calls that have not run with it, and says so. */
static void test_end_before_finish(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  moert_call* calls[20];
  float x[kTinyHidden], y[20][kTinyHidden];
  int i, late = 0;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  for (i = 0; i < 20; ++i) {
    moert_tensor in, out;
    moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
    moert_tensor_init(&out, y[i], 1, kTinyHidden, MOERT_F32);
    CHECK_OK(moert_layer_begin(step, i % 2, &in, NULL, &out, NULL, &calls[i], &error));
  }
  CHECK_FAILS(moert_step_end(step, &error), MOERT_FAILED_PRECONDITION, "20 split calls",
              "moert_step_end");
  for (i = 0; i < 20; ++i) {
    moert_code code = moert_layer_finish(calls[i], NULL);
    CHECK(code == MOERT_OK || code == MOERT_FAILED_PRECONDITION);
    CHECK(late == 0 || code != MOERT_OK); /* in order */
    late += code != MOERT_OK;
  }
  decode(engine, 1, y[0]);
  moert_engine_destroy(engine);
}

/* Threads do not come along in a fork: calls say so, and nothing waits for them. */
static void in_child(moert_engine* engine, moert_step* step, moert_tensor* in, moert_tensor* out) {
  moert_step* other = NULL;
  moert_call* call = NULL;
  alarm(20);
  check_failures = 0;
  CHECK_FAILS(moert_step_begin(engine, NULL, &other, &error), MOERT_FAILED_PRECONDITION, "fork",
              "moert_step_begin");
  CHECK_FAILS(moert_layer_forward(step, 0, in, NULL, out, &error), MOERT_FAILED_PRECONDITION,
              "fork", "moert_layer_forward");
  CHECK_FAILS(moert_layer_begin(step, 0, in, NULL, out, NULL, &call, &error),
              MOERT_FAILED_PRECONDITION, "fork", "moert_layer_begin");
  CHECK_FAILS(moert_step_end(step, &error), MOERT_FAILED_PRECONDITION, "fork", "moert_step_end");
  moert_engine_destroy(engine);
  _exit(check_failures > 0);
}

static void test_fork(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step = begin(engine);
  moert_call* call = NULL;
  moert_tensor in, out;
  float x[kTinyHidden], y[kTinyHidden];
  int i, status = -1;
  pid_t child;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, 1, kTinyHidden, MOERT_F32);
  CHECK_OK(moert_layer_begin(step, 0, &in, NULL, &out, NULL, &call, &error));
  CHECK_OK(moert_layer_finish(call, &error));
  child = fork();
  if (child == 0) in_child(engine, step, &in, &out);
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_OK(moert_layer_forward(step, 0, &in, NULL, &out, &error));
  CHECK_OK(moert_step_end(step, &error));
  moert_engine_destroy(engine);
}

/* A struct_size that nobody set must not have gigabytes cleared. */
static void test_struct_size(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_stats stats;
  moert_stats_init(&stats, sizeof(stats));
  stats.struct_size = (uint64_t)1 << 40;
  CHECK_FAILS(moert_engine_stats(engine, &stats, &error), MOERT_INVALID_ARGUMENT, "struct_size",
              "moert_engine_stats");
  memset(&stats, 7, sizeof(stats));
  moert_stats_init(&stats, (uint64_t)1 << 40); /* nothing is written */
  CHECK(((const char*)&stats)[sizeof(stats) - 1] == 7);
  moert_engine_destroy(engine);
}

static void test_hint_and_cancel(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  moert_step* step;
  const int32_t experts[2] = {0, 7};
  const int32_t bad = -1;
  float x[kTinyHidden], y[kTinyHidden];
  int i;
  for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(i);
  CHECK_OK(moert_engine_prefetch(engine, 1, experts, 2, &error));
  CHECK(stats_of(engine).budget_bytes > 0);
  CHECK_FAILS(moert_engine_prefetch(engine, 1, &bad, 1, &error), MOERT_INVALID_ARGUMENT,
              "expert -1", "moert_engine_prefetch");
  CHECK_FAILS(moert_engine_prefetch(engine, 1, experts, -2, &error), MOERT_INVALID_ARGUMENT,
              "count is -2", "moert_engine_prefetch");
  step = begin(engine);
  CHECK_OK(forward(step, 0, x, kTinyHidden, 1, y, &error));
  CHECK(stats_of(engine).prefetches == 2);
  CHECK_OK(moert_step_cancel(step, &error));
  CHECK_FAILS(forward(step, 1, x, kTinyHidden, 1, y, &error), MOERT_CANCELLED, "cancelled",
              "moert_layer_forward");
  CHECK_FAILS(moert_step_end(step, &error), MOERT_CANCELLED, "cancelled", "moert_step_end");
  CHECK_FAILS(moert_step_cancel(NULL, &error), MOERT_INVALID_ARGUMENT, "step", "moert_step_cancel");
  moert_engine_destroy(engine);
}

/* ---- What can be seen. */

static void test_prometheus(void) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  float out[2 * kOutputs];
  uint64_t needed = 0;
  char *text, small[8] = "keep";
  decode(engine, 2, out);
  CHECK_OK(moert_metrics_prometheus(engine, "a\"b", NULL, 0, &needed, &error));
  CHECK(needed > 100);
  text = (char*)malloc((size_t)needed);
  CHECK_OK(moert_metrics_prometheus(engine, "a\"b", text, needed, NULL, &error));
  CHECK(strlen(text) + 1 == needed);
  CHECK(strstr(text, "\nmoert_lookups_total{engine=\"a\\\"b\"} 8\n") != NULL);
  CHECK(strstr(text, "# TYPE moert_lookups_total counter\n") != NULL);
  CHECK_FAILS(moert_metrics_prometheus(engine, NULL, small, sizeof(small), &needed, &error),
              MOERT_OUT_OF_RANGE, "buffer_bytes is 8", "moert_metrics_prometheus");
  CHECK(strcmp(small, "keep") == 0);
  free(text);
  moert_engine_destroy(engine);
}

static void refuses_trace(const moert_engine_options* options, moert_code wanted) {
  moert_source* source = make_source();
  moert_engine* engine = NULL;
  CHECK_FAILS(moert_engine_create(source, options, &engine, &error), wanted, options->trace_path,
              "moert_engine_create");
  CHECK(engine == NULL);
  moert_source_destroy(source);
}

/* A trace goes where the host said and nowhere else: not through links, not over a file that is
 * there unless asked, and nobody waits for a pipe. */
static void test_trace_paths(moert_engine_options options, const char* folder) {
  char there[4096], link[4096], pipe[4096];
  struct stat info;
  FILE* file;
  snprintf(there, sizeof(there), "%s/there", folder);
  snprintf(link, sizeof(link), "%s/link", folder);
  snprintf(pipe, sizeof(pipe), "%s/pipe", folder);
  unlink(link);
  unlink(pipe);
  file = fopen(there, "wb");
  CHECK(file != NULL && fputs("mine", file) >= 0 && fclose(file) == 0);
  CHECK(symlink(there, link) == 0 && mkfifo(pipe, 0600) == 0);
  options.timeline_path = NULL;
  for (options.trace_replace = 0; options.trace_replace < 2; ++options.trace_replace) {
    options.trace_path = link;
    refuses_trace(&options, MOERT_ALREADY_EXISTS);
    options.trace_path = pipe;
    refuses_trace(&options, MOERT_ALREADY_EXISTS);
    if (options.trace_replace == 1) break;
    options.trace_path = there;
    refuses_trace(&options, MOERT_ALREADY_EXISTS);
  }
  CHECK(stat(there, &info) == 0 && info.st_size == 4);
  options.trace_path = there;
  moert_engine_destroy(make_engine(&options));
  CHECK(stat(there, &info) == 0 && info.st_size > 100);
  unlink(there);
  unlink(link);
  unlink(pipe);
}

static void test_trace(const char* folder) {
  moert_engine_options options = default_options();
  moert_engine* engine;
  float out[2 * kOutputs];
  char path[4096], timeline[4200];
  FILE* file;
  long size;
  snprintf(path, sizeof(path), "%s/c_abi.trace", folder);
  snprintf(timeline, sizeof(timeline), "%s/c_abi.json", folder);
  unlink(path);
  unlink(timeline);
  options.trace_path = path;
  options.timeline_path = timeline;
  test_trace_paths(options, folder);
  engine = make_engine(&options);
  decode(engine, 2, out);
  CHECK_OK(moert_engine_close_trace(engine, &error));
  file = fopen(path, "rb");
  CHECK(file != NULL);
  if (file != NULL) {
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    fclose(file);
    CHECK(size > 100);
    decode(engine, 2, out); /* not traced any more */
    file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    CHECK(ftell(file) == size);
    fclose(file);
  }
  file = fopen(timeline, "rb");
  CHECK(file != NULL);
  if (file != NULL) fclose(file);
  CHECK_OK(moert_engine_close_trace(engine, &error));
  moert_engine_destroy(engine);
  options.trace_path = options.timeline_path = NULL;
  engine = make_engine(&options);
  CHECK_FAILS(moert_engine_close_trace(engine, &error), MOERT_FAILED_PRECONDITION, "trace_path",
              "moert_engine_close_trace");
  moert_engine_destroy(engine);
}

int main(int argc, char** argv) {
  moert_engine_options options = default_options();
  moert_engine* engine = make_engine(&options);
  if (argc != 2) {
    fprintf(stderr, "usage: host_test FOLDER\n");
    return 2;
  }
  CHECK(moert_engine_backend(engine) == MOERT_BACKEND_CPU);
  CHECK(moert_engine_backend(NULL) == MOERT_BACKEND_INVALID);
  options.budget_fraction = 0.5;
  decode(engine, kTokens, expected);
  moert_engine_destroy(engine);
  engine = make_engine(&options);
  decode(engine, kTokens, expected);
  plain_stats = stats_of(engine);
  CHECK(plain_stats.evictions > 0);
  moert_engine_destroy(engine);

  test_residency_policy(0, 0);
  test_residency_policy(1, 0);
  test_residency_policy(0, 1);
  test_capacity_policy();
  test_prefetch_policy();
  test_routing_policy();
  test_ownership_on_failure();
  test_services();
  test_forward_routed();
  test_split_calls();
  test_finish_in_callback();
  test_call_stored_before_done();
  test_full_eventfd();
  test_lease();
  test_end_before_finish();
  test_fork();
  test_struct_size();
  test_hint_and_cancel();
  test_prometheus();
  test_trace(argv[1]);
  if (check_failures != 0) fprintf(stderr, "%d checks failed\n", check_failures);
  return check_failures != 0;
}
