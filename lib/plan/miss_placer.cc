#include "plan/miss_placer.h"

#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "plan/placement_rule.h"

namespace moert {
namespace {

/// Time from the end of a job until the device has its rows. On an H200 (PCIe 5): 4.5 us until the
/// device sees the answer, and 5 us for the rows.
constexpr int64_t kHandOverNs = 10'000;

/// The rule of a policy as an object; null: it has none.
std::unique_ptr<PlacementPolicy> ByRule(const PlacementPolicy* policy) {
  const std::optional<PlacementRule> rule = policy == nullptr ? std::nullopt : policy->rule();
  return rule.has_value() ? MakePlacementPolicy(*rule) : nullptr;
}

}  // namespace

MissPlacer::MissPlacer(PlacementPolicy* policy, const HardwareProfile* profile,
                       const LinkEstimate* link, std::string cpu_version)
    : by_rule_(ByRule(policy)),
      policy_(by_rule_ != nullptr ? by_rule_.get() : policy),
      profile_(profile),
      link_(link),
      cpu_version_(std::move(cpu_version)) {}

PlacedMisses MissPlacer::Place(const PolicyContext& context, absl::Span<const Miss> misses,
                               const LinkLoad& link) {
  PlacedMisses placed;
  placed.placements.assign(misses.size(), Placement::kLoad);
  if (policy_ == nullptr || misses.empty()) return placed;
  views_.clear();
  for (const Miss& miss : misses) views_.push_back(Price(miss));
  const PlacementDecision decision = policy_->Place({context, views_, BusyNs(link)});
  const std::vector<Placement>& asked = decision.placements;
  bool valid = asked.size() == misses.size();
  for (size_t i = 0; valid && i < asked.size(); ++i) {
    valid = asked[i] == Placement::kLoad || (asked[i] == Placement::kCpu && misses[i].cpu) ||
            (asked[i] == Placement::kLow && misses[i].low_cost >= 0);
  }
  if (!valid) {
    ++stats_.policy_fallbacks;
    return placed;
  }
  placed.backfill = decision.backfill;
  bool any_on_cpu = false, passed_over = false;
  for (size_t i = 0; i < asked.size(); ++i) {
    const MissView& miss = views_[i];
    if (asked[i] == Placement::kLoad) {
      if (!miss.arriving) stats_.balance_load_ns += miss.load_ns;
      passed_over = passed_over || (misses[i].cpu && !miss.arriving);
      continue;
    }
    if (asked[i] == Placement::kLow) {
      placed.placements[i] = Placement::kLow;
      continue;
    }
    any_on_cpu = true;
    placed.placements[i] = Placement::kCpu;
    placed.cpu_ns += miss.cpu_ns;
    stats_.balance_cpu_ns += miss.cpu_ns;
    ++stats_.cpu_computed;
    stats_.cpu_computed_late += miss.arriving;
  }
  // Not in prefill, where trying the CPU again would be expensive.
  if (passed_over && !any_on_cpu && context.phase == Phase::kDecode) PassOverCpu();
  return placed;
}

void MissPlacer::PassOverCpu() {
  if (!cpu_scale_.measured()) return;
  cpu_scale_.Add(0, running_mean::kCpuForget);
  cpu_passed_over_ = true;
}

MissView MissPlacer::Price(const Miss& miss) const {
  MissView view;
  view.expert = miss.expert;
  view.tokens = miss.tokens;
  view.mass = miss.mass;
  view.bytes = miss.bytes;
  view.arriving = miss.arriving;
  view.low_cost = miss.low_cost;
  view.load_ns = TransferNs(miss.bytes);
  if (miss.arriving) view.load_ns /= 2;  // on average half of the transfer is left
  view.cpu_ns = -1;
  if (miss.cpu) view.cpu_ns = CpuNs(miss.bytes, miss.tokens);
  return view;
}

int64_t MissPlacer::CpuNs(int64_t bytes, int64_t tokens) const {
  return Corrected(profile_->CpuExpertNs(bytes, tokens, cpu_version_));
}

int64_t MissPlacer::Corrected(int64_t modelled_ns) const {
  const double scale = cpu_scale_.measured() ? cpu_scale_.mean() : 1;
  return HardwareProfile::WholeNs(scale * static_cast<double>(modelled_ns));
}

CpuCosts MissPlacer::Costs(int64_t bytes) {
  if (modelled_bytes_ != bytes) {  // the profile's rates are looked up once
    modelled_bytes_ = bytes;
    for (int t = 1; t <= kMostCpuTokens; ++t) {
      modelled_[t] = profile_->CpuExpertNs(bytes, t, cpu_version_);
    }
  }
  CpuCosts costs;
  costs.load = TransferNs(bytes);
  if (job_start_.ns() > 0) costs.start = kHandOverNs + static_cast<int64_t>(job_start_.ns());
  for (int t = 1; t <= kMostCpuTokens; ++t) costs.tokens[t] = Corrected(modelled_[t]);
  return costs;
}

void MissPlacer::CountServed(const ServedCount& count) {
  stats_.cpu_computed += count.cpu_computed;
  stats_.balance_cpu_ns += count.cpu_modelled_ns;
  if (link_ == nullptr) return;
  if (count.cpu_modelled_ns > 0) {
    job_start_.Add(count.cpu_jobs, count.cpu_modelled_ns, count.cpu_took_ns);
    const double starts = job_start_.ns() * static_cast<double>(count.cpu_jobs);
    ObserveCpuRatio(std::max(0.0, static_cast<double>(count.cpu_took_ns) - starts) /
                    static_cast<double>(count.cpu_modelled_ns));
  } else if (count.loads > 0 && count.cpu_computed == 0 && count.cpu_taken_back == 0) {
    PassOverCpu();
  }
}

void MissPlacer::ObserveCpuTime(int64_t cpu_ns, int64_t took_ns) {
  if (link_ == nullptr || cpu_ns <= 0 || took_ns <= 0) return;
  // cpu_ns was scaled already: undoes that.
  const double scale = cpu_scale_.measured() ? cpu_scale_.mean() : 1;
  ObserveCpuRatio(scale * static_cast<double>(took_ns) / static_cast<double>(cpu_ns));
}

void MissPlacer::ObserveCpuRatio(double ratio) {
  if (cpu_passed_over_) {
    cpu_scale_.Add(ratio, running_mean::kCpuTrialWeight);
  } else {
    cpu_scale_.Add(ratio);
  }
  cpu_passed_over_ = false;
}

int64_t MissPlacer::TransferNs(int64_t bytes) const {
  return link_ != nullptr ? link_->TransferNs(bytes) : profile_->TransferNs(bytes);
}

int64_t MissPlacer::BusyNs(const LinkLoad& link) const {
  if (link.transfers == 0) return 0;
  // On average half of the transfer in progress is done.
  const int64_t one_ns = TransferNs(link.bytes);
  return link.transfers * one_ns - one_ns / 2;
}

// --------------------------------------------------------------------------------------------------
// The public class.

struct Scheduler::Impl {
  Impl(PlacementPolicy* policy, SchedulerOptions o)
      : options(std::move(o)),
        link(&options.profile),
        placer(policy, &options.profile, options.measured ? &link : nullptr, options.cpu_version) {}

  const SchedulerOptions options;
  LinkEstimate link;
  MissPlacer placer;
};

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(PlacementPolicy* policy,
                                                             SchedulerOptions options) try {
  const HardwareProfile& profile = options.profile;
  for (const auto& [field, rate] : {std::pair("link_bytes_per_s", profile.link_bytes_per_s),
                                    {"cpu_weight_bytes_per_s", profile.cpu_weight_bytes_per_s}}) {
    if (rate > 0) continue;
    return InvalidArgument("profile {}: {} is {}; must be positive", profile.name, field, rate);
  }
  if (policy != nullptr && policy->rule().has_value()) {
    MOERT_RETURN_IF_ERROR(policy->rule()->Validate());
  }
  return std::unique_ptr<Scheduler>(
      new Scheduler(std::make_unique<Impl>(policy, std::move(options))));
} catch (...) {
  return ExceptionStatus("creating a scheduler");
}

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() = default;

PlacedMisses Scheduler::Place(const PolicyContext& context, absl::Span<const Miss> misses,
                              const LinkLoad& link) {
  return impl_->placer.Place(context, misses, link);
}

void Scheduler::ObserveTransfer(int64_t bytes, int64_t started_ns, int64_t finished_ns) {
  impl_->link.Observe(bytes, started_ns, finished_ns);
}

void Scheduler::ObserveCpuTime(int64_t cpu_ns, int64_t took_ns) {
  impl_->placer.ObserveCpuTime(cpu_ns, took_ns);
}

SchedulerStats Scheduler::stats() const { return impl_->placer.stats(); }

}  // namespace moert
