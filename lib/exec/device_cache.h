// DeviceCache: a device that serves misses by itself. It decides who is in the blocks that the
// store lends and brings what is missing, by the rules that its executor was made for
// (ServedRules); no policy is asked.
#ifndef MOERT_LIB_EXEC_DEVICE_CACHE_H_
#define MOERT_LIB_EXEC_DEVICE_CACHE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/executor_call.h"
#include "rules/cpu_share.h"
#include "store/versioned_store.h"

namespace moert {

/// A routing that the host left in device memory: [tokens, top_k].
struct GivenRouting {
  const int32_t* ids = nullptr;
  const float* weights = nullptr;  // of Engine::Fetch: or null
  int32_t* used_ids = nullptr;     // or null; of Engine::Fetch: slots
  int64_t pairs = 0;
  MatrixView cpu_rows = {};  // FetchInput's
  bool any_slot = false;
};

/// Under the engine's lock.
class DeviceCache {
 public:
  virtual ~DeviceCache() = default;

  /// OK: from now on captured DevicePath::RunResident and RunGiven serve what is missing, for a
  /// store of one version or of a second one that answers low. FailedPrecondition: why not. Asked
  /// once, before the first call; what stands by is there. May read records.
  virtual absl::Status ServeMisses(const VersionedStore& /*store*/) {
    return absl::FailedPreconditionError("this backend asks the host about misses");
  }
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
  /// the CPU's products since it was last asked.
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

}  // namespace moert

#endif  // MOERT_LIB_EXEC_DEVICE_CACHE_H_
