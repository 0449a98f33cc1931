// Dense matrices in device memory and their products.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DENSE_H_
#define MOERT_EXAMPLES_HOST_CUDA_DENSE_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/blocks/matrix_part.h"
#include "host/cuda/cublas.h"
#include "host/cuda/few_rows_kernel.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/quantization_config.h"
#include "util/cuda_api.h"

namespace moert::host {

/// fp32 values in device memory.
absl::StatusOr<gpu::Buffer> ToDevice(const std::vector<float>& values);
inline const float* Floats(const gpu::Buffer& buffer) {
  return reinterpret_cast<const float*>(buffer.data());
}

/// One or several matrices of the same input, stacked along their rows: bf16 [out, in]. Other types
/// are rounded to bf16.
class DeviceMatrix {
 public:
  using Part = MatrixPart;

  DeviceMatrix() = default;
  /// Weights are stored in `form`, or as floats.
  static absl::StatusOr<DeviceMatrix> Load(const Checkpoint& checkpoint,
                                           const QuantizationConfig& form,
                                           const std::vector<Part>& parts, int64_t in);
  /// bf16 [out, in].
  static absl::StatusOr<DeviceMatrix> FromHost(const std::vector<uint16_t>& weights, int64_t out,
                                               int64_t in);
  /// Random weights that preserve the variance of a row, the same for a seed; no biases.
  static absl::StatusOr<DeviceMatrix> Random(int64_t out, int64_t in, uint64_t seed);

  const uint16_t* weights() const { return reinterpret_cast<const uint16_t*>(weights_.data()); }
  /// [out], or null.
  const float* bias() const { return Floats(bias_); }
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  bool empty() const { return out_ == 0; }
  /// y = x W^T for at most kFewRows rows; the caller sets the input.
  FewRowsProduct FewRows(int64_t rows, float* y) const;

 private:
  int64_t in_ = 0;
  int64_t out_ = 0;
  gpu::Buffer weights_;
  gpu::Buffer bias_;
};

/// The kernels to use for dense products.
enum class DenseKernels {
  kAuto,    // cuBLAS for more than kFewRows rows, if available; else our own
  kCublas,  // an error if cuBLAS is missing
  kOwn,
};

/// The products of one stream. One thread at a time.
class DenseProducts {
 public:
  /// For the current device. `stream` is borrowed.
  static absl::StatusOr<std::unique_ptr<DenseProducts>> Create(CUstream_st* stream,
                                                               DenseKernels kernels);

  /// Enqueues y = x W^T (y += x W^T), no bias. x: bf16 [rows, in], y: fp32 [rows, out], dense.
  absl::Status Multiply(const DeviceMatrix& w, const uint16_t* x, int64_t rows, float* y,
                        bool accumulate = false);

  /// Whether LaunchFewRows computes products of this size.
  bool TakesFew(int64_t rows, int64_t in) const {
    return kernels_ != DenseKernels::kCublas && FewRowsRun(rows, in);
  }
  /// A notice for the user: why cuBLAS is not used; empty when it is.
  const std::string& note() const { return note_; }

 private:
  CUstream_st* stream_ = nullptr;
  DenseKernels kernels_ = DenseKernels::kAuto;
  std::unique_ptr<Cublas> cublas_;  // null: not used
  std::string note_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DENSE_H_
