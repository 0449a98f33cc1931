/* slots.h: where experts lie, for hosts with kernels of their own. The library brings and keeps the
 * experts, the product over them is the host's. Since 0.1. */
#ifndef MOERT_C_SLOTS_H_
#define MOERT_C_SLOTS_H_

#include "moert/c/step.h"

MOERT_BEGIN_C

/* Which experts a layer needs. T is the step's rows, k any number a token; E the layer's experts.
 * Tensors are contiguous. next_scores are in host memory, hidden where the backend computes. On
 * CUDA ids may be in device memory, and weights and slot_ids then are too: k is the layer's top_k,
 * ids are not checked (the slot of one that is out of range is -1), they are read and slots written
 * on the step's stream. Where every expert is there and the strategy does not prefetch nothing
 * waits for the host, the whole layer is pinned, and the call can be captured
 * (moert_engine_graph_safe). With opaque records, strategy on-demand or fate and a
 * host_budget_bytes that keeps them all, or with cpu_rows, the device also brings what is missing,
 * and nothing waits, if the layer has a slot for every id: slot_of_expert is -1 then, and the fetch
 * has to be released before the next of its layer and before anything else is asked of the engine.
 * For one token it has, if the budget's slots hold min(top_k, E) experts of every layer at once and
 * no lease pins one; other calls that find fewer slots than ids wait. fate prefetches for one token
 * whose `hidden` is given. */
typedef struct moert_fetch {
  uint64_t struct_size;
  moert_tensor ids;         /* [T, k] i32 in [0, E), or -1: none */
  moert_tensor weights;     /* [T, k] f32, for policies that read them; or empty */
  moert_tensor next_scores; /* [T, E of layer + 1, or of layer 0 after the last] f32, predicted, for
                             * prefetch; or empty */
  moert_tensor hidden;      /* [T, hidden], f32, bf16 or f16: where the source has gates, the next
                             * layer's is scored on it in place of next_scores; or empty */
  moert_tensor slot_ids;    /* [T, k] i32, written: slots in place of experts; or empty */
  /* With ids in device memory: [T, hidden] f32, bf16 or f16, the experts' input there; or empty.
   * Where the strategy shares misses with the CPU, it may then compute some pairs by the source's
   * product (moert_opaque_options) from pinned memory, and moert_cpu_rows_take has to follow. Such a
   * call of up to 32 rows does without a slot for every id: the CPU computes what finds none. Empty:
   * every miss is brought. */
  moert_tensor cpu_rows;
  int64_t any_slot; /* of pairs that the CPU has taken slot_ids receive: 0: -1; 1: a slot that can be
                     * read and that no other pair of the token has, for kernels that compute every
                     * pair */
} moert_fetch;

/* Empty tensors. */
MOERT_API void moert_fetch_init(moert_fetch *fetch, uint64_t size);

/* Part p of the expert in slot s begins at base[p] + s * stride[p]. */
typedef struct moert_slots {
  uint64_t struct_size;
  const void *base[MOERT_MAX_PARTS]; /* of opaque records their parts; else one, the record */
  int64_t stride[MOERT_MAX_PARTS];   /* bytes from slot to slot */
  int64_t bytes[MOERT_MAX_PARTS];    /* of the part of one expert */
  const int32_t *slot_of_expert;     /* [E], -1: not asked for. Valid until the release */
  int64_t slots;                     /* slot numbers are below this */
  int64_t parts;
  /* CUDA: [E] in device memory, written on the step's stream; else NULL. Every expert of the layer
   * that is there, -1: not there. Slots of this call's experts stay until the release, those of
   * others until the next call of any step. Valid as long as the engine */
  const int32_t *device_slot_of_expert;
} moert_slots;

MOERT_API void moert_slots_init(moert_slots *slots, uint64_t size);

/* Brings the experts that fetch.ids names and pins them until moert_slots_release or the end of the
 * step. Policies see it as they see a layer call, and prefetch by it. Thread-safe; layer calls of
 * one engine take turns. Blocks until all are there. On CUDA kernels that the host gives the step's
 * stream find them, and those it gave before the release may read them. Fails: INVALID_ARGUMENT;
 * RESOURCE_EXHAUSTED where they do not fit at once, with how many would in the message: nothing is
 * pinned, ask in several calls, each released before the next; FAILED_PRECONDITION where slots have
 * no constant stride (a host's allocator, experts of one layer in different sizes, a strategy of
 * several versions), or the stream is captured and the call needs the host; CANCELLED; the source's
 * errors. */
MOERT_API moert_code moert_layer_fetch(moert_step *step, int32_t layer, const moert_fetch *fetch,
                                       moert_slots *slots, moert_error **error);
/* Behind the host's product of a fetch with cpu_rows, in front of its sum over experts: rows of
 * pairs that the CPU has taken are written to `rows`, [T * k, hidden] f32 in device memory, each to
 * its pair's place. Enqueued on the step's stream, which waits for the CPU for two seconds at most.
 * Where the CPU has taken none nothing is written. Rows are NaN where the product failed or did not
 * end in time, and a later call of the step returns its error. Once for each such fetch.
 * Thread-safe. Does not block. Fails: INVALID_ARGUMENT; an error of an earlier product. */
MOERT_API moert_code moert_cpu_rows_take(moert_step *step, int32_t layer, const moert_tensor *rows,
                                         moert_error **error);
/* Ends every fetch of this layer in this step; none is MOERT_OK. Thread-safe. Blocks for a layer
 * call in progress. Fails: INVALID_ARGUMENT; FAILED_PRECONDITION where moert_cpu_rows_take is owed;
 * an error of an earlier product. */
MOERT_API moert_code moert_slots_release(moert_step *step, int32_t layer, moert_error **error);
/* Experts of a layer, all of them where `experts` is NULL, for calls of so many rows that most are
 * named: opaque records are copied to `to`, from slots or from host memory. Expert e then lies in
 * slot e of `slots`. No slot
 * of the engine changes hands and no policy sees it. `to` has slots->slots * slots->stride[0] bytes,
 * aligned as the parts are, where the backend computes; NULL: slots alone is filled, with offsets in
 * place of addresses. On CUDA copies are enqueued on the step's stream. Thread-safe. Blocks on the
 * CPU; on CUDA only where the device has served misses since it was last asked, and until records
 * are read that are in neither place (host_budget_bytes). Fails: INVALID_ARGUMENT;
 * FAILED_PRECONDITION where these would be read in a capture, or a fetch that the device served is
 * not released; UNIMPLEMENTED for other records, shards and strategies of several versions; the
 * source's errors. Since 0.1. */
MOERT_API moert_code moert_layer_copy(moert_step *step, int32_t layer, const int32_t *experts,
                                      int64_t num_experts, void *to, moert_slots *slots,
                                      moert_error **error);
/* The source's product on the CPU (moert_opaque_options) over experts that the host has chosen,
 * such as those of a long batch that would be late on the link: by this thread and the library's,
 * from records where they lie in RAM, else read for it. A pair is a row of x, [T, hidden] f32 in host memory, and one
 * of `experts`; expert i has pairs[i] of them, which lie expert by expert, and row_of has the row
 * of each. `rows`, [all pairs, hidden] f32 in host memory, contiguous as x, receives their results.
 * No slot changes hands and no policy sees it. Thread-safe; calls of one engine take turns. Blocks
 * until `rows` is written. Fails: INVALID_ARGUMENT; FAILED_PRECONDITION where the source has no
 * product; UNIMPLEMENTED for shards; the product's and the source's errors. Since 0.2. */
MOERT_API moert_code moert_cpu_multiply(moert_step *step, int32_t layer, const int32_t *experts,
                                        const int64_t *pairs, int64_t num_experts,
                                        const moert_tensor *x, const int32_t *row_of,
                                        const moert_tensor *rows, moert_error **error);

MOERT_END_C

#endif /* MOERT_C_SLOTS_H_ */
