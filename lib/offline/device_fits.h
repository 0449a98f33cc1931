// The search for the scales of groups on a device, with the same outcome to the bit as on the CPU:
// groups for which the device cannot tell are left to it.
#ifndef MOERT_LIB_OFFLINE_DEVICE_FITS_H_
#define MOERT_LIB_OFFLINE_DEVICE_FITS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/backend.h"
#include "moert/scheme.h"
#include "offline/hqq.h"
#include "offline/rtn.h"

namespace moert {

/// Thread-safe.
class DeviceFits {
 public:
  /// The current CUDA device's. What CudaStatus() says where there is none.
  static absl::StatusOr<std::unique_ptr<DeviceFits>> Open();
  virtual ~DeviceFits() = default;

  /// What FitGroup and FitHqq find for each group of a matrix, [rows][groups]; not Known() where
  /// the CPU is to search, which is everywhere after an error and in groups of unusual size.
  /// weights: row-major [rows, k] of layout.
  virtual std::vector<GroupScale> Rtn(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const RtnOptions& options) = 0;
  virtual std::vector<GroupScale> Hqq(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const HqqOptions& options) = 0;

  /// The first error of the device; OK if none.
  virtual absl::Status first_error() const = 0;
};

using DeviceLog = std::function<void(const std::string& line)>;

/// What `backend` asks for: null for kCpu, and for kAuto without a device. kCuda fails without one.
/// `log`, which may be null, is told of a device, and why one that is there is not used.
absl::StatusOr<std::unique_ptr<DeviceFits>> OpenDeviceFits(BackendKind backend,
                                                           const DeviceLog& log);
/// Tells `log` of the device's first error, if there is a device and an error.
void LogDeviceError(const DeviceFits* device, const DeviceLog& log);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_DEVICE_FITS_H_
