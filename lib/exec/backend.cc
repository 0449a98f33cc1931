#include "exec/backend.h"

#include <algorithm>

#include "source/read_records.h"

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

int64_t UnpinnedBytes(const ExpertSource& source, absl::Span<const int> versions) {
  int64_t bytes = 0;
  for (const int version : versions) {
    for (int l = 0; l < source.model().num_layers(); ++l) {
      for (int e = 0; e < source.model().layers[l].num_experts; ++e) {
        if (source.PinnedRecord(l, e, version) != nullptr) continue;
        bytes += PlaceBytes(source, l, e, version);
      }
    }
  }
  return bytes;
}

int64_t PinnedLimit(int64_t host_budget, const MemoryLimits& machine) {
  const int64_t spare = machine.usable();
  return host_budget >= 0 ? host_budget : spare - spare / 8;
}

bool HostHoldsAll(const ExpertSource& source, absl::Span<const int> versions, int64_t host_budget) {
  const int64_t bytes = UnpinnedBytes(source, versions);
  return bytes == 0 || bytes <= host_budget;
}

std::vector<ExpertKey> RecordsToKeep(const ExpertSource& source, int version, int64_t host_budget) {
  const int64_t lacking = UnpinnedBytes(source, {version}) - host_budget;
  int64_t left = host_budget - std::max<int64_t>(lacking, 0);
  const std::vector<MoeLayerSpec>& layers = source.model().layers;
  std::vector<ExpertKey> keep;
  bool more = true;
  for (int e = 0; more; ++e) {
    more = false;
    for (int l = 0; l < source.model().num_layers(); ++l) {
      if (e >= layers[l].num_experts) continue;
      more = true;
      if (source.PinnedRecord(l, e, version) != nullptr) continue;
      left -= PlaceBytes(source, l, e, version);
      if (left < 0) return keep;
      keep.push_back({l, e});
    }
  }
  return keep;
}

}  // namespace moert
