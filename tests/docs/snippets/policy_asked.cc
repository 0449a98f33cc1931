// docs/guide/custom-policy.md: a policy in a unit test.
#include "examples/custom_policy/use_rate.h"

#define CHECK(condition) static_cast<void>(condition)

void Run(const moert::PolicyContext& context) {
@BLOCK@}
