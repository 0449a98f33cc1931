// docs/guide/custom-policy.md: a policy as a strategy with a name.
#include <memory>

#include "examples/custom_policy/use_rate.h"
#include "moert/strategy.h"

@BLOCK@
