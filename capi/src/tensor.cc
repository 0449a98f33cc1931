#include "moert.h"

extern "C" void moert_tensor_init(moert_tensor* tensor, void* data, int64_t rows, int64_t cols,
                                  moert_dtype dtype) {
  if (tensor != nullptr) *tensor = {data, rows, cols, cols, dtype, MOERT_HOST};
}
