#include "moert/scheduler.h"

#include <algorithm>
#include <utility>

#include "transfer/link_estimate.h"

namespace moert {

Scheduler::Scheduler(const MoeModelSpec* model, PlacementPolicy* policy,
                     const HardwareProfile* profile, ExpertStore* store, CpuOffload cpu)
    : model_(model), policy_(policy), profile_(profile), store_(store), cpu_(std::move(cpu)) {}

void Scheduler::Plan(const PolicyContext& context, int64_t epoch, const RoutingResult& routing,
                     LayerPlan* plan) {
  plan->ready.clear();
  plan->load.clear();
  plan->cpu.clear();
  plan->cpu_ns = 0;
  plan->backfill = Backfill::kNever;
  low_.assign(routing.num_experts, 0);
  for (int32_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    const ExpertKey key{context.layer, e};
    const LookupResult found = store_->Lookup(key, epoch, routing.counts[e]);
    if (found == LookupResult::kMiss) {
      plan->load.push_back(e);
      continue;
    }
    low_[e] = found == LookupResult::kLow;
    store_->Pin(key);
    plan->ready.push_back(e);
  }
  CountLow(routing);
  std::stable_sort(plan->load.begin(), plan->load.end(),
                   [&](int32_t a, int32_t b) { return routing.counts[a] > routing.counts[b]; });
  if (policy_ != nullptr && !plan->load.empty()) Place(context, routing, plan);
}

void Scheduler::CountLow(const RoutingResult& routing) {
  if (std::find(low_.begin(), low_.end(), 1) == low_.end()) return;
  const auto [slots, mass] = routing.ShareOf(low_);
  stats_.slots_low += slots;
  stats_.mass_low += mass;
}

void Scheduler::CountAnswered(int layer, const RoutingResult& routing) {
  low_.assign(routing.num_experts, 0);
  for (int32_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    low_[e] = store_->CountAnswered({layer, e}, routing.counts[e], 1) == LookupResult::kLow;
  }
  CountLow(routing);
}

void Scheduler::CountAnswered(ExpertKey key, int64_t slots, int64_t calls, double mass) {
  if (store_->CountAnswered(key, slots, calls) != LookupResult::kLow) return;
  stats_.slots_low += slots;
  stats_.mass_low += mass;
}

void Scheduler::Backfill(const PolicyContext& context, const LayerPlan& plan) {
  if (plan.cpu.empty() || plan.backfill == Backfill::kNever) return;
  const bool always = plan.backfill == Backfill::kAlways;
  // One at a time: what waits would hold a block that somebody was evicted from. Into free slots
  // two, so that the link is never idle while a cache is cold.
  for (const int32_t e : plan.cpu) {
    const ExpertKey key{context.layer, e};
    const bool free = store_->HasFreeSlot(context.layer);
    if (!always && !free) return;
    if (store_->in_flight() > (free ? 1 : 0)) return;
    if (store_->Arriving(key)) continue;
    stats_.fills += store_->StartLoad(key, 0, LoadReason::kBackground, context);
  }
}

void Scheduler::ObserveCpuTime(const LayerPlan& plan, int64_t cpu_ns) {
  if (cpu_.link == nullptr || plan.cpu_ns <= 0 || cpu_ns <= 0) return;
  constexpr double kWeight = 0.05, kTrial = 0.5;
  double ratio = cpu_scale_ * static_cast<double>(cpu_ns) / static_cast<double>(plan.cpu_ns);
  // What interrupts a thread for some ms is no rate of the CPU.
  if (cpu_measured_) ratio = std::min(ratio, 2 * cpu_scale_);
  const double weight = cpu_passed_over_ ? kTrial : kWeight;
  cpu_scale_ = cpu_measured_ ? cpu_scale_ + weight * (ratio - cpu_scale_) : ratio;
  cpu_measured_ = true;
  cpu_passed_over_ = false;
}

void Scheduler::Place(const PolicyContext& context, const RoutingResult& routing, LayerPlan* plan) {
  constexpr int kVersion = 0;
  mass_.assign(routing.num_experts, 0);
  for (size_t slot = 0; slot < routing.ids.size(); ++slot) {
    mass_[routing.ids[slot]] += routing.weights[slot];
  }
  misses_.clear();
  for (const int32_t e : plan->load) {
    const ExpertKey key{context.layer, e};
    MissView miss;
    miss.arriving = store_->Arriving(key);
    miss.expert = e;
    miss.tokens = routing.counts[e];
    miss.mass = mass_[e];
    miss.bytes = store_->layout(key, kVersion).bytes;
    miss.load_ns =
        cpu_.link != nullptr ? cpu_.link->TransferNs(miss.bytes) : profile_->TransferNs(miss.bytes);
    if (miss.arriving) miss.load_ns /= 2;  // on average
    miss.cpu_ns = -1;
    if (cpu_.can_compute != nullptr && cpu_.can_compute(key, routing.tokens)) {
      miss.cpu_ns = static_cast<int64_t>(cpu_scale_ * static_cast<double>(profile_->CpuExpertNs(
                                                          miss.bytes, miss.tokens, cpu_.version)));
    }
    misses_.push_back(miss);
  }
  if (misses_.empty()) return;
  const PlacementDecision decision = policy_->Place({context, misses_, LinkBusyNs(context)});
  const std::vector<Placement>& placements = decision.placements;
  bool valid = placements.size() == misses_.size();
  for (size_t i = 0; valid && i < placements.size(); ++i) {
    valid = placements[i] == Placement::kLoad ||
            (placements[i] == Placement::kCpu && misses_[i].cpu_ns >= 0);
  }
  if (!valid) {
    ++stats_.policy_fallbacks;
    return;
  }
  plan->backfill = decision.backfill;
  for (size_t i = 0; i < placements.size(); ++i) {
    const MissView& miss = misses_[i];
    if (placements[i] == Placement::kLoad) {
      if (!miss.arriving) stats_.balance_load_ns += miss.load_ns;
      continue;
    }
    plan->load.erase(std::find(plan->load.begin(), plan->load.end(), miss.expert));
    plan->cpu.push_back(miss.expert);
    plan->cpu_ns += miss.cpu_ns;
    stats_.balance_cpu_ns += miss.cpu_ns;
    ++stats_.cpu_computed;
    stats_.cpu_computed_late += miss.arriving;
  }
  // In prefill a trial would be dear.
  const bool passed_over =
      plan->cpu.empty() && std::any_of(misses_.begin(), misses_.end(), [](const MissView& miss) {
        return miss.cpu_ns >= 0 && !miss.arriving;
      });
  if (cpu_measured_ && passed_over && context.phase == Phase::kDecode) {
    constexpr double kForget = 1.0 / 256;
    cpu_scale_ *= 1 - kForget;
    cpu_passed_over_ = true;
  }
}

int64_t Scheduler::LinkBusyNs(const PolicyContext& context) const {
  // The one that moves is half way, on average.
  const int64_t transfers = store_->in_flight();
  if (transfers == 0) return 0;
  const int64_t bytes = store_->layout({context.layer, 0}, 0).bytes;
  const int64_t one_ns =
      cpu_.link != nullptr ? cpu_.link->TransferNs(bytes) : profile_->TransferNs(bytes);
  return transfers * one_ns - one_ns / 2;
}

}  // namespace moert
