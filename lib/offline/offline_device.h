// A device that helps with quantizing and calibrating: it searches for the scales of groups, rounds
// by GPTQ and multiplies experts. Scales and codes equal the CPU's: groups that the device cannot
// decide are left to the CPU.
#ifndef MOERT_LIB_OFFLINE_OFFLINE_DEVICE_H_
#define MOERT_LIB_OFFLINE_OFFLINE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/backend.h"
#include "moert/model.h"
#include "moert/router.h"
#include "moert/scheme.h"
#include "moert/thread_pool.h"
#include "offline/device_expert.h"
#include "offline/gptq.h"
#include "offline/hqq.h"
#include "offline/rtn.h"
#include "quant/quantized_matrix.h"

namespace moert {

/// All borrowed.
struct BlockRows {
  const MoeLayerSpec& layer;
  const RoutingResult& routing;
  const float* inputs;  // [routing.tokens, hidden], like residual
  float* residual;
};

/// Reads the weights of an expert of that block, all finite. Called by many threads at once.
using ExpertReader = std::function<absl::Status(int expert, ExpertWeights* out)>;

/// Thread-safe.
class OfflineDevice {
 public:
  /// Opens the current CUDA device. Without one, returns CudaStatus()'s error.
  static absl::StatusOr<std::unique_ptr<OfflineDevice>> Open();
  virtual ~OfflineDevice() = default;

  /// The results of FitGroup and FitHqq for each group of a matrix, [rows][groups]; not Known() for
  /// groups left to the CPU, which are all groups after an error, and groups of unusual size.
  /// weights: row-major [rows, k] of layout.
  virtual std::vector<GroupScale> Rtn(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const RtnOptions& options) = 0;
  virtual std::vector<GroupScale> Hqq(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const HqqOptions& options) = 0;

  /// Like QuantizeGptq without a device, to the bit if the CPU's vector instructions fuse products.
  /// None if it is left to the CPU.
  virtual std::optional<QuantizedMatrix> Gptq(const MatrixLayout& layout,
                                              absl::Span<const float> weights,
                                              const GptqFactor& factor,
                                              const GptqOptions& options) = 0;

  /// An expert of `layer` with this many tokens; waits while the most possible are under way. Null
  /// if it is left to the CPU. `layer` is borrowed.
  virtual std::unique_ptr<DeviceExpert> Expert(const MoeLayerSpec& layer, int64_t rows) = 0;

  /// Adds the outputs of a MoE block's routed experts to the residual of its rows, in ascending
  /// order of experts like the CPU. Sets (*done)[row] for rows that have them; the other rows are
  /// left to the CPU with an unchanged residual. `read` is called on threads of `pool`; an error is
  /// that of `read`.
  virtual absl::Status AddExperts(const BlockRows& block, const ExpertReader& read,
                                  ThreadPool* pool, std::vector<uint8_t>* done) = 0;

  /// The first error of the device; OK if none.
  virtual absl::Status first_error() const = 0;
};

using DeviceLog = std::function<void(const std::string& line)>;

/// The device for `backend`: null for kCpu, and for kAuto without a device. kCuda fails without
/// one. `log`, which may be null, receives the device's name, or the reason why an existing device
/// is not used.
absl::StatusOr<std::unique_ptr<OfflineDevice>> OpenOfflineDevice(BackendKind backend,
                                                                 const DeviceLog& log);
/// Logs the device's first error, if there is a device and an error.
void LogDeviceError(const OfflineDevice* device, const DeviceLog& log);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_OFFLINE_DEVICE_H_
