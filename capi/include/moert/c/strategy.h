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

/* ---- Strategies of the host. */

/* The values of a spec's keys. Valid during the factory's call. */
typedef struct moert_strategy_params moert_strategy_params;
/* The text after "key=", valid during the factory's call; NULL if the spec has no such key. Not
 * thread-safe. */
MOERT_API const char *moert_strategy_params_get(moert_strategy_params *params, const char *key);

/* The result of a factory. */
typedef struct moert_strategy {
  uint64_t struct_size;
  const char *base; /* the spec of the strategy that decides how the fast tier is used and what the
                     * policies leave NULL. Default "on-demand"; read when the factory returns */
  moert_policies *policies; /* initialized, to be filled. Once the factory has succeeded, their
                             * user_data belongs to the library until destroy is called */
} moert_strategy;

/* Called whenever a spec names the strategy: by moert_engine_create and moert_memory_plan, on their
 * thread, possibly on several at once, with no lock held. Fills *strategy, which holds the
 * defaults. Anything but MOERT_OK refuses the spec with that code. */
typedef moert_code (*moert_strategy_factory)(void *user_data, moert_strategy_params *params,
                                             moert_strategy *strategy, moert_failure *failure);

/* Adds a strategy for the rest of the process: its name then works wherever a spec does, in
 * compositions too. info: name, summary, and keys as "key: meaning" lines (NULL: none); names and
 * keys are of a-z, 0-9, '-' and '_'. user_data must live as long as the process. Thread-safe. Never
 * blocks. Fails: INVALID_ARGUMENT; ALREADY_EXISTS for a name that is taken. */
MOERT_API moert_code moert_strategy_register(const moert_strategy_info *info,
                                             moert_strategy_factory factory, void *user_data,
                                             moert_error **error);

MOERT_END_C

#endif /* MOERT_C_STRATEGY_H_ */
