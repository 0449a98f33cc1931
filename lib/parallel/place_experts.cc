// Assigns experts to ranks by their load.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "moert/parallel/placement.h"
#include "moert/parallel/shard.h"

namespace moert {
namespace {

/// How many experts each rank may have. Any `one_more` of the ranks may have one in addition.
struct RankRoom {
  std::vector<size_t> experts;
  size_t one_more = 0;
};

/// The owners of one layer's experts: dealt out by load, then swapped while that helps.
class LayerPlacement {
 public:
  /// `room`: must hold every expert; room beyond that holds copies. `base_load`: the other load of
  /// each rank.
  LayerPlacement(const std::vector<double>& loads, RankRoom room, std::vector<double> base_load);

  /// The experts of each rank, ascending. copies: whether experts may have several owners.
  std::vector<std::vector<int32_t>> PlaceAll(bool copies);
  /// The load of the most loaded rank of such a placement.
  double Highest(const std::vector<std::vector<int32_t>>& own) const;

 private:
  /// The load of one copy of an expert.
  double Load(int32_t e) const {
    const auto i = static_cast<size_t>(e);
    return loads_[i] / copies_[i];
  }
  bool Has(size_t rank, int32_t e) const;
  void Copy();
  void Deal();
  bool Swap();

  const std::vector<double>& loads_;
  const RankRoom room_;
  const std::vector<double> base_load_;
  std::vector<int> copies_;                // of each expert
  std::vector<std::vector<int32_t>> own_;  // [ranks]
  std::vector<double> load_;               // [ranks]
};

LayerPlacement::LayerPlacement(const std::vector<double>& loads, RankRoom room,
                               std::vector<double> base_load)
    : loads_(loads),
      room_(std::move(room)),
      base_load_(std::move(base_load)),
      copies_(loads.size(), 1),
      own_(room_.experts.size()),
      load_(base_load_) {}

std::vector<std::vector<int32_t>> LayerPlacement::PlaceAll(bool copies) {
  if (copies) Copy();
  Deal();
  // Each swap lowers the highest load; a few swaps are enough.
  for (size_t i = 0; i < loads_.size() && Swap(); ++i) {
  }
  for (std::vector<int32_t>& experts : own_) std::sort(experts.begin(), experts.end());
  return std::move(own_);
}

double LayerPlacement::Highest(const std::vector<std::vector<int32_t>>& own) const {
  std::vector<int> owners(loads_.size());
  for (const std::vector<int32_t>& experts : own) {
    for (const int32_t e : experts) ++owners[e];
  }
  double highest = 0;
  for (size_t r = 0; r < own.size(); ++r) {
    double load = base_load_[r];
    for (const int32_t e : own[r]) {
      load += loads_[e] / owners[e];
    }
    highest = std::max(highest, load);
  }
  return highest;
}

bool LayerPlacement::Has(size_t rank, int32_t e) const {
  if (copies_[e] == 1) return false;  // only asked for ranks that do not own the single copy
  return std::find(own_[rank].begin(), own_[rank].end(), e) != own_[rank].end();
}

/// Uses the room beyond one copy of each expert for the experts whose copies are the heaviest.
void LayerPlacement::Copy() {
  size_t room = std::accumulate(room_.experts.begin(), room_.experts.end(), room_.one_more);
  room -= loads_.size();
  const int most = static_cast<int>(own_.size());
  for (; room > 0; --room) {
    int32_t heaviest = -1;
    for (int32_t e = 0; e < static_cast<int32_t>(loads_.size()); ++e) {
      if (copies_[e] == most || Load(e) == 0) continue;
      if (heaviest < 0 || Load(e) > Load(heaviest)) heaviest = e;
    }
    if (heaviest < 0) return;
    ++copies_[heaviest];
  }
}

/// Deals out copies, the heaviest first. Each goes to the rank with the least load that has room
/// and does not have the expert yet; among equals to the lowest rank. A copy without such a rank is
/// dropped.
void LayerPlacement::Deal() {
  std::vector<int32_t> heaviest(loads_.size());
  std::iota(heaviest.begin(), heaviest.end(), 0);
  std::stable_sort(heaviest.begin(), heaviest.end(),
                   [&](int32_t a, int32_t b) { return Load(a) > Load(b); });
  size_t one_more = room_.one_more;
  for (const int32_t e : heaviest) {
    std::vector<size_t> owners;
    for (int c = 0; c < copies_[e]; ++c) {
      size_t best = own_.size();
      for (size_t r = 0; r < own_.size(); ++r) {
        const bool has = std::find(owners.begin(), owners.end(), r) != owners.end();
        const bool full = own_[r].size() >= room_.experts[r] + (one_more > 0 ? 1 : 0);
        if (has || full) continue;
        if (best == own_.size() || load_[r] < load_[best]) best = r;
      }
      if (best == own_.size()) break;
      owners.push_back(best);
    }
    copies_[e] = static_cast<int>(owners.size());
    for (const size_t r : owners) {
      if (own_[r].size() == room_.experts[r]) --one_more;
      own_[r].push_back(e);
      load_[r] += Load(e);
    }
  }
}

/// Swaps an expert of the most loaded rank for one of another so that the higher load of the two
/// falls as far as it can. False: no swap lowers it.
bool LayerPlacement::Swap() {
  const auto high =
      static_cast<size_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
  double lowest = load_[high];
  size_t with = high;
  int32_t *give = nullptr, *take = nullptr;
  for (size_t r = 0; r < own_.size(); ++r) {
    if (r == high) continue;
    for (int32_t& a : own_[high]) {
      if (Has(r, a)) continue;
      for (int32_t& b : own_[r]) {
        const double moved = Load(a) - Load(b);
        const double higher = std::max(load_[high] - moved, load_[r] + moved);
        if (higher >= lowest || Has(high, b)) continue;
        lowest = higher;
        with = r;
        give = &a;
        take = &b;
      }
    }
  }
  // Ignores a gain that is due to rounding alone.
  if (give == nullptr || lowest > load_[high] * (1 - 1e-9)) return false;
  const double moved = Load(*give) - Load(*take);
  load_[high] -= moved;
  load_[with] += moved;
  std::swap(*give, *take);
  return true;
}

absl::Status CheckLoads(const MoeModelSpec& model, absl::Span<const std::vector<double>> loads,
                        int ranks) {
  if (loads.size() != model.layers.size()) {
    return InvalidArgument("loads of {} layers; the model has {}", loads.size(),
                           model.layers.size());
  }
  for (size_t l = 0; l < loads.size(); ++l) {
    const int experts = model.layers[l].num_experts;
    if (ranks < 1 || ranks > experts) {
      return InvalidArgument("{} ranks: must be in [1, {}], an expert of layer {} for each", ranks,
                             experts, l);
    }
    if (loads[l].size() != static_cast<size_t>(experts)) {
      return InvalidArgument("loads of {} experts in layer {}, which has {}", loads[l].size(), l,
                             experts);
    }
    for (size_t e = 0; e < loads[l].size(); ++e) {
      if (std::isfinite(loads[l][e]) && loads[l][e] >= 0) continue;
      return InvalidArgument("load {} of layer {} expert {}: must be 0 or more", loads[l][e], l, e);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSharedLoad(double shared_load) {
  if (std::isfinite(shared_load) && shared_load >= 0) return absl::OkStatus();
  return InvalidArgument("shared_load {}: must be 0 or more", shared_load);
}

/// Rank 0 has the shared experts.
std::vector<double> BaseLoad(const MoeLayerSpec& layer, int ranks, double shared_load) {
  std::vector<double> load(ranks);
  if (layer.shared_intermediate > 0) load[0] = shared_load;
  return load;
}

RankRoom EvenRoom(size_t experts, int ranks) {
  const auto n = static_cast<size_t>(ranks);
  return {std::vector<size_t>(n, experts / n), experts % n};
}

absl::StatusOr<RankRoom> RoomOf(const MoeLayerSpec& layer, int ranks,
                                const std::vector<int>& capacity) {
  const auto experts = static_cast<size_t>(layer.num_experts);
  if (capacity.empty()) return EvenRoom(experts, ranks);
  RankRoom room;
  size_t all = 0;
  for (const int each : capacity) {
    room.experts.push_back(std::min(experts, static_cast<size_t>(each)));
    all += room.experts.back();
  }
  if (all >= experts) return room;
  return InvalidArgument("capacity: room for {} experts; layer {} has {}", all, layer.model_layer,
                         experts);
}

absl::Status CheckReplicaOptions(const MoeModelSpec& model, int ranks,
                                 const ReplicaOptions& options) {
  MOERT_RETURN_IF_ERROR(CheckSharedLoad(options.shared_load));
  if (!options.capacity.empty() && options.capacity.size() != static_cast<size_t>(ranks)) {
    return InvalidArgument("capacity of {} ranks; there are {}", options.capacity.size(), ranks);
  }
  for (const int each : options.capacity) {
    if (each >= 0) continue;
    return InvalidArgument("capacity {}: must be 0 or more", each);
  }
  if (!(options.gain >= 0 && options.gain <= 1)) {
    return InvalidArgument("gain {}: must be in [0, 1]", options.gain);
  }
  if (options.previous == nullptr) return absl::OkStatus();
  if (options.previous->ranks != ranks) {
    return InvalidArgument("previous: of {} ranks; there are {}", options.previous->ranks, ranks);
  }
  return CheckPlacement(model, *options.previous);
}

/// The experts of each rank.
std::vector<std::vector<int32_t>> OwnOf(const std::vector<std::vector<int32_t>>& owners,
                                        int ranks) {
  std::vector<std::vector<int32_t>> own(ranks);
  for (size_t e = 0; e < owners.size(); ++e) {
    for (const int32_t r : owners[e]) own[r].push_back(static_cast<int32_t>(e));
  }
  return own;
}

/// The inverse: the owners of each expert.
std::vector<std::vector<int32_t>> OwnersOf(const std::vector<std::vector<int32_t>>& own,
                                           size_t experts) {
  std::vector<std::vector<int32_t>> owners(experts);
  for (size_t r = 0; r < own.size(); ++r) {
    for (const int32_t e : own[r]) owners[e].push_back(static_cast<int32_t>(r));
  }
  return owners;
}

bool Fits(const std::vector<std::vector<int32_t>>& own, const RankRoom& room) {
  size_t beyond = 0;
  for (size_t r = 0; r < own.size(); ++r) {
    if (own[r].size() > room.experts[r]) beyond += own[r].size() - room.experts[r];
  }
  return beyond <= room.one_more;
}

}  // namespace

absl::StatusOr<std::vector<Shard>> PlaceExperts(const MoeModelSpec& model,
                                                absl::Span<const std::vector<double>> loads,
                                                int ranks, double shared_load) try {
  MOERT_RETURN_IF_ERROR(CheckLoads(model, loads, ranks));
  MOERT_RETURN_IF_ERROR(CheckSharedLoad(shared_load));
  std::vector<Shard> shards(ranks);
  if (ranks == 1) return shards;
  for (size_t l = 0; l < loads.size(); ++l) {
    auto own = LayerPlacement(loads[l], EvenRoom(loads[l].size(), ranks),
                              BaseLoad(model.layers[l], ranks, shared_load))
                   .PlaceAll(/*copies=*/false);
    for (size_t r = 0; r < own.size(); ++r) shards[r].experts.push_back(std::move(own[r]));
  }
  for (size_t r = 0; r < shards.size(); ++r) shards[r].shared_experts = r == 0;
  return shards;
} catch (...) {
  return ExceptionStatus("placing experts");
}

absl::Status CheckPlacement(const MoeModelSpec& model, const ExpertPlacement& placement) try {
  if (placement.owners.size() != model.layers.size()) {
    return InvalidArgument("placement: owners in {} layers; the model has {}",
                           placement.owners.size(), model.layers.size());
  }
  for (size_t l = 0; l < placement.owners.size(); ++l) {
    if (placement.owners[l].size() != static_cast<size_t>(model.layers[l].num_experts)) {
      return InvalidArgument("placement: owners of {} experts in layer {}, which has {}",
                             placement.owners[l].size(), l, model.layers[l].num_experts);
    }
    for (size_t e = 0; e < placement.owners[l].size(); ++e) {
      const std::vector<int32_t>& owners = placement.owners[l][e];
      bool right = !owners.empty() && owners.front() >= 0 && owners.back() < placement.ranks;
      for (size_t i = 1; i < owners.size(); ++i) right = right && owners[i - 1] < owners[i];
      if (right) continue;
      return InvalidArgument(
          "placement: layer {} expert {}: owners [{}]: ranks of [0, {}), ascending, at least one",
          l, e, fmt::join(owners, ", "), placement.ranks);
    }
  }
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("checking a placement");
}

absl::StatusOr<ExpertPlacement> PlaceReplicas(const MoeModelSpec& model,
                                              absl::Span<const std::vector<double>> loads,
                                              int ranks, const ReplicaOptions& options) try {
  MOERT_RETURN_IF_ERROR(CheckLoads(model, loads, ranks));
  MOERT_RETURN_IF_ERROR(CheckReplicaOptions(model, ranks, options));
  ExpertPlacement placement;
  placement.ranks = ranks;
  for (size_t l = 0; l < loads.size(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    MOERT_ASSIGN_OR_RETURN(const RankRoom room, RoomOf(layer, ranks, options.capacity));
    const std::vector<double> base = BaseLoad(layer, ranks, options.shared_load);
    LayerPlacement place(loads[l], room, base);
    std::vector<std::vector<int32_t>> own = place.PlaceAll(/*copies=*/true);
    auto alone = LayerPlacement(loads[l], room, base).PlaceAll(/*copies=*/false);
    if (place.Highest(alone) <= place.Highest(own)) own = std::move(alone);
    if (options.previous != nullptr) {
      std::vector<std::vector<int32_t>> before = OwnOf(options.previous->owners[l], ranks);
      const double most = place.Highest(before);
      if (Fits(before, room) && place.Highest(own) >= most * (1 - options.gain)) {
        own = std::move(before);
      }
    }
    placement.owners.push_back(OwnersOf(own, loads[l].size()));
  }
  return placement;
} catch (...) {
  return ExceptionStatus("placing experts");
}

}  // namespace moert
