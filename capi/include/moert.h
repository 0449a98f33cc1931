/* libmoert: Mixture-of-Experts layers bigger than the memory they run in. C API.
 *
 * This header is C99 and is the library's only binary promise (docs/abi.md). In short:
 *
 *   moert_source *source;  moert_source_open("model-dir", NULL, &source, &error);
 *   moert_engine *engine;  moert_engine_create(source, &options, &engine, &error);
 *   moert_step *step;      moert_step_begin(engine, &info, NULL, NULL, NULL, &step, &error);
 *   for each MoE layer:    moert_layer_forward(step, l, x, stride, MOERT_F32, rows, y, NULL, &error);
 *   moert_step_end(step, &error);
 *
 * Conventions, true of every function unless it says otherwise:
 *  - Handles are opaque. A create function returns one through an out-parameter, which is untouched
 *    on failure; the destroy function accepts NULL.
 *  - The return value is MOERT_OK or a negative moert_code. The last parameter `error` may be NULL;
 *    otherwise it receives an object to free on failure, and NULL on success.
 *  - Structs begin with struct_size, set by their _init function and never by hand. Fields are only
 *    ever appended; reserved fields are zero.
 *  - Strings are UTF-8 and NUL-terminated. Strings passed in are copied.
 *  - No function aborts, prints or lets an exception out.
 *  - "Thread-safe": may be called from any thread at any time, on the same handle too. "Not
 *    thread-safe": calls on one handle must not overlap.
 *  - Callbacks must return normally (no longjmp, exception, panic) and must not call back into the
 *    engine they serve.
 */
#ifndef MOERT_H_
#define MOERT_H_

#include <stddef.h>
#include <stdint.h>

#define MOERT_VERSION_MAJOR 0
#define MOERT_VERSION_MINOR 1
#define MOERT_VERSION_PATCH 0

#if defined(__GNUC__)
#define MOERT_API __attribute__((visibility("default")))
#else
#define MOERT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * Types. Each has a fixed-width parameter type and an enum that names its values; a value that the
 * enum does not name is an error, never a default. */

/* Abseil's status codes, negated. */
typedef int32_t moert_code;
enum moert_code_values {
  MOERT_OK = 0,
  MOERT_CANCELLED = -1,
  MOERT_UNKNOWN = -2,
  MOERT_INVALID_ARGUMENT = -3,
  MOERT_DEADLINE_EXCEEDED = -4,
  MOERT_NOT_FOUND = -5,
  MOERT_ALREADY_EXISTS = -6,
  MOERT_PERMISSION_DENIED = -7,
  MOERT_RESOURCE_EXHAUSTED = -8,
  MOERT_FAILED_PRECONDITION = -9,
  MOERT_ABORTED = -10,
  MOERT_OUT_OF_RANGE = -11,
  MOERT_UNIMPLEMENTED = -12,
  MOERT_INTERNAL = -13,
  MOERT_UNAVAILABLE = -14,
  MOERT_DATA_LOSS = -15,
  MOERT_UNAUTHENTICATED = -16
};

/* Element type of hidden states and of weights a host supplies. */
typedef int32_t moert_dtype;
enum moert_dtype_values {
  MOERT_DTYPE_INVALID = -1,
  MOERT_F32 = 0,
  MOERT_BF16 = 1,
  MOERT_F16 = 2,
  MOERT_U8 = 4 /* packed records only */
};

typedef int32_t moert_phase;
enum moert_phase_values { MOERT_PHASE_INVALID = -1, MOERT_PREFILL = 0, MOERT_DECODE = 1 };

/* How router logits become the experts of a token and their weights. */
typedef int32_t moert_routing;
enum moert_routing_values {
  MOERT_ROUTING_INVALID = -1,
  MOERT_ROUTING_SOFTMAX_TOPK = 0,    /* softmax over all, then the k highest (Qwen, OLMoE) */
  MOERT_ROUTING_TOPK_SOFTMAX = 1,    /* the k highest, then softmax over them (Mixtral) */
  MOERT_ROUTING_SIGMOID_GROUPED = 2, /* sigmoid + bias, best groups, top-k (DeepSeek-V3) */
  MOERT_ROUTING_SPARSEMIXER = 3      /* two masked-softmax picks (Phi-3.5-MoE) */
};

typedef int32_t moert_activation;
enum moert_activation_values {
  MOERT_ACTIVATION_INVALID = -1,
  MOERT_SILU = 0,
  MOERT_GELU = 1,
  MOERT_GELU_TANH = 2
};

/* How activations enter the matrix products. */
typedef int32_t moert_numerics;
enum moert_numerics_values {
  MOERT_NUMERICS_INVALID = -1,
  MOERT_NUMERICS_BF16 = 0, /* rounded to bf16, fp32 accumulation */
  MOERT_NUMERICS_F32 = 1,  /* not rounded */
  MOERT_NUMERICS_INT8 = 2  /* int8 per 128 channels */
};

/* Where experts execute and what the fast tier is. */
typedef int32_t moert_backend;
enum moert_backend_values {
  MOERT_BACKEND_INVALID = -1,
  MOERT_BACKEND_AUTO = 0, /* CUDA where it is usable, else the CPU */
  MOERT_BACKEND_CPU = 1,  /* hidden states in host memory */
  MOERT_BACKEND_CUDA = 2  /* hidden states in device memory, calls ordered by a stream */
};

typedef int32_t moert_clock;
enum moert_clock_values {
  MOERT_CLOCK_INVALID = -1,
  MOERT_CLOCK_WALL = 0,
  MOERT_CLOCK_VIRTUAL = 1 /* logical times from the profile: reproducible to the bit */
};

typedef struct moert_error moert_error;
typedef struct moert_source moert_source;
typedef struct moert_engine moert_engine;
typedef struct moert_step moert_step;
typedef struct moert_call moert_call;
typedef struct moert_lease moert_lease;
/* Where a callback says why it failed. */
typedef struct moert_failure moert_failure;
/* A cudaStream_t or CUstream. NULL on the CPU backend. */
typedef struct CUstream_st *moert_stream;

/* ------------------------------------------------------------------------------------------------
 * Version and errors. Since 0.1. */

/* major * 10000 + minor * 100 + patch of the library that runs. Thread-safe. */
MOERT_API int32_t moert_version(void);
/* "0.1.0". Static. Thread-safe. */
MOERT_API const char *moert_version_string(void);
/* "INVALID_ARGUMENT", or "UNKNOWN" for a number that is no code. Static. Thread-safe. */
MOERT_API const char *moert_code_name(moert_code code);

/* The getters may be called concurrently on one error. Strings live as long as the error. */
MOERT_API moert_code moert_error_code(const moert_error *error);
MOERT_API const char *moert_error_message(const moert_error *error);
/* Name of the function that failed. May be called concurrently too. */
MOERT_API const char *moert_error_origin(const moert_error *error);
/* Accepts NULL. Not thread-safe. */
MOERT_API void moert_error_destroy(moert_error *error);

/* Inside a callback that is about to return a code other than MOERT_OK: the reason, copied. */
MOERT_API void moert_failure_set(moert_failure *failure, const char *message);

/* ------------------------------------------------------------------------------------------------
 * This machine and this build. Since 0.1. */

typedef struct moert_probe_info {
  uint64_t struct_size;
  int32_t cpus;                   /* CPUs this process may run on */
  int32_t cuda_usable;            /* 1: built with CUDA, and driver and device are there */
  int64_t memory_bytes;           /* RAM of the machine */
  int64_t memory_available_bytes; /* RAM that can be had without swapping */
  const char *kernels;     /* CPU kernel sets that run here, best first, comma separated. Static */
  const char *cuda_status; /* "OK", or why CUDA is not usable. Static */
} moert_probe_info;

MOERT_API void moert_probe_info_init(moert_probe_info *info, uint64_t size);
/* What there is, without measuring. Thread-safe. */
MOERT_API moert_code moert_probe(moert_probe_info *info, moert_error **error);

typedef struct moert_strategy_info {
  uint64_t struct_size;
  const char *name;    /* static */
  const char *summary; /* static */
  const char *keys;    /* "key: meaning" lines, separated by newlines. Static */
} moert_strategy_info;

MOERT_API void moert_strategy_info_init(moert_strategy_info *info, uint64_t size);
/* Built-in strategies. Thread-safe. */
MOERT_API int32_t moert_strategy_count(void);
/* index in [0, moert_strategy_count()). Thread-safe. */
MOERT_API moert_code moert_strategy_at(int32_t index, moert_strategy_info *info,
                                       moert_error **error);

/* ------------------------------------------------------------------------------------------------
 * Sources: where experts come from. Since 0.1. */

/* One MoE layer. Layers are numbered 0..L-1 over the MoE layers only. */
typedef struct moert_layer_spec {
  uint64_t struct_size;
  int64_t hidden;
  int64_t intermediate;
  int64_t shared_intermediate; /* 0: no shared expert; several are one wide one */
  int32_t model_layer;         /* the host's own number, ascending */
  int32_t num_experts;
  int32_t top_k;
  moert_routing routing;
  moert_activation activation;
  int32_t shared_gate;    /* 1: sigmoid(w . x) times the shared expert's output */
  int32_t renormalize;    /* 1: divide the k weights by their sum */
  int32_t selection_bias; /* 1: a bias per expert that selects and never weighs */
  int32_t num_groups;     /* MOERT_ROUTING_SIGMOID_GROUPED: groups of experts, else 1 */
  int32_t top_groups;     /* of which this many stay eligible, else 1 */
  float scaling;          /* of the weights, usually 1 */
  float sparsemixer_eps;  /* MOERT_ROUTING_SPARSEMIXER: 2 * jitter_eps masks; usually 0.01 */
} moert_layer_spec;

/* Defaults: silu, softmax then top-k of 1, no renormalization, no shared expert. */
MOERT_API void moert_layer_spec_init(moert_layer_spec *spec, uint64_t size);

/* Both callbacks may be NULL. They run on the thread that opens. */
typedef struct moert_open_options {
  uint64_t struct_size;
  const char *cache_dir; /* NULL: $XDG_CACHE_HOME/moert or ~/.cache/moert */
  void *user_data;
  void (*log)(void *user_data, const char *line);
  void (*progress)(void *user_data, int64_t done_bytes, int64_t total_bytes);
} moert_open_options;

MOERT_API void moert_open_options_init(moert_open_options *options, uint64_t size);

/* A checkpoint directory as published on Hugging Face (config.json and safetensors shards), through
 * a bf16 expert pack in the cache folder, which the first open writes. `options` NULL: the
 * defaults. Blocks meanwhile. Thread-safe. */
MOERT_API moert_code moert_source_open(const char *model_dir, const moert_open_options *options,
                                       moert_source **source, moert_error **error);
/* An expert pack directory, as moert-pack writes them. Thread-safe. */
MOERT_API moert_code moert_source_open_pack(const char *pack_dir, moert_source **source,
                                            moert_error **error);

/* What a host's source is asked for: rows [first_row, first_row + rows) of a row-major matrix. */
typedef int32_t moert_part;
enum moert_part_values {
  MOERT_PART_INVALID = -1,
  MOERT_PART_GATE_PROJ = 0,      /* of an expert: [intermediate, hidden], in weights_dtype */
  MOERT_PART_UP_PROJ = 1,        /* of an expert: [intermediate, hidden], in weights_dtype */
  MOERT_PART_DOWN_PROJ = 2,      /* of an expert: [hidden, intermediate], in weights_dtype */
  MOERT_PART_ROUTER = 3,         /* of a layer: [num_experts, hidden], f32 */
  MOERT_PART_SELECTION_BIAS = 4, /* of a layer: [1, num_experts], f32 */
  MOERT_PART_SHARED_GATE = 5,    /* of a layer: [1, hidden], f32 */
  MOERT_PART_RECORD = 6          /* of an expert: [1, bytes], a packed record (docs/layout.md) */
};

/* `expert` of the parts of the shared expert. */
enum moert_expert_values { MOERT_SHARED_EXPERT = -1 };

typedef struct moert_read {
  uint64_t struct_size;
  int32_t layer;
  int32_t expert; /* MOERT_SHARED_EXPERT, or an expert; 0 for parts of a layer */
  moert_part part;
  int32_t version;   /* which of the schemes, for MOERT_PART_RECORD; else 0 */
  int64_t first_row; /* a multiple of 16 */
  int64_t rows;
  int64_t cols;
  void *dst;          /* to be filled with rows * cols elements, contiguous */
  uint64_t dst_bytes; /* exactly their size */
  moert_dtype dtype;  /* in which dst is to be filled */
  int32_t reserved0;
} moert_read;

/* A host's own weights. `read` is called from several of the library's threads at once, and with
 * the virtual clock from the thread of the layer call. */
typedef struct moert_source_callbacks {
  uint64_t struct_size;
  void *user_data;
  /* MOERT_OK, or the code that the layer call which needed the weights shall return. */
  moert_code (*read)(void *user_data, const moert_read *read, moert_failure *failure);
  /* Once, when the last user of the source is gone; may be NULL. */
  void (*destroy)(void *user_data);
  /* NULL: experts are read by rows and kept as bf16. Else the schemes of packed records the host
   * has, most bits first, comma separated ("bf16,w4a16_g128"): `read` gets MOERT_PART_RECORD. */
  const char *schemes;
  moert_dtype weights_dtype; /* of the three projections: f32, bf16 or f16 */
  int32_t reserved0;
} moert_source_callbacks;

MOERT_API void moert_source_callbacks_init(moert_source_callbacks *callbacks, uint64_t size);

/* A source over a host's own weights. `layers` are num_layers consecutive specs; `name` is for
 * messages. On success user_data belongs to the source, until destroy is called. Thread-safe. */
MOERT_API moert_code moert_source_create(const char *name, const moert_layer_spec *layers,
                                         uint64_t num_layers,
                                         const moert_source_callbacks *callbacks,
                                         moert_source **source, moert_error **error);
/* Sources are counted: an engine keeps its own reference. Accepts NULL. Not thread-safe. */
MOERT_API void moert_source_destroy(moert_source *source);

/* Thread-safe. 0 for NULL. */
MOERT_API int32_t moert_source_layer_count(const moert_source *source);
/* Thread-safe. */
MOERT_API moert_code moert_source_layer(const moert_source *source, int32_t layer,
                                        moert_layer_spec *spec, moert_error **error);
/* Lives as long as the source. Thread-safe. */
MOERT_API const char *moert_source_name(const moert_source *source);

/* ------------------------------------------------------------------------------------------------
 * Policies of the host: decisions of the engine's five seams. Since 0.1.
 *
 * A member that is NULL leaves its decision to the strategy of the options (a seam none of whose
 * members is set is not touched), and so does a call that returns anything but MOERT_OK: it is
 * counted (moert_stats.policy_fallbacks), as are answers outside their range. Calls come from one
 * thread at a time, whichever makes the layer call, while the engine is locked: a policy must not
 * call the engine, and should not do I/O or wait. Pointers are borrowed for the call. */

/* When and where a decision is asked. */
typedef struct moert_policy_context {
  uint64_t struct_size;
  int64_t step;               /* steps begun before this one */
  int64_t now_ns;             /* the engine's clock */
  const int64_t *request_ids; /* [num_request_ids], one a row of the step; NULL if not given */
  int64_t num_request_ids;
  int32_t layer;
  moert_phase phase;
} moert_policy_context;

/* The true routing of one layer call. */
typedef struct moert_routing_view {
  uint64_t struct_size;
  int64_t tokens;
  const int32_t *ids;    /* [tokens, top_k], highest weight first */
  const float *weights;  /* [tokens, top_k], as they enter the sum */
  const float *scores;   /* [tokens, num_experts], or NULL when the host gave a routing without */
  const int32_t *counts; /* [num_experts], tokens of each expert */
  int32_t top_k;
  int32_t num_experts;
} moert_routing_view;

typedef int32_t moert_rule;
enum moert_rule_values {
  MOERT_RULE_INVALID = -1,
  MOERT_RULE_TOPK = 0,        /* the model's own routing */
  MOERT_RULE_EXPERT_CACHE = 1 /* near the threshold, resident experts are preferred; lossy */
};

/* Who takes a slot that the rule replaces; all but BEST are there to be compared with it. */
typedef int32_t moert_substitute;
enum moert_substitute_values {
  MOERT_SUBSTITUTE_INVALID = -1,
  MOERT_SUBSTITUTE_BEST = 0,    /* the best-scored at hand */
  MOERT_SUBSTITUTE_RANDOM = 1,  /* any inactive one at hand */
  MOERT_SUBSTITUTE_NEAREST = 2, /* the one at hand whose gate row is closest */
  MOERT_SUBSTITUTE_SKIP = 3     /* nobody: the slot weighs nothing */
};

typedef struct moert_routing_rule {
  uint64_t struct_size;
  moert_rule kind;
  float alpha;               /* half width of the band around the threshold */
  float max_slot_share;      /* at most this share of a request's slots is substituted, ever */
  float max_mass_share;      /* ... and of its routing mass */
  int32_t second_pass;       /* 1: also substitute by experts other tokens force in */
  int32_t own_score_weights; /* 1: substitutes weigh their own score */
  moert_substitute substitute;
  int32_t reserved0;
} moert_routing_rule;

typedef struct moert_prefetch_snapshot {
  uint64_t struct_size;
  moert_policy_context context; /* the layer whose routing just became known */
  moert_routing_view routing;
  const float *predicted_scores; /* [tokens, target_experts] of the target's gate, or NULL */
  const uint8_t *resident;       /* [target_experts], usable in the best version */
  const uint8_t *usable;         /* [target_experts], usable in some version */
  const uint8_t *in_flight;      /* [target_experts] */
  int32_t target_layer;          /* predictions are wanted for it */
  int32_t target_experts;
  int64_t window_ns;   /* until the target asks, waiting excluded: measured */
  int64_t transfer_ns; /* one expert of the target on the link: measured */
} moert_prefetch_snapshot;

/* One expert that may be evicted. Ticks count layer calls. */
typedef struct moert_candidate {
  uint64_t struct_size;
  int64_t last_used; /* tick of the last use; 0: never since it came */
  int64_t inserted;  /* tick it came */
  int64_t uses;
  int32_t layer;
  int32_t expert;
  int32_t unused_prefetch; /* 1: brought by a prefetch and not used yet */
  int32_t tokens;          /* of the last call that used it */
} moert_candidate;

typedef struct moert_victim_snapshot {
  uint64_t struct_size;
  moert_policy_context context;
  const moert_candidate *candidates; /* [num_candidates] */
  int64_t num_candidates;            /* at least 1 */
  int32_t incoming_layer;
  int32_t incoming_expert; /* -1: the layer gives up surplus */
  int32_t for_prefetch;
  int32_t reserved0;
  int32_t dispensable; /* for_prefetch, and without it a CPU beside the device computes it */
  int32_t reserved1;
} moert_victim_snapshot;

typedef struct moert_precision_snapshot {
  uint64_t struct_size;
  moert_policy_context context;
  const int64_t *selections;    /* [total_experts], tokens since the last call, layer by layer */
  const uint8_t *high;          /* [total_experts], 1: the high version is there or on its way */
  const int32_t *high_capacity; /* [num_layers], experts of a layer that fit in high */
  int64_t total_experts;
  int32_t num_layers;
  int32_t reserved0;
} moert_precision_snapshot;

typedef struct moert_transfer_snapshot {
  uint64_t struct_size;
  moert_policy_context context;
  int64_t layer_tokens; /* token x k slots of the layer */
  int32_t expert;
  int32_t tokens; /* that want it */
  int32_t prefetch;
  int32_t num_versions;
  const int32_t *layer_counts; /* [num_experts] tokens of every expert of the layer, or NULL */
  int32_t num_experts;
  int32_t reserved0;
} moert_transfer_snapshot;

typedef int32_t moert_placement;
enum moert_placement_values {
  MOERT_PLACEMENT_INVALID = -1,
  MOERT_PLACE_LOAD = 0,
  MOERT_PLACE_CPU = 1,
  MOERT_PLACE_LOW = 2
};

/* An expert that is needed and not there; one whose prefetch is on its way may still be given to the
 * CPU. */
typedef struct moert_miss {
  uint64_t struct_size;
  int64_t bytes;   /* of the transfer */
  int64_t load_ns; /* modelled: of the transfer, or of what is left of it */
  int64_t cpu_ns;  /* modelled; negative: no CPU executor */
  int32_t expert;
  int32_t tokens;
  float mass;           /* summed routing weight */
  int32_t low_resident; /* 1: a lower version is usable */
} moert_miss;

typedef struct moert_policies {
  uint64_t struct_size;
  void *user_data;
  /* Once, when the engine is gone; may be NULL. On a failed create user_data stays the host's. */
  void (*destroy)(void *user_data);

  /* Every layer call's true routing, before any decision that depends on it. */
  void (*observe)(void *user_data, const moert_policy_context *context,
                  const moert_routing_view *routing);

  /* Routing: `rule` holds the model's own; change it. */
  moert_code (*routing_rule)(void *user_data, const moert_policy_context *context,
                             moert_routing_rule *rule);
  /* Prefetch: writes up to `capacity` experts of the target layer, best first, and their number. */
  moert_code (*prefetch_rank)(void *user_data, const moert_prefetch_snapshot *snapshot,
                              int32_t *experts, int32_t capacity, int32_t *count);
  /* Residency: writes the slots of each layer; their sum is at most `slots`. */
  moert_code (*residency_capacity)(void *user_data, int64_t slots, int32_t *capacity,
                                   int32_t num_layers);
  /* Residency: writes the index of the candidate that leaves; -1 refuses a prefetch. */
  moert_code (*residency_victim)(void *user_data, const moert_victim_snapshot *snapshot,
                                 int64_t *victim);
  void (*residency_insert)(void *user_data, int32_t layer, int32_t expert, int32_t prefetch);
  void (*residency_evict)(void *user_data, int32_t layer, int32_t expert);
  /* Precision: writes indices into [total_experts] to promote (best first) and to demote. Both
   * arrays have room for total_experts. */
  moert_code (*precision_decide)(void *user_data, const moert_precision_snapshot *snapshot,
                                 int64_t *promote, int64_t *num_promote, int64_t *demote,
                                 int64_t *num_demote);
  /* Precision: writes the version a load should bring, 0 = most bits. */
  moert_code (*precision_transfer)(void *user_data, const moert_transfer_snapshot *snapshot,
                                   int32_t *version);
  /* Placement: writes one decision a miss. */
  moert_code (*placement)(void *user_data, const moert_policy_context *context,
                          const moert_miss *misses, int32_t num_misses, moert_placement *decisions);
  int32_t wants_next_gate; /* 1: prefetch_rank wants predicted_scores */
  int32_t reserved0;
  /* Residency, at the beginning of a step: writes 1 to be asked for new capacities. */
  moert_code (*residency_wants_capacity)(void *user_data, const moert_policy_context *context,
                                         int32_t *wants);
  /* Precision, behind a layer call: writes 1 to have lower versions that the call used replaced by
   * the best, in place. */
  moert_code (*precision_upgrades)(void *user_data, const moert_policy_context *context,
                                   int32_t *upgrades);
  /* Placement, behind a layer call: writes 1 to have what the CPU computed brought while the link is
   * idle. */
  moert_code (*placement_fills)(void *user_data, const moert_policy_context *context,
                                int32_t *fills);
} moert_policies;

MOERT_API void moert_policies_init(moert_policies *policies, uint64_t size);

/* ------------------------------------------------------------------------------------------------
 * What else a host may bring. Since 0.1. */

/* One of the jobs of moert_thread_pool.run. */
typedef void (*moert_job)(void *job_data, int64_t index, int32_t worker);

typedef struct moert_thread_pool {
  uint64_t struct_size;
  void *user_data;
  /* Calls job(job_data, i, worker) once for every i in [0, num_jobs), on any threads, and returns
   * when all are done. No two jobs that run at the same time have the same worker, which is in
   * [0, num_threads). Calls come from one thread at a time. */
  void (*run)(void *user_data, int64_t num_jobs, moert_job job, void *job_data);
  /* Once, when the engine is gone; may be NULL. */
  void (*destroy)(void *user_data);
  int32_t num_threads;
  int32_t reserved0;
} moert_thread_pool;

MOERT_API void moert_thread_pool_init(moert_thread_pool *pool, uint64_t size);

/* Memory of the expert pools in RAM. Calls come from one thread at a time. */
typedef struct moert_allocator {
  uint64_t struct_size;
  void *user_data;
  /* NULL when there is none: the engine makes do with fewer experts. */
  void *(*allocate)(void *user_data, uint64_t bytes, uint64_t alignment);
  void (*deallocate)(void *user_data, void *memory, uint64_t bytes);
  /* Once, when the engine is gone; may be NULL. */
  void (*destroy)(void *user_data);
} moert_allocator;

MOERT_API void moert_allocator_init(moert_allocator *allocator, uint64_t size);

typedef int32_t moert_log_level;
enum moert_log_level_values {
  MOERT_LOG_INVALID = -1,
  MOERT_LOG_INFO = 0,
  MOERT_LOG_WARNING = 1,
  MOERT_LOG_ERROR = 2
};

/* One line for whoever operates the host. Called from the thread that caused it with nothing
 * locked; may call the engine. */
typedef struct moert_logger {
  uint64_t struct_size;
  void *user_data;
  void (*log)(void *user_data, moert_log_level level, const char *line);
  /* Once, when the engine is gone; may be NULL. */
  void (*destroy)(void *user_data);
} moert_logger;

MOERT_API void moert_logger_init(moert_logger *logger, uint64_t size);

/* ------------------------------------------------------------------------------------------------
 * Engines. Since 0.1. */

typedef struct moert_engine_options {
  uint64_t struct_size;
  /* "name[:key=value,...]", composed as "A+B.seam" (docs/strategies.md). NULL: "on-demand". */
  const char *strategy;
  /* Hard limit of everything the engine holds; 0: budget_fraction decides. */
  int64_t budget_bytes;
  /* Pools for this share of the bytes of all routed experts, fixed parts added. In (0, 1]. */
  double budget_fraction;
  /* Rows of the largest layer call; the workspace is sized from it. */
  int64_t max_tokens_per_forward;
  moert_numerics numerics;
  moert_clock clock;
  /* "reference" or a file of `moert-bench probe --json`. NULL: "reference". */
  const char *profile;
  double link_gbps; /* paces transfers, GB/s; 0: no pacing */
  uint64_t seed;
  /* Compute threads, the caller's included; 0: one per usable CPU, on a device without those of the
   * caller and of I/O. There, where a strategy computes experts on the CPU, they look for work for
   * 10 ms after a job, giving way to other threads, before they sleep. */
  int32_t threads;
  int32_t io_threads;  /* threads that read experts, 1..16 */
  const char *kernels; /* CPU kernel set (moert_probe); NULL: the best */
  moert_backend backend;
  int32_t device;            /* CUDA: its ordinal */
  int64_t host_budget_bytes; /* CUDA: pinned host memory that keeps records read before; -1: all */
  const char *cpus;          /* "0-3,8": CPUs of the compute threads; NULL: not pinned */
  const char *trace_path;    /* writes a routing trace, and a timeline beside it; NULL: none */
  /* Copied; what their user_data point to must live until destroy is called. NULL: the default. */
  const moert_policies *policies;
  const moert_thread_pool *thread_pool; /* in place of threads and cpus */
  const moert_allocator *allocator;
  const moert_logger *logger; /* the default is silence */
} moert_engine_options;

MOERT_API void moert_engine_options_init(moert_engine_options *options, uint64_t size);

/* What a budget pays for. Bytes unless the name says otherwise. */
typedef struct moert_memory {
  uint64_t struct_size;
  int64_t budget_bytes;
  int64_t constant_bytes;  /* gates, shared experts */
  int64_t table_bytes;     /* residency and bookkeeping */
  int64_t workspace_bytes; /* activations */
  int64_t block_bytes;     /* one expert in the best version served */
  int64_t slots;           /* blocks of that size that the rest holds */
  int64_t low_block_bytes; /* one expert in the low version, where two are served */
  int64_t low_slots;
  int64_t spare_slots; /* blocks of each size kept free so that full pools can swap */
  int64_t total_experts;
  int64_t minimum_bytes; /* the smallest legal budget */
} moert_memory;

MOERT_API void moert_memory_init(moert_memory *memory, uint64_t size);
/* What an engine would take; allocates nothing. `options` NULL: the defaults. Thread-safe. */
MOERT_API moert_code moert_plan(const moert_source *source, const moert_engine_options *options,
                                moert_memory *memory, moert_error **error);

/* Reads the fixed parts, reserves the pools, and loads experts where the strategy preloads them.
 * Blocks meanwhile. `options` NULL: the defaults. Thread-safe. */
MOERT_API moert_code moert_engine_create(const moert_source *source,
                                         const moert_engine_options *options,
                                         moert_engine **engine, moert_error **error);
/* Steps still open stay usable and keep the engine's memory until they end. Accepts NULL. Not
 * thread-safe. */
MOERT_API void moert_engine_destroy(moert_engine *engine);

/* A new hard limit, in bytes (or, with bytes 0, as a fraction: see moert_engine_options). Shrinking
 * evicts before it returns; below the minimum it is refused and nothing changes. Waits for a layer
 * call in progress. Thread-safe. */
MOERT_API moert_code moert_engine_set_budget(moert_engine *engine, int64_t bytes, double fraction,
                                             moert_error **error);
/* Thread-safe, never blocks for long. */
MOERT_API moert_code moert_engine_memory(const moert_engine *engine, moert_memory *memory,
                                         moert_error **error);
/* Thread-safe. 0 for NULL. */
MOERT_API int32_t moert_engine_layer_count(const moert_engine *engine);
/* Thread-safe. */
MOERT_API moert_code moert_engine_layer(const moert_engine *engine, int32_t layer,
                                        moert_layer_spec *spec, moert_error **error);
/* Time of the engine's clock, which all times in its statistics are in. Thread-safe. 0 for NULL. */
MOERT_API int64_t moert_engine_now_ns(const moert_engine *engine);
/* MOERT_BACKEND_CPU or MOERT_BACKEND_CUDA. Thread-safe. MOERT_BACKEND_INVALID for NULL. */
MOERT_API moert_backend moert_engine_backend(const moert_engine *engine);
/* 1: the output is the same at any budget and thread count. Thread-safe. 0 for NULL. */
MOERT_API int32_t moert_engine_exact(const moert_engine *engine);
/* 1: layer calls may be recorded into a CUDA graph, and the graph launched between step_begin and
 * step_end of later steps. 0: layer calls on a stream that is being captured fail with
 * FAILED_PRECONDITION; always so on the CPU backend. The same for an engine's life. Thread-safe. 0
 * for NULL. */
MOERT_API int32_t moert_engine_graph_safe(const moert_engine *engine);
/* The strategy's spec. Lives as long as the engine. Thread-safe. */
MOERT_API const char *moert_engine_strategy(const moert_engine *engine);
/* Completes the files of trace_path and reports what went wrong while they were written; later
 * calls are not traced. FAILED_PRECONDITION without a trace. Thread-safe. */
MOERT_API moert_code moert_engine_close_trace(moert_engine *engine, moert_error **error);

/* The host knows what is coming: these experts of a layer, best first, are brought while the link
 * has nothing better to do. experts: [count]. Never blocks. Thread-safe. */
MOERT_API moert_code moert_prefetch_hint(moert_engine *engine, int32_t layer,
                                         const int32_t *experts, int64_t count,
                                         moert_error **error);

enum moert_residency_values {
  MOERT_ABSENT = 0,
  MOERT_ARRIVING = 1,
  MOERT_RESIDENT_LOW = 2,
  MOERT_RESIDENT_HIGH = 3
};
/* states: [count], one of the values above for each expert of the layer; count is its number of
 * experts. A snapshot: waits for a layer call in progress. Thread-safe. */
MOERT_API moert_code moert_residency(moert_engine *engine, int32_t layer, uint8_t *states,
                                     int64_t count, moert_error **error);

/* ------------------------------------------------------------------------------------------------
 * Steps: one pass over all MoE layers. Several may be open. Since 0.1. */

typedef struct moert_step_info {
  uint64_t struct_size;
  int64_t rows; /* tokens of every layer call of this step */
  moert_phase phase;
  int32_t reserved0;
  void *user_data;
  /* Resident-forward prediction, for prefetch policies that want it (importance), in decode steps on
   * the CPU backend; NULL: not offered, and the next layer's gate on this layer's input predicts.
   * `partial`: [rows, hidden] f32, the output of `layer` as far as its experts were present, shared
   * ones included. `next_input`: [rows, hidden of layer + 1] f32, to be filled with what that layer's
   * input would be if this were the whole output: the host adds it to its residual stream and runs
   * what lies between, attention over its KV cache included, without lasting effect. Anything but
   * MOERT_OK: cannot tell. Called on the thread that computes the layer call. */
  moert_code (*predict_next)(void *user_data, int32_t layer, const float *partial, int64_t rows,
                             float *next_input);
} moert_step_info;

/* Default: decode of one row. */
MOERT_API void moert_step_info_init(moert_step_info *info, uint64_t size);

/* request_ids, positions: [rows], or NULL. `stream` orders the step's calls on CUDA; it is NULL on
 * the CPU backend. Thread-safe. */
MOERT_API moert_code moert_step_begin(moert_engine *engine, const moert_step_info *info,
                                      const int64_t *request_ids, const int32_t *positions,
                                      moert_stream stream, moert_step **step,
                                      moert_error **error);
/* The first error of the step so far, or MOERT_OK. Thread-safe. */
MOERT_API moert_code moert_step_status(const moert_step *step, moert_error **error);
/* Makes the step's layer call in progress return MOERT_CANCELLED as soon as what it has begun to
 * load has arrived, and later ones at once. The step still has to be ended. Never blocks.
 * Thread-safe. */
MOERT_API moert_code moert_step_cancel(moert_step *step, moert_error **error);
/* Frees the step and returns its first error. NULL is MOERT_OK. Leases of the step end.
 * MOERT_FAILED_PRECONDITION: split calls of the step are not finished; the step has ended, and those
 * that had not run will not. Not thread-safe: after all other calls on the step have returned. */
MOERT_API moert_code moert_step_end(moert_step *step, moert_error **error);

/* hidden, out: [n_tokens, hidden size of the layer] of `dtype` (f32, bf16, f16), rows row_stride
 * elements apart; out may be hidden. out gets what the MoE block adds to the residual stream. On
 * the CPU backend it blocks until done; on CUDA it is enqueued on `stream`, which is the step's (NULL
 * means that). Layer calls of one engine take turns. A failed call leaves out undefined and the
 * engine usable. Thread-safe. */
MOERT_API moert_code moert_layer_forward(moert_step *step, int32_t layer, const void *hidden,
                                         int64_t row_stride, moert_dtype dtype, int64_t n_tokens,
                                         void *out, moert_stream stream, moert_error **error);

/* The same with the host's routing. ids: [n_tokens, top_k], no expert twice for a token; weights:
 * [n_tokens, top_k], as they enter the sum; top_k is the layer's. used_ids: [n_tokens, top_k] or
 * NULL, receives the experts that were used: a lossy strategy may replace some. Thread-safe. */
MOERT_API moert_code moert_layer_forward_routed(moert_step *step, int32_t layer, const void *hidden,
                                                int64_t row_stride, moert_dtype dtype,
                                                int64_t n_tokens, const int32_t *ids,
                                                const float *weights, int32_t top_k,
                                                int32_t *used_ids, void *out,
                                                moert_stream stream, moert_error **error);

/* How a host learns that a call is done, besides waiting. */
typedef struct moert_completion {
  uint64_t struct_size;
  void *user_data;
  /* Called once, from a thread of the library, with nothing locked; may call moert_layer_finish.
   * May be NULL. */
  void (*done)(void *user_data, moert_code code);
  int32_t eventfd; /* 1 is added to it (Linux); -1: none */
  int32_t reserved0;
} moert_completion;

MOERT_API void moert_completion_init(moert_completion *completion, uint64_t size);

/* Starts a layer call and returns: the host does work of its own until moert_layer_finish. hidden
 * and out stay the library's until then. Calls of one engine run in the order of their begin; on
 * CUDA, done means enqueued. `completion` may be NULL. Thread-safe. */
MOERT_API moert_code moert_layer_begin(moert_step *step, int32_t layer, const void *hidden,
                                       int64_t row_stride, moert_dtype dtype, int64_t n_tokens,
                                       void *out, moert_stream stream,
                                       const moert_completion *completion,
                                       moert_call **call, moert_error **error);
/* 1: moert_layer_finish will not wait. Thread-safe. 1 for NULL. */
MOERT_API int32_t moert_call_done(const moert_call *call);
/* Waits for the call, frees it and returns its result. Every begun call has to be finished, before
 * its step is ended. NULL is MOERT_OK. Not thread-safe. */
MOERT_API moert_code moert_layer_finish(moert_call *call, moert_error **error);

/* ------------------------------------------------------------------------------------------------
 * Leases: experts pinned where they lie, for hosts whose own kernels read weights in place.
 * Since 0.1. */

/* A packed matrix inside a record (docs/layout.md). Elements, unless the name says bytes. */
typedef struct moert_matrix {
  const char *scheme; /* "bf16", "w4a16_g128", ... */
  int64_t rows;
  int64_t k;
  int64_t padded_rows;
  int64_t padded_k;
  int64_t group;         /* k when per output channel */
  int64_t weight_offset; /* bytes from the start of the record */
  int64_t weight_bytes;
  int64_t scale_offset;
  int64_t scale_bytes; /* 0 for bf16 */
} moert_matrix;

typedef struct moert_expert_view {
  uint64_t struct_size;
  const void *record; /* 4096-byte aligned, in host or device memory as the backend has it */
  int64_t bytes;
  int32_t expert;
  int32_t version; /* index into the strategy's versions, 0 = most bits */
  moert_matrix gate;
  moert_matrix up;
  moert_matrix down;
} moert_expert_view;

MOERT_API void moert_expert_view_init(moert_expert_view *view, uint64_t size);

/* Loads what is missing and pins it. experts: [count]. Pinned experts take slots from layer calls:
 * RESOURCE_EXHAUSTED when they do not fit. Ends with moert_lease_release or with its step. Blocks
 * while loading. Thread-safe. */
MOERT_API moert_code moert_lease_acquire(moert_step *step, int32_t layer, const int32_t *experts,
                                         int64_t count, moert_lease **lease, moert_error **error);
/* index: position in `experts` of acquire. Its strings live as long as the lease's handle, the record
 * until the lease ends. MOERT_FAILED_PRECONDITION: it has ended. Thread-safe. */
MOERT_API moert_code moert_lease_view(const moert_lease *lease, int64_t index,
                                      moert_expert_view *view, moert_error **error);
/* One projection of an expert, widened: dst [count], row-major [rows, k] without padding. CPU
 * backend. Thread-safe. */
MOERT_API moert_code moert_lease_read(const moert_lease *lease, int64_t index, moert_part part,
                                      float *dst, uint64_t count, moert_error **error);
/* Accepts NULL. Not thread-safe. */
MOERT_API void moert_lease_release(moert_lease *lease);

/* ------------------------------------------------------------------------------------------------
 * Statistics since the engine was created. Since 0.1. */

/* A lookup is one distinct (layer, expert) a layer call needs; a hit is one that was usable when
 * the layer asked. The fields are EngineStats of moert/stats.h, which defines every one. */
typedef struct moert_stats {
  uint64_t struct_size;
  int64_t budget_bytes;
  int64_t peak_bytes;
  int64_t fixed_bytes;
  int64_t pool_bytes;
  int64_t lookups;
  int64_t hits_resident;
  int64_t hits_prefetched;
  int64_t late;
  int64_t loads;
  int64_t bytes_loaded;
  int64_t evictions;
  int64_t low_answers;
  int64_t cpu_computed;
  int64_t prefetch_issued;
  int64_t prefetch_useful;
  int64_t prefetch_bytes;
  int64_t prefetch_predicted;
  int64_t prefetch_recalled;
  int64_t slots; /* token x k */
  int64_t slots_substituted;
  double mass;
  double mass_substituted;
  double worst_slot_share;
  double worst_mass_share;
  int64_t model_lookups;
  int64_t model_hits;
  int64_t promotions;
  int64_t demotions;
  int64_t deferred;
  int64_t balance_load_ns;
  int64_t balance_cpu_ns;
  int64_t policy_fallbacks;
  int64_t stall_miss_ns;
  int64_t stall_queue_ns;
  int64_t stall_staging_ns;
  int64_t stall_cpu_ns;
  int64_t host_syncs;
  int32_t prefetch_disabled;
  int32_t graph_captured;
  int64_t prefetch_active;    /* of the issued ones, used by the routing they were for */
  int64_t prefetch_top_score; /* ... and top-score in it (expert-cache rule) */
  int64_t predictions_resident_forward; /* layer calls predicted by moert_step_info.predict_next */
  int64_t predictions_next_gate;        /* ... by the next layer's gate alone */
  int64_t prefetch_cancelled;           /* queued, and the true routing came first */
  int64_t prefetch_recalled_in_window;  /* of prefetch_recalled: present, coming or admitted */
  int64_t prefetch_disabled_steps;      /* decode steps with prefetch off because it did not pay */
  int64_t slots_low;                    /* slots answered by a lower version than intended */
  double mass_low;                      /* their routing weight, as it entered the sum */
  int64_t low_loads;           /* transfers that brought a lower version than the best */
  int64_t upgrades;            /* low copies that began to be replaced by the best, in place */
  int64_t fills;               /* loads behind a call of what the CPU had computed for it */
  int64_t prefetch_trials;     /* blocks of decode steps tried with prefetch on or off */
  int64_t prefetch_switches;   /* ... after which it stayed that way */
} moert_stats;

MOERT_API void moert_stats_init(moert_stats *stats, uint64_t size);
/* A consistent snapshot of the last finished layer call. Thread-safe, never blocks for long. */
MOERT_API moert_code moert_engine_stats(const moert_engine *engine, moert_stats *stats,
                                        moert_error **error);
/* The same as Prometheus text. `label` names the engine (NULL: none). Writes at most buffer_bytes,
 * NUL included, and the bytes needed to *needed (may be NULL). OUT_OF_RANGE when that is more;
 * buffer NULL with 0 bytes asks for the size only. Thread-safe. */
MOERT_API moert_code moert_engine_prometheus(const moert_engine *engine, const char *label,
                                             char *buffer, uint64_t buffer_bytes,
                                             uint64_t *needed, moert_error **error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MOERT_H_ */
