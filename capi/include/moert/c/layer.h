/* layer.h: the output of one MoE layer. Since 0.1. */
#ifndef MOERT_C_LAYER_H_
#define MOERT_C_LAYER_H_

#include "moert/c/step.h"

MOERT_BEGIN_C

/* A routing that the host computed. Tensors are contiguous. T is the step's rows, k the layer's
 * top_k, E its experts. Tensors lie in host memory; on CUDA, ids, weights and used_ids may together
 * lie on the device, without scores. They are read on the step's stream then, and ids are not
 * checked: an id out of range counts as -1. If every expert is present and the strategy does not
 * prefetch, such a call waits for nothing and can be captured. */
typedef struct moert_routing {
  uint64_t struct_size;
  moert_tensor ids;         /* [T, k] i32: experts in [0, E), none twice for a token. -1: an expert
                             * that is not here (another rank's), adds nothing */
  moert_tensor weights;     /* [T, k] f32, as they enter the sum */
  moert_tensor scores;      /* [T, E] f32 over all experts, for policies that read them; or empty */
  moert_tensor next_scores; /* [T, E of layer + 1, or of layer 0 after the last] f32, predicted, for
                             * prefetch; or empty */
  moert_tensor used_ids;    /* [T, k] i32, written: the experts that were used, some of which a
                             * lossy strategy may have substituted; or empty */
  /* Virtual clock and simulation: the recorded times of the call, charged in place of the profile's
   * costs, and the recorded time since the call before it. NULL: the profile's costs. */
  const moert_call_times *times;
  int64_t idle_before_ns;
} moert_routing;

/* Empty tensors. */
MOERT_API void moert_routing_init(moert_routing *routing, uint64_t size);

/* x, out: [T, hidden of the layer], f32, bf16 or f16, the same shape and type; in host memory on
 * the CPU backend, in the engine's device memory on CUDA; out may be x. out gets what the MoE block
 * adds to the residual stream: routed and shared experts. routing NULL: the library routes. A
 * failed call leaves out undefined and the engine usable. Simulation: x and out may be NULL,
 * routing may not. Thread-safe; layer calls of one engine take turns. CPU: blocks until done. CUDA:
 * blocks only while it decides and until transfers of missing experts have been started. Fails:
 * INVALID_ARGUMENT, CANCELLED, FAILED_PRECONDITION inside a graph capture that the strategy does
 * not allow, the source's errors. */
MOERT_API moert_code moert_layer_forward(moert_step *step, int32_t layer, const moert_tensor *x,
                                         const moert_routing *routing, const moert_tensor *out,
                                         moert_error **error);

/* ---- Split form: begin, do something else, finish. */

typedef struct moert_call moert_call;

/* How a host learns that a call is done, besides waiting. */
typedef struct moert_completion {
  uint64_t struct_size;
  /* An eventfd made with EFD_NONBLOCK; 1 is added to its counter unless that is full.
   * moert_layer_begin duplicates the descriptor. -1: none. */
  int32_t eventfd;
  void *user_data;
  /* Called once, from a thread of the library, with no lock held, possibly before moert_layer_begin
   * has returned but not before it has stored *call; may call moert_layer_finish. May be NULL. */
  void (*done)(void *user_data, moert_code code);
} moert_completion;

MOERT_API void moert_completion_init(moert_completion *completion, uint64_t size);

/* Starts a layer call. The library uses the tensors' memory, the routing's included, until
 * moert_layer_finish; the structs are copied. Calls of one engine run in the order of their begin;
 * on CUDA, done means enqueued. completion NULL: none. Thread-safe. Never blocks. Fails:
 * INVALID_ARGUMENT for what can be checked at once; moert_layer_finish returns all other errors. */
MOERT_API moert_code moert_layer_begin(moert_step *step, int32_t layer, const moert_tensor *x,
                                       const moert_routing *routing, const moert_tensor *out,
                                       const moert_completion *completion, moert_call **call,
                                       moert_error **error);
/* 1: moert_layer_finish would not wait; 1 for NULL. Thread-safe. */
MOERT_API int32_t moert_call_done(const moert_call *call);
/* Frees the call. Every begun call has to be finished before its step is ended. NULL is MOERT_OK.
 * Not thread-safe. Blocks until the call is done. Fails: as moert_layer_forward. */
MOERT_API moert_code moert_layer_finish(moert_call *call, moert_error **error);

MOERT_END_C

#endif /* MOERT_C_LAYER_H_ */
