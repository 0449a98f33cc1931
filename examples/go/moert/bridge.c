#include "bridge.h"

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

static moert_code predict_next(void *user_data, int32_t layer, const float *partial, int64_t rows,
                               float *next_input) {
  return goPredict((uintptr_t)user_data, layer, (float *)partial, rows, next_input);
}

void bridge_predict(moert_step_info *info, uintptr_t handle) {
  info->user_data = (void *)handle;
  info->predict_next = predict_next;
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

static moert_code rank(void *user_data, const moert_prefetch_snapshot *snapshot, int32_t *experts,
                       int32_t capacity, int32_t *count) {
  return ASK(RANK, snapshot, experts, count, NULL, capacity);
}

static moert_code capacity(void *user_data, int64_t slots, int32_t *layers, int32_t num_layers) {
  return ASK(CAPACITY, &slots, layers, NULL, NULL, num_layers);
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

static moert_code placement(void *user_data, const moert_policy_context *context,
                            const moert_miss *misses, int32_t num_misses,
                            moert_placement *decisions) {
  return ASK(PLACEMENT, context, misses, decisions, NULL, num_misses);
}

void bridge_policies(moert_policies *policies, uintptr_t handle, uint32_t seams,
                     int32_t wants_next_gate) {
#define SET(what, member, function) \
  if (seams & (1u << BRIDGE_##what)) policies->member = function
  moert_policies_init(policies, sizeof(*policies));
  policies->user_data = (void *)handle;
  policies->destroy = destroy;
  policies->wants_next_gate = wants_next_gate;
  SET(OBSERVE, observe, observe);
  SET(RULE, routing_rule, rule);
  SET(RANK, prefetch_rank, rank);
  SET(CAPACITY, residency_capacity, capacity);
  SET(VICTIM, residency_victim, victim);
  SET(INSERTED, residency_insert, inserted);
  SET(EVICTED, residency_evict, evicted);
  SET(PRECISION, precision_decide, precision);
  SET(TRANSFER, precision_transfer, transfer);
  SET(PLACEMENT, placement, placement);
#undef SET
}
