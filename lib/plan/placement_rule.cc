#include "plan/placement_rule.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "route/substitution_ledger.h"
#include "rules/low_answers.h"
#include "store/state_bytes.h"

namespace moert {

Balance BalanceCpuLoad(absl::Span<const BalanceItem> items, int64_t loading_ns) {
  Balance balance;
  balance.load_ns = loading_ns;
  balance.on_cpu.assign(items.size(), 0);
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return items[a].tokens > items[b].tokens; });
  size_t left = 0, right = order.size();  // [left, right) is undecided
  while (left < right) {
    if (balance.load_ns <= balance.cpu_ns) {
      balance.load_ns += items[order[left++]].load_ns;
    } else {
      const size_t item = order[--right];
      balance.cpu_ns += items[item].cpu_ns;
      balance.on_cpu[item] = 1;
    }
  }
  return balance;
}

Balance BalanceByCompletion(absl::Span<const BalanceItem> items, int64_t link_busy_ns,
                            int64_t loading_ns) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return items[a].tokens > items[b].tokens; });
  int64_t load_ns = loading_ns, cpu_ns = 0;
  for (const BalanceItem& item : items) cpu_ns += item.cpu_ns;
  int64_t best_ns = std::max(loading_ns > 0 ? link_busy_ns + loading_ns : 0, cpu_ns);
  size_t best = 0;  // items loaded
  for (size_t loaded = 1; loaded <= order.size(); ++loaded) {
    const BalanceItem& item = items[order[loaded - 1]];
    load_ns += item.load_ns;
    cpu_ns -= item.cpu_ns;
    const int64_t done_ns = std::max(link_busy_ns + load_ns, cpu_ns);
    if (done_ns > best_ns) continue;
    best_ns = done_ns;
    best = loaded;
  }
  Balance balance;
  balance.load_ns = loading_ns;
  balance.on_cpu.assign(items.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const BalanceItem& item = items[order[i]];
    balance.on_cpu[order[i]] = i >= best;
    (i < best ? balance.load_ns : balance.cpu_ns) += i < best ? item.load_ns : item.cpu_ns;
  }
  return balance;
}

namespace {

class PlacementByRule final : public PlacementPolicy {
 public:
  explicit PlacementByRule(const PlacementRule& rule) : rule_(rule) {}

  std::optional<PlacementRule> rule() const override { return rule_; }

  int64_t StateBytes(const PolicyScope& scope) const override {
    // For each miss: its placement, its two costs, and an entry in three orders.
    constexpr int64_t kMiss = kGrowth * int64_t{sizeof(BalanceItem) + 2 * sizeof(size_t)} +
                              int64_t{sizeof(Placement) + sizeof(size_t)} + 1;
    return PerLayerExpert(scope, kMiss) + (rule_.low_patience > 0 ? AccountBytes(scope) : 0);
  }

  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    rest_.clear();
    PlacementDecision decision;
    decision.placements.assign(snapshot.misses.size(), Placement::kLoad);
    const bool decode = snapshot.context.phase == Phase::kDecode;
    for (size_t i = 0; i < snapshot.misses.size(); ++i) {
      if (decode && AnsweredLow(snapshot.misses[i])) {
        decision.placements[i] = Placement::kLow;
      } else {
        rest_.push_back(i);
      }
    }
    Share(snapshot, &decision.placements);
    if (decode) decision.backfill = BackfillInDecode();
    return decision;
  }

 private:
  bool by_completion() const { return rule_.balance == CpuBalance::kByCompletion; }

  bool AnsweredLow(const MissView& miss) const {
    // If the CPU is done before the high version is loaded, a low answer saves nothing.
    const bool spared = rule_.spares_low && rule_.balance != CpuBalance::kNone &&
                        miss.cpu_ns >= 0 && miss.cpu_ns < miss.load_ns;
    return rule_.low_patience > 0 && !spared &&
           WorthAnsweringLow(miss.low_cost, rule_.low_patience);
  }

  /// Gives the CPU its share, by the balance, of the misses that are not answered low.
  void Share(const PlacementSnapshot& snapshot, std::vector<Placement>* placements) {
    if (rule_.balance == CpuBalance::kNone) return;
    items_.clear();
    item_of_.clear();
    int64_t load_all_ns = 0, load_only_ns = 0;
    for (const size_t i : rest_) {
      const MissView& miss = snapshot.misses[i];
      if (miss.arriving) {
        const bool sooner = miss.cpu_ns >= 0 && miss.cpu_ns < miss.load_ns;
        if (by_completion() && sooner) (*placements)[i] = Placement::kCpu;
        continue;
      }
      load_all_ns += miss.load_ns;
      if (miss.cpu_ns < 0) {  // the CPU cannot compute it
        load_only_ns += miss.load_ns;
        continue;
      }
      items_.push_back({miss.tokens, miss.load_ns, miss.cpu_ns});
      item_of_.push_back(i);
    }
    const Balance balance = by_completion()
                                ? BalanceByCompletion(items_, snapshot.link_busy_ns, load_only_ns)
                                : BalanceCpuLoad(items_, load_only_ns);
    // CPU time grows with the tokens, load time does not, so in prefill the CPU would be the
    // bottleneck. The paper keeps prefill off the CPU by a threshold on tokens. Here the measured
    // costs decide, which also covers large decode batches and slow CPUs.
    const int64_t done_ns = std::max(balance.load_ns, balance.cpu_ns);
    if (!by_completion() && done_ns >= load_all_ns) return;
    for (size_t i = 0; i < items_.size(); ++i) {
      if (balance.on_cpu[i]) (*placements)[item_of_[i]] = Placement::kCpu;
    }
  }

  /// Used in decode only: in prefill the link is needed for the next layer's loads.
  Backfill BackfillInDecode() const {
    // Experts that were answered low are loaded after the call, if the link is idle and it is worth
    // it.
    if (rule_.backfills || rule_.low_patience > 0) return Backfill::kAlways;
    // Fills free slots, or a cold cache would stay empty if the CPU is always faster. Algorithm 2
    // begins with a load, which fills the cache by itself.
    return by_completion() ? Backfill::kFreeSlots : Backfill::kNever;
  }

  const PlacementRule rule_;
  std::vector<size_t> rest_;  // scratch: misses that are not answered low
  std::vector<BalanceItem> items_;
  std::vector<size_t> item_of_;  // the miss of each item
};

}  // namespace

std::unique_ptr<PlacementPolicy> MakePlacementPolicy(const PlacementRule& rule) {
  return std::make_unique<PlacementByRule>(rule);
}

Promise PromiseOf(const PlacementPolicy* policy) {
  if (policy == nullptr) return Promise::kExact;
  const std::optional<PlacementRule> rule = policy->rule();
  return rule.has_value() ? rule->promise() : policy->traits().promise;
}

double MaxLowShare(const PlacementPolicy* policy) {
  if (policy == nullptr) return 0;
  const std::optional<PlacementRule> rule = policy->rule();
  return rule.has_value() ? rule->max_low_share : policy->traits().max_low_share;
}

bool Backfills(const PlacementPolicy* policy) {
  if (policy == nullptr) return false;
  const std::optional<PlacementRule> rule = policy->rule();
  return rule.has_value() ? rule->backfills : policy->traits().backfills;
}

}  // namespace moert
