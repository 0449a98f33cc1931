#include "advise/version_offers.h"

#include <algorithm>
#include <cmath>

#include "base/bytes_text.h"
#include "base/fmt_absl.h"
#include "fmt/format.h"

namespace moert {

ExpectedTimes ExpectedStep(const ExpertSource& source, const Blueprint& b, double low_share,
                           bool served) {
  const MoeModelSpec& model = source.model();
  // A rough fit to the bundled models' recorded routing: a cache that keeps the share r of the
  // experts misses (1 - r)^4 of its lookups, and a low answer has half of the average routing
  // weight.
  constexpr double kPower = 4, kWeight = 0.5;
  // Predictions can name this share of the misses.
  constexpr double kPredicted = 0.8;
  const double resident =
      static_cast<double>(b.plan.slots) / static_cast<double>(b.plan.total_experts);
  const int64_t bytes = b.plan.all_bytes / b.plan.total_experts;  // mean bytes of an expert
  const auto transfer_ns = static_cast<double>(b.profile.TransferNs(bytes));
  const int low_version = b.versions.back();  // loaded for the call
  const auto low_ns =
      static_cast<double>(b.profile.TransferNs(source.layout(0, 0, low_version).bytes));
  const auto layer_ns = static_cast<double>(b.profile.LayerNs(/*prefill=*/false, 1));
  const auto rule_ns =
      static_cast<double>(served && b.served().by_request() ? b.profile.request_rule_ns : 0);
  const double expert_ns = b.profile.ExpertNs(bytes, 1, source.version_name(b.versions.front()));
  ExpectedTimes expected;
  for (const MoeLayerSpec& layer : model.layers) {
    const double k = layer.routing.top_k;
    const double missing = k * std::pow(1 - std::min(1.0, resident), kPower);
    const double low = std::min(missing, k * low_share / kWeight);
    const double loads = missing - low;
    const double hidden = std::min(kPredicted * loads, layer_ns / transfer_ns);
    expected.layers_ms += (layer_ns + rule_ns + k * expert_ns) / 1e6;
    expected.waits_ms += ((loads - hidden) * transfer_ns + low * low_ns) / 1e6;
  }
  return expected;
}

namespace {

std::string Percent(double share) { return fmt::format("{:.2g} %", 100 * share); }

}  // namespace

absl::StatusOr<Blueprint> TryStrategy(const ExpertSource& source, EngineOptions options,
                                      const std::string& spec) {
  options.strategy = spec;
  options.customize_strategy = nullptr;  // only applies when the engine is opened
  return MakeBlueprint(source, options);
}

bool DeviceServes(const ExpertSource& source, const EngineOptions& options, const Blueprint& b) {
  ExecutorSize size;
  size.source = &source;
  size.versions = b.versions;
  size.served = b.served();
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

// Light misses have the least weight, so answering a share of the routing mass low loses at most
// that share of the low version's loss. Substitutes (alpha) have no predicted loss.
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
