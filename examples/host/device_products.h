// Matrix products of host-memory operands, computed on a device. Worthwhile for many rows, where
// the arithmetic outweighs the transfers.
#ifndef MOERT_EXAMPLES_HOST_DEVICE_PRODUCTS_H_
#define MOERT_EXAMPLES_HOST_DEVICE_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert::host {

/// Weights [out, in] that stay on the device. Must be destroyed before its DeviceProducts.
class KeptWeights {
 public:
  virtual ~KeptWeights() = default;
};

/// Thread-safe.
class DeviceProducts {
 public:
  /// Opens the current device. `lanes`: products that may run at once, each with its own stream and
  /// memory. Unavailable without driver or device, NotFound without cuBLAS, Unimplemented in a
  /// build without CUDA.
  static absl::StatusOr<std::unique_ptr<DeviceProducts>> Open(int lanes);
  virtual ~DeviceProducts() = default;

  /// y = x w^T in fp32; w: [out, in], x: [rows, in], y: [rows, out], dense, in host memory. Waits
  /// for the result. After an error y is undefined.
  virtual absl::Status Multiply(const float* w, int64_t out, int64_t in, const float* x,
                                int64_t rows, float* y) = 0;

  /// Copies weights to the device for any number of products. w: [out, in], not read after the
  /// return. ResourceExhausted, which first_error() does not report, if kept weights would take
  /// more than half of the device's memory.
  virtual absl::StatusOr<std::unique_ptr<KeptWeights>> Keep(const float* w, int64_t out,
                                                            int64_t in) = 0;
  /// Multiply with weights from Keep.
  virtual absl::Status MultiplyKept(const KeptWeights& w, const float* x, int64_t rows,
                                    float* y) = 0;

  /// The first error that a product returned; OK if none.
  virtual absl::Status first_error() const = 0;

  /// The device and the library, for messages.
  virtual const std::string& name() const = 0;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_DEVICE_PRODUCTS_H_
