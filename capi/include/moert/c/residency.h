/* residency.h: which experts are in the fast tier, and which should be. Since 0.1. */
#ifndef MOERT_C_RESIDENCY_H_
#define MOERT_C_RESIDENCY_H_

#include "moert/c/engine.h"

MOERT_BEGIN_C

enum moert_residency_values {
  MOERT_ABSENT = 0,
  MOERT_ARRIVING = 1,
  MOERT_RESIDENT_LOW = 2, /* in a lower version than the best served */
  MOERT_RESIDENT_HIGH = 3
};

/* states: [count], one of the values above for each expert of the layer; count is its number of
 * experts. A snapshot. Thread-safe. Blocks for a layer call in progress. Fails:
 * INVALID_ARGUMENT. */
MOERT_API moert_code moert_engine_residency(const moert_engine *engine, int32_t layer,
                                            uint8_t *states, int64_t count, moert_error **error);
/* A hint that experts [count] of a layer, best first, will be needed: they are loaded while the
 * link has nothing more urgent. A hint given during a layer call waits for the next. Thread-safe.
 * Never blocks. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_engine_prefetch(moert_engine *engine, int32_t layer,
                                           const int32_t *experts, int64_t count,
                                           moert_error **error);

MOERT_END_C

#endif /* MOERT_C_RESIDENCY_H_ */
