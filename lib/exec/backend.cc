#include "exec/backend.h"

namespace moert {

absl::string_view BackendName(BackendKind kind) {
  switch (kind) {
    case BackendKind::kAuto:
      return "auto";
    case BackendKind::kCpu:
      return "cpu";
    case BackendKind::kCuda:
      return "cuda";
  }
  return "?";
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const EngineOptions& options) {
  if (options.simulate) return MakeNullBackend(options);
  const bool cuda = options.backend == BackendKind::kCuda ||
                    (options.backend == BackendKind::kAuto && CudaStatus().ok());
  return cuda ? MakeCudaBackend(options) : MakeCpuBackend(options);
}

bool RoutesLayers(const EngineOptions& options) { return !options.simulate; }

}  // namespace moert
