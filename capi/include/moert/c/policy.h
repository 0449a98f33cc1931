/* policy.h: decisions of the host in the engine's five seams (docs/guide/custom-policy.md). Since
 * 0.1.
 *
 * A member of moert_policies that is NULL leaves its decision to the strategy. So does a call that
 * returns anything but MOERT_OK, or an answer out of range; both are counted
 * (moert_stats.policy_fallbacks). Calls come from one thread at a time, the one that makes the
 * layer call, while the engine is locked: a policy must not call the engine, and should not do I/O,
 * wait or read a clock. Pointers are borrowed for the call. E is the number of experts of the layer
 * in question.
 *
 * Decisions that follow one of the rules below need not be asked for: the host returns the rule
 * once, when the engine is created, and the engine carries it out itself, on a device too. If every
 * seam that the strategy fills has a rule, layers can be captured in a CUDA graph while experts are
 * missing. A rule that is out of range fails the create, and so does a rule together with another
 * member of its seam (observe belongs to residency). */
#ifndef MOERT_C_POLICY_H_
#define MOERT_C_POLICY_H_

#include "moert/c/model.h"

MOERT_BEGIN_C

typedef int32_t moert_phase;
enum moert_phase_values { MOERT_PHASE_INVALID = -1, MOERT_PREFILL = 0, MOERT_DECODE = 1 };

/* When and where a decision is asked. */
typedef struct moert_policy_context {
  uint64_t struct_size;
  int64_t step;   /* steps begun before this one */
  int64_t now_ns; /* the engine's clock */
  int32_t layer;
  moert_phase phase;
  const int64_t *request_ids; /* [num_request_ids], one per row of the step; NULL: unknown */
  int64_t num_request_ids;
} moert_policy_context;

/* The true routing of one layer call: T tokens, k experts each. */
typedef struct moert_routing_view {
  uint64_t struct_size;
  int64_t tokens;
  int32_t top_k;
  int32_t num_experts;
  const int32_t *ids;    /* [T, k], highest weight first; -1: not here (moert_routing) */
  const float *weights;  /* [T, k], as they enter the sum */
  const float *scores;   /* [T, E], or NULL when the host gave a routing without */
  const int32_t *counts; /* [E], tokens of each expert */
} moert_routing_view;

/* ---- Routing: which experts does a token use? */

typedef int32_t moert_rule;
enum moert_rule_values {
  MOERT_RULE_INVALID = -1,
  MOERT_RULE_TOPK = 0,        /* the model's own routing */
  MOERT_RULE_EXPERT_CACHE = 1 /* near the threshold, resident experts are preferred; lossy */
};

/* The fields after kind apply to the expert cache only. */
typedef struct moert_routing_rule {
  uint64_t struct_size;
  moert_rule kind;
  float alpha;               /* half width of the band around the threshold, in [0, 1] */
  float max_slot_share;      /* cap of the substituted share of a request's slots over its life */
  float max_mass_share;      /* ... and of its routing mass */
  int32_t second_pass;       /* 1: also substitute by experts that other tokens force in */
  int32_t own_score_weights; /* 1: substitutes are weighted by their own scores */
} moert_routing_rule;

/* ---- Prefetch: what comes next? */

typedef struct moert_prefetch_snapshot {
  uint64_t struct_size;
  const moert_policy_context *context; /* the layer whose routing just became known */
  const moert_routing_view *routing;   /* of that layer */
  /* The layer that predictions are wanted for; E is its number of experts. */
  int32_t target_layer;
  int32_t target_experts;
  const float *predicted_scores; /* [T, E] of its gate, or NULL */
  const uint8_t *resident;       /* [E], usable in the best version */
  const uint8_t *usable;         /* [E], usable in some version */
  const uint8_t *in_flight;      /* [E] */
  int64_t target_capacity;       /* slots of the target layer */
  int64_t window_ns;             /* until the target layer asks, waiting excluded: measured */
  int64_t transfer_ns;           /* of one of its experts over the link: measured */
} moert_prefetch_snapshot;

/* It never changes. */
typedef struct moert_prediction {
  int32_t expert; /* of the target layer */
  float score;    /* higher is fetched earlier */
  int32_t tokens; /* expected to use it; 0: unknown */
} moert_prediction;

typedef int32_t moert_prefetch_kind;
enum moert_prefetch_kind_values {
  MOERT_PREFETCH_INVALID = -1,
  MOERT_PREFETCH_NEXT_GATE = 0, /* by the next layer's gate, and how often it was right */
  MOERT_PREFETCH_TOP_SCORE = 1  /* the experts it scores highest; a device ranks them as above */
};

typedef struct moert_prefetch_rule {
  uint64_t struct_size;
  moert_prefetch_kind kind;
  int32_t wrap;             /* NEXT_GATE, host only: 1: also the next step's first layer */
  float alpha;              /* TOP_SCORE: scores above (1 + alpha) * threshold; in [0, 1] */
  int32_t resident_forward; /* host only: 1: see prefetch_wants_resident_forward */
} moert_prefetch_rule;

/* ---- Residency: how many slots has a layer, and which expert leaves? */

/* The measured effect of prefetching on one layer. It never changes. */
typedef struct moert_prefetch_outlook {
  double recall;    /* share of the layer's lookups that predictions name */
  double transfers; /* number that fits the window before the layer asks */
} moert_prefetch_outlook;

typedef struct moert_capacity_snapshot {
  uint64_t struct_size;
  int64_t slots; /* of the pool */
  int64_t num_layers;
  const moert_prefetch_outlook *prefetch; /* [num_layers], or NULL: no prefetch */
} moert_capacity_snapshot;

/* One expert that may be evicted. Ticks count layer calls. It never changes. */
typedef struct moert_candidate {
  int32_t layer;
  int32_t expert;
  int64_t last_used; /* tick of the last use; 0: never since it came */
  int64_t inserted;  /* tick it came */
  int64_t uses;
  int32_t tokens;          /* of the last call that used it */
  int32_t unused_prefetch; /* 1: brought by a prefetch and not used yet */
} moert_candidate;

typedef struct moert_victim_snapshot {
  uint64_t struct_size;
  const moert_policy_context *context;
  const moert_candidate *candidates; /* [num_candidates], never pinned ones */
  int64_t num_candidates;            /* at least 1 */
  int32_t incoming_layer;
  int32_t incoming_expert; /* -1: the layer gives up surplus */
  int32_t for_prefetch;    /* 1: no call waits for the expert, it may be refused */
  int32_t dispensable;     /* 1: for_prefetch, and a CPU beside the device computes it if refused */
} moert_victim_snapshot;

typedef int32_t moert_residency_kind;
enum moert_residency_kind_values {
  MOERT_RESIDENCY_INVALID = -1,
  MOERT_LEAST_RECENTLY_USED = 0,
  MOERT_LEAST_WORTH = 1,        /* the expert that the next calls will want least */
  MOERT_LEAST_AVERAGE_SCORE = 2 /* over the last `window` calls of the layer */
};

/* How slots are dealt to layers. */
typedef int32_t moert_capacity_kind;
enum moert_capacity_kind_values {
  MOERT_CAPACITY_INVALID = -1,
  MOERT_CAPACITY_UNIFORM = 0,
  MOERT_CAPACITY_SHALLOW_FIRST = 1, /* the first layers are filled, the others share the rest */
  MOERT_CAPACITY_MEASURED = 2       /* to the layers where slots spare most misses */
};

typedef struct moert_residency_rule {
  uint64_t struct_size;
  moert_residency_kind kind;
  int32_t window;       /* MOERT_LEAST_AVERAGE_SCORE: 1 to 4096 */
  int32_t shared_slots; /* MOERT_LEAST_WORTH: 1: the least worthy expert of all layers leaves */
  moert_capacity_kind capacity;
  int32_t shallow;   /* MOERT_CAPACITY_SHALLOW_FIRST: layers that are filled; -1: a sixth */
  int32_t transient; /* slots that belong to no layer; -1: enough for experts passing through */
} moert_residency_rule;

/* ---- Precision: which version should be resident, and which is moved? */

/* Experts of all layers, one after the other. */
typedef struct moert_precision_snapshot {
  uint64_t struct_size;
  const moert_policy_context *context; /* layer unused: asked once an interval, as a step ends */
  const int64_t *selections;           /* [total_experts], tokens since the last call */
  const uint8_t *high; /* [total_experts], number of versions above the lowest that the expert has,
                        * resident or arriving; with two versions 1 is high */
  int64_t total_experts;
  const int32_t *high_capacity; /* [num_layers], high experts that fit in a layer */
  int64_t num_layers;
} moert_precision_snapshot;

/* A transfer that is about to begin. */
typedef struct moert_transfer_snapshot {
  uint64_t struct_size;
  const moert_policy_context *context;
  int32_t expert;
  int32_t prefetch;            /* 1: not demanded yet */
  int32_t tokens;              /* tokens that use it */
  int32_t num_versions;        /* of the strategy */
  int64_t layer_tokens;        /* token x k slots of the layer */
  const int32_t *layer_counts; /* [num_experts], tokens of every expert of the layer, or NULL */
  int64_t num_experts;
} moert_transfer_snapshot;

/* ---- Placement: what to do with a miss? */

typedef int32_t moert_placement;
enum moert_placement_values {
  MOERT_PLACEMENT_INVALID = -1,
  MOERT_LOAD_MISS = 0,
  MOERT_COMPUTE_ON_CPU = 1 /* beside the device; a transfer under way goes on */
};

/* An expert that is needed and absent. It never changes. */
typedef struct moert_miss {
  int32_t expert;
  int32_t tokens;
  float mass;       /* summed routing weight */
  int32_t arriving; /* 1: a prefetch of it is on its way */
  int64_t bytes;    /* of the transfer */
  int64_t load_ns;  /* modelled: of the transfer, or of what is left of it */
  int64_t cpu_ns;   /* modelled; negative: no CPU executor */
} moert_miss;

typedef struct moert_placement_snapshot {
  uint64_t struct_size;
  const moert_policy_context *context;
  const moert_miss *misses; /* [num_misses] */
  int64_t num_misses;
  int64_t link_busy_ns; /* modelled: until what is under way has arrived */
} moert_placement_snapshot;

/* How misses are shared with a CPU beside the device. */
typedef int32_t moert_cpu_balance;
enum moert_cpu_balance_values {
  MOERT_CPU_BALANCE_INVALID = -1,
  MOERT_CPU_BALANCE_NONE = 0,         /* all are loaded */
  MOERT_CPU_BALANCE_IN_TURNS = 1,     /* Algorithm 2 of the importance paper */
  MOERT_CPU_BALANCE_BY_COMPLETION = 2 /* so that both are done earliest */
};

typedef struct moert_placement_rule {
  uint64_t struct_size;
  moert_cpu_balance balance;
  int32_t backfills; /* 1: in decode, experts that a CPU computed are always loaded afterwards */
  /* If the strategy serves two versions: the share of each request's routing mass that low versions
   * may answer, in [0, 1]. In decode they answer misses that take at most 1 / low_patience of what
   * remains of that share; low_patience is 0 (none) or at least 1. */
  double max_low_share;
  double low_patience;
  int32_t spares_low; /* 1: not the misses that a CPU computes before their load would end */
  int32_t reserved;   /* 0 */
} moert_placement_rule;

/* ---- The policies of one engine. */

typedef struct moert_policies {
  uint64_t struct_size;
  void *user_data;
  /* Called once, when the engine is gone; may be NULL. On a failed create user_data stays the
   * host's. */
  void (*destroy)(void *user_data);
  /* Every layer call's true routing, before any decision that depends on it. */
  void (*observe)(void *user_data, const moert_policy_context *context,
                  const moert_routing_view *routing);

  /* Routing. MOERT_OK, or a code (with the reason) that create fails with: the model cannot be
   * routed by these rules. */
  moert_code (*routing_check)(void *user_data, const moert_layer_spec *layers, int32_t num_layers,
                              moert_failure *failure);
  /* `rule` holds the strategy's own rule, to be changed. */
  moert_code (*routing_rule)(void *user_data, const moert_policy_context *context,
                             moert_routing_rule *rule);

  /* Prefetch. 1: prefetch_rank wants predicted_scores, of the next gate on this layer's input, or
   * on the input that moert_step_options.predict_next predicts. */
  int32_t prefetch_wants_next_gate;
  int32_t prefetch_wants_resident_forward;
  /* Writes up to `capacity` experts of the target layer, resident ones included, best first, and
   * their number. */
  moert_code (*prefetch_rank)(void *user_data, const moert_prefetch_snapshot *snapshot,
                              moert_prediction *ranked, int32_t capacity, int32_t *count);

  /* Residency. Writes the slots of each layer, [num_layers]; their sum is at most `slots`. */
  moert_code (*residency_capacity)(void *user_data, const moert_capacity_snapshot *snapshot,
                                   int32_t *capacity);
  /* At the beginning of a step: writes 1 to be asked for new capacities. */
  moert_code (*residency_wants_capacity)(void *user_data, const moert_policy_context *context,
                                         int32_t *wants);
  /* Writes the index of the candidate that leaves; -1 refuses a prefetch. */
  moert_code (*residency_victim)(void *user_data, const moert_victim_snapshot *snapshot,
                                 int64_t *victim);
  void (*residency_insert)(void *user_data, int32_t layer, int32_t expert, int32_t prefetch);
  void (*residency_evict)(void *user_data, int32_t layer, int32_t expert);

  /* Precision. Where every expert is resident in one of two versions: writes the experts, indices
   * into [total_experts], that are high from the start, at most high_capacity[l] of layer l, and
   * their number. `high` has room for total_experts. Asked once; a failure fails the create. */
  moert_code (*precision_initial)(void *user_data, const int32_t *high_capacity, int32_t num_layers,
                                  int64_t total_experts, int64_t *high, int64_t *num_high,
                                  moert_failure *failure);
  /* Writes indices to promote (best first) and to demote (coldest first). Both arrays have room for
   * total_experts. */
  moert_code (*precision_decide)(void *user_data, const moert_precision_snapshot *snapshot,
                                 int64_t *promote, int64_t *num_promote, int64_t *demote,
                                 int64_t *num_demote);
  /* Writes the worth of keeping each expert high, any unit, [total_experts]: a smaller budget
   * demotes the experts of least worth. */
  moert_code (*precision_worth)(void *user_data, const moert_precision_snapshot *snapshot,
                                double *worth);
  /* Writes the version a load should bring, 0 = most bits. */
  moert_code (*precision_transfer)(void *user_data, const moert_transfer_snapshot *snapshot,
                                   int32_t *version);
  /* After a layer call: writes 1 to have lower versions that the call used upgraded. */
  moert_code (*precision_upgrades)(void *user_data, const moert_policy_context *context,
                                   int32_t *upgrades);

  /* Placement. Writes one decision per miss, in order. */
  moert_code (*placement)(void *user_data, const moert_placement_snapshot *snapshot,
                          moert_placement *decisions);
  /* After a layer call: writes 1 to have the experts that the CPU computed loaded while the link is
   * idle. free_slots 1: into free slots only; 0: also in place of others. */
  moert_code (*placement_backfills)(void *user_data, const moert_policy_context *context,
                                    int32_t free_slots, int32_t *backfills);

  /* Rules. Each is asked once; `rule` holds the strategy's own or the default, to be changed. */
  moert_code (*prefetch_rule)(void *user_data, moert_prefetch_rule *rule);
  moert_code (*residency_rule)(void *user_data, moert_residency_rule *rule);
  moert_code (*placement_rule)(void *user_data, moert_placement_rule *rule);
  /* 1: routing_rule depends on context->phase only, and is asked once per phase. */
  int32_t routing_by_phase;
  int32_t reserved; /* 0 */
  /* The most heap memory that these policies hold together. Part of the CPU backend's budget. */
  int64_t state_bytes;
} moert_policies;

/* Every member NULL or 0. */
MOERT_API void moert_policies_init(moert_policies *policies, uint64_t size);

MOERT_END_C

#endif /* MOERT_C_POLICY_H_ */
