#include "route/request_slots.h"

#include <map>
#include <random>
#include <set>

#include "tests/support/catch.h"

namespace moert {
namespace {

using Ids = std::vector<int64_t>;

TEST_CASE("a request keeps its number while it comes often enough, and rows of one share it") {
  RequestSlots slots(8, 4);
  std::vector<int32_t> slot;
  std::vector<uint8_t> fresh;
  CHECK(slots.Assign(Ids{7, 9}, &slot, &fresh));
  const std::vector<int32_t> first = slot;
  CHECK(first[0] != first[1]);
  CHECK(fresh == std::vector<uint8_t>{1, 1});
  CHECK_FALSE(slots.Assign(Ids{9, 7, 9}, &slot, &fresh));
  CHECK(slot == std::vector<int32_t>{first[1], first[0], first[1]});
  CHECK(fresh == std::vector<uint8_t>{0, 0, 0});
  CHECK_FALSE(slots.Assign(Ids{5, 5}, &slot, &fresh));
  CHECK(fresh == std::vector<uint8_t>{1, 0});
  CHECK(slots.Assign({}, &slot, &fresh));
  CHECK(slot.empty());
}

TEST_CASE("numbers are in range, one a request, and fresh when they change hands") {
  constexpr int64_t kRequests = 16, kRows = 24;  // a call may have more requests than are kept
  RequestSlots slots(kRequests, kRows);
  std::mt19937 rng(3);
  std::map<int32_t, int64_t> owner;
  std::vector<int32_t> slot;
  std::vector<uint8_t> fresh;
  int64_t forgotten = 0;
  for (int call = 0; call < 2000; ++call) {
    Ids ids(rng() % kRows + 1);
    for (int64_t& id : ids) id = 1 + static_cast<int64_t>(rng() % (call % 2 ? 30 : 100000));
    ids[0] = 999999;  // in use all the time
    const bool one_row_each = slots.Assign(ids, &slot, &fresh);
    CHECK(one_row_each == (std::set<int64_t>(ids.begin(), ids.end()).size() == ids.size()));
    for (size_t row = 0; row < ids.size(); ++row) {
      REQUIRE(slot[row] > 0);
      REQUIRE(slot[row] < RequestSlots::Capacity(kRequests, kRows));
      const auto it = owner.find(slot[row]);
      const bool held = it != owner.end() && it->second == ids[row];
      // A request that was forgotten may come back to the number it had: anew.
      if (fresh[row] == 0) REQUIRE(held);
      if (!held) REQUIRE(fresh[row] == 1);
      forgotten += !held && it != owner.end();
      owner[slot[row]] = ids[row];
    }
    for (size_t row = 0; row < ids.size(); ++row) REQUIRE(owner[slot[row]] == ids[row]);
    if (call > 0) REQUIRE(fresh[0] == 0);
  }
  CHECK(forgotten > 1000);
}

}  // namespace
}  // namespace moert
