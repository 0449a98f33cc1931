// The owners of one layer's experts: dealt out by load, then swapped while that helps.
#ifndef MOERT_LIB_PARALLEL_LAYER_PLACEMENT_H_
#define MOERT_LIB_PARALLEL_LAYER_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moert {

/// How many experts each rank may have; `one_more` of the ranks, whichever, one beyond that.
struct RankRoom {
  std::vector<size_t> experts;
  size_t one_more = 0;
};

class LayerPlacement {
 public:
  /// `room`: together for every expert at least. Room beyond that holds copies. `base_load`: a
  /// rank's other work.
  LayerPlacement(const std::vector<double>& loads, RankRoom room, std::vector<double> base_load);

  /// The experts of each rank, ascending. copies: whether experts may have several owners.
  std::vector<std::vector<int32_t>> Place(bool copies);
  /// The load of the most loaded rank of such a placement.
  double Highest(const std::vector<std::vector<int32_t>>& own) const;

 private:
  /// The load of one of its copies.
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

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_LAYER_PLACEMENT_H_
