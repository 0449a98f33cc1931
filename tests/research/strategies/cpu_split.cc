// cpu-split: the static split that llama.cpp makes of a mixture of experts (its option to keep the
// experts of the first N layers on the CPU): the last layers' experts live in the fast tier, the
// others are computed by the CPU where they are. Nothing moves once the fast tier is full.
//
// Approximations: the split is llama.cpp's, by layers from the last; the layer at the
// boundary is split by expert index, so that the whole budget is used (llama.cpp splits whole
// layers: this is in the baseline's favour). The fast tier fills at first use instead of at open.
// Where no CPU executor stands beside the fast tier (the CPU backend), what is not held is loaded
// for each use and dropped after it.
#include <memory>

#include "research/strategies/research_strategies.h"

namespace moert {
namespace {

/// Experts with an index below held[l] live in the fast tier.
using Split = std::vector<int>;

class StaticSplit final : public ResidencyPolicy {
 public:
  explicit StaticSplit(std::shared_ptr<Split> split) : split_(std::move(split)) {}

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    const std::vector<MoeLayerSpec>& layers = snapshot.model->layers;
    split_->assign(layers.size(), 0);
    int64_t slots = snapshot.slots;
    for (size_t l = layers.size(); l-- > 0 && slots > 0;) {
      (*split_)[l] = static_cast<int>(std::min<int64_t>(slots, layers[l].num_experts));
      slots -= (*split_)[l];
    }
    return *split_;
  }

  int Victim(const VictimSnapshot& snapshot) override {
    // Passing loads go first; a held expert leaves only if nothing else can.
    int victim = -1;
    for (size_t i = 0; i < snapshot.candidates.size(); ++i) {
      const ExpertKey key = snapshot.candidates[i].key;
      if (key.expert < (*split_)[key.layer]) continue;
      if (victim < 0 || snapshot.candidates[i].last_used < snapshot.candidates[victim].last_used) {
        victim = static_cast<int>(i);
      }
    }
    return victim >= 0 || snapshot.for_prefetch ? victim : LeastRecentlyUsed(snapshot.candidates);
  }

 private:
  const std::shared_ptr<Split> split_;
};

class OutsideOnCpu final : public PlacementPolicy {
 public:
  explicit OutsideOnCpu(std::shared_ptr<Split> split) : split_(std::move(split)) {}

  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    const size_t layer = static_cast<size_t>(snapshot.context.layer);
    const int held = layer < split_->size() ? (*split_)[layer] : 0;
    PlacementDecision decision;
    // llama.cpp copies weights to the device for batches of 32 tokens and more.
    const bool decode = snapshot.context.phase == Phase::kDecode;
    for (const MissView& miss : snapshot.misses) {
      const bool cpu = decode && miss.expert >= held && miss.cpu_ns >= 0;
      decision.placements.push_back(cpu ? Placement::kCpu : Placement::kLoad);
    }
    return decision;
  }

 private:
  const std::shared_ptr<Split> split_;
};

}  // namespace

absl::StatusOr<Strategy> BuildCpuSplit(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  const auto split = std::make_shared<Split>();
  strategy.residency = std::make_unique<StaticSplit>(split);
  strategy.placement = std::make_unique<OutsideOnCpu>(split);
  return strategy;
}

}  // namespace moert
