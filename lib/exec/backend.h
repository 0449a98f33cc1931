// What an engine needs of a device that is not the CPU: blocks of its fast tier, transfers into
// them, and the arithmetic of a layer call. Everything else of an engine is the same on all
// backends.
#ifndef MOERT_LIB_EXEC_BACKEND_H_
#define MOERT_LIB_EXEC_BACKEND_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/spin.h"
#include "moert/backend.h"
#include "moert/expert_source.h"
#include "moert/expert_store.h"
#include "moert/mixed_group_gemm.h"
#include "moert/options.h"
#include "moert/policy.h"
#include "moert/profile.h"
#include "moert/router.h"
#include "moert/tensor.h"
#include "store/block_pool.h"
#include "transfer/transfer_queue.h"

namespace moert {

/// The device's side of a layer call.
struct DeviceCall {
  int layer = 0;
  int64_t epoch = 0;  // of the step, see ExpertStore::OpenStep
  MatrixView hidden;  // in device memory
  MutableMatrixView out;
  void* stream = nullptr;  // orders the call
  /// Experts may be computed by the CPU: its input comes to the host beside the routing.
  bool cpu_offload = false;
};

/// How often an expert was selected by calls that left no routing.
struct SelectionCount {
  int64_t slots = 0;
  int64_t calls = 0;
  double mass = 0;  // summed routing weight
};

/// An expert ready to be multiplied.
struct WaveExpert {
  int32_t expert = 0;
  ExpertHandle handle;
};

/// Routes T tokens on the host, where the device cannot. x: [tokens, hidden] fp32.
using HostRoute = absl::FunctionRef<absl::Status(const float* x, RoutingResult* routing)>;

/// A routing rule that is not the model's own, for one call.
struct RoutingOverride {
  RoutingRule rule;
  absl::Span<const int64_t> request_ids;  // [tokens], or empty: all rows are one request
  const ExpertStore* store = nullptr;
};

/// What an executor counted since it was made.
struct ExecutorStats {
  int64_t host_syncs = 0;  // times a layer call waited for the device
  bool graph_captured = false;
  // The largest substituted shares of slots and of mass that any request reached on the device.
  double worst_slot_share = 0;
  double worst_mass_share = 0;
};

/// The arithmetic of layer calls, one call at a time: Route, Multiply once or more, Combine. What a
/// Multiply computes for an expert does not depend on which Multiply it is in.
class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;

  /// Scores, chosen experts and their weights, tokens grouped by expert, on the host. Waits for the
  /// device. `rule`: null for the model's own choice. Uses `host_route` for a rule that the device
  /// does not execute.
  virtual absl::Status Route(const DeviceCall& call, const RoutingOverride* rule, bool next_gate,
                             HostRoute host_route, RoutingResult* routing) = 0;
  virtual ExecutorStats stats() const = 0;
  /// In place of Route: the routing is given, tokens grouped. Waits for the device only for a call
  /// with `cpu_offload`.
  virtual absl::Status SetRouting(const DeviceCall& call, const RoutingResult& routing) = 0;
  /// Enqueues the products of the wave's experts; of the shared expert too in the first wave. The
  /// records may be unpinned when it returns: a block is not overwritten before this work is done.
  virtual absl::Status Multiply(const DeviceCall& call, const RoutingResult& routing,
                                absl::Span<const WaveExpert> wave, bool first) = 0;
  /// Whether the CPU can multiply an expert of a call of `tokens` rows: its record lies in host
  /// memory, and the call is small enough.
  virtual bool CpuCanCompute(ExpertKey key, int source_version, int64_t tokens) const = 0;
  /// Begins multiplying such experts on the CPU, beside everything that is enqueued. Of a call with
  /// `cpu_offload`, behind its Route; needs a JoinCpu, whatever happens in between.
  virtual absl::Status BeginCpu(const DeviceCall& call, const RoutingResult& routing,
                                absl::Span<const int32_t> experts, int source_version) = 0;
  /// Waits for the CPU, then enqueues that its outputs take their slots for Combine. *took_ns: what
  /// the multiplication took.
  virtual absl::Status JoinCpu(const DeviceCall& call, int64_t* took_ns) = 0;
  /// Enqueues call.out = weighted sum of the products, in the order of k, and the shared expert.
  virtual absl::Status Combine(const DeviceCall& call, const RoutingResult& routing) = 0;

  /// True when a call of this layer can run with no host in the way, given a usable version of
  /// every expert.
  virtual bool CanRunResident(int layer) const = 0;
  /// Enqueues a whole such call. Legal under stream capture. Its routing arrives later.
  virtual absl::Status RunResident(const DeviceCall& call, const PolicyContext& context,
                                   const ExpertStore& store) = 0;
  /// True while calls on the stream are recorded into a graph.
  virtual bool Capturing(void* stream) const = 0;
  /// The routing of the oldest RunResident that was not taken yet and whose results have arrived;
  /// false when there is none. Calls that were captured leave none.
  virtual bool TakeRouting(PolicyContext* context, RoutingResult* routing) = 0;
  /// What replays of captured calls have selected since this was last asked, as far as it has
  /// arrived, about a step late: of each layer its experts, then all of them together. False:
  /// nothing.
  virtual bool TakeSelections(std::vector<SelectionCount>* added) = 0;

  /// Before the first call of a step: makes the handles of its epoch, the newest, visible to
  /// captured calls. Where there may be any the store tracks its changes.
  virtual absl::Status OpenStep(ExpertStore* store, int64_t epoch, void* stream) = 0;
  /// Behind the last call of a step, replayed graphs included.
  virtual absl::Status CloseStep(void* stream) = 0;
};

/// Borrowed by an executor for its life.
struct ExecutorParts {
  const ExpertSource* source = nullptr;
  std::vector<int> versions;                               // served, of the source
  const std::vector<LayerConstants>* constants = nullptr;  // read at creation only
  std::vector<const std::byte*> shared_records;  // [L], null where there is none; likewise
  int64_t max_tokens = 0;
  MixedGroupGemm* cpu_gemm = nullptr;  // for experts on the CPU; null: none
  /// How long the thread that drives it, and who waits for it, stay awake.
  std::chrono::microseconds cpu_spin = kSpinAlone;
};

/// That, and the same of the pool that multiplies beside a device, where there is a CPU for each of
/// these threads. A layer hands its misses to the CPU as soon as it is routed; on a virtual machine
/// waking a thread takes 50 to 130 us, as long as the CPU needs for a whole expert. Longer than
/// from one such layer to the next: where little is missing, they are some milliseconds apart.
/// Those that look for work give way to whoever has any (base/spin.h).
inline constexpr std::chrono::microseconds kSpinWithDevice{10'000};

class Backend {
 public:
  virtual ~Backend() = default;

  /// Refuses formats, shapes and routing that this backend cannot execute.
  virtual absl::Status Check(const ExpertSource& source, absl::Span<const int> versions) const = 0;
  /// Bytes of the fast tier that an executor's buffers take.
  virtual absl::StatusOr<int64_t> WorkspaceBytes(const ExpertSource& source,
                                                 absl::Span<const int> versions,
                                                 int64_t max_tokens) const = 0;
  virtual absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes& sizes,
                                                              int64_t limit,
                                                              BudgetTracker* budget) = 0;
  /// `virtual_clock` is null on the wall clock, else `clock`. All borrowed.
  virtual absl::StatusOr<std::unique_ptr<TransferQueue>> MakeTransfers(
      const ExpertSource* source, const Clock* clock, VirtualClock* virtual_clock,
      const HardwareProfile* profile, const EngineOptions& options) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceExecutor>> MakeExecutor(
      const ExecutorParts& parts) = 0;
  /// What the one who runs the host should know (EngineOptions::log), once; empty: nothing.
  virtual std::string TakeNotice() const { return {}; }
};

/// Unavailable when CudaStatus() is not OK.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const EngineOptions& options);
/// The backend that options.backend names; null: the CPU.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const EngineOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_BACKEND_H_
