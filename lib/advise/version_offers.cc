#include "advise/version_offers.h"

#include "advise/expected_step.h"
#include "base/bytes_text.h"
#include "base/fmt_absl.h"
#include "fmt/format.h"

namespace moert {
namespace {

std::string Percent(double share) { return fmt::format("{:.2g} %", 100 * share); }

}  // namespace

absl::StatusOr<Blueprint> TryStrategy(const ExpertSource& source, EngineOptions options,
                                      const std::string& spec) {
  options.strategy = spec;
  options.customize_strategy = nullptr;  // the host's, for the engine that opens
  return MakeBlueprint(source, options);
}

bool DeviceServes(const ExpertSource& source, const EngineOptions& options, const Blueprint& b) {
  ExecutorSize size;
  size.source = &source;
  size.versions = b.versions;
  return options.clock == ClockKind::kWall && options.trace == nullptr &&
         b.backend->ServesMisses(size);
}

void VersionOffers::AddExact(const Blueprint& b) {
  Add(b, 0, 0, b.strategy.preload ? "all are loaded" : "a cache");
}

void VersionOffers::AddLossy(int base) {
  const int versions = source_.num_versions();
  for (int v = base + 1; v < versions; ++v) AddVersion(v);
  if (offers_.size() > 1) return;
  for (int low = base + 1; low < versions; ++low) AddGraded(base, low);
}

StrategyChoice VersionOffers::Take() const {
  const size_t taken = ChooseVersion({accepted_, offers_}).value_or(0);
  StrategyChoice choice{offers_[taken].spec, whys_[taken], options_.budget};
  if (taken > 0) choice.why += fmt::format("; without a loss {:.3g}", offers_[0].step_ms);
  return choice;
}

std::optional<double> VersionOffers::LossOf(int version) const {
  if (calibration_ == nullptr) return std::nullopt;
  const absl::StatusOr<double> loss = PredictVersionLoss(*calibration_, source_, version);
  return loss.ok() ? std::optional<double>(*loss) : std::nullopt;
}

void VersionOffers::AddVersion(int version) {
  const std::optional<double> loss = LossOf(version);
  if (!loss || *loss > accepted_) return;
  const std::string key = fmt::format(":scheme={}", source_.version_name(version));
  absl::StatusOr<Blueprint> b = attempt_("resident" + key);
  if (!b.ok()) b = attempt_("fate" + key);
  if (!b.ok()) return;
  Add(*b, *loss, 0,
      fmt::format("{} loses {} of perplexity at most by its calibration, {} accepted",
                  source_.version_name(version), Percent(*loss), Percent(accepted_)));
}

// Light misses weigh least, so to answer a share of the routing mass low costs at most that share
// of what the low version loses. Substitutes (alpha) have no predicted loss.
void VersionOffers::AddGraded(int high, int low) {
  double share = accepted_, loss = accepted_;
  if (calibration_ != nullptr) {
    const std::optional<double> most = LossOf(low);
    if (!most) return;
    if (*most > 1) share /= *most;
    loss = share * *most;
  }
  const std::string spec =
      fmt::format("graded:hi={},lo={},loss={:g}{}", source_.version_name(high),
                  source_.version_name(low), share, calibration_ != nullptr ? ",alpha=0" : "");
  const absl::StatusOr<Blueprint> b = attempt_(spec);
  if (b.ok()) Add(*b, loss, share, "light misses in fewer bits");
}

void VersionOffers::Add(const Blueprint& b, double loss, double low_share,
                        const std::string& what) {
  const bool served = DeviceServes(source_, options_, b);
  const ExpectedTimes expected = ExpectedStep(source_, b, low_share, served);
  offers_.push_back({b.strategy.spec, expected.ms(), loss});
  whys_.push_back(fmt::format(
      "room for {} of {} experts in {}: {}{}; {:.3g} ms a token expected by the profile {}, {:.3g} "
      "of them waiting",
      b.plan.slots, b.plan.total_experts, BytesText(b.plan.budget_bytes), what,
      served && low_share > 0 ? ", answered by the device in steps that can be captured" : "",
      expected.ms(), b.profile.name, expected.waits_ms));
}

}  // namespace moert
