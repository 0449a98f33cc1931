#include "plan/layer_planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "plan/placement_rule.h"

namespace moert {

void LowAnswers::OpenAccounts(int64_t tokens) {
  number_of_.clear();
  accounts_.clear();
  account_of_.assign(tokens, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t request = request_ids_.empty() ? 0 : request_ids_[t];
    const auto [it, fresh] =
        number_of_.try_emplace(request, static_cast<int32_t>(accounts_.size()));
    account_of_[t] = it->second;
    if (!fresh) continue;
    const SubstitutionAccount& kept = LedgerOf(t);
    accounts_.push_back({kept.mass, kept.mass_substituted});
  }
}

void LowAnswers::Begin(const RoutingResult& routing, absl::Span<const int64_t> request_ids) {
  routing_ = &routing;
  request_ids_ = request_ids;
  ledger_.BeginCall(request_ids);
  OpenAccounts(routing.tokens);
  call_ = {routing.ids.data(), routing.weights.data(), accounts_.data(),
           account_of_.data(), routing.top_k,          max_share_};
  for (int64_t t = 0; t < routing.tokens; ++t) call_.Enter(t);
}

absl::Span<const int32_t> LowAnswers::SlotsOf(int32_t expert) {
  slots_.clear();
  for (size_t slot = 0; slot < routing_->ids.size(); ++slot) {
    if (routing_->ids[slot] == expert) slots_.push_back(static_cast<int32_t>(slot));
  }
  return slots_;
}

float LowAnswers::Cost(int32_t expert) {
  const absl::Span<const int32_t> slots = SlotsOf(expert);
  return call_.Cost(slots.data(), static_cast<int>(slots.size()));
}

bool LowAnswers::Take(int32_t expert) {
  const absl::Span<const int32_t> slots = SlotsOf(expert);
  return call_.Take(slots.data(), static_cast<int>(slots.size()));
}

void LowAnswers::End() {
  for (int64_t t = 0; t < routing_->tokens; ++t) {
    const LowAccount& account = accounts_[account_of_[t]];
    SubstitutionAccount& kept = LedgerOf(t);
    kept.mass = account.mass;
    kept.mass_substituted = account.low;
  }
  ledger_.EndCall(request_ids_);
  routing_ = nullptr;
}

LayerPlanner::LayerPlanner(PlacementPolicy* policy, const HardwareProfile* profile,
                           VersionedStore* store, CpuMisses cpu)
    : store_(store),
      cpu_can_compute_(std::move(cpu.can_compute)),
      placer_(policy, profile, cpu.link, std::move(cpu.version)) {
  const double share = MaxLowShare(policy);
  if (share > 0 && store->num_versions() > 1) low_answers_ = std::make_unique<LowAnswers>(share);
}

void LayerPlanner::Plan(const PolicyContext& context, int64_t epoch, const RoutingResult& routing,
                        LayerPlan* plan) {
  plan->ready.clear();
  plan->load.clear();
  plan->low.clear();
  plan->cpu.clear();
  plan->cpu_ns = 0;
  plan->backfill = Backfill::kNever;
  low_.assign(routing.num_experts, 0);
  plan->load_low.assign(routing.num_experts, 0);
  for (std::vector<int32_t>* list : {&plan->ready, &plan->load, &plan->low, &plan->cpu}) {
    list->reserve(routing.num_experts);
  }
  absl::Cleanup unpin = [&] {  // nothing stays pinned after an exception
    for (const int32_t e : plan->ready) store_->Unpin({context.layer, e});
    plan->ready.clear();
  };
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
  std::stable_sort(plan->load.begin(), plan->load.end(),
                   [&](int32_t a, int32_t b) { return routing.counts[a] > routing.counts[b]; });
  if (low_answers_ != nullptr) low_answers_->Begin(routing, context.request_ids);
  if (placer_.policy() != nullptr && !plan->load.empty()) Place(context, routing, plan);
  if (low_answers_ != nullptr) low_answers_->End();
  CountLow(routing);
  std::move(unpin).Cancel();
}

PlanStats LayerPlanner::stats() const {
  PlanStats stats = stats_;
  static_cast<SchedulerStats&>(stats) = placer_.stats();
  if (low_answers_ != nullptr) stats.worst_low_share = low_answers_->worst_share();
  return stats;
}

void LayerPlanner::CountLow(const RoutingResult& routing) {
  if (std::find(low_.begin(), low_.end(), 1) == low_.end()) return;
  const auto [slots, mass] = routing.ShareOf(low_);
  stats_.slots_low += slots;
  stats_.mass_low += mass;
}

void LayerPlanner::CountAnswered(int layer, const RoutingResult& routing) {
  low_.assign(routing.num_experts, 0);
  for (int32_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    low_[e] = store_->CountAnswered({layer, e}, routing.counts[e], 1) == LookupResult::kLow;
  }
  CountLow(routing);
}

void LayerPlanner::CountAnswered(ExpertKey key, int64_t slots, int64_t calls, double mass) {
  if (store_->CountAnswered(key, slots, calls) != LookupResult::kLow) return;
  stats_.slots_low += slots;
  stats_.mass_low += mass;
}

void LayerPlanner::Backfill(const PolicyContext& context, const LayerPlan& plan) {
  if (plan.backfill == Backfill::kNever) return;
  const bool always = plan.backfill == Backfill::kAlways;
  // At most one load at a time, because a waiting load holds a block for which an expert was
  // evicted. Two loads if slots are free, so that the link is never idle while the cache is cold.
  backfill_.assign(plan.cpu.begin(), plan.cpu.end());
  backfill_.insert(backfill_.end(), plan.low.begin(), plan.low.end());
  for (const int32_t e : plan.load) {
    if (plan.load_low[e] != 0) backfill_.push_back(e);
  }
  for (const int32_t e : backfill_) {
    const ExpertKey key{context.layer, e};
    const bool free = store_->HasFreeSlot(context.layer);
    if (!always && !free) return;
    if (store_->in_flight() > (free ? 1 : 0)) return;
    // A prefetch may have brought the expert meanwhile.
    if (store_->Arriving(key) || store_->Latest(key).version >= 0) continue;
    stats_.fills += store_->StartLoad(key, 0, LoadReason::kBackground, context);
  }
}

void LayerPlanner::Place(const PolicyContext& context, const RoutingResult& routing,
                         LayerPlan* plan) {
  constexpr int kVersion = 0;
  mass_.assign(routing.num_experts, 0);
  for (size_t slot = 0; slot < routing.ids.size(); ++slot) {
    if (routing.ids[slot] >= 0) mass_[routing.ids[slot]] += routing.weights[slot];
  }
  misses_.clear();
  for (const int32_t e : plan->load) {
    const ExpertKey key{context.layer, e};
    misses_.push_back({e, routing.counts[e], mass_[e], store_->layout(key, kVersion).bytes,
                       store_->Arriving(key),
                       cpu_can_compute_ != nullptr && cpu_can_compute_(key, routing.tokens),
                       low_answers_ != nullptr ? low_answers_->Cost(e) : -1.0F});
  }
  const PlacedMisses placed = placer_.Place(
      context, misses_, {store_->in_flight(), store_->layout({context.layer, 0}, kVersion).bytes});
  plan->cpu_ns = placed.cpu_ns;
  plan->backfill = placed.backfill;
  for (size_t i = 0; i < misses_.size(); ++i) {
    const int32_t e = misses_[i].expert;
    if (placed.placements[i] == Placement::kLoad) continue;
    const bool low = placed.placements[i] == Placement::kLow;
    // Experts that each fit the bound may exceed it together: the rest is loaded.
    if (low && !low_answers_->Take(e)) continue;
    if (low) {
      low_[e] = 1;
      store_->CountLowAnswer({context.layer, e});
      plan->load_low[e] = store_->Standby({context.layer, e}).record == nullptr;
      if (plan->load_low[e] != 0) continue;
    }
    plan->load.erase(std::find(plan->load.begin(), plan->load.end(), e));
    (low ? plan->low : plan->cpu).push_back(e);
  }
}

int TransferVersion(PrecisionPolicy* policy, const PolicyContext& context, ExpertKey key,
                    absl::Span<const int32_t> counts, bool prefetch, int num_versions,
                    int64_t* fallbacks, int resident) {
  const int unchanged = resident < 0 ? 0 : resident;
  if (policy == nullptr || num_versions < 2) return unchanged;
  TransferSnapshot snapshot;
  snapshot.context = context;
  snapshot.key = key;
  snapshot.prefetch = prefetch;
  snapshot.resident = resident;
  snapshot.tokens = counts[key.expert];
  snapshot.layer_tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  snapshot.num_versions = num_versions;
  snapshot.layer_counts = counts;
  const int version = policy->TransferVersion(snapshot);
  if (version >= 0 && version < num_versions) return version;
  ++*fallbacks;
  return unchanged;
}

}  // namespace moert
