// Products of matrices in host memory, computed on a device: for work over many rows, whose
// arithmetic outweighs the way there and back.
#ifndef MOERT_EXAMPLES_HOST_DEVICE_PRODUCTS_H_
#define MOERT_EXAMPLES_HOST_DEVICE_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert::host {

/// Weights [out, in] that stay on the device. Outlives no DeviceProducts.
class KeptWeights {
 public:
  virtual ~KeptWeights() = default;
};

/// Thread-safe.
class DeviceProducts {
 public:
  /// The current device's. `lanes`: products that may be under way at once, each with a stream and
  /// memory of its own. Unavailable without driver or device, NotFound without cuBLAS,
  /// Unimplemented in a build without CUDA.
  static absl::StatusOr<std::unique_ptr<DeviceProducts>> Open(int lanes);
  virtual ~DeviceProducts() = default;

  /// y = x w^T in fp32; w: [out, in], x: [rows, in], y: [rows, out], dense, in host memory. Waits
  /// for the result. After an error y is undefined.
  virtual absl::Status Multiply(const float* w, int64_t out, int64_t in, const float* x,
                                int64_t rows, float* y) = 0;

  /// Weights for any number of products. w: [out, in], read until this returns. ResourceExhausted,
  /// which is no error of a product, where half of the device's memory would be taken.
  virtual absl::StatusOr<std::unique_ptr<KeptWeights>> Keep(const float* w, int64_t out,
                                                            int64_t in) = 0;
  /// The same as Multiply by weights that were kept.
  virtual absl::Status MultiplyKept(const KeptWeights& w, const float* x, int64_t rows,
                                    float* y) = 0;

  /// The first error that a product returned; OK if none.
  virtual absl::Status first_error() const = 0;

  /// For people: the device and the library.
  virtual const std::string& name() const = 0;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_DEVICE_PRODUCTS_H_
