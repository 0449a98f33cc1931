// Which records lie in pinned memory where that does not hold all: a set that moves towards what is
// used, while a device reads from it.
//
// The memory is cut into places. Most hold a record that the device knows of, and may read at any
// time; some are spare. A CPU that multiplies a record from elsewhere reads it into a spare place,
// where it is found again until the place is needed for another one. Between steps some of these
// become known to the device: without more ado while more places are spare than are kept so; else
// each instead of the known record that is unused for longest, if that was last used before both of
// the last two uses of the one that comes. A place that was let go is spare once nothing that the
// device was given can read it.
//
// A use is one by the device or the CPU in host memory: a record that stays in the fast tier has
// none, and is let go like others.
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
  /// `spare`: places that are kept so.
  PinnedSet(int32_t records, int32_t spare);

  /// A spare place.
  void AddPlace(std::byte* place, int64_t bytes);
  /// A record that lies in a place. The device hears of it by the next Turn, or knows it already.
  /// False: it is known from elsewhere, and the place is spare.
  bool Add(int32_t record, std::byte* place, int64_t bytes, bool known);
  /// A place for whoever reads a record beside the CPU, while more are spare than are kept so;
  /// null: none. Then Add, or GiveBack.
  std::byte* TakePlace(int64_t bytes);
  void GiveBack(std::byte* place);

  // The CPU's side, by one thread: a job finds its records, reads those that are not there, and
  // multiplies; then it ends.

  struct Found {
    std::byte* place = nullptr;  // null: there is no room for it
    bool there = false;          // else to be read there, which End tells
  };
  /// A use of a record of so many bytes. `elsewhere`: it can be multiplied where it lies, and gets
  /// a place only where it may become known by the next Turn.
  Found Find(int32_t record, int64_t bytes, bool elsewhere = false);
  /// The reading of a record that Find gave a place to is over.
  void EndRead(int32_t record, bool ok);
  /// The records of all Finds are read by nobody any more.
  void EndJob();

  // The engine's side.

  /// The device has read a known record.
  void Use(int32_t record);
  struct Change {
    int32_t record = 0;
    std::byte* place = nullptr;  // where the device reads it from now on; null: nowhere
  };
  /// A step begins: what the device is told before that, some changes at most. Nothing while what
  /// was let go by an earlier one is not Left. `held`: whether somebody reads a known record now,
  /// who will not have ended when that is Left.
  std::vector<Change> Turn(absl::FunctionRef<bool(int32_t record)> held);
  /// Nobody reads what was let go.
  void Left();

  /// How many more places should be spare, where there is memory for them: twice as many as are
  /// kept so in any case.
  int64_t lacking() const;
  /// Records that the device knows of; how many came instead of others.
  int64_t known() const;
  int64_t swaps() const;

 private:
  enum class State { kEmpty, kReading, kRead, kKnown, kLeaving, kTaken };  // the first three: spare
  struct Place {
    std::byte* at = nullptr;
    int64_t bytes = 0;
    int32_t record = -1;
    State state = State::kEmpty;
    int64_t job = 0;  // that used it last
  };
  struct Uses {
    int64_t last = -1, before = -1;  // turns
  };

  void UseNow(int32_t record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Whether a record that the CPU has just used may become known.
  bool Wanted(int32_t record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The place that the job may read a record into; -1: none.
  int32_t PlaceFor(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Spare places whose records may become known, the best first.
  std::vector<int32_t> Candidates() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Up to `most` places of known records that may be let go, unused for longest first. Looks at
  /// all.
  std::vector<int32_t> Victims(size_t most, absl::FunctionRef<bool(int32_t record)> held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The number of a place that was taken, which is so no more; -1: it is another one.
  int32_t Returned(const std::byte* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LetGo(int32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The better, the sooner its record may be wanted again.
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
  std::vector<Change> unsaid_ ABSL_GUARDED_BY(mu_);     // by Add
  size_t wanted_ ABSL_GUARDED_BY(mu_) = 0;              // since the last Turn, from elsewhere
  int64_t turn_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t job_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t known_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t oldest_ ABSL_GUARDED_BY(mu_) = -1;  // no known record was used last before that
  int64_t swaps_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_PINNED_SET_H_
