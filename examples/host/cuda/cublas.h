// cuBLAS, found at run time: a program that never computes on a device needs none, and the library
// is too large to carry along.
#ifndef MOERT_EXAMPLES_HOST_CUDA_CUBLAS_H_
#define MOERT_EXAMPLES_HOST_CUDA_CUBLAS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/cuda/gemm_kernel.h"

namespace moert::host {

/// One stream's handle and workspace. One thread at a time.
class Cublas {
 public:
  /// NotFound, naming the files that were looked for, where the library is missing. The current
  /// device's; `stream` is borrowed.
  static absl::StatusOr<std::unique_ptr<Cublas>> Open(CUstream_st* stream);
  virtual ~Cublas() = default;

  /// Enqueues the product. Legal under stream capture once a product of its shape has run.
  virtual absl::Status Multiply(const DenseGemm& gemm) = 0;
  /// y = x w^T in fp32 arithmetic (no TF32); w: [out, in], x: [rows, in], y: [rows, out], dense in
  /// device memory. InvalidArgument beyond 2^31 rows or columns.
  virtual absl::Status MultiplyF32(const float* w, int64_t out, int64_t in, const float* x,
                                   int64_t rows, float* y) = 0;
  virtual const std::string& library() const = 0;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_CUBLAS_H_
