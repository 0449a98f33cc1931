/* engine.h: an engine owns the experts of one model under one byte budget. Since 0.1. */
#ifndef MOERT_C_ENGINE_H_
#define MOERT_C_ENGINE_H_

#include "moert/c/policy.h"
#include "moert/c/services.h"
#include "moert/c/source.h"
#include "moert/c/trace.h"

MOERT_BEGIN_C

typedef struct moert_engine moert_engine;

/* Where experts execute and what the fast tier is. */
typedef int32_t moert_backend;
enum moert_backend_values {
  MOERT_BACKEND_INVALID = -1,
  MOERT_BACKEND_AUTO = 0, /* CUDA where it is usable, else the CPU */
  MOERT_BACKEND_CPU = 1,  /* the default. Tensors in host memory; layer calls block */
  MOERT_BACKEND_CUDA = 2  /* tensors in device memory; layer calls are ordered by a stream */
};

/* How activations enter the products of bf16 weights and of the a16 schemes. */
typedef int32_t moert_numerics;
enum moert_numerics_values {
  MOERT_NUMERICS_INVALID = -1,
  MOERT_NUMERICS_BF16 = 0, /* rounded to bf16, fp32 accumulation */
  MOERT_NUMERICS_F32 = 1,  /* not rounded */
  MOERT_NUMERICS_INT8 = 2, /* CPU only: a16 schemes with int8 per 128 channels */
  MOERT_NUMERICS_FP8 = 3   /* fp8_b128 in 8 bits: e4m3, a power of two per 128 channels */
};

typedef int32_t moert_clock;
enum moert_clock_values {
  MOERT_CLOCK_INVALID = -1,
  MOERT_CLOCK_WALL = 0,
  MOERT_CLOCK_VIRTUAL = 1,   /* logical times from the profile: reproducible to the bit */
  MOERT_CLOCK_SIMULATION = 2 /* the same, and no expert is read or multiplied: decisions and times
                              * only. Layer calls bring their routing (layer.h) */
};

/* Which part of every layer an engine owns, for expert and tensor parallelism. Outputs are partial
 * sums: over shards that cover a layer once they add up to the layer's output. Ids stay those of
 * the whole model. */
typedef struct moert_shard {
  uint64_t struct_size;
  int64_t first_expert; /* experts [first_expert, first_expert + num_experts) of every layer */
  int64_t num_experts;  /* 0: all */
  /* If not NULL, replaces the range: for each layer the number of its experts, then the experts,
   * ascending; [expert_list_size] values. */
  const int32_t *expert_list;
  int64_t expert_list_size;
  int64_t
      first_channel;    /* of the intermediate dimension: multiples of 64 and of the schemes' */
  int64_t num_channels; /* group sizes; 0: all. Shared experts are sliced in proportion */
  int64_t shared_experts; /* 1: computed here, the default; 0: not */
} moert_shard;

/* The default is everything. */
MOERT_API void moert_shard_init(moert_shard *shard, uint64_t size);
/* MOERT_OK when the shards own everything of the source's model exactly once. Thread-safe. Never
 * blocks. Fails: INVALID_ARGUMENT names what is missing or owned twice, and its owners. */
MOERT_API moert_code moert_shards_check(const moert_source *source, const moert_shard *shards,
                                        int64_t num_shards, moert_error **error);

/* Strings and the structs pointed to are copied. The user_data of these structs must live until
 * their destroy is called; on a failed create it stays the host's. */
typedef struct moert_engine_options {
  uint64_t struct_size;
  /* Strategy. */
  const char *strategy;           /* a spec (docs/reference/strategies.md); NULL: "on-demand" */
  const moert_policies *policies; /* replace the strategy's; NULL: none */
  /* Memory. */
  int64_t budget_bytes;      /* hard limit of everything the engine holds; 0: budget_fraction */
  double budget_fraction;    /* pools for this share of the bytes of all routed experts, plus the
                              * fixed parts. In (0, 1], default 1 */
  int64_t host_budget_bytes; /* CUDA: limit of the pinned host memory that keeps records; -1
                              * (default): what the machine can spare, less an eighth */
  int64_t max_tokens_per_forward;   /* rows of the largest layer call; sizes the workspace */
  const moert_allocator *allocator; /* of pools in RAM; NULL: the system */
  /* Execution. */
  moert_backend backend;
  int32_t device; /* CUDA: its ordinal */
  moert_numerics numerics;
  int32_t io_threads; /* threads that read experts, 1 to 16 */
  int32_t threads;    /* compute threads, the caller's included; 0: one per usable CPU, on a device
                       * without the CPUs of the caller and of the I/O threads */
  moert_clock clock;
  const char *cpus;    /* "0-3,8": CPUs of the compute threads; NULL: not pinned */
  const char *kernels; /* CPU kernel set (probe.h); NULL: the best */
  const char *profile; /* of the machine: a file of `moert-bench probe --json`; NULL: "reference" */
  double link_gbps;    /* paces transfers, GB/s; 0: the device's own speed, or the profile's */
  const moert_thread_pool *thread_pool; /* in place of threads and cpus; NULL: the library's */
  /* Observers. */
  const moert_logger *logger;         /* NULL: silence */
  const moert_trace_sink *trace_sink; /* sees every layer call; NULL: none */
  const char *trace_path; /* writes a routing trace; NULL: none. See trace_replace */
  /* The part of the model that the engine owns, and where it runs. */
  const moert_shard *shard; /* NULL: the whole model */
  void *open_user_data;     /* of open_progress */
  /* Called by create, on its thread, after each layer that a preloading strategy has loaded.
   * Anything but MOERT_OK: create gives up and returns CANCELLED. NULL: none. */
  moert_code (*open_progress)(void *user_data, int64_t loaded_experts, int64_t total_experts);
  int64_t numa_node; /* CPU: the node of pools in RAM and, if cpus and thread_pool are NULL, of the
                      * compute threads; -1, the default: the system's choice */
  const char *timeline_path; /* writes Chrome trace JSON; NULL: none */
  int64_t trace_replace;     /* 1: regular files at trace_path and timeline_path are replaced; 0,
                              * the default: ALREADY_EXISTS. Links, pipes, devices are refused */
  const char *promise; /* the weakest that the host accepts: "exact", "faithful" (with a GPU the CPU
                        * may compute some misses) or "lossy"; a strategy that promises less is
                        * refused. NULL: as the strategy's spec says, and "auto" is faithful */
} moert_engine_options;

MOERT_API void moert_engine_options_init(moert_engine_options *options, uint64_t size);

/* Reads the fixed parts, reserves the pools, and loads experts where the strategy preloads them.
 * options NULL: the defaults. Thread-safe. Blocks while it reads. Fails: INVALID_ARGUMENT, a budget
 * below the minimum included; RESOURCE_EXHAUSTED; UNAVAILABLE for CUDA where it is not usable;
 * UNIMPLEMENTED; the source's errors. */
MOERT_API moert_code moert_engine_create(const moert_source *source,
                                         const moert_engine_options *options, moert_engine **engine,
                                         moert_error **error);
/* Steps still open stay usable and keep the engine's memory until they end. Accepts NULL. Not
 * thread-safe. Blocks for split calls under way. */
MOERT_API void moert_engine_destroy(moert_engine *engine);

/* Sets a new hard limit, in bytes or, with bytes 0, as a fraction (moert_engine_options). Shrinking
 * evicts before it returns. Exception: where experts are resident in versions, open steps keep
 * theirs; the call returns, and a lower limit is in force (moert_stats.budget_bytes) once enough of
 * them have ended and others begun. A refused limit changes nothing. Thread-safe. Goes ahead of
 * waiting layer calls; blocks for the one in progress and for transfers that have to end. Fails:
 * INVALID_ARGUMENT below the minimum; FAILED_PRECONDITION when leases pin more;
 * RESOURCE_EXHAUSTED. */
MOERT_API moert_code moert_engine_set_budget(moert_engine *engine, int64_t bytes, double fraction,
                                             moert_error **error);

/* MoE layers; 0 for NULL. Thread-safe. */
MOERT_API int32_t moert_engine_layer_count(const moert_engine *engine);
/* Thread-safe. Never blocks. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_engine_layer(const moert_engine *engine, int32_t layer,
                                        moert_layer_spec *spec, moert_error **error);
/* MOERT_BACKEND_CPU or MOERT_BACKEND_CUDA; MOERT_BACKEND_INVALID for NULL. Thread-safe. */
MOERT_API moert_backend moert_engine_backend(const moert_engine *engine);
/* The strategy's spec. Lives as long as the engine. Thread-safe. */
MOERT_API const char *moert_engine_strategy(const moert_engine *engine);
/* The promise of the strategy that runs: "exact" (the same bits at any budget), "faithful" (the
 * model's own routing and precision, rounded as two processors do) or "lossy"; "" for NULL. Static.
 * Thread-safe. */
MOERT_API const char *moert_engine_promise(const moert_engine *engine);
/* 1: the promise is "exact"; 0 for NULL. Thread-safe. */
MOERT_API int32_t moert_engine_exact(const moert_engine *engine);
/* 1: layer calls of any number of rows may be recorded into a CUDA graph, and the graph launched
 * between step_begin and step_end of later steps, on the step's stream; the engine does not wait
 * for a graph that is launched elsewhere. 0: layer calls on a stream that is being captured fail
 * with FAILED_PRECONDITION; always so on the CPU backend. Constant over an engine's life.
 * Thread-safe. */
MOERT_API int32_t moert_engine_graph_safe(const moert_engine *engine);
/* Whether the host may record layer calls into CUDA graphs, and what it must do between replays.
 * Constant over an engine's life.
 *
 * A captured moert_layer_fetch needs a step of the same calls before it, outside of the capture;
 * within the capture it is released after the host's products. Each moert_step_begin then provides
 * the slots that replays need. If it cannot, because leases or unreleased fetches hold slots or
 * another budget moved them, it fails with FAILED_PRECONDITION once, and the graphs are void:
 * capture again. Between moert_step_begin and the replay the host makes no other call of the
 * step. */
typedef struct moert_graph_needs {
  uint64_t struct_size;
  int32_t capturable;  /* layer calls may be recorded, of up to max_rows rows */
  int32_t eager_every; /* one step in this many must run eagerly, between replays: the strategy
                        * evicts by scores, which replays do not record. 0: none must */
  const char *obstacle; /* the reason if not capturable, such as records that pinned memory does not
                         * hold (host_budget_bytes); else "". Lives as long as the engine */
  int64_t max_rows; /* most rows of a recorded call; 0: any number. Where pinned memory does not
                     * hold every record (host_budget_bytes), recorded calls need the CPU, which
                     * takes part in no larger call. To a caller without this field such an engine
                     * is not capturable. Since 0.2 */
} moert_graph_needs;

MOERT_API void moert_graph_needs_init(moert_graph_needs *needs, uint64_t size);
/* Thread-safe. Never blocks. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_engine_graph_needs(const moert_engine *engine, moert_graph_needs *needs,
                                              moert_error **error);
/* The engine's clock, which all times in its statistics are in; 0 for NULL. Thread-safe. */
MOERT_API int64_t moert_engine_now_ns(const moert_engine *engine);
/* Completes the files of trace_path and timeline_path and reports what went wrong while they were
 * written; later calls are not written. Thread-safe. Blocks while it writes. Fails:
 * FAILED_PRECONDITION without either; the write's error. */
MOERT_API moert_code moert_engine_close_trace(moert_engine *engine, moert_error **error);

MOERT_END_C

#endif /* MOERT_C_ENGINE_H_ */
