/* slots.h: the addresses of experts, for hosts with kernels of their own. The library loads and
 * keeps the experts; the host computes the products. Since 0.1. */
#ifndef MOERT_C_SLOTS_H_
#define MOERT_C_SLOTS_H_

#include "moert/c/step.h"

MOERT_BEGIN_C

/* The experts that a layer needs. T is the step's rows, k any number per token, E the layer's
 * experts. Tensors are contiguous. next_scores are in host memory, hidden where the backend
 * computes. On CUDA ids may be in device memory, with weights and slot_ids: k is the layer's top_k,
 * ids are read and slots written on the step's stream, and ids are not checked (the slot of an id
 * out of range is -1). If every expert is present and the strategy does not prefetch, the call does
 * not wait for the host, the whole layer is pinned, and the call can be captured
 * (moert_engine_graph_safe).
 *
 * The device also loads missing experts, without a wait, with opaque records, strategy on-demand or
 * fate, a host_budget_bytes that keeps all records (or cpu_rows), and a slot of the layer for every
 * id. Then slot_of_expert is -1, and the fetch must be released before the next fetch of its layer
 * and before any other call to the engine. One token always finds its slots if the budget's slots
 * hold min(top_k, E) experts of every layer at once and no lease pins one; other calls that find
 * fewer slots than ids wait. fate prefetches for one token whose `hidden` is given. Such fetches
 * can be captured (moert_graph_needs). */
typedef struct moert_fetch {
  uint64_t struct_size;
  moert_tensor ids;         /* [T, k] i32 in [0, E), or -1: none */
  moert_tensor weights;     /* [T, k] f32, for policies that read them; or empty */
  moert_tensor next_scores; /* [T, E of layer + 1, or of layer 0 after the last] f32, predicted, for
                             * prefetch; or empty */
  moert_tensor hidden;      /* [T, hidden], f32, bf16 or f16: the layer's input; if the source has
                             * gates, the next one is scored on it without next_scores; or empty */
  moert_tensor slot_ids;    /* [T, k] i32, written: the slot of each id; or empty */
  /* With ids in device memory: [T, hidden] f32, bf16 or f16, the experts' input there; or empty. If
   * the strategy shares misses with the CPU, the CPU may compute some (token, expert) pairs by the
   * source's product (moert_opaque_options) from pinned memory, and moert_cpu_rows_take must
   * follow. Such a call of up to 32 rows does not need a slot for every id: the CPU computes the
   * pairs without one. Empty: every miss is loaded. */
  moert_tensor cpu_rows;
  int64_t any_slot; /* slot_ids of pairs that the CPU computes: 0: -1; 1: a readable slot that no
                     * other pair of the token has, for kernels that compute every pair */
} moert_fetch;

/* Empty tensors. */
MOERT_API void moert_fetch_init(moert_fetch *fetch, uint64_t size);

/* Part p of the expert in slot s begins at base[p] + s * stride[p]. */
typedef struct moert_slots {
  uint64_t struct_size;
  const void *base[MOERT_MAX_PARTS]; /* the parts of opaque records; else one, the whole record */
  int64_t stride[MOERT_MAX_PARTS];   /* bytes from slot to slot */
  int64_t bytes[MOERT_MAX_PARTS];    /* of the part of one expert */
  const int32_t *slot_of_expert;     /* [E], -1: not in this fetch. Valid until the release */
  int64_t slots;                     /* slot numbers are below this */
  int64_t parts;
  /* CUDA: [E] in device memory, written on the step's stream; else NULL. The slot of every resident
   * expert of the layer, -1: absent. Slots of this call's experts stay valid until the release,
   * those of others until the next call of any step. The pointer is valid as long as the engine */
  const int32_t *device_slot_of_expert;
} moert_slots;

MOERT_API void moert_slots_init(moert_slots *slots, uint64_t size);

/* Loads the experts that fetch.ids names and pins them until moert_slots_release or the end of the
 * step. Policies see it like a layer call, and prefetch by it. Thread-safe; layer calls of one
 * engine take turns. Blocks until all are there. On CUDA, kernels that the host enqueues on the
 * step's stream between this call and the release may read them. Fails: INVALID_ARGUMENT;
 * RESOURCE_EXHAUSTED if they do not fit at once, with the number that fits in the message: nothing
 * is pinned, fetch in several calls, each released before the next; FAILED_PRECONDITION if slots
 * have no constant stride (a host's allocator, experts of one layer in different sizes, a strategy
 * of several versions), or if the stream is captured and the call needs the host; CANCELLED; the
 * source's errors. */
MOERT_API moert_code moert_layer_fetch(moert_step *step, int32_t layer, const moert_fetch *fetch,
                                       moert_slots *slots, moert_error **error);
/* Writes the rows that the CPU computed for a fetch with cpu_rows into `rows`, [T * k, hidden] f32
 * in device memory, each at its pair's place. Call it once for each such fetch, after the host's
 * own products and before its sum over experts. Enqueued on the step's stream, which waits for the
 * CPU for two seconds at most, ten if records are read for it. Writes nothing if the CPU has no
 * pairs. Rows are NaN if the CPU's product failed or was late, and a later call of the step returns
 * its error. Thread-safe. Does not block. Fails: INVALID_ARGUMENT; an error of an earlier
 * product. */
MOERT_API moert_code moert_cpu_rows_take(moert_step *step, int32_t layer, const moert_tensor *rows,
                                         moert_error **error);
/* Releases every fetch of this layer in this step; MOERT_OK if there is none. Thread-safe. Blocks
 * for a layer call in progress. Fails: INVALID_ARGUMENT; FAILED_PRECONDITION if a
 * moert_cpu_rows_take is missing; an error of an earlier product. */
MOERT_API moert_code moert_slots_release(moert_step *step, int32_t layer, moert_error **error);
/* Copies opaque records of a layer's experts (all of them if `experts` is NULL) from slots or host
 * memory to `to`, expert e to slot e of `slots`: for calls of so many rows that most experts are
 * used. Slots of the engine keep their experts, and no policy sees the call. `to` has slots->slots
 * times slots->stride[0] bytes, aligned like the parts, where the backend computes; NULL: only
 * slots is filled, with offsets in place of addresses. On CUDA copies are enqueued on the step's
 * stream. Thread-safe. Blocks on the CPU; on CUDA only if the device has served misses since it was
 * last asked, and until records that are in neither place have been read (host_budget_bytes).
 * Fails: INVALID_ARGUMENT; FAILED_PRECONDITION if a capture would need such reads, or a fetch that
 * the device served is not released; UNIMPLEMENTED for other records, shards and strategies of
 * several versions; the source's errors. Since 0.1. */
MOERT_API moert_code moert_layer_copy(moert_step *step, int32_t layer, const int32_t *experts,
                                      int64_t num_experts, void *to, moert_slots *slots,
                                      moert_error **error);
/* Runs the source's product on the CPU (moert_opaque_options) over experts that the host has
 * chosen, such as those of a long batch that the link would bring too late, on this thread and the
 * library's. Records are read in place in RAM, or loaded for the call. A pair is a row of x, [T,
 * hidden] f32 in host memory, and one of `experts`; expert i has pairs[i] pairs, which are grouped
 * by expert, and row_of has the row of each. `rows`, [all pairs, hidden] f32 in host memory,
 * contiguous like x, receives the results. Slots keep their experts, and no policy sees the call.
 * Thread-safe; calls of one engine take turns. Blocks until `rows` is written. Fails:
 * INVALID_ARGUMENT; FAILED_PRECONDITION if the source has no product; UNIMPLEMENTED for shards; the
 * product's and the source's errors. Since 0.2. */
MOERT_API moert_code moert_cpu_multiply(moert_step *step, int32_t layer, const int32_t *experts,
                                        const int64_t *pairs, int64_t num_experts,
                                        const moert_tensor *x, const int32_t *row_of,
                                        const moert_tensor *rows, moert_error **error);

MOERT_END_C

#endif /* MOERT_C_SLOTS_H_ */
