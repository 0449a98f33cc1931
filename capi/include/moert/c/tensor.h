/* tensor.h: a matrix that the host owns. Since 0.1. */
#ifndef MOERT_C_TENSOR_H_
#define MOERT_C_TENSOR_H_

#include "moert/c/version.h"

MOERT_BEGIN_C

typedef int32_t moert_dtype;
enum moert_dtype_values {
  MOERT_DTYPE_INVALID = -1,
  MOERT_F32 = 0,
  MOERT_BF16 = 1,
  MOERT_F16 = 2,
  MOERT_U8 = 4, /* records */
  MOERT_I32 = 5 /* expert ids */
};

/* Where memory lies. */
typedef int32_t moert_place;
enum moert_place_values {
  MOERT_PLACE_INVALID = -1,
  MOERT_HOST = 0,
  MOERT_DEVICE = 1 /* of the engine; its backend is CUDA */
};

/* A row-major matrix, borrowed: the host keeps the memory alive and unchanged for as long as the
 * call that takes it. Rows are row_stride elements apart. All zeros: no tensor. This struct has no
 * struct_size because it never changes. */
typedef struct moert_tensor {
  void *data; /* not written where the tensor is an input */
  int64_t rows;
  int64_t cols;
  int64_t row_stride; /* elements, at least cols */
  moert_dtype dtype;
  moert_place place;
} moert_tensor;

/* A contiguous tensor in host memory. Touches nothing but `tensor`. Thread-safe. */
MOERT_API void moert_tensor_init(moert_tensor *tensor, void *data, int64_t rows, int64_t cols,
                                 moert_dtype dtype);

MOERT_END_C

#endif /* MOERT_C_TENSOR_H_ */
