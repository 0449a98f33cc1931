// Which rank owns which experts, by how much work each is.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "base/exception_status.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "moert/shard.h"

namespace moert {
namespace {

absl::Status CheckLoads(const MoeModelSpec& model, absl::Span<const std::vector<double>> loads,
                        int ranks) {
  if (loads.size() != model.layers.size()) {
    return absl::InvalidArgumentError(
        fmt::format("loads of {} layers; the model has {}", loads.size(), model.layers.size()));
  }
  for (size_t l = 0; l < loads.size(); ++l) {
    const int experts = model.layers[l].num_experts;
    if (ranks < 1 || ranks > experts) {
      return absl::InvalidArgumentError(fmt::format(
          "{} ranks: must be in [1, {}], an expert of layer {} for each", ranks, experts, l));
    }
    if (loads[l].size() != static_cast<size_t>(experts)) {
      return absl::InvalidArgumentError(fmt::format("loads of {} experts in layer {}, which has {}",
                                                    loads[l].size(), l, experts));
    }
    for (size_t e = 0; e < loads[l].size(); ++e) {
      if (std::isfinite(loads[l][e]) && loads[l][e] >= 0) continue;
      return absl::InvalidArgumentError(
          fmt::format("load {} of layer {} expert {}: must be 0 or more", loads[l][e], l, e));
    }
  }
  return absl::OkStatus();
}

/// The owners of a layer's experts.
class LayerPlacement {
 public:
  LayerPlacement(const std::vector<double>& loads, int ranks, double shared_load)
      : loads_(loads), own_(static_cast<size_t>(ranks)), load_(static_cast<size_t>(ranks)) {
    load_[0] = shared_load;
  }

  std::vector<std::vector<int32_t>> Place() {
    Deal();
    // Each swap lowers the highest load; a few do.
    for (size_t i = 0; i < loads_.size() && Swap(); ++i) {
    }
    for (std::vector<int32_t>& experts : own_) std::sort(experts.begin(), experts.end());
    return std::move(own_);
  }

 private:
  double Load(int32_t e) const { return loads_[static_cast<size_t>(e)]; }

  /// The heaviest first, each to the rank with the least load that has room, of equal ones to the
  /// lowest.
  void Deal() {
    std::vector<int32_t> heaviest(loads_.size());
    std::iota(heaviest.begin(), heaviest.end(), 0);
    std::stable_sort(heaviest.begin(), heaviest.end(),
                     [&](int32_t a, int32_t b) { return Load(a) > Load(b); });
    const size_t each = loads_.size() / own_.size();
    size_t one_more = loads_.size() % own_.size();  // ranks that get one
    for (const int32_t e : heaviest) {
      size_t best = own_.size();
      for (size_t r = 0; r < own_.size(); ++r) {
        const bool room = own_[r].size() < each || (own_[r].size() == each && one_more > 0);
        if (room && (best == own_.size() || load_[r] < load_[best])) best = r;
      }
      if (own_[best].size() == each) --one_more;
      own_[best].push_back(e);
      load_[best] += Load(e);
    }
  }

  /// Swaps an expert of the most loaded rank for one of another so that the higher load of the two
  /// falls as far as it can. False: no swap lowers it.
  bool Swap() {
    const auto high =
        static_cast<size_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
    double lowest = load_[high];
    size_t with = high;
    int32_t *give = nullptr, *take = nullptr;
    for (size_t r = 0; r < own_.size(); ++r) {
      if (r == high) continue;
      for (int32_t& a : own_[high]) {
        for (int32_t& b : own_[r]) {
          const double moved = Load(a) - Load(b);
          const double higher = std::max(load_[high] - moved, load_[r] + moved);
          if (higher >= lowest) continue;
          lowest = higher;
          with = r;
          give = &a;
          take = &b;
        }
      }
    }
    // What rounding alone would gain is no gain.
    if (give == nullptr || lowest > load_[high] * (1 - 1e-9)) return false;
    const double moved = Load(*give) - Load(*take);
    load_[high] -= moved;
    load_[with] += moved;
    std::swap(*give, *take);
    return true;
  }

  const std::vector<double>& loads_;
  std::vector<std::vector<int32_t>> own_;  // [ranks]
  std::vector<double> load_;               // [ranks]
};

}  // namespace

absl::StatusOr<std::vector<Shard>> PlaceExperts(const MoeModelSpec& model,
                                                absl::Span<const std::vector<double>> loads,
                                                int ranks, double shared_load) try {
  MOERT_RETURN_IF_ERROR(CheckLoads(model, loads, ranks));
  if (!(std::isfinite(shared_load) && shared_load >= 0)) {
    return absl::InvalidArgumentError(
        fmt::format("shared_load {}: must be 0 or more", shared_load));
  }
  std::vector<Shard> shards(static_cast<size_t>(ranks));
  if (ranks == 1) return shards;
  for (size_t l = 0; l < loads.size(); ++l) {
    const bool shared = model.layers[l].shared_intermediate > 0;
    auto own = LayerPlacement(loads[l], ranks, shared ? shared_load : 0).Place();
    for (size_t r = 0; r < own.size(); ++r) shards[r].experts.push_back(std::move(own[r]));
  }
  for (size_t r = 0; r < shards.size(); ++r) shards[r].shared_experts = r == 0;
  return shards;
} catch (...) {
  return ExceptionStatus("placing experts");
}

}  // namespace moert
