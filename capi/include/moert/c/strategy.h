/* strategy.h: the named bundles of policies that engine options may ask for. Since 0.1. */
#ifndef MOERT_C_STRATEGY_H_
#define MOERT_C_STRATEGY_H_

#include "moert/c/policy.h"

MOERT_BEGIN_C

typedef struct moert_strategy_info {
  uint64_t struct_size;
  const char *name;    /* static */
  const char *summary; /* static */
  const char *keys;    /* "key: meaning" lines, separated by newlines. Static */
} moert_strategy_info;

MOERT_API void moert_strategy_info_init(moert_strategy_info *info, uint64_t size);
/* Strategies of this process. Thread-safe. */
MOERT_API int32_t moert_strategy_count(void);
/* index in [0, moert_strategy_count()). Thread-safe. Never blocks. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_strategy_at(int32_t index, moert_strategy_info *info,
                                       moert_error **error);

MOERT_END_C

#endif /* MOERT_C_STRATEGY_H_ */
