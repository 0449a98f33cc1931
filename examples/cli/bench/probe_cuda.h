// The device's part of moert-bench probe: copies, memory, launches, events, stream memory
// operations, pinning, and layer calls of an engine.
#ifndef MOERT_EXAMPLES_CLI_BENCH_PROBE_CUDA_H_
#define MOERT_EXAMPLES_CLI_BENCH_PROBE_CUDA_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/common/report.h"
#include "cli/probe/device.h"
#include "cli/workload/shapes.h"

namespace moert::cli {

/// Host memory to or from the device.
struct CopyRate {
  int64_t bytes = 0;
  std::string memory;     // "pinned", "pageable"
  std::string direction;  // "to device", "to host", "both"
  int queued = 1;         // copies given at once, each way; 1: each waited for
  Spread bytes_per_s;     // of both ways together
};

/// The device's own time. Times in nanoseconds.
struct DeviceCosts {
  Spread read_bytes_per_s;      // a kernel that reads its memory
  Spread copy_bytes_per_s;      // within its memory; bytes read plus bytes written
  Spread launch;                // host: an empty kernel, not waited for
  Spread launch_wait;           // host: the same, waited for
  Spread kernel;                // device: an empty kernel behind another
  Spread graph_kernel;          // device: the same, as nodes of a graph
  Spread event_record;          // host
  Spread event_wait;            // host: one stream told to wait for another
  Spread event_hop;             // device: a wait that hands work from stream to stream
  Spread event_synchronize;     // host: from the device's end of work to the host's return
  Spread memop_enqueue;         // host: a stream's write of a word
  Spread memop;                 // device: the same behind another
  Spread memop_round_trip;      // host flag -> stream's wait -> its write -> host
  Spread pin_bytes_per_s;       // pinned memory allocated
  Spread register_bytes_per_s;  // pageable memory pinned
};

struct CudaProbe {
  std::string device;
  std::string driver, runtime;  // CUDA versions
  std::vector<CopyRate> copies;
  DeviceCosts costs;
  std::vector<DeviceLayer> layers;
  int64_t experts = 0;       // multiplied in a layer call
  int64_t expert_bytes = 0;  // of each
};

/// Unavailable, with the reason, where there is no device or no CUDA in the build.
absl::StatusOr<CudaProbe> ProbeCuda(const Shape& shape, const std::vector<int>& tokens,
                                    int repeats);

/// The figures for people.
std::vector<std::string> Lines(const CudaProbe& probe);
nlohmann::json ToJson(const CudaProbe& probe);
/// Makes the profile one of the device: its link, its layers, its products, the CPU beside it.
void UseDevice(const CudaProbe& probe, nlohmann::json* profile);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_PROBE_CUDA_H_
