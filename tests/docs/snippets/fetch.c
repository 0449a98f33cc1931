/* docs/guide/hosts.md: a format and kernels of one's own. */
#include <moert.h>

void my_kernel(const void *base, int64_t stride, const int32_t *slot_ids);

void run(moert_step *step, int32_t layer, int32_t *ids, int32_t *slot_ids, int64_t tokens, int64_t k,
         moert_error *error) {
  moert_fetch fetch;
  moert_slots slots;
  moert_fetch_init(&fetch, sizeof(fetch));
  moert_slots_init(&slots, sizeof(slots));
@BLOCK@}
