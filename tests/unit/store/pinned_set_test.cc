// Records that move into pinned memory by their use, and out of it.
#include "store/pinned_set.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace moert {
namespace {

constexpr int64_t kBytes = 8;

/// Places in memory whose bytes say which record is there, and a device that reads what it was
/// told.
class Machine {
 public:
  Machine(int records, int places, int spare)
      : memory_(static_cast<size_t>(places)), set(records, spare) {
    for (int64_t& place : memory_) set.AddPlace(At(&place), kBytes);
  }

  /// A job with these records: how many it read.
  int Job(const std::vector<int32_t>& records) {
    int read = 0;
    std::vector<PinnedSet::Found> found;
    for (const int32_t record : records) {
      found.push_back(set.Find(record, kBytes));
      if (found.back().there) continue;
      ++read;
      if (found.back().place == nullptr) continue;
      Value(found.back().place) = record;
      set.EndRead(record, true);
    }
    // Nothing that the job found was overwritten by what it read.
    for (size_t i = 0; i < records.size(); ++i) {
      if (found[i].place != nullptr) CHECK(Value(found[i].place) == records[i]);
    }
    set.EndJob();
    return read;
  }

  /// A step's begin; what was let go before is Left after so many of them.
  void Turn(int lag = 0) {
    if (letting_go_ && ++waited_ > lag) {
      set.Left();
      letting_go_ = false;
      old_.clear();
    }
    for (const PinnedSet::Change& change : set.Turn([&](int32_t r) { return held.contains(r); })) {
      if (change.place == nullptr) {
        CHECK(!held.contains(change.record));
        old_[change.record] = told_.at(change.record);
        told_.erase(change.record);
      } else {
        told_[change.record] = change.place;
      }
      letting_go_ = true;
      waited_ = 0;
    }
    Check();
  }
  /// The device finds what it was told, and what it may still be reading.
  void Check() {
    for (const auto* records : {&told_, &old_}) {
      for (const auto& [record, place] : *records) CHECK(Value(place) == record);
    }
    CHECK(set.known() == static_cast<int64_t>(told_.size()));
  }
  bool Knows(int32_t record) const { return told_.contains(record); }

 private:
  static std::byte* At(int64_t* place) { return reinterpret_cast<std::byte*>(place); }
  static int64_t& Value(std::byte* place) { return *reinterpret_cast<int64_t*>(place); }

  std::vector<int64_t> memory_;
  std::map<int32_t, std::byte*> told_, old_;
  bool letting_go_ = false;
  int waited_ = 0;

 public:
  PinnedSet set;
  std::set<int32_t> held;
};

TEST_CASE("places fill with what is read first, but for those that stay spare") {
  Machine m(100, 10, 3);
  CHECK(m.Job({1, 2, 3, 4, 5}) == 5);
  m.Turn();
  CHECK(m.set.known() == 5);
  CHECK(m.Job({1, 2, 6, 7, 8}) == 3);
  m.Turn();
  CHECK(m.set.known() == 7);
  // The eighth is in a spare place, and found there.
  CHECK(m.Job({6, 7, 8}) == 0);
  CHECK(m.set.swaps() == 0);
}

TEST_CASE("a record used twice comes instead of one unused for longer than that") {
  Machine m(100, 6, 2);
  m.Job({1, 2, 3, 4});
  m.Turn();
  m.Turn();
  m.set.Use(1);
  m.Job({2, 50});
  m.Turn();
  CHECK(!m.Knows(50));  // used once
  m.Job({50});
  m.Turn();
  CHECK(m.Knows(50));
  CHECK(m.Knows(1));
  CHECK(m.Knows(2));
  CHECK(m.set.swaps() == 1);
  // The two that are left were used before both uses of 60; 1 and 2 between them.
  m.held = {3, 4};
  m.Job({60});
  m.Turn();
  m.set.Use(1);
  m.set.Use(2);
  m.set.Use(50);
  m.Job({60});
  m.Turn();
  CHECK(!m.Knows(60));  // the one that it would replace is being read
  m.held.clear();
  m.Turn();
  CHECK(m.Knows(60));
}

TEST_CASE("a record that cannot be read leaves its place to others") {
  Machine m(10, 1, 1);
  CHECK(m.set.Find(3, kBytes).place != nullptr);
  CHECK(m.set.Find(4, kBytes).place == nullptr);
  m.set.EndRead(3, false);
  m.set.EndJob();
  CHECK(m.Job({4}) == 1);
  CHECK(m.Job({4}) == 0);
  CHECK(m.set.Find(5, kBytes + 1).place == nullptr);  // too large
}

TEST_CASE("a record that can be multiplied elsewhere has a place only if it may become known") {
  PinnedSet set(50, 1);
  std::vector<std::byte> memory(20 * kBytes);
  const auto none = [](int32_t) { return false; };
  const auto placed = [&](int32_t record) {
    const PinnedSet::Found found = set.Find(record, kBytes, /*elsewhere=*/true);
    if (found.place != nullptr && !found.there) set.EndRead(record, true);
    set.EndJob();
    return found.place != nullptr;
  };
  set.AddPlace(memory.data(), kBytes);
  set.Add(1, memory.data() + kBytes, kBytes, /*known=*/true);
  CHECK(!placed(2));  // used for the first time
  CHECK(set.Find(2, kBytes).place != nullptr);
  set.EndRead(2, false);
  set.Turn(none);
  CHECK(!placed(3));
  CHECK(placed(2));
  // More places than are kept spare, and more records than a Turn tells.
  for (int i = 2; i < 20; ++i) set.AddPlace(memory.data() + i * kBytes, kBytes);
  set.Turn(none);
  set.Turn(none);
  int all = 0;
  for (int32_t r = 10; r < 50; ++r) all += placed(r) ? 1 : 0;
  CHECK(all == 16);
}

TEST_CASE("what others keep is told; a second copy of it is a spare place") {
  PinnedSet set(10, 1);
  std::vector<std::byte> memory(4 * kBytes);
  const auto none = [](int32_t) { return false; };
  CHECK(set.Add(1, memory.data(), kBytes, /*known=*/true));
  CHECK(set.Turn(none).empty());
  CHECK(set.Add(2, memory.data() + kBytes, kBytes, /*known=*/false));
  CHECK(!set.Add(2, memory.data() + 2 * kBytes, kBytes, /*known=*/false));
  const std::vector<PinnedSet::Change> changes = set.Turn(none);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].record == 2);
  CHECK(changes[0].place == memory.data() + kBytes);
  CHECK(set.known() == 2);
  CHECK(set.Find(2, kBytes).there);
  CHECK(set.lacking() == 1);
}

TEST_CASE("others than the CPU take places while more are spare than are kept so") {
  PinnedSet set(10, 1);
  std::vector<std::byte> memory(3 * kBytes);
  for (int i = 0; i < 3; ++i) set.AddPlace(memory.data() + i * kBytes, kBytes);
  const auto none = [](int32_t) { return false; };
  std::byte* const first = set.TakePlace(kBytes);
  std::byte* const second = set.TakePlace(kBytes);
  REQUIRE(first != nullptr);
  REQUIRE(second != nullptr);
  CHECK(first != second);
  CHECK(set.TakePlace(kBytes) == nullptr);
  CHECK(set.Add(7, first, kBytes, /*known=*/false));
  set.GiveBack(second);
  CHECK(set.TakePlace(kBytes + 1) == nullptr);
  std::byte* const again = set.TakePlace(kBytes);
  REQUIRE(again != nullptr);
  CHECK(!set.Add(7, again, kBytes, /*known=*/false));
  const std::vector<PinnedSet::Change> changes = set.Turn(none);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].record == 7);
  CHECK(changes[0].place == first);
  // A place that a job reads from is taken by nobody.
  CHECK(!set.Find(3, kBytes).there);
  set.EndRead(3, false);
  CHECK(!set.Find(4, kBytes).there);
  CHECK(set.TakePlace(kBytes) == nullptr);
}

TEST_CASE("the device always finds what it was told, and the set follows what is used") {
  for (const int lag : {0, 1, 3}) {
    Machine m(200, 40, 6);
    std::mt19937 rng(static_cast<uint32_t>(lag));
    int early = 0, late = 0;
    for (int phase = 0; phase < 4; ++phase) {
      const auto hot = static_cast<int32_t>(50 * phase);
      for (int step = 0; step < 400; ++step) {
        m.Turn(lag);
        for (int layer = 0; layer < 4; ++layer) {
          std::vector<int32_t> wanted;
          std::set<int32_t> drawn;
          for (int k = 0; k < 5; ++k) {
            const bool cold = rng() % 10 == 0;
            drawn.insert(static_cast<int32_t>(cold ? rng() % 200 : hot + rng() % 25));
          }
          for (const int32_t record : drawn) {
            if (m.Knows(record) && rng() % 2 == 0) {
              m.set.Use(record);  // by the device
            } else {
              wanted.push_back(record);
            }
          }
          (step < 50 ? early : late) += m.Job(wanted);
        }
      }
    }
    INFO(lag << ": " << early << " reads in 200 steps, " << late << " in 1400");
    CHECK(m.set.swaps() > 60);
    // A tenth of the 20 draws of a step are from anywhere; of those a fifth is known.
    CHECK(late < 1400 * 3);
  }
}

}  // namespace
}  // namespace moert
