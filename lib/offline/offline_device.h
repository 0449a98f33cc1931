// A device's part in quantizing and calibrating: it searches for the scales of groups, rounds by
// GPTQ and multiplies experts. Scales and codes are those of the CPU: groups for which the
// device cannot tell are left to it.
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

/// The weights of an expert of that block, all finite. Called by many threads at once.
using ExpertReader = std::function<absl::Status(int expert, ExpertWeights* out)>;

/// Thread-safe.
class OfflineDevice {
 public:
  /// The current CUDA device's. The answer of CudaStatus() where there is none.
  static absl::StatusOr<std::unique_ptr<OfflineDevice>> Open();
  virtual ~OfflineDevice() = default;

  /// FitGroup's and FitHqq's results for each group of a matrix, [rows][groups]; not Known() where
  /// the CPU is to search, which is everywhere after an error and in groups of unusual size.
  /// weights: row-major [rows, k] of layout.
  virtual std::vector<GroupScale> Rtn(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const RtnOptions& options) = 0;
  virtual std::vector<GroupScale> Hqq(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const HqqOptions& options) = 0;

  /// As QuantizeGptq without a device, to the bit where the CPU's vectors fuse products. None where
  /// the CPU is to do it.
  virtual std::optional<QuantizedMatrix> Gptq(const MatrixLayout& layout,
                                              absl::Span<const float> weights,
                                              const GptqFactor& factor,
                                              const GptqOptions& options) = 0;

  /// An expert of `layer` with so many tokens; waits while as many as can be at once are under way.
  /// Null where the CPU is to do it. `layer` is borrowed.
  virtual std::unique_ptr<DeviceExpert> Expert(const MoeLayerSpec& layer, int64_t rows) = 0;

  /// Adds to the residual of a MoE block's rows what its routed experts make of their inputs, in
  /// ascending order of experts as the CPU does. Sets (*done)[row] of the rows that have it; the
  /// CPU is to do the others, whose residual is as it was. `read` is called on threads of `pool`;
  /// an error is its.
  virtual absl::Status AddExperts(const BlockRows& block, const ExpertReader& read,
                                  ThreadPool* pool, std::vector<uint8_t>* done) = 0;

  /// The first error of the device; OK if none.
  virtual absl::Status first_error() const = 0;
};

using DeviceLog = std::function<void(const std::string& line)>;

/// The device for `backend`: null for kCpu, and for kAuto without a device. kCuda fails without
/// one. `log`, which may be null, is told of a device, and why one that is there is not used.
absl::StatusOr<std::unique_ptr<OfflineDevice>> OpenOfflineDevice(BackendKind backend,
                                                                 const DeviceLog& log);
/// Tells `log` of the device's first error, if there is a device and an error.
void LogDeviceError(const OfflineDevice* device, const DeviceLog& log);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_OFFLINE_DEVICE_H_
