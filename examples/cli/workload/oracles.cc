#include "cli/workload/oracles.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "moert/policy.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Count {
  int64_t hits = 0, lookups = 0;
  double ratio() const {
    return lookups == 0 ? 1 : static_cast<double>(hits) / static_cast<double>(lookups);
  }
};

/// A cache that ranks what it holds by a key and gives up the highest. Keys of distinct objects may
/// be equal.
class RankedCache {
 public:
  RankedCache(int64_t objects, int64_t capacity) : capacity_(capacity), key_(objects, kAbsent) {}

  bool Holds(int64_t object) const { return key_[object] != kAbsent; }
  /// Uses an object: it is held, with the new key.
  void Use(int64_t object, int64_t key) {
    if (Holds(object)) held_.erase({key_[object], object});
    key_[object] = key;
    held_.insert({key, object});
  }
  /// Ends a call, whose objects are all needed at once: back to the capacity.
  void Trim() {
    while (static_cast<int64_t>(held_.size()) > capacity_) {
      const auto last = std::prev(held_.end());
      key_[last->second] = kAbsent;
      held_.erase(last);
    }
  }

 private:
  static constexpr int64_t kAbsent = std::numeric_limits<int64_t>::min();
  const int64_t capacity_;
  std::vector<int64_t> key_;
  std::set<std::pair<int64_t, int64_t>> held_;
};

/// When experts are needed, in calls.
struct Future {
  std::vector<int64_t> next;   // of each lookup, in order: its expert's next use
  std::vector<int64_t> first;  // of each expert: its first use
};

Future FutureOf(const RoutingHistory& history, const std::vector<int64_t>& index, int64_t objects) {
  int64_t lookups = 0;
  for (const auto& call : history.calls()) lookups += static_cast<int64_t>(call.experts.size());
  Future future;
  future.next.resize(lookups);
  future.first.assign(objects, kNever);
  int64_t at = lookups;
  for (int64_t c = static_cast<int64_t>(history.calls().size()) - 1; c >= 0; --c) {
    const auto& call = history.calls()[c];
    for (auto e = call.experts.rbegin(); e != call.experts.rend(); ++e) {
      int64_t& later = future.first[index[call.layer] + *e];
      future.next[--at] = later;
      later = c;
    }
  }
  return future;
}

struct Layout {
  std::vector<int64_t> first;  // index of each layer's expert 0
  int64_t objects = 0;
  std::vector<int> capacity;
};

Layout MakeLayout(const RoutingHistory& history, int64_t slots) {
  Layout layout;
  MoeModelSpec model;
  for (const int experts : history.experts_of_layer()) {
    layout.first.push_back(layout.objects);
    layout.objects += experts;
    model.layers.emplace_back().num_experts = experts;
  }
  layout.capacity = UniformCapacity(model, slots);
  return layout;
}

/// Runs caches and tells `each` the misses of every counted call. With a future they follow
/// Belady's MIN and begin full; without, LRU, and begin empty. `global`: one cache for all layers.
template <typename Each>
Count RunCaches(const RoutingHistory& history, const Layout& layout, const Future* future,
                bool global, Each each) {
  // Every cache could name every expert; those of other layers never come.
  std::vector<RankedCache> caches;
  int64_t all = 0;
  for (const int capacity : layout.capacity) all += capacity;
  for (size_t l = 0; l < layout.capacity.size(); ++l) {
    if (!global || l == 0) caches.emplace_back(layout.objects, global ? all : layout.capacity[l]);
    if (future == nullptr) continue;
    RankedCache& cache = caches.back();
    for (int e = 0; e < history.experts_of_layer()[l]; ++e) {
      const int64_t object = layout.first[l] + e;
      if (future->first[object] != kNever) cache.Use(object, future->first[object]);
    }
    cache.Trim();
  }
  Count count;
  int64_t lookup = 0;
  for (size_t c = 0; c < history.calls().size(); ++c) {
    const auto& call = history.calls()[c];
    RankedCache& cache = caches[global ? 0 : call.layer];
    const int64_t first = layout.first[call.layer];
    int64_t hits = 0;
    for (const int32_t e : call.experts) hits += cache.Holds(first + e);
    for (const int32_t e : call.experts) {
      cache.Use(first + e, future != nullptr ? future->next[lookup] : -static_cast<int64_t>(c));
      ++lookup;
    }
    cache.Trim();
    if (!call.counted) continue;
    count.hits += hits;
    count.lookups += static_cast<int64_t>(call.experts.size());
    each(call, static_cast<int64_t>(call.experts.size()) - hits);
  }
  return count;
}

const auto kNothing = [](const RoutingHistory::Call&, int64_t) {};

double HighSet(const RoutingHistory& history, const Layout& layout) {
  std::vector<std::vector<int64_t>> uses;
  for (const int experts : history.experts_of_layer()) uses.emplace_back(experts, 0);
  for (const auto& call : history.calls()) {
    if (!call.counted) continue;
    for (size_t i = 0; i < call.experts.size(); ++i) {
      uses[call.layer][call.experts[i]] += call.tokens[i];
    }
  }
  int64_t answered = 0, slots = 0;
  for (size_t l = 0; l < uses.size(); ++l) {
    std::sort(uses[l].begin(), uses[l].end(), std::greater<>());
    slots += std::accumulate(uses[l].begin(), uses[l].end(), int64_t{0});
    answered += std::accumulate(uses[l].begin(), uses[l].begin() + layout.capacity[l], int64_t{0});
  }
  return slots == 0 ? 1 : static_cast<double>(answered) / static_cast<double>(slots);
}

}  // namespace

absl::StatusOr<RoutingHistory> RoutingHistory::Read(TraceReader* trace, int64_t warm_steps,
                                                    int64_t max_steps) {
  MOERT_RETURN_IF_ERROR(trace->Rewind());
  RoutingHistory history;
  for (const MoeLayerSpec& layer : trace->header().model.layers) {
    history.experts_.push_back(layer.num_experts);
  }
  std::vector<int32_t> counts;
  int64_t steps = 0, last = -1;
  while (true) {
    MOERT_ASSIGN_OR_RETURN(const TraceCall* call, trace->Next());
    if (call == nullptr) break;
    if (call->step != last) {
      if (max_steps > 0 && steps == max_steps) break;
      ++steps;
      last = call->step;
      history.counted_steps_ += steps > warm_steps;
    }
    Call& kept = history.calls_.emplace_back();
    kept.layer = call->layer;
    kept.counted = steps > warm_steps;
    counts.assign(history.experts_[call->layer], 0);
    for (const int32_t e : call->ids) ++counts[e];
    for (size_t e = 0; e < counts.size(); ++e) {
      if (counts[e] == 0) continue;
      kept.experts.push_back(static_cast<int32_t>(e));
      kept.tokens.push_back(counts[e]);
    }
  }
  return history;
}

Oracles ComputeOracles(const RoutingHistory& history, int64_t slots) {
  const Layout layout = MakeLayout(history, slots);
  const Future future = FutureOf(history, layout.first, layout.objects);
  Oracles oracles;
  oracles.belady_layer = RunCaches(history, layout, &future, false, kNothing).ratio();
  oracles.belady_global = RunCaches(history, layout, &future, true, kNothing).ratio();
  oracles.lru = RunCaches(history, layout, nullptr, false, kNothing).ratio();
  oracles.high_set = HighSet(history, layout);
  return oracles;
}

PrefetchBound PerfectPrefetch(const RoutingHistory& history, int64_t slots, double layer_ms,
                              double transfer_ms) {
  const Layout layout = MakeLayout(history, slots);
  const Future future = FutureOf(history, layout.first, layout.objects);
  const auto steps = static_cast<double>(std::max<int64_t>(1, history.counted_steps()));
  const auto bound = [&](const Future* known) {
    double ms = 0;
    RunCaches(history, layout, known, false, [&](const RoutingHistory::Call&, int64_t misses) {
      ms += layer_ms + std::max(0.0, static_cast<double>(misses) * transfer_ms - layer_ms);
    });
    return ms / steps;
  };
  return {bound(nullptr), bound(&future)};
}

nlohmann::json ToJson(const Oracles& o) {
  return {{"belady_layer", o.belady_layer},
          {"belady_global", o.belady_global},
          {"lru", o.lru},
          {"high_set", o.high_set}};
}

}  // namespace moert::cli
