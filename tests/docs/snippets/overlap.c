/* docs/guide/hosts.md: work of the host beside a layer. */
#include <moert.h>
#include <stddef.h>

void run_something_else(void);

void run(moert_step *step, int32_t layer, const float *x, int64_t stride, int64_t rows, float *y, moert_call *call,
         moert_error *error) {
@BLOCK@}
