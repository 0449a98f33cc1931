// cuBLAS, loaded at run time: a program that never computes on a device does not need it, and the
// library is too large to ship.
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
  /// Opens the library for the current device; `stream` is borrowed. NotFound, naming the files
  /// that were looked for, if the library is missing.
  static absl::StatusOr<std::unique_ptr<Cublas>> Open(CUstream_st* stream);
  virtual ~Cublas() = default;

  /// Enqueues the product. May be captured once a product of its shape has run.
  virtual absl::Status Multiply(const DenseGemm& gemm) = 0;
  /// y = x w^T in fp32 arithmetic (no TF32); w: [out, in], x: [rows, in], y: [rows, out], dense in
  /// device memory. InvalidArgument beyond 2^31 rows or columns.
  virtual absl::Status MultiplyF32(const float* w, int64_t out, int64_t in, const float* x,
                                   int64_t rows, float* y) = 0;
  virtual const std::string& library() const = 0;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_CUBLAS_H_
