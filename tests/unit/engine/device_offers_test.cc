// The offers of `auto` where a device serves misses: graded in the form that needs no host.
#include <memory>

#include "absl/strings/match.h"
#include "advise/version_offers.h"
#include "exec/backend.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// A backend that plans like another one and serves misses as a device does.
class Serving final : public Backend {
 public:
  Serving(std::unique_ptr<Backend> plans, int64_t host_budget)
      : plans_(std::move(plans)), host_budget_(host_budget) {}

  BackendKind kind() const override { return BackendKind::kCuda; }
  bool hidden_on_host() const override { return false; }
  ThreadPoolOptions Threads(bool cpu) const override { return plans_->Threads(cpu); }
  absl::StatusOr<int64_t> WorkspaceBytes(const ExecutorSize& size) const override {
    return plans_->WorkspaceBytes(size);
  }
  bool ServesMisses(const ExecutorSize& size) const override {
    return HostHoldsAll(*size.source, size.versions, host_budget_);
  }
  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes&, int64_t,
                                                      BudgetTracker*) override {
    return absl::UnimplementedError("plans alone");
  }
  absl::StatusOr<std::unique_ptr<TransferQueue>> MakeTransfers(const ExpertSource*, Clock*,
                                                               const HardwareProfile*) override {
    return absl::UnimplementedError("plans alone");
  }
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const ExecutorParts&) override {
    return absl::UnimplementedError("plans alone");
  }

 private:
  const std::unique_ptr<Backend> plans_;
  const int64_t host_budget_;
};

constexpr int64_t kAll = int64_t{1} << 30;

struct Fixture {
  SyntheticShape shape{3, 12, 3, 256, 192, 128};
  std::unique_ptr<SyntheticSource> source;
  EngineOptions options;

  explicit Fixture(double link_gbps) {
    shape.low_version = true;
    source = std::make_unique<SyntheticSource>(shape);
    options.threads = 1;
    options.profile.link_bytes_per_s = link_gbps * 1e9;
    options.budget = Budget::Fraction(0.3);
    options.budget = Budget::Bytes(Open("fate", kAll)->plan.budget_bytes);
  }
  absl::StatusOr<Blueprint> Open(const std::string& spec, int64_t host_budget) const {
    absl::StatusOr<Blueprint> b = TryStrategy(*source, options, spec);
    if (b.ok()) b->backend = std::make_unique<Serving>(std::move(b->backend), host_budget);
    return b;
  }
  StrategyChoice Choose(double loss, int64_t host_budget) const {
    VersionOffers offers(*source, options, loss, nullptr,
                         [&](const std::string& spec) { return Open(spec, host_budget); });
    offers.AddExact(*Open("fate", host_budget));
    if (loss > 0) offers.AddLossy(0);
    return offers.Take();
  }
};

TEST_CASE("an accepted loss buys graded, whose misses a device answers where it can") {
  const Fixture slow(0.001);
  const StrategyChoice served = slow.Choose(0.2, kAll);
  CHECK(served.spec == "graded:hi=bf16,lo=low,loss=0.2");
  CHECK(absl::StrContains(served.why, "answered by the device"));
  CHECK(MakeStrategy(served.spec)->misses_by_rule());
  // Records that are read as they are needed are the host's to bring.
  const StrategyChoice host = slow.Choose(0.2, -1);
  CHECK(host.spec == "graded:hi=bf16,lo=low,loss=0.2");
  CHECK(!absl::StrContains(host.why, "device"));
  CHECK(slow.Choose(0, kAll).spec == "fate");
}

TEST_CASE("what the rule takes in every layer has to be won back") {
  const Fixture quick(1000);  // hardly anything waits
  CHECK(quick.Choose(0.2, kAll).spec == "fate");
  const auto ms = [&](const char* spec, bool served) {
    return ExpectedStep(*quick.source, *quick.Open(spec, kAll), 0, served).layers_ms;
  };
  const double exact = ms("fate", true);
  for (const char* spec : {"graded:lo=low", "graded:lo=low,cpu=0"}) {
    CHECK(ms(spec, true) == Approx(exact + quick.shape.layers * 0.006));
    CHECK(ms(spec, false) == exact);
  }
}

TEST_CASE("nothing is served in logical time, or where every call is traced") {
  Fixture f(0.001);
  const Blueprint b = *f.Open("graded:lo=low,cpu=0", kAll);
  CHECK(DeviceServes(*f.source, f.options, b));
  f.options.clock = ClockKind::kVirtual;
  CHECK(!DeviceServes(*f.source, f.options, b));
  f.options.clock = ClockKind::kWall;
  CHECK(!DeviceServes(*f.source, f.options, *TryStrategy(*f.source, f.options, "fate")));
}

}  // namespace
}  // namespace moert
