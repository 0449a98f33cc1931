// Backend: where experts live and are computed. It gives an engine the blocks of its fast tier, the
// transfers into them, and the executor of its layer calls; everything else of an engine is the
// same on all backends, and nothing in lib/engine asks which one it has.
//
// To add a backend (HIP, SYCL, Metal), add one folder lib/exec/<name>/ with
//   1. a Backend: fast tier (MakePool), link (MakeTransfers), limits (Check, WorkspaceBytes);
//   2. an Executor: Check, Route, SetRouting, Multiply and Combine; then what stands beside it
//      (DevicePath, CpuOffload, ResidentForward), as far as it has them;
//   3. a factory that MakeBackend calls, and its stand-in for builds without it (see no_cuda/);
// a value of BackendKind, and an entry in MakeBackend and BackendName. cpu/ is the smallest
// example.
#ifndef MOERT_LIB_EXEC_BACKEND_H_
#define MOERT_LIB_EXEC_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "exec/executor.h"
#include "exec/model_constants.h"
#include "moert/backend.h"
#include "moert/mixed_group_gemm.h"
#include "moert/options.h"
#include "moert/policy.h"
#include "moert/router.h"
#include "moert/source/expert_source.h"
#include "moert/tools/machine.h"
#include "moert/tools/profile.h"
#include "store/block_pool.h"
#include "transfer/transfer_queue.h"

namespace moert {

/// For each layer of an engine over some experts: the number here of each expert of the model, -1:
/// not here. Empty: all are.
using ExpertNumbering = std::vector<std::vector<int32_t>>;

/// By which rules a device may serve misses (Strategy::misses_by_rule).
struct ServedRules {
  bool by_worth = false;
  int score_window = 0;
  bool shares_slots = false;  // by worth, over all layers
  bool ruled = false;         // routing is by the expert-cache rule, not the model's choice
  // The prefetch.
  bool by_gate = false;
  // The share of each request's mass that the second version may answer
  // (PlacementRule::max_low_share), and by which rule; `low_stands_by`: its records are resident,
  // else they are read in host memory.
  double max_low_share = 0;
  double low_patience = 0;
  bool low_stands_by = false;
  bool spares_low = false;                 // see PlacementRule
  CpuBalance balance = CpuBalance::kNone;  // of what is left, with a CPU

  bool prefetch() const { return by_gate; }
  bool low() const { return max_low_share > 0; }
  bool brings_low() const { return low() && !low_stands_by; }
  bool cpu() const { return balance != CpuBalance::kNone; }
  /// Whether requests have accounts.
  bool by_request() const { return ruled || low(); }
};

/// The buffers of an executor have sizes by these.
struct ExecutorSize {
  const ExpertSource* source = nullptr;
  std::vector<int> versions;             // served, of the source
  int64_t max_tokens = 0;                // of a call
  bool partial_output = false;           // ResidentForward may be asked
  const MixedGroupGemm* gemm = nullptr;  // of the CPU
  const ExpertNumbering* numbering = nullptr;
  ServedRules served;
};

/// Borrowed by an executor for its life.
struct ExecutorParts {
  const ExpertSource* source = nullptr;
  std::vector<int> versions;  // served, of the source; the best first
  int64_t max_tokens = 0;     // of a call
  bool partial_output = false;
  /// Misses may be given to a CPU beside the fast tier.
  bool cpu_offload = false;
  /// Renumbers ids that the host gives on a device.
  const ExpertNumbering* numbering = nullptr;
  ServedRules served;
  const ModelConstants* constants = nullptr;
  const HardwareProfile* profile = nullptr;
  Router* router = nullptr;        // on the CPU
  MixedGroupGemm* gemm = nullptr;  // of the CPU, over `pool`
  ThreadPool* pool = nullptr;
};

/// Outlives what it makes.
class Backend {
 public:
  virtual ~Backend() = default;

  /// The answer of Engine::backend.
  virtual BackendKind kind() const = 0;
  /// Whether hidden states lie where the CPU can route them.
  virtual bool hidden_on_host() const = 0;
  /// Whether the fast tier is RAM: then its budget holds what policies do, too.
  virtual bool in_ram() const { return true; }
  /// Whether a CPU beside the device may compute some of the source's misses.
  virtual bool cpu_beside(const ExpertSource& /*source*/) const { return false; }
  /// Most bytes of pinned RAM that keep records, beside the budget.
  virtual int64_t PinnedBytes(const ExecutorSize& /*size*/) const { return 0; }
  /// Refuses formats, shapes and routing that this backend cannot execute.
  virtual absl::Status Check(const ExpertSource& source, absl::Span<const int> versions) const {
    return absl::OkStatus();
  }
  /// Options of the pool that computes on the CPU, where the host brings none. `cpu_offload`: see
  /// ExecutorParts.
  virtual ThreadPoolOptions Threads(bool cpu_offload) const = 0;
  /// Bytes of the fast tier that an executor's buffers take.
  virtual absl::StatusOr<int64_t> WorkspaceBytes(const ExecutorSize& size) const = 0;
  virtual absl::StatusOr<ModelConstants> ReadConstants(const ExpertSource& source) const {
    return ModelConstants::Read(source);
  }
  /// Whether a device of its own serves the misses of strategies that go by rules
  /// (Strategy::misses_by_rule), so that no call waits for the host.
  virtual bool ServesMisses(const ExecutorSize& size) const { return false; }
  /// Refuses to lease records, where there are none.
  virtual absl::Status CheckLease() const { return absl::OkStatus(); }

  /// Whether MakePool knows blocks in classes.
  virtual bool block_classes() const { return false; }
  /// `budget` is borrowed.
  virtual absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes& sizes,
                                                              int64_t limit,
                                                              BudgetTracker* budget) = 0;
  /// All borrowed.
  virtual absl::StatusOr<std::unique_ptr<TransferQueue>> MakeTransfers(
      const ExpertSource* source, Clock* clock, const HardwareProfile* profile) = 0;
  /// Behind MakeTransfers, whose queue lives as long.
  virtual absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const ExecutorParts& parts) = 0;
  /// A notice for the person who runs the host (EngineOptions::log), given once; empty: none.
  virtual std::string TakeNotice() const { return {}; }
};

/// The backend that the options ask for, the only place that decides it. Unavailable when this
/// machine or build does not have it.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const EngineOptions& options);

/// Whether layer calls of such an engine may leave the routing to the library: not in a simulation.
bool RoutesLayers(const EngineOptions& options);

// MakeBackend chooses from these. The options are borrowed for the call.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const EngineOptions& options);
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const EngineOptions& options);
/// Decisions and logical time only: blocks are counted, nothing is read or multiplied.
absl::StatusOr<std::unique_ptr<Backend>> MakeNullBackend(const EngineOptions& options);

/// Records that lie in page-locked host memory from the start, where a device reads them.
/// Bytes of those that the source does not have there.
int64_t UnpinnedBytes(const ExpertSource& source, absl::Span<const int> versions);

/// The most that may be pinned: `host_budget` (EngineOptions), or, where none is given, what the
/// machine can spare less an eighth of it. None where that is unknown.
int64_t PinnedLimit(int64_t host_budget, const MemoryLimits& machine);

/// Whether all records of `versions` do: those that the source has there, and the others within
/// `host_budget`. Where none is given they are kept as they are read.
bool HostHoldsAll(const ExpertSource& source, absl::Span<const int> versions, int64_t host_budget);

/// Records of a version that the source does not have there, to be read before any call: all of
/// them where `host_budget` holds them. Else, of all layers alike, so many that as much of the
/// budget is left as bytes do not fit: calls fill that with what they name first. None where no
/// budget is given.
std::vector<ExpertKey> RecordsToKeep(const ExpertSource& source, int version, int64_t host_budget);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_BACKEND_H_
