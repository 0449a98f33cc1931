/* docs/guide/hosts.md: one layer on a device. */
#include <moert.h>

moert_code run(moert_step *step, int32_t layer, const void *hidden, int64_t hidden_size, int64_t num_tokens, void *out,
               moert_stream stream, moert_error *error) {
  return
@BLOCK@}
