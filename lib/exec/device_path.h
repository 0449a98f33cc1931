// DevicePath: whole layer calls on a device with no host in the way, eager or captured in a graph.
// The class itself is that of an executor that computes on the host: absent, with nothing to do.
#ifndef MOERT_LIB_EXEC_DEVICE_PATH_H_
#define MOERT_LIB_EXEC_DEVICE_PATH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/policy.h"
#include "moert/router.h"
#include "moert/tensor.h"
#include "rules/cpu_share.h"
#include "store/versioned_store.h"

namespace moert {

/// One layer call, as executors and what stands beside them see it. The matrices lie where the
/// backend computes.
struct ExecutorCall {
  int layer = 0;
  int64_t epoch = 0;  // of the step, see VersionedStore::OpenStep
  int64_t tokens = 0;
  MatrixView hidden;  // [tokens, hidden]
  MutableMatrixView out;
  void* stream = nullptr;               // orders the call on a device
  absl::Span<const int32_t> token_ids;  // [tokens], or empty: not told
  bool capturing = false;               // DevicePath::Capturing of the stream
  bool shared = true;                   // the layer's shared experts count
};

/// A routing that the host left in device memory: [tokens, top_k].
struct GivenRouting {
  const int32_t* ids = nullptr;
  const float* weights = nullptr;  // of Engine::Fetch: or null
  int32_t* used_ids = nullptr;     // or null; of Engine::Fetch: slots
  int64_t pairs = 0;
  MatrixView cpu_rows = {};  // FetchInput's
  bool any_slot = false;
};

/// A device that serves misses by itself: it decides who is in the blocks that the store lends, and
/// brings what is missing, by the rules that its executor was made for (ServedRules). No policy is
/// asked. Under the engine's lock.
class DeviceCache {
 public:
  virtual ~DeviceCache() = default;

  /// OK: from now on captured DevicePath::RunResident and RunGiven serve what is missing, for a
  /// store of one version or of a second one that answers low. FailedPrecondition: why not. Asked
  /// once, before the first call; what stands by is there. May read records.
  virtual absl::Status ServeMisses(const VersionedStore& /*store*/) {
    return absl::FailedPreconditionError("this backend asks the host about misses");
  }
  /// Then: rows of such a call, at most; 0: any number.
  virtual int64_t most_captured_rows() const { return 0; }
  /// The cost of misses now, where a CPU takes some of them: by this captured calls share them.
  /// Before DevicePath::OpenStep.
  virtual void SetCpuCosts(const CpuCosts& /*costs*/) {}

  /// OK: FetchServed may be asked. FailedPrecondition: why not. Asked once, before the first call.
  /// May read records.
  virtual absl::Status ServeFetches(const VersionedStore& /*store*/) {
    return absl::FailedPreconditionError("this backend asks the host about misses");
  }
  /// In place of DevicePath::PlaceSlots, for a store of one version: the device looks up what was
  /// given there and brings what is missing. Nothing waits. The layer's table; null: not possible
  /// now, nothing was done.
  virtual absl::StatusOr<const int32_t*> FetchServed(const ExecutorCall& /*call*/,
                                                     const GivenRouting& /*given*/,
                                                     VersionedStore* /*store*/) {
    return nullptr;
  }
  /// Engine::TakeCpuRows; and whether one of the layer is owed. TakeCpuFailure: the first error of
  /// the CPU's products, for which nobody else could stand in, since it was last asked.
  virtual absl::Status TakeCpuRows(const ExecutorCall& /*call*/,
                                   const MutableMatrixView& /*rows*/) {
    return absl::OkStatus();
  }
  virtual bool owes_cpu_rows(int /*layer*/) const { return false; }
  /// Rows of a FetchServed whose misses the CPU may share; such a call needs one slot.
  virtual int64_t most_cpu_rows() const { return 0; }
  virtual absl::Status TakeCpuFailure() { return absl::OkStatus(); }
  /// Slots that a layer has for that while blocks are lent; FetchServed needs one for every id.
  virtual int64_t lent_slots(int /*layer*/) const { return 0; }

  /// Whether the blocks are lent: then nobody may use the store.
  virtual bool lent() const { return false; }
  /// Before the host uses the store: takes the blocks back, and waits for replays of open steps.
  /// Replays that follow are right, and bring everything. FailedPrecondition while such a step's
  /// stream is being captured.
  virtual absl::Status TakeBack(VersionedStore* /*store*/) { return absl::OkStatus(); }
  /// The misses served since this was last asked, as far as their counts have arrived. False:
  /// nothing.
  virtual bool TakeServed(ServedCount* /*added*/) { return false; }
};

/// A step's rows: [rows] each, or empty.
struct StepRows {
  absl::Span<const int64_t> request_ids;
  absl::Span<const int32_t> token_ids;
};

/// How often an expert was selected by calls that left no routing.
struct SelectionCount {
  int64_t slots = 0;
  int64_t calls = 0;
  double mass = 0;  // summed routing weight
};

/// Under the engine's lock.
class DevicePath {
 public:
  virtual ~DevicePath() = default;
  virtual bool present() const { return false; }
  /// Never null.
  virtual DeviceCache* cache() {
    static DeviceCache none;
    return &none;
  }

  /// Whether calls on the stream are recorded into a graph. Asked once a call: half of a call that
  /// is recorded would be a wrong graph.
  virtual absl::StatusOr<bool> Capturing(void* /*stream*/) const { return false; }
  /// Before the first call of a step: makes the handles of its epoch, the newest, visible to
  /// captured calls, and what replays have to know of the rows; where misses are served, lends the
  /// blocks. Where there may be captured calls of other strategies the store tracks its changes.
  virtual absl::Status OpenStep(VersionedStore* /*store*/, int64_t /*epoch*/,
                                const StepRows& /*rows*/, void* /*stream*/) {
    return absl::OkStatus();
  }
  /// Behind the last call of a step, replayed graphs included.
  virtual absl::Status CloseStep(void* /*stream*/) { return absl::OkStatus(); }

  // Calls for which a usable version of every expert is there, or which are captured while the
  // cache serves misses.

  /// Enqueues a whole call. Legal under stream capture. Its routing arrives later. `rule`: other
  /// than kTopK only of a captured call whose misses are served.
  virtual absl::Status RunResident(const ExecutorCall& /*call*/, const PolicyContext& /*context*/,
                                   const RoutingRule& /*rule*/, const VersionedStore& /*store*/) {
    return Absent();
  }
  /// The same with the routing given on the device. An id out of range is taken for -1.
  virtual absl::Status RunGiven(const ExecutorCall& /*call*/, const GivenRouting& /*given*/,
                                const PolicyContext& /*context*/, const VersionedStore& /*store*/) {
    return Absent();
  }
  /// The routing of the oldest RunResident that was not taken yet and whose results have arrived;
  /// false when there is none. Calls that were captured leave none.
  virtual bool TakeRouting(PolicyContext* /*context*/, RoutingResult* /*routing*/) { return false; }
  /// Selections by replays of captured calls since this was last asked, as far as they have
  /// arrived, about a step late: of each layer its experts, then all of them together. False:
  /// nothing.
  virtual bool TakeSelections(std::vector<SelectionCount>* /*added*/) { return false; }

  // Calls whose routing is given on the device and may miss something.

  /// Brings such a routing to the host, and waits for it.
  virtual absl::Status BringGiven(const ExecutorCall& /*call*/, const GivenRouting& /*given*/,
                                  std::vector<int32_t>* /*ids*/, std::vector<float>* /*weights*/) {
    return Absent();
  }
  /// Behind BringGiven: the experts that were used, to where the host wants them.
  virtual absl::Status ReturnUsed(const ExecutorCall& /*call*/, absl::Span<const int32_t> /*used*/,
                                  int32_t* /*to*/) {
    return Absent();
  }

  // Calls whose product is the host's (Engine::Fetch).

  /// Brings the device's table of the layer's slots up to date and looks up what was given there,
  /// if anything was, on the call's stream. `late`: nobody has seen this routing, TakeRouting
  /// brings it. The table, [E] in device memory.
  virtual absl::StatusOr<const int32_t*> PlaceSlots(const ExecutorCall& /*call*/,
                                                    const GivenRouting& /*given*/,
                                                    const PolicyContext* /*late*/,
                                                    const VersionedStore& /*store*/) {
    return nullptr;
  }
  /// Before experts are unpinned that the host's kernels may read: no block is overwritten before
  /// what `stream` was given so far is done.
  virtual absl::Status LeaveSlots(void* /*stream*/) { return absl::OkStatus(); }

 private:
  static absl::Status Absent() { return absl::InternalError("no whole calls on a device here"); }
};

/// CpuOffload: a CPU that multiplies misses beside the fast tier of an executor.
class CpuOffload {
 public:
  virtual ~CpuOffload() = default;
  /// Whether it can multiply an expert of a call of `tokens` rows, in the best version served.
  virtual bool CpuCanCompute(ExpertKey key, int64_t tokens) const = 0;
  /// Begins multiplying such experts, beside everything else. Behind Route or SetRouting; needs a
  /// JoinCpu, whatever happens in between.
  virtual absl::Status BeginCpu(const ExecutorCall& call, const RoutingResult& routing,
                                absl::Span<const int32_t> experts) = 0;
  /// Waits for the CPU and hands its outputs to Combine. *took_ns: what the multiplication took; 0:
  /// not measured.
  virtual absl::Status JoinCpu(const ExecutorCall& call, int64_t* took_ns) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_EXEC_DEVICE_PATH_H_
