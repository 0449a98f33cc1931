/* docs/guide/custom-policy.md: a policy handed over in C. */
#include <moert.h>

#include "examples/custom_policy/use_rate_c.h"

void run(const moert_source *source, moert_engine_options options, moert_engine *engine, moert_error *error) {
@BLOCK@}
