// Logical time of layer calls.
#include "engine/charges.h"

#include <memory>
#include <vector>

#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "support/catch.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// A profile with round numbers: 1 byte of weights takes 1 ns, whoever multiplies it.
HardwareProfile RoundNumbers() {
  HardwareProfile profile;
  profile.compute = {{1, 1e9}, {4, 1e9}};
  profile.decode_layer_ns = 1000;
  profile.prefill_token_ns = 10;
  profile.wave_ns = 100;
  profile.wake_ns = 7;
  profile.next_gate_ns = 50;
  return profile;
}

struct Setup {
  explicit Setup(Clock* clock) {
    std::vector<std::unique_ptr<BlockPool>> pools;
    pools.push_back(*MakeCountingBlockPool({source.layout(0, 0, 0).bytes, 4}, 4, &budget));
    store = std::make_unique<VersionedStore>(
        &source, std::vector<ServedVersion>{{0, 0}}, std::move(pools),
        MakeVirtualLink(nullptr, &link_clock, &profile), lru.get());
    charges = std::make_unique<Charges>(clock, &profile, &source.model(), &constants, store.get(),
                                        std::vector<std::string>{"bf16"});
    routing.tokens = 2;
    routing.num_experts = 8;
    routing.counts = {1, 0, 2, 0, 0, 0, 0, 1};
    for (const int32_t e : {0, 2, 7}) ready.push_back({e, {nullptr, &source.layout(0, e, 0), 0}});
  }

  const SyntheticSource source{SyntheticShape{}};
  const HardwareProfile profile = RoundNumbers();
  const ModelConstants constants = *ModelConstants::Read(source);
  const std::unique_ptr<CachePolicy> lru = MakeCachePolicy({});
  BudgetTracker budget{int64_t{1} << 30};
  VirtualClock link_clock;
  std::unique_ptr<VersionedStore> store;
  std::unique_ptr<Charges> charges;
  RoutingResult routing;
  std::vector<ReadyExpert> ready;
};

TEST_CASE("a call is charged what the profile says, part by part") {
  VirtualClock clock;
  Setup s(&clock);
  int64_t expected = 0;
  s.charges->Begin(nullptr);
  CHECK(clock.now_ns() == expected);
  s.charges->Routed(0, s.routing, /*next_gate=*/true);
  CHECK(clock.now_ns() == (expected += 50));
  s.charges->Multiplied(0, s.routing, s.ready, /*first=*/true);
  const int64_t experts_ns = 3 * s.source.layout(0, 0, 0).bytes;
  expected += experts_ns + s.constants.layer(0).shared_layout.bytes + 100;
  CHECK(clock.now_ns() == expected);
  s.charges->Multiplied(0, s.routing, s.ready, /*first=*/false);
  CHECK(clock.now_ns() == (expected += experts_ns + 100 + 7));
  s.charges->Multiplied(0, s.routing, {}, /*first=*/false);  // nothing to multiply is free
  CHECK(clock.now_ns() == expected);
  s.charges->WaitUntil(expected - 5);
  CHECK(clock.now_ns() == expected);
  s.charges->WaitUntil(expected + 5);
  CHECK(clock.now_ns() == (expected += 5));
  s.charges->Rest(Phase::kDecode, 2);
  CHECK(clock.now_ns() == (expected += 1000));
  s.charges->Rest(Phase::kPrefill, 2);
  CHECK(clock.now_ns() == (expected += 1020));
}

TEST_CASE("a recorded call is charged what it took, its multiplication by bytes") {
  VirtualClock clock;
  Setup s(&clock);
  CallTimes times;
  times.route_ns = 30;
  times.multiply_ns = 900;
  times.begin_ns = 0;
  times.end_ns = 2000;
  RoutedInput routed;
  routed.times = &times;
  routed.idle_before_ns = 11;
  s.charges->Begin(&routed);
  CHECK(clock.now_ns() == 11);
  s.charges->Routed(0, s.routing, /*next_gate=*/true);
  CHECK(clock.now_ns() == 41);
  const auto two = absl::MakeConstSpan(s.ready).first(2);
  s.charges->Multiplied(0, s.routing, two, /*first=*/true);
  s.charges->Multiplied(0, s.routing, absl::MakeConstSpan(s.ready).subspan(2), /*first=*/false);
  CHECK(std::abs(clock.now_ns() - 941) <= 1);
  const int64_t before_ns = clock.now_ns();
  s.charges->Rest(Phase::kDecode, 2);
  CHECK(clock.now_ns() - before_ns == times.other_ns());
}

TEST_CASE("work on the wall clock is not charged") {
  WallClock clock;
  Setup s(&clock);
  s.charges->Begin(nullptr);
  s.charges->Routed(0, s.routing, true);
  s.charges->Multiplied(0, s.routing, s.ready, true);
  s.charges->WaitUntil(int64_t{1} << 60);
  s.charges->Rest(Phase::kPrefill, 1 << 20);
  CHECK(clock.now_ns() < int64_t{60} * 1'000'000'000);
}

}  // namespace
}  // namespace moert
