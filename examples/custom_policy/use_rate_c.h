/* The policy of use_rate.h through the C ABI. C99. */
#ifndef MOERT_EXAMPLES_CUSTOM_POLICY_USE_RATE_C_H_
#define MOERT_EXAMPLES_CUSTOM_POLICY_USE_RATE_C_H_

#include "moert.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills `policies` for moert_engine_options.policies. 0, or -1 if there is no memory. If the
 * engine cannot be created, call policies->destroy(policies->user_data). */
int use_rate_policies(const moert_source* source, double decay, moert_policies* policies);

#ifdef __cplusplus
}
#endif

#endif /* MOERT_EXAMPLES_CUSTOM_POLICY_USE_RATE_C_H_ */
