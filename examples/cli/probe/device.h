// Measures a CUDA device: its memory, its link, and layer calls of an engine. In a build without
// CUDA, and where there is no device, each is Unavailable with the reason.
#ifndef MOERT_EXAMPLES_CLI_PROBE_DEVICE_H_
#define MOERT_EXAMPLES_CLI_PROBE_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/common/report.h"
#include "cli/workload/shapes.h"

namespace moert::cli {

struct DeviceRates {
  std::string name;
  int64_t total = 0, free = 0;    // bytes of memory
  double memory_bytes_per_s = 0;  // copied within it, read plus written
  double link_bytes_per_s = 0;    // from pinned memory to the device
};
/// `seconds`: how long each rate is measured.
absl::StatusOr<DeviceRates> ProbeDeviceRates(double seconds);

/// Layer calls of an engine, by tokens. Times in nanoseconds a layer.
struct DeviceLayer {
  int64_t tokens = 1;
  Spread captured;       // every expert resident, replayed from a graph
  Spread captured_bare;  // the same with experts of hardly any size: routing, packing, summing
  Spread cached;         // a cache that hits: the host looks at every routing
  Spread cached_bare;
};

struct DeviceLayers {
  std::vector<DeviceLayer> layers;
  int64_t experts = 0;       // multiplied in a layer call
  int64_t expert_bytes = 0;  // of each, bf16
};
absl::StatusOr<DeviceLayers> ProbeDeviceLayers(const Shape& shape, const std::vector<int>& tokens,
                                               int repeats);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PROBE_DEVICE_H_
