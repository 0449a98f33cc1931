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

/// The experts of an engine that holds a part of the model (a shard). For each layer and each
/// expert of the model: the expert's number in this engine, or -1 if it is elsewhere. Empty: the
/// engine holds all experts.
using ExpertNumbering = std::vector<std::vector<int32_t>>;

/// The rules by which a device may serve misses without the host (Strategy::misses_by_rule).
struct ServedRules {
  bool by_worth = false;      // evicts by worth (ResidencyRuleKind::kWorth)
  int score_window = 0;       // > 0: evicts by the average score of so many calls
  bool shares_slots = false;  // by worth: the layers share their slots
  bool ruled = false;         // the expert-cache rule chooses experts, not the model's top-k alone
  bool by_gate = false;       // prefetches what the next layer's gate predicts
  // The share of each request's routing mass that the second version may answer
  // (PlacementRule::max_low_share), and the patience of that rule. `low_stands_by`: the records of
  // the second version are resident; else the device reads them from host memory.
  double max_low_share = 0;
  double low_patience = 0;
  bool low_stands_by = false;
  bool spares_low = false;                 // see PlacementRule
  CpuBalance balance = CpuBalance::kNone;  // how the CPU shares the remaining misses

  bool prefetch() const { return by_gate; }
  bool low() const { return max_low_share > 0; }
  bool brings_low() const { return low() && !low_stands_by; }
  bool cpu() const { return balance != CpuBalance::kNone; }
  /// Whether the device keeps an account for each request.
  bool by_request() const { return ruled || low(); }
};

/// Everything that the sizes of an executor's buffers depend on.
struct ExecutorSize {
  const ExpertSource* source = nullptr;
  std::vector<int> versions;             // the source's versions that are served
  int64_t max_tokens = 0;                // the most tokens of a call
  bool partial_output = false;           // ResidentForward may be called
  const MixedGroupGemm* gemm = nullptr;  // of the CPU
  const ExpertNumbering* numbering = nullptr;
  ServedRules served;
};

/// The parts that an executor is made of. It borrows them for its lifetime.
struct ExecutorParts {
  const ExpertSource* source = nullptr;
  std::vector<int> versions;  // the source's versions that are served, the best first
  int64_t max_tokens = 0;     // the most tokens of a call
  bool partial_output = false;
  /// Misses may be given to a CPU beside the fast tier.
  bool cpu_offload = false;
  /// Renumbers the expert ids that the host leaves in device memory.
  const ExpertNumbering* numbering = nullptr;
  ServedRules served;
  const ModelConstants* constants = nullptr;
  const HardwareProfile* profile = nullptr;
  Router* router = nullptr;        // on the CPU
  MixedGroupGemm* gemm = nullptr;  // of the CPU, over `pool`
  ThreadPool* pool = nullptr;
};

/// Must outlive the objects that it makes.
class Backend {
 public:
  virtual ~Backend() = default;

  /// The value that Engine::backend returns.
  virtual BackendKind kind() const = 0;
  /// Whether hidden states lie where the CPU can route them.
  virtual bool hidden_on_host() const = 0;
  /// Whether the fast tier is RAM. If so, its budget also pays for the state of the policies.
  virtual bool in_ram() const { return true; }
  /// Whether a CPU beside the device may compute some of the source's misses.
  virtual bool cpu_beside(const ExpertSource& /*source*/) const { return false; }
  /// The most bytes of pinned RAM that hold records, in addition to the budget.
  virtual int64_t PinnedBytes(const ExecutorSize& /*size*/) const { return 0; }
  /// Refuses formats, shapes and routing that this backend cannot execute.
  virtual absl::Status Check(const ExpertSource& source, absl::Span<const int> versions) const {
    return absl::OkStatus();
  }
  /// Options of the CPU's thread pool if the host provides none. `cpu_offload`: see ExecutorParts.
  virtual ThreadPoolOptions Threads(bool cpu_offload) const = 0;
  /// Bytes of the fast tier that an executor's buffers take.
  virtual absl::StatusOr<int64_t> WorkspaceBytes(const ExecutorSize& size) const = 0;
  virtual absl::StatusOr<ModelConstants> ReadConstants(const ExpertSource& source) const {
    return ModelConstants::Read(source);
  }
  /// Whether the device itself serves the misses of strategies whose policies are rules
  /// (Strategy::misses_by_rule), so that no call waits for the host.
  virtual bool ServesMisses(const ExecutorSize& size) const { return false; }
  /// An error if this backend has no records to lease.
  virtual absl::Status CheckLease() const { return absl::OkStatus(); }

  /// Whether MakePool supports size classes of blocks.
  virtual bool block_classes() const { return false; }
  /// `budget` is borrowed.
  virtual absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes& sizes,
                                                              int64_t limit,
                                                              BudgetTracker* budget) = 0;
  /// All borrowed.
  virtual absl::StatusOr<std::unique_ptr<TransferQueue>> MakeTransfers(
      const ExpertSource* source, Clock* clock, const HardwareProfile* profile) = 0;
  /// Called after MakeTransfers. That queue must live as long as the executor.
  virtual absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const ExecutorParts& parts) = 0;
  /// A notice for the person who runs the host (EngineOptions::log), given once; empty: none.
  virtual std::string TakeNotice() const { return {}; }
};

/// Makes the backend that the options ask for; no other place chooses a backend. Unavailable when
/// this machine or build does not have it.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const EngineOptions& options);

/// Whether layer calls of such an engine may leave the routing to the library. False in
/// simulations.
bool RoutesLayers(const EngineOptions& options);

// The backends that MakeBackend chooses from. The options are borrowed for the call.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const EngineOptions& options);
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const EngineOptions& options);
/// Decisions and logical time only: blocks are counted, nothing is read or multiplied.
absl::StatusOr<std::unique_ptr<Backend>> MakeNullBackend(const EngineOptions& options);

// Records in page-locked host memory from the start, where a device can read them.

/// Bytes of the records that the source itself does not keep in page-locked memory.
int64_t UnpinnedBytes(const ExpertSource& source, absl::Span<const int> versions);

/// The most bytes that may be pinned: `host_budget` (EngineOptions) if one is given, else seven
/// eighths of the memory that the machine can spare. 0 if that is unknown.
int64_t PinnedLimit(int64_t host_budget, const MemoryLimits& machine);

/// Whether page-locked memory holds all records of `versions`: the source keeps them there, or
/// `host_budget` holds the others. Without a budget, records are kept only as they are read.
bool HostHoldsAll(const ExpertSource& source, absl::Span<const int> versions, int64_t host_budget);

/// The records of a version to read into page-locked memory before the first call, of those that
/// the source does not keep there: all of them if `host_budget` holds them. Else the first experts
/// of every layer, such that the unused part of the budget equals the bytes that do not fit; calls
/// fill that part with the records that they ask for first. Empty without a budget.
std::vector<ExpertKey> RecordsToKeep(const ExpertSource& source, int version, int64_t host_budget);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_BACKEND_H_
