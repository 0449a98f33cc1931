/* docs/guide/hosts.md: rows of a tensor of the host's file. */
#include <moert.h>

struct gguf;
struct tensor;
struct tensor *find(struct gguf *file, int32_t layer, moert_part part);
int pread_rows(struct gguf *file, struct tensor *t, int32_t expert, int64_t first, int64_t rows, float *to);

@BLOCK@
