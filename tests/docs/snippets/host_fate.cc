// docs/guide/custom-policy.md: two policies that are rules.
#include <optional>

#include "moert/policy.h"

@BLOCK@
