// DevicePath: whole layer calls on a device without waits for the host, eager or captured in a
// graph. The base class itself serves executors that compute on the host: the path is absent and
// every call does nothing.
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

/// One layer call, as executors and their optional capabilities see it. The matrices lie in the
/// memory in which the backend computes.
struct ExecutorCall {
  int layer = 0;
  int64_t epoch = 0;  // of the step, see VersionedStore::OpenStep
  int64_t tokens = 0;
  MatrixView hidden;  // [tokens, hidden]
  MutableMatrixView out;
  void* stream = nullptr;               // orders the call on a device
  absl::Span<const int32_t> token_ids;  // [tokens], or empty: not told
  bool capturing = false;               // DevicePath::Capturing of the stream
  bool shared = true;                   // the layer's shared experts are added
};

/// A routing that the host left in device memory: [tokens, top_k].
struct GivenRouting {
  const int32_t* ids = nullptr;
  const float* weights = nullptr;  // may be null for Engine::Fetch
  int32_t* used_ids = nullptr;     // receives the used experts, for Engine::Fetch slots; or null
  int64_t pairs = 0;
  MatrixView cpu_rows = {};  // FetchInput::cpu_rows
  bool any_slot = false;
};

/// A device that serves misses by itself. It decides which experts are in the blocks that the store
/// lends, and brings missing ones, by the rules that its executor was made for (ServedRules). No
/// policy is asked. Used under the engine's lock.
class DeviceCache {
 public:
  virtual ~DeviceCache() = default;

  /// OK: from now on captured DevicePath::RunResident and RunGiven serve misses, for a store of one
  /// version, or with a second version that answers low. FailedPrecondition: the reason why not.
  /// Asked once, before the first call, when a version that stands by is loaded. May read records.
  virtual absl::Status ServeMisses(const VersionedStore& /*store*/) {
    return absl::FailedPreconditionError("this backend asks the host about misses");
  }
  /// If misses are served: the most rows of a captured call; 0: any number.
  virtual int64_t most_captured_rows() const { return 0; }
  /// Sets the costs by which captured calls split misses between device and CPU. Called before
  /// DevicePath::OpenStep.
  virtual void SetCpuCosts(const CpuCosts& /*costs*/) {}

  /// OK: FetchServed may be called. FailedPrecondition: the reason why not. Asked once, before the
  /// first call. May read records.
  virtual absl::Status ServeFetches(const VersionedStore& /*store*/) {
    return absl::FailedPreconditionError("this backend asks the host about misses");
  }
  /// Replaces DevicePath::PlaceSlots for a store of one version: the device looks up the given ids
  /// and brings missing experts. The host does not wait. Returns the layer's table; null: not
  /// possible now, and nothing was done.
  virtual absl::StatusOr<const int32_t*> FetchServed(const ExecutorCall& /*call*/,
                                                     const GivenRouting& /*given*/,
                                                     VersionedStore* /*store*/) {
    return nullptr;
  }
  /// See Engine::TakeCpuRows.
  virtual absl::Status TakeCpuRows(const ExecutorCall& /*call*/,
                                   const MutableMatrixView& /*rows*/) {
    return absl::OkStatus();
  }
  /// Whether a TakeCpuRows of the layer is still to come.
  virtual bool owes_cpu_rows(int /*layer*/) const { return false; }
  /// The most rows of a FetchServed whose misses the CPU may share; such a call needs one slot.
  virtual int64_t most_cpu_rows() const { return 0; }
  /// The first error since the last call of the CPU's products that only the CPU can compute.
  virtual absl::Status TakeCpuFailure() { return absl::OkStatus(); }
  /// The slots of a layer while blocks are lent. Other calls of FetchServed need one for every id.
  virtual int64_t lent_slots(int /*layer*/) const { return 0; }

  /// Whether the blocks are lent. The host must not use the store meanwhile.
  virtual bool lent() const { return false; }
  /// Called before the host uses the store: takes the blocks back, and waits for replays of open
  /// steps. Later replays are still correct; without slots, every expert is a miss.
  /// FailedPrecondition while the stream of an open step is being captured.
  virtual absl::Status TakeBack(VersionedStore* /*store*/) { return absl::OkStatus(); }
  /// The misses served since the last call, as far as their counts have arrived. False: none.
  virtual bool TakeServed(ServedCount* /*added*/) { return false; }
};

/// The rows of a step: both [rows], or empty.
struct StepRows {
  absl::Span<const int64_t> request_ids;
  absl::Span<const int32_t> token_ids;
};

/// How often an expert was selected by calls that leave no routing for the host (replays).
struct SelectionCount {
  int64_t slots = 0;
  int64_t calls = 0;
  double mass = 0;  // summed routing weight
};

/// Used under the engine's lock.
class DevicePath {
 public:
  virtual ~DevicePath() = default;
  virtual bool present() const { return false; }
  /// Never null.
  virtual DeviceCache* cache() {
    static DeviceCache none;
    return &none;
  }

  /// Whether work on the stream is recorded into a graph. Asked once a call, so that a call is
  /// recorded as a whole or not at all.
  virtual absl::StatusOr<bool> Capturing(void* /*stream*/) const { return false; }
  /// Called before the first call of a step. Makes the handles of its epoch, the newest, and the
  /// data of its rows visible to captured calls. Lends the blocks if misses are served; otherwise
  /// the store tracks its changes where there may be captured calls.
  virtual absl::Status OpenStep(VersionedStore* /*store*/, int64_t /*epoch*/,
                                const StepRows& /*rows*/, void* /*stream*/) {
    return absl::OkStatus();
  }
  /// Called after the last call of a step, replayed graphs included.
  virtual absl::Status CloseStep(void* /*stream*/) { return absl::OkStatus(); }

  // Calls for which a usable version of every expert is present, or which are captured while the
  // cache serves misses.

  /// Enqueues a whole call. Legal under stream capture. Its routing arrives at the host later.
  /// `rule`: other than kTopK only for a captured call whose misses are served.
  virtual absl::Status RunResident(const ExecutorCall& /*call*/, const PolicyContext& /*context*/,
                                   const RoutingRule& /*rule*/, const VersionedStore& /*store*/) {
    return Absent();
  }
  /// The same with the routing given on the device. An id out of range counts as -1.
  virtual absl::Status RunGiven(const ExecutorCall& /*call*/, const GivenRouting& /*given*/,
                                const PolicyContext& /*context*/, const VersionedStore& /*store*/) {
    return Absent();
  }
  /// The routing of the oldest RunResident that was not taken yet and whose results have arrived;
  /// false when there is none. Calls that were captured leave none.
  virtual bool TakeRouting(PolicyContext* /*context*/, RoutingResult* /*routing*/) { return false; }
  /// The selections by replays of captured calls since the last call, as far as they have arrived,
  /// about one step late: for each layer its experts, then one entry for all of them together.
  /// False: none.
  virtual bool TakeSelections(std::vector<SelectionCount>* /*added*/) { return false; }

  // Calls whose routing is given on the device and whose experts may be missing.

  /// Brings such a routing to the host, and waits for it.
  virtual absl::Status BringGiven(const ExecutorCall& /*call*/, const GivenRouting& /*given*/,
                                  std::vector<int32_t>* /*ids*/, std::vector<float>* /*weights*/) {
    return Absent();
  }
  /// After BringGiven: copies the used experts' ids to the host's device memory `to`.
  virtual absl::Status ReturnUsed(const ExecutorCall& /*call*/, absl::Span<const int32_t> /*used*/,
                                  int32_t* /*to*/) {
    return Absent();
  }

  // Calls in which the host multiplies (Engine::Fetch).

  /// Brings the device's table of the layer's slots up to date and looks up the given ids in it, if
  /// there are any, on the call's stream. `late`: not null if the host has not seen this routing,
  /// which TakeRouting then brings. Returns the table, [E] in device memory.
  virtual absl::StatusOr<const int32_t*> PlaceSlots(const ExecutorCall& /*call*/,
                                                    const GivenRouting& /*given*/,
                                                    const PolicyContext* /*late*/,
                                                    const VersionedStore& /*store*/) {
    return nullptr;
  }
  /// Called before experts are unpinned that the host's kernels may read: blocks are overwritten
  /// only after the work that `stream` was given so far.
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
  /// Begins multiplying such experts, concurrently with the device. Called after Route or
  /// SetRouting; needs a JoinCpu, whatever happens in between.
  virtual absl::Status BeginCpu(const ExecutorCall& call, const RoutingResult& routing,
                                absl::Span<const int32_t> experts) = 0;
  /// Waits for the CPU and hands its outputs to Combine. *took_ns: the time of the multiplication;
  /// 0: not measured.
  virtual absl::Status JoinCpu(const ExecutorCall& call, int64_t* took_ns) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_EXEC_DEVICE_PATH_H_
