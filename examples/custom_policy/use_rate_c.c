#include "use_rate_c.h"

#include <stdlib.h>

typedef struct use_rate {
  double decay;
  int32_t experts; /* of the layer with most */
  double rates[];  /* [layers][experts] */
} use_rate;

static void observe(void* user_data, const moert_policy_context* context,
                    const moert_routing_view* routing) {
  use_rate* state = (use_rate*)user_data;
  double* rates = state->rates + (int64_t)context->layer * state->experts;
  int32_t e;
  for (e = 0; e < routing->num_experts; ++e) {
    rates[e] = state->decay * rates[e] + (1 - state->decay) * (routing->counts[e] > 0 ? 1 : 0);
  }
}

static moert_code victim(void* user_data, const moert_victim_snapshot* snapshot, int64_t* chosen) {
  const use_rate* state = (const use_rate*)user_data;
  double lowest = 2;
  int64_t i;
  for (i = 0; i < snapshot->num_candidates; ++i) {
    const moert_candidate* c = &snapshot->candidates[i];
    const double rate = state->rates[(int64_t)c->layer * state->experts + c->expert];
    if (rate < lowest) {
      lowest = rate;
      *chosen = i;
    }
  }
  return MOERT_OK;
}

int use_rate_policies(const moert_source* source, double decay, moert_policies* policies) {
  const int32_t layers = moert_source_layer_count(source);
  int32_t l, experts = 0;
  use_rate* state;
  for (l = 0; l < layers; ++l) {
    moert_layer_spec spec;
    moert_layer_spec_init(&spec, sizeof(spec));
    if (moert_source_layer(source, l, &spec, NULL) != MOERT_OK) return -1;
    if (spec.num_experts > experts) experts = spec.num_experts;
  }
  state = (use_rate*)calloc(1, sizeof(*state) + sizeof(double) * (size_t)layers * (size_t)experts);
  if (state == NULL) return -1;
  state->decay = decay;
  state->experts = experts;
  moert_policies_init(policies, sizeof(*policies));
  policies->user_data = state;
  policies->destroy = free;
  policies->observe = observe;
  policies->residency_victim = victim;
  return 0; /* every other decision stays the strategy's */
}
