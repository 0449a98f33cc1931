// Hindsight bounds: what the best possible decisions would have reached on the same routing, to
// compare a measured gain with the possible one.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_ORACLES_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_ORACLES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/tools/trace.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

/// A run's routing, as far as bounds need it: the distinct experts of every layer call.
class RoutingHistory {
 public:
  /// Reads a trace from its beginning, at most `max_steps` (0: all). Steps before `warm_steps` fill
  /// caches and are not counted.
  static absl::StatusOr<RoutingHistory> Read(TraceReader* trace, int64_t warm_steps,
                                             int64_t max_steps = 0);

  struct Call {
    int layer = 0;
    bool counted = false;
    std::vector<int32_t> experts;  // distinct
    std::vector<int32_t> tokens;   // of each
  };
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<int>& experts_of_layer() const { return experts_; }
  int64_t counted_steps() const { return counted_steps_; }

 private:
  std::vector<Call> calls_;
  std::vector<int> experts_;
  int64_t counted_steps_ = 0;
};

struct Oracles {
  /// Share of lookups that caches which know the future would hit, with nothing prefetched: one
  /// cache a layer, slots dealt uniformly; and one for all layers. Belady's MIN, and a miss need
  /// not displace anything; caches begin full of what is used first, so that the bound holds for
  /// strategies that load at open. No demand-fetching policy hits more.
  double belady_layer = 0;
  double belady_global = 0;
  /// LRU, uniform, in the same terms.
  double lru = 0;
  /// Share of token-expert slots that the most used experts of each layer answer, as many as the
  /// layer has slots, chosen in hindsight over the counted steps: the best fixed high-precision
  /// set.
  double high_set = 0;
};
Oracles ComputeOracles(const RoutingHistory& history, int64_t slots);

/// Mean time of a step if every layer's misses were known one layer ahead, exactly, and their
/// transfers began then on an idle link: a layer waits only for the part of them that exceeds the
/// time of the layer before it.
struct PrefetchBound {
  double lru_ms = 0;     // misses of LRU
  double belady_ms = 0;  // misses of Belady's MIN, one cache per layer
};
PrefetchBound PerfectPrefetch(const RoutingHistory& history, int64_t slots, double layer_ms,
                              double transfer_ms);

nlohmann::json ToJson(const Oracles& oracles);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_ORACLES_H_
