/* docs/guide/hosts.md: weights in place. */
#include <moert.h>

void my_kernel(const void *record, uint64_t weight_offset);

void run(moert_step *step, int32_t layer, const int32_t *ids, int64_t count, moert_lease *lease, moert_expert_view view,
         moert_error *error) {
@BLOCK@}
