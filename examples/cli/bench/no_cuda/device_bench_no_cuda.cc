// A build without CUDA.
#include "cli/bench/device_bench.h"

namespace moert::cli {

absl::StatusOr<std::unique_ptr<DeviceBench>> MakeCudaBench() {
  return absl::UnavailableError("built without CUDA");
}

}  // namespace moert::cli
