#include "bridge.h"

#include <stdlib.h>

#include "_cgo_export.h"

static moert_code read_weights(void *user_data, const moert_read *read, moert_failure *failure) {
  return goRead((uintptr_t)user_data, (moert_read *)read, failure);
}

static void destroy(void *user_data) { goDestroy((uintptr_t)user_data); }

void bridge_callbacks(moert_source_callbacks *callbacks, uintptr_t handle) {
  moert_source_callbacks_init(callbacks, sizeof(*callbacks));
  callbacks->user_data = (void *)handle;
  callbacks->read = read_weights;
  callbacks->destroy = destroy;
  callbacks->weights_dtype = MOERT_F32;
}

static moert_code predict_next(void *user_data, int32_t layer, const moert_tensor *partial,
                               const moert_tensor *next_input) {
  return goPredict((uintptr_t)user_data, layer, (moert_tensor *)partial,
                   (moert_tensor *)next_input);
}

void bridge_predict(moert_step_options *options, uintptr_t handle) {
  options->user_data = (void *)handle;
  options->predict_next = predict_next;
}

moert_code bridge_begin(moert_engine *engine, moert_step_options *options,
                        const int64_t *request_ids, moert_step **step, moert_error **error) {
  moert_step_options mine = *options;
  mine.request_ids = request_ids;
  return moert_step_begin(engine, &mine, step, error);
}

moert_code bridge_forward(moert_step *step, int32_t layer, float *hidden, float *out, int64_t rows,
                          int64_t cols, int32_t *ids, float *weights, int32_t *used, int64_t k,
                          float *scores, int64_t experts, float *next, int64_t next_experts,
                          moert_error **error) {
  moert_tensor x, y;
  moert_routing routing;
  moert_tensor_init(&x, hidden, rows, cols, MOERT_F32);
  moert_tensor_init(&y, out, rows, cols, MOERT_F32);
  if (ids == NULL) return moert_layer_forward(step, layer, &x, NULL, &y, error);
  moert_routing_init(&routing, sizeof(routing));
  moert_tensor_init(&routing.ids, ids, rows, k, MOERT_I32);
  moert_tensor_init(&routing.weights, weights, rows, k, MOERT_F32);
  moert_tensor_init(&routing.used_ids, used, rows, k, MOERT_I32);
  if (scores != NULL) moert_tensor_init(&routing.scores, scores, rows, experts, MOERT_F32);
  if (next != NULL) moert_tensor_init(&routing.next_scores, next, rows, next_experts, MOERT_F32);
  if (hidden == NULL) return moert_layer_forward(step, layer, NULL, &routing, NULL, error);
  return moert_layer_forward(step, layer, &x, &routing, &y, error);
}

moert_code bridge_fetch(moert_step *step, int32_t layer, int32_t *ids, int64_t rows, int64_t k,
                        moert_slots *slots, moert_error **error) {
  moert_fetch fetch;
  moert_fetch_init(&fetch, sizeof(fetch));
  moert_tensor_init(&fetch.ids, ids, rows, k, MOERT_I32);
  return moert_layer_fetch(step, layer, &fetch, slots, error);
}

static moert_code read_part(void *user_data, int32_t layer, int32_t expert, int32_t part, void *dst,
                            int64_t bytes, moert_failure *failure) {
  return goReadPart((uintptr_t)user_data, layer, expert, part, dst, bytes, failure);
}

void bridge_records(moert_opaque_options *options, uintptr_t handle, int32_t reads) {
  moert_opaque_options_init(options, sizeof(*options));
  options->user_data = (void *)handle;
  options->destroy = destroy;
  if (reads) options->read = read_part;
}

static void metric(void *user_data, const char *name, double value) {
  goMetric((uintptr_t)user_data, (char *)name, value);
}

moert_code bridge_metrics(const moert_engine *engine, uintptr_t handle, moert_error **error) {
  return moert_metrics_visit(engine, metric, (void *)handle, error);
}

static moert_code make_strategy(void *user_data, moert_strategy_params *params,
                                moert_strategy *strategy, moert_failure *failure) {
  /* Read when this function has returned: kept until the thread's next call. */
  static _Thread_local char *base;
  free(base);
  base = goStrategy((uintptr_t)user_data, params, strategy->policies, failure);
  if (base == NULL) return MOERT_INVALID_ARGUMENT;
  strategy->base = base;
  return MOERT_OK;
}

moert_code bridge_register(const moert_strategy_info *info, uintptr_t handle, moert_error **error) {
  return moert_strategy_register(info, make_strategy, (void *)handle, error);
}

static void on_call(void *user_data, const moert_trace_call *call) {
  goTraceCall((uintptr_t)user_data, (moert_trace_call *)call);
}

static void on_span(void *user_data, const moert_trace_span *span) {
  goTraceSpan((uintptr_t)user_data, (moert_trace_span *)span);
}

void bridge_sink(moert_trace_sink *sink, uintptr_t handle, int32_t wants_next_scores) {
  moert_trace_sink_init(sink, sizeof(*sink));
  sink->wants_next_scores = wants_next_scores;
  sink->user_data = (void *)handle;
  sink->on_call = on_call;
  sink->on_span = on_span;
  sink->destroy = destroy;
}

static void on_log(void *user_data, moert_log_level level, const char *line) {
  goLog((uintptr_t)user_data, level, (char *)line);
}

void bridge_logger(moert_logger *logger, uintptr_t handle) {
  moert_logger_init(logger, sizeof(*logger));
  logger->user_data = (void *)handle;
  logger->log = on_log;
  logger->destroy = destroy;
}

/* All policies go through one exported function: what is asked, its arguments, their number. */
#define ASK(what, a, b, c, d, n) \
  goPolicy((uintptr_t)user_data, BRIDGE_##what, (void *)(a), (void *)(b), (void *)(c), (void *)(d), n)

static void observe(void *user_data, const moert_policy_context *context,
                    const moert_routing_view *routing) {
  ASK(OBSERVE, context, routing, NULL, NULL, 0);
}

static moert_code rule(void *user_data, const moert_policy_context *context,
                       moert_routing_rule *own) {
  return ASK(RULE, context, own, NULL, NULL, 0);
}

static moert_code rank(void *user_data, const moert_prefetch_snapshot *snapshot,
                       moert_prediction *ranked, int32_t capacity, int32_t *count) {
  return ASK(RANK, snapshot, ranked, count, NULL, capacity);
}

static moert_code capacity(void *user_data, const moert_capacity_snapshot *snapshot,
                           int32_t *layers) {
  return ASK(CAPACITY, snapshot, layers, NULL, NULL, 0);
}

static moert_code resize(void *user_data, const moert_policy_context *context, int32_t *wants) {
  return ASK(RESIZE, context, wants, NULL, NULL, 0);
}

static moert_code victim(void *user_data, const moert_victim_snapshot *snapshot, int64_t *chosen) {
  return ASK(VICTIM, snapshot, chosen, NULL, NULL, 0);
}

static void inserted(void *user_data, int32_t layer, int32_t expert, int32_t prefetch) {
  ASK(INSERTED, &layer, &expert, NULL, NULL, prefetch);
}

static void evicted(void *user_data, int32_t layer, int32_t expert) {
  ASK(EVICTED, &layer, &expert, NULL, NULL, 0);
}

static moert_code initial(void *user_data, const int32_t *high_capacity, int32_t num_layers,
                          int64_t total_experts, int64_t *high, int64_t *num_high,
                          moert_failure *failure) {
  return ASK(INITIAL, high_capacity, &total_experts, high, num_high, num_layers);
}

static moert_code worth(void *user_data, const moert_precision_snapshot *snapshot, double *worth) {
  return ASK(WORTH, snapshot, worth, NULL, NULL, 0);
}

static moert_code precision(void *user_data, const moert_precision_snapshot *snapshot,
                            int64_t *promote, int64_t *num_promote, int64_t *demote,
                            int64_t *num_demote) {
  int64_t *counts[2] = {num_promote, num_demote};
  return ASK(PRECISION, snapshot, promote, demote, counts, 0);
}

static moert_code transfer(void *user_data, const moert_transfer_snapshot *snapshot,
                           int32_t *version) {
  return ASK(TRANSFER, snapshot, version, NULL, NULL, 0);
}

static moert_code upgrades(void *user_data, const moert_policy_context *context, int32_t *yes) {
  return ASK(UPGRADES, context, yes, NULL, NULL, 0);
}

static moert_code placement(void *user_data, const moert_placement_snapshot *snapshot,
                            moert_placement *decisions) {
  return ASK(PLACEMENT, snapshot, decisions, NULL, NULL, 0);
}

static moert_code backfills(void *user_data, const moert_policy_context *context,
                            int32_t free_slots, int32_t *yes) {
  return ASK(BACKFILLS, context, yes, NULL, NULL, free_slots);
}

void bridge_policies(moert_policies *policies, uintptr_t handle, uint32_t seams,
                     int32_t wants_next_gate, int32_t wants_resident_forward) {
#define SET(what, member, function) \
  if (seams & (1u << BRIDGE_##what)) policies->member = function
  moert_policies_init(policies, sizeof(*policies));
  policies->user_data = (void *)handle;
  policies->destroy = destroy;
  policies->prefetch_wants_next_gate = wants_next_gate;
  policies->prefetch_wants_resident_forward = wants_resident_forward;
  SET(OBSERVE, observe, observe);
  SET(RULE, routing_rule, rule);
  SET(RANK, prefetch_rank, rank);
  SET(CAPACITY, residency_capacity, capacity);
  SET(RESIZE, residency_wants_capacity, resize);
  SET(VICTIM, residency_victim, victim);
  SET(INSERTED, residency_insert, inserted);
  SET(EVICTED, residency_evict, evicted);
  SET(INITIAL, precision_initial, initial);
  SET(WORTH, precision_worth, worth);
  SET(UPGRADES, precision_upgrades, upgrades);
  SET(BACKFILLS, placement_backfills, backfills);
  SET(PRECISION, precision_decide, precision);
  SET(TRANSFER, precision_transfer, transfer);
  SET(PLACEMENT, placement, placement);
#undef SET
}
