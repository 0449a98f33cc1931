/* lease.h: experts pinned where they lie, for hosts whose own kernels read weights in place. Since
 * 0.1. */
#ifndef MOERT_C_LEASE_H_
#define MOERT_C_LEASE_H_

#include "moert/c/step.h"

MOERT_BEGIN_C

typedef struct moert_lease moert_lease;

typedef struct moert_expert_view {
  uint64_t struct_size;
  const void *record; /* 4096-byte aligned, in host or device memory as the backend has it.
                       * Read-only. Valid until the lease ends */
  int64_t bytes;
  int32_t expert;
  int32_t version; /* index into the strategy's versions, 0 = most bits */
  moert_matrix gate;
  moert_matrix up;
  moert_matrix down;
} moert_expert_view;

MOERT_API void moert_expert_view_init(moert_expert_view *view, uint64_t size);

/* Loads the missing ones of experts [count] and pins all of them until moert_lease_release or the
 * end of the step. Pinned experts take slots from layer calls. Thread-safe. Blocks to load. Fails:
 * INVALID_ARGUMENT; RESOURCE_EXHAUSTED when they do not fit; CANCELLED; the source's errors. */
MOERT_API moert_code moert_lease_acquire(moert_step *step, int32_t layer, const int32_t *experts,
                                         int64_t count, moert_lease **lease, moert_error **error);
/* index: position in `experts` of acquire. Thread-safe. Never blocks. Fails: INVALID_ARGUMENT;
 * FAILED_PRECONDITION when the lease has ended with its step. */
MOERT_API moert_code moert_lease_view(const moert_lease *lease, int64_t index,
                                      moert_expert_view *view, moert_error **error);
/* One projection of an expert, widened to f32: dst [count], row-major [rows, k] without padding, in
 * host memory. Thread-safe. The lease cannot end meanwhile. Never blocks. Fails: INVALID_ARGUMENT;
 * FAILED_PRECONDITION when the lease has ended with its step; UNIMPLEMENTED on CUDA. */
MOERT_API moert_code moert_lease_read(const moert_lease *lease, int64_t index, moert_part part,
                                      float *dst, uint64_t count, moert_error **error);
/* Accepts NULL, and a lease whose step has ended. Not thread-safe. Blocks for a layer call in
 * progress. */
MOERT_API void moert_lease_release(moert_lease *lease);

MOERT_END_C

#endif /* MOERT_C_LEASE_H_ */
