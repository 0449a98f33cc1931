#include "parallel/layer_placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace moert {

LayerPlacement::LayerPlacement(const std::vector<double>& loads, RankRoom room,
                               std::vector<double> base_load)
    : loads_(loads),
      room_(std::move(room)),
      base_load_(std::move(base_load)),
      copies_(loads.size(), 1),
      own_(room_.experts.size()),
      load_(base_load_) {}

std::vector<std::vector<int32_t>> LayerPlacement::Place(bool copies) {
  if (copies) Copy();
  Deal();
  // Each swap lowers the highest load; a few do.
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
  if (copies_[e] == 1) return false;  // asked of those that have it not
  return std::find(own_[rank].begin(), own_[rank].end(), e) != own_[rank].end();
}

/// Room beyond one of each goes to the experts whose copies are the heaviest.
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

/// The heaviest first, each copy to the rank with the least load that has room and not yet the
/// expert, of equal ones to the lowest. A copy for which there is none is left out.
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
  // A gain by rounding alone is no gain.
  if (give == nullptr || lowest > load_[high] * (1 - 1e-9)) return false;
  const double moved = Load(*give) - Load(*take);
  load_[high] -= moved;
  load_[with] += moved;
  std::swap(*give, *take);
  return true;
}

}  // namespace moert
