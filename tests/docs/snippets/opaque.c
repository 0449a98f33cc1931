/* docs/guide/hosts.md: a format and kernels of one's own. */
#include <moert.h>

void run(const char *path, int32_t l, int64_t bytes_of_one_expert, const void *mapped_tensor,
         const moert_layer_spec *layers, uint64_t num_layers, const moert_opaque_part *parts,
         uint64_t num_parts, moert_source *source, moert_error *error) {
  moert_opaque_part part;
@BLOCK@}
