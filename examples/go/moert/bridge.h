/* Callbacks of C that end in exported Go functions. user_data is an integer: no Go pointer is in C. */
#ifndef MOERT_GO_BRIDGE_H_
#define MOERT_GO_BRIDGE_H_

#include <moert.h>

void bridge_callbacks(moert_source_callbacks *callbacks, uintptr_t handle);
void bridge_policies(moert_policies *policies, uintptr_t handle);

#endif
