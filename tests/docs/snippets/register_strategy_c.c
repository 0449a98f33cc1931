/* docs/guide/custom-policy.md: a strategy of a host in C. */
#include <moert.h>
#include <stdlib.h>

#include "examples/custom_policy/use_rate_c.h"

@BLOCK@
moert_strategy_factory factory(void) { return make; }
