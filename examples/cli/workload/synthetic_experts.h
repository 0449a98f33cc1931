// Experts with random weights at a published model's shape, in memory or in a file, with the gates
// of a workload: enough to measure everything but quality.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_SYNTHETIC_EXPERTS_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_SYNTHETIC_EXPERTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/workload/shapes.h"
#include "cli/workload/workload.h"
#include "moert/source/expert_source.h"

namespace moert::cli {

struct SyntheticOptions {
  /// Versions, most bits first.
  std::vector<std::string> schemes = {"bf16"};
  /// As many versions more, "mixed-0" and so on, like plans of `moert-pack allocate`: gate and up
  /// of every expert have a scheme, down another, drawn at random in proportions that each version
  /// has of its own. In memory only, all records different.
  int mixed = 0;
  /// Schemes that these draw from; empty: ten schemes that every backend executes.
  std::vector<std::string> mixed_schemes;
  /// Where the file is written that experts are read from, with direct I/O where the file system
  /// can; removed with the object. Empty: experts are copied from memory. In memory there are only
  /// as many different ones as `memory_bytes` hold; records in an engine's pool are copies, so what
  /// is multiplied lies at as many addresses as in a real model.
  std::string directory;
  int64_t memory_bytes = int64_t{512} << 20;
  /// Page-locks that memory and returns what unlocks it; then devices copy records from where they
  /// are (ExpertSource::PinnedRecord). May be null.
  std::function<absl::StatusOr<std::shared_ptr<void>>(std::byte* data, int64_t bytes)> pin;
  std::function<void(int64_t done, int64_t total)> progress;  // may be null
  /// Gates in place of the workload's: [E, hidden] of a layer. May be null.
  std::function<std::vector<float>(int layer)> gate;
};

/// The workload gives the gates; borrowed for the call. Records are made by all threads.
absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeSyntheticExperts(
    const Shape& shape, const Workload& workload, uint64_t seed, const SyntheticOptions& options);

/// Fills a record with weights that kernels take as they are: random, small, no denormals.
void FillRecord(const RecordLayout& layout, uint64_t seed, std::byte* record);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_SYNTHETIC_EXPERTS_H_
