// docs/guide/custom-policy.md: the smallest policy.
#include "moert/policy.h"

@BLOCK@
