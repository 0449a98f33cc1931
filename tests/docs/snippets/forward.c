/* docs/guide/hosts.md: one layer on a device. */
#include <moert.h>

void run(moert_step *step, int32_t layer, void *hidden, int64_t hidden_size, int64_t num_tokens, void *out,
         moert_error *error) {
@BLOCK@}
