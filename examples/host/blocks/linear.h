// A dense matrix of the host, packed for panel_gemm.h, with its optional bias.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_LINEAR_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "host/aligned.h"
#include "host/blocks/matrix_part.h"
#include "host/device_products.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/quantization_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// y = x W^T + b, W [out, in]. bf16 weights stay bf16 in memory, which loses nothing, and quantized
/// ones become bf16; all arithmetic is fp32. Thread-safe after Load.
class Linear {
 public:
  Linear() = default;

  /// Reads `name`.weight [out, in], stored in `form` or as floats, and, if `bias`, `name`.bias
  /// [out].
  static absl::StatusOr<Linear> Load(const Checkpoint& checkpoint, const QuantizationConfig& form,
                                     const std::string& name, int64_t out, int64_t in, bool bias);
  /// Stacks the rows of several tensors, one part after the other.
  static absl::StatusOr<Linear> Load(const Checkpoint& checkpoint, const QuantizationConfig& form,
                                     const std::vector<MatrixPart>& parts, int64_t in);
  /// From fp32 weights [out, in] in memory, kept as fp32; `bias` null or [out].
  static Linear FromF32(const float* weights, int64_t out, int64_t in, const float* bias);

  /// Computes products of many rows on the borrowed device from now on. The CPU threads compute
  /// those that the device refuses, so the weights stay in host memory, too.
  void UseDevice(DeviceProducts* device);

  /// x: [rows, in], y: [rows, out], both dense. The bits of a row do not depend on the others, but
  /// for what a device does.
  void Forward(ThreadPool* pool, const float* x, int64_t rows, float* y) const;

  /// Row `index` of W, widened to fp32: how an embedding is looked up. dst: [in].
  void Row(int64_t index, float* dst) const;

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  bool empty() const { return out_ == 0; }
  /// Weights and bias, padding included.
  int64_t bytes() const;

 private:
  Linear(int64_t out, int64_t in, bool bf16);
  int64_t panels() const { return (out_ + 15) / 16; }
  /// Returns false if the CPU threads must compute the product.
  bool ForwardOnDevice(ThreadPool* pool, const float* x, int64_t rows, float* y) const;
  template <typename T>
  void PackRow(int64_t row, const T* weights, AlignedVector<T>* packed);
  template <typename T>
  absl::Status PackPart(const LinearWeight& weight, const MatrixPart& part, int64_t first,
                        AlignedVector<T>* packed);

  int64_t out_ = 0;
  int64_t in_ = 0;
  // Panels [out / 16][in][16], the last one padded with zeros; one of the two is empty.
  AlignedVector<float> f32_;
  AlignedVector<uint16_t> bf16_;
  AlignedVector<float> bias_;  // padded to whole panels, or empty
  DeviceProducts* device_ = nullptr;
  std::shared_ptr<const KeptWeights> on_device_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_LINEAR_H_
