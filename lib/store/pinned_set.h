// PinnedSet: the records in pinned memory if that does not hold all of them. The set moves towards
// the records that are used, while a device reads from it.
//
// The memory is cut into places. Most hold a known record: the device knows of it and may read it
// at any time. The others are spare. A CPU that multiplies a record from elsewhere reads it into a
// spare place, where it is found again until the place is needed for another record. Between steps
// some of these records become known to the device. If there are more spare places than the
// reserve, nothing has to leave. Otherwise the record replaces the known record that is unused for
// longest, if that was last used before both of the new record's last two uses. A place that was
// let go becomes spare once no work given to the device can read it.
//
// Only uses in host memory count, by the device or the CPU: a record that stays in the fast tier
// has none, and is let go like others.
#ifndef MOERT_LIB_STORE_PINNED_SET_H_
#define MOERT_LIB_STORE_PINNED_SET_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/mutex.h"

namespace moert {

/// Thread-safe. Records are numbered from 0 on; places are borrowed.
class PinnedSet {
 public:
  /// `spare`: the reserve, the number of places that are kept spare.
  PinnedSet(int32_t records, int32_t spare);

  /// Adds a spare place.
  void AddPlace(std::byte* place, int64_t bytes);
  /// Adds a record that lies in `place`. The device is told by the next Turn, unless it knows the
  /// record already (`known`). False: the record is known in another place, and `place` is spare.
  bool Add(int32_t record, std::byte* place, int64_t bytes, bool known);
  /// A spare place for a reader other than the CPU, if there are more than the reserve; null: none.
  /// Add or GiveBack has to follow.
  std::byte* TakePlace(int64_t bytes);
  void GiveBack(std::byte* place);

  // The CPU's side, used by one thread. A job finds its records, reads the missing ones, multiplies
  // and ends.

  struct Found {
    std::byte* place = nullptr;  // null: there is no room for the record
    bool there = false;          // false: the caller has to read it into `place`, then call EndRead
  };
  /// Counts a use of a record of `bytes` and finds it. `elsewhere`: the record can be multiplied
  /// where it lies, and gets a place only if it may become known by the next Turn.
  Found Find(int32_t record, int64_t bytes, bool elsewhere = false);
  /// Ends the reading of a record into the place that Find gave.
  void EndRead(int32_t record, bool ok);
  /// Ends a job: the records that it found are no longer read.
  void EndJob();

  // The engine's side.

  /// Counts a use of a known record by the device.
  void Use(int32_t record);
  struct Change {
    int32_t record = 0;
    std::byte* place = nullptr;  // where the device reads it from now on; null: nowhere
  };
  /// Called before a step: the changes that the device has to be told, a few at most. None while
  /// places that an earlier Turn let go are not Left. `held`: whether a known record is being read
  /// by a reader that the wait for Left does not cover.
  std::vector<Change> Turn(absl::FunctionRef<bool(int32_t record)> held);
  /// Tells that the places that were let go are no longer read.
  void Left();

  /// How many places to add if there is memory: as many as are missing to twice the reserve.
  int64_t lacking() const;
  /// The number of records that the device knows of, and of those that replaced others.
  int64_t known() const;
  int64_t swaps() const;

 private:
  enum class State { kEmpty, kReading, kRead, kKnown, kLeaving, kTaken };  // spare: the first three
  struct Place {
    std::byte* at = nullptr;
    int64_t bytes = 0;
    int32_t record = -1;
    State state = State::kEmpty;
    int64_t job = 0;  // the job that used it last
  };
  struct Uses {
    int64_t last = -1, before = -1;  // the turns of the last two uses
  };

  void UseNow(int32_t record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Whether a record that the CPU has just used may become known.
  bool Wanted(int32_t record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// A place that the job may read a record into; -1: none.
  int32_t PlaceFor(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Spare places whose records may become known, the best first.
  std::vector<int32_t> Candidates() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Up to `most` places of known records that may be let go, unused for longest first. Scans all
  /// places.
  std::vector<int32_t> Victims(size_t most, absl::FunctionRef<bool(int32_t record)> held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Takes a place out of taken_ and returns its number; -1: the place was not taken.
  int32_t Returned(const std::byte* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LetGo(int32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Orders places: a larger value means that the record may be wanted sooner.
  std::pair<int64_t, int64_t> Prospect(int32_t place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Uses& uses = uses_[places_[place].record];
    return {uses.before, uses.last};
  }
  int64_t LastUse(int32_t place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return uses_[places_[place].record].last;
  }

  const int32_t spare_;
  mutable Mutex mu_;
  std::vector<Place> places_ ABSL_GUARDED_BY(mu_);
  std::vector<int32_t> spares_ ABSL_GUARDED_BY(mu_);    // places
  std::vector<int32_t> leaving_ ABSL_GUARDED_BY(mu_);   // places
  std::vector<int32_t> taken_ ABSL_GUARDED_BY(mu_);     // places
  std::vector<int32_t> place_of_ ABSL_GUARDED_BY(mu_);  // [records] -1: none
  std::vector<Uses> uses_ ABSL_GUARDED_BY(mu_);         // [records]
  std::vector<Change> unsaid_ ABSL_GUARDED_BY(mu_);     // of Add, for the next Turn
  size_t wanted_ ABSL_GUARDED_BY(mu_) = 0;              // `elsewhere` records read since last Turn
  int64_t turn_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t job_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t known_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t oldest_ ABSL_GUARDED_BY(mu_) = -1;  // no known record's last use is older than this turn
  int64_t swaps_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_PINNED_SET_H_
