/* docs/guide/hosts.md: routing that lies on the device. */
#include <moert.h>

void run(moert_step *step, int32_t layer, void *topk_ids, void *topk_weights, int64_t num_tokens, int64_t k,
         moert_tensor x, moert_tensor y, moert_error *error) {
  moert_routing routing;
  moert_routing_init(&routing, sizeof(routing));
@BLOCK@}
