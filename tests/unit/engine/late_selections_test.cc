// An engine and calls that a device ran by itself and counted: a scripted device stands for the one
// whose graphs are replayed.
#include <memory>
#include <utility>

#include "engine/layer.h"
#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "support/catch.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// Hands out the selections that a test wrote down; nothing else is asked of it.
class CountingDevice final : public Executor, public DevicePath, public DeviceCache {
 public:
  std::vector<SelectionCount> next;

  DevicePath* device_path() override { return this; }
  bool present() const override { return true; }
  DeviceCache* cache() override { return this; }
  bool TakeSelections(std::vector<SelectionCount>* added) override {
    *added = std::exchange(next, {});
    return !added->empty();
  }

  absl::Status Route(const ExecutorCall&, const RoutingRequest&, RoutingResult*) override {
    return Unasked();
  }
  absl::Status SetRouting(const ExecutorCall&, const RoutingResult&) override { return Unasked(); }
  absl::Status Multiply(const ExecutorCall&, const RoutingResult&, absl::Span<const ReadyExpert>,
                        bool) override {
    return Unasked();
  }
  absl::Status Combine(const ExecutorCall&, const RoutingResult&) override { return Unasked(); }

  absl::StatusOr<bool> Capturing(void*) const override { return Unasked(); }
  absl::Status OpenStep(VersionedStore*, int64_t, const StepRows&, void*) override {
    return Unasked();
  }
  absl::Status CloseStep(void*) override { return Unasked(); }
  absl::Status RunResident(const ExecutorCall&, const PolicyContext&, const RoutingRule&,
                           const VersionedStore&) override {
    return Unasked();
  }
  absl::Status RunGiven(const ExecutorCall&, const GivenRouting&, const PolicyContext&,
                        const VersionedStore&) override {
    return Unasked();
  }
  bool TakeRouting(PolicyContext*, RoutingResult*) override { return false; }
  absl::Status BringGiven(const ExecutorCall&, const GivenRouting&, std::vector<int32_t>*,
                          std::vector<float>*) override {
    return Unasked();
  }
  absl::Status ReturnUsed(const ExecutorCall&, absl::Span<const int32_t>, int32_t*) override {
    return Unasked();
  }
  absl::StatusOr<const int32_t*> PlaceSlots(const ExecutorCall&, const GivenRouting&,
                                            const PolicyContext*, const VersionedStore&) override {
    return Unasked();
  }
  absl::Status LeaveSlots(void*) override { return Unasked(); }

  bool lent() const override { return false; }
  absl::Status TakeBack(VersionedStore*) override { return Unasked(); }
  bool TakeServed(ServedCount*) override { return false; }

 private:
  static absl::Status Unasked() { return absl::InternalError("nobody should ask"); }
};

/// Notes what it is told.
class Listener final : public VersionManager {
 public:
  struct Call {
    int layer;
    int64_t tokens;
    std::vector<int32_t> counts;
  };
  std::vector<Call> calls;

  absl::Status Preload(int64_t) override { return absl::OkStatus(); }
  void BeforeStep(const PolicyContext&) override {}
  void AfterStepOpened(const PolicyContext&) override {}
  void OnRouting(const PolicyContext& context, const RoutingView& routing) override {
    calls.push_back(
        {context.layer, routing.tokens, {routing.counts.begin(), routing.counts.end()}});
  }
  absl::Status Resize(int64_t, int64_t, int64_t) override { return absl::OkStatus(); }
  bool Aim(int64_t, int64_t, int64_t) override { return true; }
};

TEST_CASE("selections of replays reach counters, recency and the version manager") {
  const SyntheticSource source(SyntheticShape{2, 3, 2, 64, 48, 0, false, false, true});
  const MoeModelSpec& model = source.model();
  BudgetTracker budget(int64_t{1} << 20);
  const std::unique_ptr<CachePolicy> lru = MakeCachePolicy({});
  std::vector<std::unique_ptr<BlockPool>> pools(2);
  for (int version = 0; version < 2; ++version) {
    pools[version] =
        *MakeRamBlockPool({source.layout(0, 0, version).bytes + kRecordAlignment, 6}, 6, &budget);
  }
  WallClock clock;
  VersionedStore store(&source, {{0, 0}, {1, 1}}, std::move(pools),
                       *MakeReaderQueue(&source, &clock, 1, nullptr), lru.get());
  // Expert 2 of the first layer is low and should not be; 1 is low as intended; the rest is high.
  for (int l = 0; l < 2; ++l) {
    for (int e = 0; e < 3; ++e) {
      const int version = l == 0 && e > 0;
      store.set_intended({l, e}, l == 0 && e == 1);
      REQUIRE(store.StartVersion({l, e}, version, LoadReason::kBackground));
    }
  }
  while (store.Wait()) {
  }

  CountingDevice device;
  Listener listener;
  HardwareProfile profile;
  const auto router = *Router::Create(&model, {{}, {}}, {{}, {}}, nullptr);
  LayerPlanner scheduler(nullptr, &profile, &store, {});
  const Strategy strategy;
  LayerParts parts;
  parts.model = &model;
  parts.strategy = &strategy;
  parts.residency = lru.get();
  parts.store = &store;
  parts.versions = &listener;
  parts.clock = &clock;
  parts.router = router.get();
  parts.scheduler = &scheduler;
  parts.executor = &device;
  LayerRunner runner(parts);
  PolicyContext context;
  context.model = &model;

  runner.TakeSelections();
  runner.CollectLate(context);
  CHECK(store.stats().lookups == 0);

  // Two replays of three rows, of which the second layer's second has not been counted yet.
  device.next = {{6, 2, 3.0},  {4, 1, 1.5}, {2, 2, 0.5}, {12, 2, 0},
                 {3, 1, 1.25}, {0, 0, 0},   {3, 1, 1.5}, {6, 1, 0}};
  runner.TakeSelections();
  runner.CollectLate(context);
  CHECK(router->stats().slots == 18);
  CHECK(router->stats().mass == Approx(7.75));
  CHECK(store.stats().lookups == 7);
  CHECK(store.stats().low_answers == 2);
  CHECK(scheduler.stats().slots_low == 2);
  CHECK(scheduler.stats().mass_low == Approx(0.5));
  CHECK(store.stats().hits_resident == 5);
  REQUIRE(listener.calls.size() == 2);
  CHECK(listener.calls[0].layer == 0);
  CHECK(listener.calls[0].tokens == 3);  // of a call
  CHECK(listener.calls[0].counts == std::vector<int32_t>{6, 4, 2});
  CHECK(listener.calls[1].layer == 1);
  CHECK(listener.calls[1].tokens == 3);
  CHECK(listener.calls[1].counts == std::vector<int32_t>{3, 0, 3});

  // A layer whose counts have not come is not heard of.
  device.next = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0},
                 {2, 1, 1}, {2, 1, 1}, {2, 1, 1}, {6, 1, 0}};
  runner.TakeSelections();
  runner.CollectLate(context);
  REQUIRE(listener.calls.size() == 3);
  CHECK(listener.calls[2].layer == 1);
  CHECK(store.stats().lookups == 10);
}

}  // namespace
}  // namespace moert
