// The device's part of a layer call while it has the blocks (kernels/cuda/cache/serve_misses.cu),
// executed here, a thread after the other.
#ifndef MOERT_TESTS_SUPPORT_SERVED_CALL_H_
#define MOERT_TESTS_SUPPORT_SERVED_CALL_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/cuda/cache/serve_misses.h"
#include "support/catch.h"

namespace moert::test {

/// A slot of another layer for a call in which one more is worth `gain`: its place, or below 0.
using BorrowSlot = std::function<int(double gain)>;

/// The ranks of the missing of [experts], whose tokens are given; of others 0.
inline std::vector<int> MissRanks(const std::vector<int32_t>& missing) {
  std::vector<uint32_t> keys;
  for (size_t e = 0; e < missing.size(); ++e) {
    if (missing[e] > 0) keys.push_back(cuda::MissKey(missing[e], static_cast<int>(e)));
  }
  std::vector<int> ranks(missing.size(), 0);
  for (size_t e = 0; e < missing.size(); ++e) {
    if (missing[e] == 0) continue;
    ranks[e] = cuda::RankOf(keys.data(), static_cast<int>(keys.size()),
                            cuda::MissKey(missing[e], static_cast<int>(e)));
  }
  return ranks;
}

/// rows: [experts], of a layer with `slots` slots, or with those whose place is in `there`. worth:
/// [experts], or null where the one unused for longest leaves. borrow: or null.
inline cuda::ServedCounts ServeCall(const std::vector<int32_t>& counts, int slots, int64_t tick,
                                    std::vector<cuda::ServedExpert>* rows,
                                    const double* worth = nullptr,
                                    const std::vector<uint8_t>* there = nullptr,
                                    const BorrowSlot& borrow = nullptr) {
  const std::vector<cuda::ServedExpert> before = *rows;
  const int experts = static_cast<int>(before.size());
  std::vector<uint8_t> held(experts, 0);
  for (const cuda::ServedExpert& row : before) {
    if (row.slot >= 0) held[row.slot] = 1;
  }
  std::vector<cuda::LeavingKey> keys(experts);
  std::vector<int32_t> missing(experts, 0);
  for (int e = 0; e < experts; ++e) {
    if (before[e].slot < 0) missing[e] = counts[e];
    if (before[e].slot >= 0 && counts[e] == 0) {
      keys[e] = cuda::KeyOfLeaving(before[e], worth == nullptr ? 0 : worth[e]);
    }
  }
  cuda::ServedCounts call;
  std::vector<int32_t> places(experts, -1);
  for (int s = 0; s < slots; ++s) {
    if (held[s] == 0 && (there == nullptr || (*there)[s] != 0)) places[call.free++] = s;
  }
  for (int e = 0; e < experts; ++e) {
    call.misses += counts[e] > 0 && before[e].slot < 0;
    const bool idle = counts[e] == 0 && before[e].slot >= 0;
    if (!idle) continue;
    ++call.idle;
    places[call.free + cuda::VictimRank(keys.data(), experts, e)] = before[e].slot;
  }
  const std::vector<int> ranks = MissRanks(missing);
  if (borrow != nullptr && call.misses > call.free) {
    double gain = std::numeric_limits<double>::quiet_NaN();
    for (int e = 0; e < experts; ++e) {
      const bool miss = counts[e] > 0 && before[e].slot < 0;
      const bool idle = counts[e] == 0 && before[e].slot >= 0;
      if (cuda::SaysGain(call, miss, idle, ranks[e], cuda::VictimRank(keys.data(), experts, e))) {
        gain = worth[e];
      }
    }
    const int place = borrow(gain);
    if (place >= 0) {
      ++call.borrowed;
      places[call.copies() - 1] = place;
    }
  }
  std::vector<int> turn(experts, experts);
  for (int e = 0; e < experts; ++e) turn[e] = cuda::VictimRank(keys.data(), experts, e);
  for (int e = 0; e < experts; ++e) {
    (*rows)[e] =
        cuda::AfterCall(before[e], counts[e], tick, call, places.data(), ranks[e], turn[e]);
  }
  return call;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_SERVED_CALL_H_
