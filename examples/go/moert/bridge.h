/* Callbacks of C that end in exported Go functions. user_data is an integer: no Go pointer is in C. */
#ifndef MOERT_GO_BRIDGE_H_
#define MOERT_GO_BRIDGE_H_

#include <moert.h>

void bridge_callbacks(moert_source_callbacks *callbacks, uintptr_t handle);

/* options->predict_next asks goPredict. */
void bridge_predict(moert_step_options *options, uintptr_t handle);

/* Tensors are put together in C: a Go struct must not hold a Go pointer when it is passed. All are
 * contiguous: hidden, out [rows, cols] f32, or NULL in a simulation; ids, weights, used [rows, k], or
 * NULL. */
moert_code bridge_begin(moert_engine *engine, moert_step_options *options,
                        const int64_t *request_ids, moert_step **step, moert_error **error);
moert_code bridge_forward(moert_step *step, int32_t layer, float *hidden, float *out, int64_t rows,
                          int64_t cols, int32_t *ids, float *weights, int32_t *used, int64_t k,
                          float *scores, int64_t experts, float *next, int64_t next_experts,
                          moert_error **error);
moert_code bridge_fetch(moert_step *step, int32_t layer, int32_t *ids, int64_t rows, int64_t k,
                        moert_slots *slots, moert_error **error);
/* Parts that no file has are goReadPart's, where `reads`. */
void bridge_records(moert_opaque_options *options, uintptr_t handle, int32_t reads);
/* Every metric goes to goMetric. */
moert_code bridge_metrics(const moert_engine *engine, uintptr_t handle, moert_error **error);

/* The strategy's factory is goStrategy. */
moert_code bridge_register(const moert_strategy_info *info, uintptr_t handle, moert_error **error);
void bridge_sink(moert_trace_sink *sink, uintptr_t handle, int32_t wants_next_scores);
void bridge_logger(moert_logger *logger, uintptr_t handle);

/* Questions to goPolicy; (1 << question) in `seams` of bridge_policies. */
enum bridge_question {
  BRIDGE_OBSERVE,
  BRIDGE_RULE,
  BRIDGE_RANK,
  BRIDGE_CAPACITY,
  BRIDGE_RESIZE,
  BRIDGE_VICTIM,
  BRIDGE_INSERTED,
  BRIDGE_EVICTED,
  BRIDGE_INITIAL,
  BRIDGE_PRECISION,
  BRIDGE_WORTH,
  BRIDGE_TRANSFER,
  BRIDGE_UPGRADES,
  BRIDGE_PLACEMENT,
  BRIDGE_BACKFILLS
};
void bridge_policies(moert_policies *policies, uintptr_t handle, uint32_t seams,
                     int32_t wants_next_gate, int32_t wants_resident_forward);

#endif
