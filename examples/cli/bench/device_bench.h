// A device for decode, prefill and layer: hidden states in its memory, an attention that reads as
// many bytes as a decoder's would, and a clock around a step.
#ifndef MOERT_EXAMPLES_CLI_BENCH_DEVICE_BENCH_H_
#define MOERT_EXAMPLES_CLI_BENCH_DEVICE_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/bench/step_runner.h"
#include "moert/model.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

struct DeviceRunOptions {
  int64_t attention_bytes = 0;  // read before each layer call; 0: none
  bool graph = false;           // steps of engines that can are captured once and replayed
  bool layer_times = false;     // an event behind every layer
};

class DeviceBench {
 public:
  virtual ~DeviceBench() = default;

  /// {"device", "driver", "runtime"}
  virtual nlohmann::json Describe() const = 0;
  /// Memory free now.
  virtual absl::StatusOr<int64_t> FreeBytes() const = 0;
  /// Bytes that a kernel reads a second: median of a few passes.
  virtual double ReadBytesPerSecond() const = 0;
  /// Time of a copy of so many bytes from page-locked memory: median.
  virtual absl::StatusOr<double> CopyMs(int64_t bytes) const = 0;
  /// Page-locks host memory until the returned object is destroyed.
  virtual absl::StatusOr<std::shared_ptr<void>> Pin(std::byte* data, int64_t bytes) const = 0;
  /// Steps of engines on this device, one after another on one stream. The device is idle when a
  /// step begins, and its time ends when it is idle again.
  virtual absl::StatusOr<std::unique_ptr<StepRunner>> MakeRunner(
      const DeviceRunOptions& options) = 0;
};

/// Unavailable, with the reason, where there is no device or no CUDA in the build.
absl::StatusOr<std::unique_ptr<DeviceBench>> MakeCudaBench();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_DEVICE_BENCH_H_
