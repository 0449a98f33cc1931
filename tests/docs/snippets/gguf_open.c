/* docs/guide/hosts.md: a source over the host's file. */
#include <moert.h>

moert_code read(void *user_data, const moert_read *r, moert_failure *failure);

void open(const char *path, const moert_layer_spec *layers, int32_t num_layers, moert_source *source,
          moert_error *error) {
  moert_source_callbacks callbacks;
  moert_source_callbacks_init(&callbacks, sizeof callbacks);
@BLOCK@}
