/* Callbacks of C that end in exported Go functions. user_data is an integer: no Go pointer is in C. */
#ifndef MOERT_GO_BRIDGE_H_
#define MOERT_GO_BRIDGE_H_

#include <moert.h>

void bridge_callbacks(moert_source_callbacks *callbacks, uintptr_t handle);

/* info->predict_next asks goPredict. */
void bridge_predict(moert_step_info *info, uintptr_t handle);

/* What goPolicy is asked, and (1 << it) in `seams` of bridge_policies. */
enum bridge_question {
  BRIDGE_OBSERVE,
  BRIDGE_RULE,
  BRIDGE_RANK,
  BRIDGE_CAPACITY,
  BRIDGE_VICTIM,
  BRIDGE_INSERTED,
  BRIDGE_EVICTED,
  BRIDGE_PRECISION,
  BRIDGE_TRANSFER,
  BRIDGE_PLACEMENT
};
void bridge_policies(moert_policies *policies, uintptr_t handle, uint32_t seams,
                     int32_t wants_next_gate);

#endif
