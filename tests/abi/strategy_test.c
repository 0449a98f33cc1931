/* Strategies that a host registers. C99, also compiled as C++. */
#include "check.h"
#include "examples/c_host/tiny_experts.h"

enum { kSteps = 20 };

static int made, destroyed, fail;

/* The policy of the strategies below: who came last leaves first, or nobody can tell. */
static moert_code newest(void *user_data, const moert_victim_snapshot *snapshot, int64_t *victim) {
  int64_t i;
  CHECK(user_data != NULL);
  if (fail) return MOERT_UNAVAILABLE;
  *victim = 0;
  for (i = 1; i < snapshot->num_candidates; ++i) {
    if (snapshot->candidates[i].inserted > snapshot->candidates[*victim].inserted) *victim = i;
  }
  return MOERT_OK;
}

static void destroy(void *user_data) {
  ++destroyed;
  free(user_data);
}

static moert_code make_newest(void *user_data, moert_strategy_params *params,
                              moert_strategy *strategy, moert_failure *failure) {
  const char *limit = moert_strategy_params_get(params, "limit");
  CHECK(strcmp((const char *)user_data, "mine") == 0);
  CHECK(strategy->struct_size == sizeof(*strategy) && strategy->policies->observe == NULL);
  CHECK(strcmp(strategy->base, "on-demand") == 0);
  CHECK(moert_strategy_params_get(params, "no-such") == NULL);
  if (limit != NULL && strcmp(limit, "3") != 0) {
    moert_failure_set(failure, "limit is not 3");
    return MOERT_OUT_OF_RANGE;
  }
  strategy->policies->user_data = malloc(1);
  strategy->policies->residency_victim = newest;
  strategy->policies->destroy = destroy;
  ++made;
  return MOERT_OK;
}

static moert_code make_nothing(void *user_data, moert_strategy_params *params,
                               moert_strategy *strategy, moert_failure *failure) {
  (void)params;
  (void)failure;
  strategy->base = (const char *)user_data;
  return MOERT_OK;
}

static moert_source *make_source(void) {
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_source *source = NULL;
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = tiny_read;
  callbacks.weights_dtype = MOERT_F32;
  CHECK_OK(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  return source;
}

static moert_engine_options options_of(const char *strategy) {
  moert_engine_options options;
  moert_engine_options_init(&options, sizeof(options));
  options.strategy = strategy;
  options.budget_fraction = 0.5;
  options.clock = MOERT_CLOCK_VIRTUAL;
  return options;
}

/* Decodes under a strategy. */
static moert_stats run(const char *strategy) {
  const moert_engine_options options = options_of(strategy);
  moert_source *source = make_source();
  moert_engine *engine = NULL;
  moert_stats stats;
  int s;
  moert_stats_init(&stats, sizeof(stats));
  CHECK_OK(moert_engine_create(source, &options, &engine, &error));
  moert_source_destroy(source);
  for (s = 0; s < kSteps && engine != NULL; ++s) {
    float x[kTinyHidden], y[kTinyHidden];
    moert_step *step = NULL;
    int32_t i, layer;
    for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(s * kTinyHidden + i);
    CHECK_OK(moert_step_begin(engine, NULL, &step, &error));
    for (layer = 0; layer < kTinyLayers; ++layer) {
      CHECK_OK(forward(step, layer, x, kTinyHidden, 1, y, &error));
    }
    CHECK_OK(moert_step_end(step, &error));
  }
  CHECK_OK(moert_engine_stats(engine, &stats, &error));
  CHECK(moert_engine_exact(engine) == 1);
  moert_engine_destroy(engine);
  return stats;
}

static moert_code add(const char *name, const char *keys, moert_strategy_factory factory,
                      const char *user_data, moert_error **error) {
  moert_strategy_info info;
  moert_strategy_info_init(&info, sizeof(info));
  info.name = name;
  info.summary = "a test's";
  info.keys = keys;
  return moert_strategy_register(&info, factory, (void *)user_data, error);
}

static void test_use(void) {
  const int32_t count = moert_strategy_count();
  moert_strategy_info info;
  moert_stats plain, mine;
  CHECK_OK(add("newest", "limit: none but 3 (3)\nother: for nothing (0)", make_newest, "mine", &error));
  CHECK(moert_strategy_count() == count + 1);
  moert_strategy_info_init(&info, sizeof(info));
  CHECK_OK(moert_strategy_at(count, &info, &error));
  CHECK(strcmp(info.name, "newest") == 0 && strcmp(info.summary, "a test's") == 0);
  CHECK(strcmp(info.keys, "limit: none but 3 (3)\nother: for nothing (0)") == 0);
  plain = run("on-demand");
  mine = run("newest:limit=3");
  CHECK(made == 1 && destroyed == 1);
  CHECK(mine.hits_resident != plain.hits_resident && mine.policy_fallbacks == 0);
  mine = run("newest+fate.prefetch"); /* in a composition */
  CHECK(mine.prefetches > 0);
  CHECK(made == destroyed);
  fail = 1; /* what it cannot decide is the base's, and counted */
  mine = run("newest");
  CHECK(mine.hits_resident == plain.hits_resident && mine.policy_fallbacks > 0);
  fail = 0;
  CHECK(made == destroyed);
}

/* The rules that `fate` is made of. */
static moert_code next_gate(void *user_data, moert_prefetch_rule *rule) {
  (void)user_data;
  CHECK(rule->struct_size == sizeof(*rule));
  rule->kind = MOERT_PREFETCH_NEXT_GATE;
  return MOERT_OK;
}

static int32_t window; /* of the rule below; 0: by worth */

static moert_code residency(void *user_data, moert_residency_rule *rule) {
  (void)user_data;
  CHECK(rule->kind == MOERT_LEAST_RECENTLY_USED && rule->transient == -1); /* on-demand's */
  rule->kind = window == 0 ? MOERT_LEAST_WORTH : MOERT_LEAST_AVERAGE_SCORE;
  rule->shared_slots = window == 0;
  rule->capacity = MOERT_CAPACITY_MEASURED;
  if (window != 0) rule->window = window;
  return fail ? MOERT_UNAVAILABLE : MOERT_OK;
}

static int32_t phases; /* bits of those that were asked for */

static moert_code by_phase(void *user_data, const moert_policy_context *context,
                           moert_routing_rule *rule) {
  (void)user_data;
  phases |= 1 << context->phase;
  rule->kind = MOERT_RULE_TOPK;
  return MOERT_OK;
}

static moert_code make_ruled(void *user_data, moert_strategy_params *params,
                             moert_strategy *strategy, moert_failure *failure) {
  (void)failure;
  (void)user_data;
  strategy->policies->prefetch_rule = next_gate;
  strategy->policies->residency_rule = residency;
  if (moert_strategy_params_get(params, "asked") != NULL) {
    strategy->policies->residency_victim = newest;
  }
  if (moert_strategy_params_get(params, "routed") != NULL) {
    strategy->policies->routing_rule = by_phase;
    strategy->policies->routing_by_phase = 1;
  }
  return MOERT_OK;
}

static void same_decisions(const char *strategy, const moert_stats *expected) {
  const moert_stats mine = run(strategy);
  CHECK(mine.lookups == expected->lookups && mine.loads == expected->loads);
  CHECK(mine.hits_resident == expected->hits_resident && mine.evictions == expected->evictions);
  CHECK(mine.prefetches == expected->prefetches && mine.policy_fallbacks == 0);
}

static void test_rules(void) {
  moert_source *source = make_source();
  moert_engine_options options = options_of("ruled:asked=1");
  moert_engine *engine = NULL;
  const moert_stats fate = run("fate"), plain = run("on-demand+fate.prefetch");
  moert_stats failed;
  CHECK_OK(add("ruled", "asked: beside it (0)\nrouted: by phase (0)", make_ruled, NULL, &error));
  CHECK(fate.prefetches > 0 && fate.loads != plain.loads);
  same_decisions("ruled", &fate);
  same_decisions("ruled:routed=1", &fate);
  CHECK(phases == ((1 << MOERT_PREFILL) | (1 << MOERT_DECODE)));
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "residency_rule and residency_victim", "moert_engine_create");
  options.strategy = "ruled";
  window = 5000;
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "window is 5000; must be from 1 to 4096", "moert_engine_create");
  window = 0;
  fail = 1; /* the base's rule, and counted */
  failed = run("ruled");
  CHECK(failed.loads == plain.loads && failed.policy_fallbacks == 1);
  fail = 0;
  moert_source_destroy(source);
}

static void test_errors(void) {
  moert_source *source = make_source();
  moert_engine_options options = options_of("newest:limit=4");
  moert_engine *engine = NULL;
  moert_memory memory;
  const char *const f = "moert_strategy_register";
  const int before = made;
  moert_memory_init(&memory, sizeof(memory));
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_OUT_OF_RANGE,
              "strategy newest: limit is not 3", "moert_engine_create");
  options.strategy = "newest:size=4";
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "limit", "moert_engine_create");
  CHECK(made == before);
  options.strategy = "newest";
  CHECK_OK(moert_memory_plan(source, &options, &memory, &error));
  options.budget_bytes = 1; /* the policies go with the create that failed */
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "below the minimum", "moert_engine_create");
  CHECK(made > before && made == destroyed);
  CHECK_FAILS(add("newest", NULL, make_newest, "mine", &error), MOERT_ALREADY_EXISTS, "newest", f);
  CHECK_FAILS(add("on-demand", NULL, make_newest, "mine", &error), MOERT_ALREADY_EXISTS,
              "on-demand", f);
  CHECK_FAILS(add("No Such", NULL, make_newest, "mine", &error), MOERT_INVALID_ARGUMENT, "No Such",
              f);
  CHECK_FAILS(add("odd", "a line without a meaning", make_newest, "mine", &error),
              MOERT_INVALID_ARGUMENT, "is no \"key: meaning\" line", f);
  CHECK_FAILS(add("odd", NULL, NULL, "mine", &error), MOERT_INVALID_ARGUMENT, "factory", f);
  CHECK_FAILS(add(NULL, NULL, make_newest, "mine", &error), MOERT_INVALID_ARGUMENT, "name", f);
  CHECK_OK(add("based", NULL, make_nothing, "no-such-base", &error));
  options = options_of("based");
  CHECK_FAILS(moert_engine_create(source, &options, &engine, &error), MOERT_INVALID_ARGUMENT,
              "no-such-base", "moert_engine_create");
  CHECK(engine == NULL);
  CHECK(moert_strategy_params_get(NULL, "limit") == NULL);
  moert_source_destroy(source);
}

int main(void) {
  test_use();
  test_rules();
  test_errors();
  if (check_failures != 0) fprintf(stderr, "%d checks failed\n", check_failures);
  return check_failures != 0;
}
