/* docs/guide/hosts.md: work of the host beside a layer. */
#include <moert.h>

void run_something_else(void);

void run(moert_step *step, int32_t layer, moert_tensor x, moert_tensor y, moert_call *call, moert_error *error) {
@BLOCK@}
