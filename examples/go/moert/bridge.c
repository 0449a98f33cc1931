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

/* All policies go through one exported function: what is asked, and its arguments. */
static void observe(void *user_data, const moert_policy_context *context,
                    const moert_routing_view *routing) {
  goPolicy((uintptr_t)user_data, 0, (void *)context, (void *)routing, NULL, 0, NULL);
}

static moert_code victim(void *user_data, const moert_victim_snapshot *snapshot, int64_t *chosen) {
  return goPolicy((uintptr_t)user_data, 1, (void *)snapshot, NULL, chosen, 0, NULL);
}

static moert_code rank(void *user_data, const moert_prefetch_snapshot *snapshot, int32_t *experts,
                       int32_t capacity, int32_t *count) {
  return goPolicy((uintptr_t)user_data, 2, (void *)snapshot, experts, NULL, capacity, count);
}

void bridge_policies(moert_policies *policies, uintptr_t handle) {
  moert_policies_init(policies, sizeof(*policies));
  policies->user_data = (void *)handle;
  policies->destroy = destroy;
  policies->observe = observe;
  policies->residency_victim = victim;
  policies->prefetch_rank = rank;
}
