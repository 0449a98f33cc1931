/* step.h: one pass over all MoE layers. Several steps of an engine may be open. Since 0.1. */
#ifndef MOERT_C_STEP_H_
#define MOERT_C_STEP_H_

#include "moert/c/engine.h"

MOERT_BEGIN_C

typedef struct moert_step moert_step;
/* A cudaStream_t or CUstream; NULL on the CPU backend. */
typedef struct CUstream_st *moert_stream;

/* Resident-forward prediction. `partial`: [rows, hidden] f32 in host memory, the output of `layer`
 * from the experts that were present, shared ones included. `next_input`: [rows, hidden of layer +
 * 1] f32, to be filled with the input which that layer would get if `partial` were the whole
 * output: the host adds it to its residual stream and runs what lies between the layers, attention
 * over its KV cache included, without lasting effect. Anything but MOERT_OK: no prediction. Called
 * on the thread that computes the layer call; must not call the engine. */
typedef moert_code (*moert_predict_next)(void *user_data, int32_t layer,
                                         const moert_tensor *partial,
                                         const moert_tensor *next_input);

typedef struct moert_step_options {
  uint64_t struct_size;
  int64_t rows; /* tokens of every layer call of this step */
  moert_phase phase;
  const int64_t *request_ids; /* [rows], copied; NULL: unknown */
  moert_stream stream;        /* orders the step's calls on CUDA */
  void *user_data;            /* of predict_next; lives until the step has ended */
  /* For prefetch policies that want it, in decode steps on the CPU backend. NULL: the next layer's
   * gate on this layer's input predicts. */
  moert_predict_next predict_next;
  const int32_t *token_ids; /* [rows], copied; NULL: unknown. Layers with hash_vocab need them */
} moert_step_options;

/* Default: decode of one row. */
MOERT_API void moert_step_options_init(moert_step_options *options, uint64_t size);

/* options NULL: the defaults. Called outside of graph capture. Thread-safe. Blocks for a layer call
 * in progress. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_step_begin(moert_engine *engine, const moert_step_options *options,
                                      moert_step **step, moert_error **error);
/* MOERT_OK, or the first failure of the step so far. Thread-safe. Blocks for a layer call in
 * progress. Fails: with that failure's code. */
MOERT_API moert_code moert_step_status(const moert_step *step, moert_error **error);
/* Makes the step's layer call in progress return MOERT_CANCELLED once the loads it has begun have
 * arrived, and later calls at once. The step still has to be ended. Thread-safe. Never blocks.
 * Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_step_cancel(moert_step *step, moert_error **error);
/* Frees the step and ends its leases. NULL is MOERT_OK. Not thread-safe: after all other calls on
 * the step have returned. Blocks for another step's layer call in progress. Fails: with the step's
 * first failure; its outputs are then undefined, the engine stays usable. FAILED_PRECONDITION if
 * split calls of the step are not finished: the step ends, and calls that have not run will not. */
MOERT_API moert_code moert_step_end(moert_step *step, moert_error **error);

MOERT_END_C

#endif /* MOERT_C_STEP_H_ */
