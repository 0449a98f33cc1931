/* One fault at a time through the life of an engine: sources, engines, steps, leases, hints,
 * budgets, traces over the C ABI, while the n-th call of a kind fails, for n = 1, 1 + stride...
 * After each fault the same engine, or a new one where none was made, must give the bits of a run
 * without faults, and blocks, mappings, descriptors and threads must be back. A crash ends the
 * program.
 *
 *   sweep FOLDER MODEL CONFIG KIND|all STRIDE FILE_STRIDE once|lasting|kept|all
 *
 * STRIDE of allocations, FILE_STRIDE of all else. kept: one engine lives through the faults of all
 * n, in its steps; what each loses adds up, and its smallest budget must stay legal. FOLDER: of the
 * program's own files. MODEL: a checkpoint, or a pack of two versions for the strategies that serve
 * two. Exit status 1: something did not hold.
 */
#define _GNU_SOURCE 1
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/c_host/tiny_experts.h"
#include "inject.h"
#include "moert.h"

enum { kRows = 3, kSteps = 4, kMaxLayers = 8, kMaxHidden = 128 };
enum source_kind { CALLBACKS, PACK, CACHED, FRESH, GIVEN_PACK };

struct config {
  const char* name;
  enum source_kind source;
  const char* strategy;
  double fraction;
  int virtual_clock, threads, io_threads, trace, exact, split;
};
static const struct config configs[] = {
    {"on-demand", CALLBACKS, "on-demand", 0.3, 0, 1, 2, 0, 1, 0},
    {"fate", CALLBACKS, "fate", 0.4, 0, 2, 2, 0, 1, 1},
    {"prefetch", CALLBACKS, "on-demand+fate.prefetch", 0.4, 1, 1, 1, 0, 1, 0},
    {"prefetch-trace", CALLBACKS, "on-demand+fate.prefetch", 0.4, 0, 1, 2, 1, 1, 1},
    {"resident", CALLBACKS, "resident", 1.0, 0, 2, 2, 0, 1, 0},
    {"arc", CALLBACKS, "fate:percentile=75,eviction=arc", 0.4, 0, 1, 1, 1, 1, 0},
    {"score", CALLBACKS, "on-demand+importance.residency", 0.4, 1, 2, 2, 0, 1, 1},
    {"auto", CALLBACKS, "auto", 0.4, 0, 1, 2, 0, 1, 0},
    {"importance", CALLBACKS, "importance", 0.4, 0, 1, 1, 0, 0, 0},
    {"pack", PACK, "on-demand", 0.2, 0, 1, 2, 0, 1, 0},
    {"cached", CACHED, "on-demand", 0.2, 0, 1, 1, 0, 1, 0},
    {"fresh", FRESH, "on-demand", 0.2, 0, 1, 1, 0, 1, 0},
    {"dynaexq", GIVEN_PACK, "dynaexq:hi=bf16,lo=w4a16_g128,interval_ms=0.2", 0.6, 0, 1, 2, 0, 0, 0},
    {"no-wait", GIVEN_PACK, "graded:wait=0,hi=bf16,lo=w4a16_g128", 0.6, 0, 1, 2, 0, 0, 0},
};
enum { kConfigs = (int)(sizeof(configs) / sizeof(configs[0])) };

static const struct config* config;
static const char *folder, *model;
static char cache[500], fresh[500], trace[500], timeline[600], pack[700], own[PATH_MAX];
static int problems, refused;
static char first_error[300];
static double least_fraction;

static void problem(const char* what, const char* kind, long n, const char* detail) {
  if (++problems <= 20)
    fprintf(stderr, "%s: %s %ld: %s (%s)\n", config->name, kind, n, what, detail);
}

/* Whether a call failed; errors must come whole. */
static int failed(moert_code code, moert_error** object, const char* call) {
  moert_error* error = *object;
  if (code == MOERT_OK) {
    if (error != NULL) problem("an error object of a call that succeeded", call, 0, "");
    return 0;
  }
  if (refused++ == 0) {
    snprintf(first_error, sizeof(first_error), "%s: %s: %s", call, moert_code_name(code),
             moert_error_message(error));
  }
  if (moert_error_code(error) != code) problem("an error without its object", call, 0, "");
  moert_error_destroy(error);
  return 1;
}
/* The call is evaluated before its error is looked at, whatever the order of arguments is. */
#define FAILED(call) (error = NULL, failed(call, &error, #call))

static moert_source* open_source(void) {
  moert_source* source = NULL;
  moert_error* error = NULL;
  if (config->source == CALLBACKS) {
    moert_layer_spec layers[kTinyLayers];
    moert_source_callbacks callbacks;
    tiny_layers(layers);
    moert_source_callbacks_init(&callbacks, sizeof(callbacks));
    callbacks.read = tiny_read;
    callbacks.weights_dtype = MOERT_F32;
    (void)FAILED(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  } else if (config->source == PACK || config->source == GIVEN_PACK) {
    const char* const path = config->source == PACK ? pack : model;
    (void)FAILED(moert_source_open_pack(path, &source, &error));
  } else {
    moert_open_options options;
    moert_open_options_init(&options, sizeof(options));
    options.cache_dir = config->source == FRESH ? fresh : cache;
    options.mode = MOERT_OPEN_PACK;
    (void)FAILED(moert_source_open(model, &options, &source, &error));
  }
  return source;
}

static moert_engine* open_engine(const moert_source* source) {
  moert_engine_options options;
  moert_engine* engine = NULL;
  moert_error* error = NULL;
  moert_engine_options_init(&options, sizeof(options));
  options.strategy = config->strategy;
  options.budget_fraction = config->fraction;
  options.clock = config->virtual_clock;
  options.threads = config->threads;
  options.io_threads = config->io_threads;
  options.max_tokens_per_forward = kRows;
  options.backend = MOERT_BACKEND_CPU;
  if (config->trace) {
    options.trace_path = trace;
    options.timeline_path = timeline;
    options.trace_replace = 1;
  }
  (void)FAILED(moert_engine_create(source, &options, &engine, &error));
  return engine;
}

static float outputs[kSteps][kMaxLayers][kRows * kMaxHidden];
static float expected[kSteps][kMaxLayers][kRows * kMaxHidden];
static char complete[kSteps];

static void extras(moert_engine* engine, moert_step* step, int t) {
  moert_error* error = NULL;
  static float weights[1 << 20];
  const int32_t experts[2] = {1, 3};
  if (t == 1) {
    moert_lease* lease = NULL;
    moert_expert_view view;
    moert_expert_view_init(&view, sizeof(view));
    if (FAILED(moert_lease_acquire(step, 0, experts, 2, &lease, &error))) return;
    /* The name of a scheme, once seen, is kept for the life of the process: not where one of two
     * may be seen first in any life. */
    if (config->source != GIVEN_PACK && !FAILED(moert_lease_view(lease, 1, &view, &error))) {
      const uint64_t count = (uint64_t)(view.gate.rows * view.gate.k);
      (void)FAILED(moert_lease_read(lease, 1, MOERT_PART_GATE_PROJ, weights, count, &error));
    }
    moert_lease_release(lease);
  } else if (t == 2) {
    uint8_t states[64];
    moert_layer_spec spec;
    moert_layer_spec_init(&spec, sizeof(spec));
    if (FAILED(moert_engine_layer(engine, 0, &spec, &error))) return;
    (void)FAILED(moert_engine_residency(engine, 0, states, spec.num_experts, &error));
    (void)FAILED(moert_engine_prefetch(engine, 1, experts, 2, &error));
  } else if (t == 3) {
    moert_stats stats;
    uint64_t needed = 0;
    moert_stats_init(&stats, sizeof(stats));
    (void)FAILED(moert_engine_stats(engine, &stats, &error));
    (void)FAILED(moert_metrics_prometheus(engine, "x", NULL, 0, &needed, &error));
  }
}

static int run_layer(moert_step* step, int layer, float* x, int hidden, int rows, float* y) {
  moert_error* error = NULL;
  moert_call* call = NULL;
  moert_tensor in, out;
  moert_tensor_init(&in, x, rows, hidden, MOERT_F32);
  moert_tensor_init(&out, y, rows, hidden, MOERT_F32);
  if (!config->split || layer % 2 == 0) {
    return FAILED(moert_layer_forward(step, layer, &in, NULL, &out, &error));
  }
  if (FAILED(moert_layer_begin(step, layer, &in, NULL, &out, NULL, &call, &error))) return 1;
  return FAILED(moert_layer_finish(call, &error));
}

static void run_step(moert_engine* engine, int t) {
  static float x[kRows * kMaxHidden];
  moert_step_options info;
  moert_step* step = NULL;
  moert_error* error = NULL;
  const int64_t ids[kRows] = {1, 2, 3};
  const int layers = moert_engine_layer_count(engine), rows = t % 2 ? kRows : 1;
  int l, i, bad = 0;
  complete[t] = 0;
  moert_step_options_init(&info, sizeof(info));
  info.rows = rows;
  info.phase = t % 2 ? MOERT_PREFILL : MOERT_DECODE;
  info.request_ids = ids;
  if (FAILED(moert_step_begin(engine, &info, &step, &error))) return;
  for (l = 0; l < layers && !bad; ++l) {
    moert_layer_spec spec;
    moert_layer_spec_init(&spec, sizeof(spec));
    bad = FAILED(moert_engine_layer(engine, l, &spec, &error));
    if (bad) break;
    for (i = 0; i < rows * spec.hidden; ++i) x[i] = tiny_input((t * 31 + l * 7) * 1000 + i);
    bad = run_layer(step, l, x, (int)spec.hidden, rows, outputs[t][l]);
  }
  if (!bad) extras(engine, step, t);
  complete[t] = !FAILED(moert_step_end(step, &error)) && !bad;
  if (t == 2 && config->fraction < 1) {
    (void)FAILED(moert_engine_set_budget(engine, 0, config->fraction * 0.95, &error));
    (void)FAILED(moert_engine_set_budget(engine, 0, config->fraction, &error));
  }
}

static void run_steps(moert_engine* engine) {
  int t;
  memset(outputs, 0, sizeof(outputs));
  for (t = 0; t < kSteps; ++t) run_step(engine, t);
}

static void clean(void) {
  char command[2400];
  const long hits = fault_disarm();
  (void)hits;
  snprintf(command, sizeof(command), "rm -rf '%s' '%s' '%s'", fresh, trace, timeline);
  if (system(command) != 0) exit(3);
}

/* Steps that succeeded must have the right bits. */
static int wrong(int all) {
  int t;
  for (t = 0; t < kSteps; ++t) {
    if (complete[t] && memcmp(outputs[t], expected[t], sizeof(outputs[t])) != 0) return 1;
    if (all && !complete[t]) return 1;
  }
  return 0;
}

/* One life with a fault (n = 0: without). Returns how many calls failed. */
static long live_with(int kind, long n, int lasting) {
  const char* name = fault_name(kind);
  moert_source* source;
  moert_engine* engine;
  char before[300];
  long hits;
  if (config->source == FRESH || config->trace) clean();
  refused = 0;
  first_error[0] = 0;
  fault_arm(kind, n, lasting);
  source = open_source();
  engine = source == NULL ? NULL : open_engine(source);
  if (engine != NULL) run_steps(engine);
  hits = fault_disarm();
  memcpy(before, first_error, sizeof(before));
  if (engine != NULL && config->exact && n > 0 && wrong(0)) {
    problem("wrong output, status OK", name, n, before);
  }
  refused = 0;
  first_error[0] = 0;
  if (source == NULL) source = open_source();
  if (config->trace && engine == NULL) clean();
  if (engine == NULL && source != NULL) engine = open_engine(source);
  if (engine == NULL) {
    problem("cannot be opened afterwards", name, n, first_error);
  } else {
    run_steps(engine);
    if (n == 0) memcpy(expected, outputs, sizeof(expected));
    if (refused > 0) {
      problem("unusable afterwards", name, n, first_error);
    } else if (config->exact && wrong(1)) {
      problem("wrong output afterwards", name, n, before);
    }
  }
  moert_source_destroy(source);
  moert_engine_destroy(engine);
  return hits;
}

/* The process's memory, mappings, descriptors and threads. */
struct holdings {
  long blocks, mappings;
  int descriptors, threads;
};
static struct holdings held_now(void) {
  struct holdings now = {fault_live_blocks(), fault_mappings(), fault_descriptors(),
                         fault_threads()};
  return now;
}
static void compare_holdings(const struct holdings* before, const char* kind, long n) {
  struct holdings now = held_now();
  int i;
  /* A thread that was joined leaves /proc a little later. */
  for (i = 0; i < 1000 && now.threads > before->threads; ++i) {
    usleep(1000);
    now.threads = fault_threads();
  }
  if (now.blocks > before->blocks) problem("blocks are lost", kind, n, first_error);
  if (now.mappings != before->mappings) problem("mappings are lost", kind, n, "");
  if (now.descriptors != before->descriptors) problem("descriptors are lost", kind, n, "");
  if (now.threads > before->threads) problem("threads are left", kind, n, "");
}

static long sweep(int kind, long stride, int lasting) {
  long n, total = 0, hits = 1, faults = 0;
  for (n = 1; hits > 0 && problems < 200; n += stride) {
    const struct holdings before = held_now();
    hits = live_with(kind, n, lasting);
    faults += hits > 0;
    total = n;
    compare_holdings(&before, fault_name(kind), n);
  }
  printf("%s %s %s: %ld faults, n up to %ld\n", config->name, fault_name(kind),
         lasting ? "lasting" : "once", faults, total);
  return faults;
}

/* Refused while more experts are pinned than it holds, so no pin may be left. */
static void smallest_budget(moert_engine* engine, const char* kind, long n) {
  moert_error* error = NULL;
  double fraction = 0.02; /* the first legal one */
  refused = 0;
  if (config->fraction >= 1) return;
  while (fraction < config->fraction &&
         moert_engine_set_budget(engine, 0, fraction, NULL) != MOERT_OK) {
    fraction += 0.02;
  }
  if (n == 0) least_fraction = fraction;
  if (fraction > least_fraction + 1e-9) problem("the smallest budget is refused", kind, n, "");
  if (FAILED(moert_engine_set_budget(engine, 0, config->fraction, &error))) {
    problem("the budget does not come back", kind, n, first_error);
  }
}

/* One engine through the faults of all n. */
static long sweep_kept(int kind, long stride) {
  const char* const name = fault_name(kind);
  struct holdings before;
  long n, total = 0, hits = 1, faults = 0;
  moert_source* source;
  moert_engine* engine;
  before = held_now();
  if (config->trace) clean();
  source = open_source();
  engine = open_engine(source);
  if (engine == NULL) exit(3);
  smallest_budget(engine, name, 0);
  for (n = 1; hits > 0 && problems < 200; n += stride) {
    int lasting;
    hits = 0;
    for (lasting = 0; lasting < 2; ++lasting) {
      fault_arm(kind, n, lasting);
      run_steps(engine);
      hits += fault_disarm();
      if (config->exact && wrong(0)) problem("wrong output, status OK", name, n, first_error);
      refused = 0;
      run_steps(engine);
      if (refused > 0) {
        problem("unusable afterwards", name, n, first_error);
      } else if (config->exact && wrong(1)) {
        problem("wrong output afterwards", name, n, first_error);
      }
    }
    faults += hits > 0;
    total = n;
    smallest_budget(engine, name, n);
  }
  moert_source_destroy(source);
  moert_engine_destroy(engine);
  compare_holdings(&before, name, n);
  printf("%s %s kept: %ld faults, n up to %ld\n", config->name, name, 2 * faults, total);
  return 2 * faults;
}

/* The pack that the cache made of the checkpoint. */
static void make_pack(void) {
  char command[1500];
  moert_source* source = NULL;
  moert_open_options options;
  FILE* list;
  moert_open_options_init(&options, sizeof(options));
  options.cache_dir = cache;
  options.mode = MOERT_OPEN_PACK;
  if (moert_source_open(model, &options, &source, NULL) != MOERT_OK) exit(3);
  moert_source_destroy(source);
  snprintf(command, sizeof(command), "ls -d '%s'/*-v1", cache);
  list = popen(command, "r");
  if (list == NULL || fgets(pack, sizeof(pack), list) == NULL) exit(3);
  pclose(list);
  pack[strcspn(pack, "\n")] = 0;
}

int main(int argc, char** argv) {
  int c, k;
  const char* mode;
  long faults = 0, seen[FAULT_KINDS]; /* calls of a life */
  if (argc != 8) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0); /* what was counted stays when a fault ends the program */
  mode = argv[7];
  folder = argv[1];
  model = argv[2];
  snprintf(cache, sizeof(cache), "%s/cache", folder);
  snprintf(fresh, sizeof(fresh), "%s/fresh", folder);
  snprintf(trace, sizeof(trace), "%s/trace", folder);
  snprintf(timeline, sizeof(timeline), "%s/timeline", folder);
  for (c = 0; c < kConfigs; ++c) {
    if (strcmp(configs[c].name, argv[3]) == 0) config = &configs[c];
  }
  if (config == NULL) return 2;
  if (config->source == PACK || config->source == CACHED) make_pack();
  /* A checkpoint carries no checksums: what is read of it is believed. */
  if (config->source != GIVEN_PACK) fault_flip_below(realpath(folder, own));
  live_with(0, 0, 0);
  live_with(0, 0, 0); /* the first has what lasts for the process */
  for (k = 0; k < FAULT_KINDS; ++k) seen[k] = fault_calls(k);
  for (k = 0; k < FAULT_KINDS; ++k) {
    if (seen[k] == 0) continue;
    if (strcmp(argv[4], "all") != 0 && k != fault_kind_of(argv[4])) continue;
    const long stride = atol(argv[k == FAULT_MALLOC ? 5 : 6]);
    const int every = strcmp(mode, "all") == 0;
    if (every || strcmp(mode, "once") == 0) faults += sweep(k, stride, 0);
    if (every || strcmp(mode, "lasting") == 0) faults += sweep(k, stride, 1);
    if (every || strcmp(mode, "kept") == 0) faults += sweep_kept(k, stride);
  }
  clean();
  printf("%s: %ld faults, %d problems\n", config->name, faults, problems);
  return problems > 0;
}
