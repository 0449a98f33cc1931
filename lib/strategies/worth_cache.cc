#include "strategies/worth_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "strategies/use_estimate.h"

namespace moert {
namespace {

class WorthCache final : public ResidencyPolicy {
 public:
  explicit WorthCache(std::unique_ptr<CapacityRule> rule) : rule_(std::move(rule)) {}

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    return rule_->Capacity(snapshot);
  }

  void Observe(const LayerEvent& event) override {
    switch (event.kind) {
      case LayerEvent::Kind::kRouted: {
        Layer& layer = At(*event.context.model, event.context.layer);
        // What this order would have held when the call came.
        rule_->Observe(event, layer.use.Order());
        layer.use.Observe(event.routing);
        std::fill(layer.pending.begin(), layer.pending.end(), 0);
        layer.inserted += kInsertedWeight * (layer.insertions - layer.inserted);
        layer.insertions = 0;
        return;
      }
      case LayerEvent::Kind::kInserted:
        if (layers_.empty()) return;
        layers_[event.key.layer].pending[event.key.expert] = event.prefetched;
        ++layers_[event.key.layer].insertions;
        return;
      case LayerEvent::Kind::kEvicted:
        if (!layers_.empty()) layers_[event.key.layer].pending[event.key.expert] = 0;
        return;
    }
  }

  int Victim(const VictimSnapshot& snapshot) override {
    int victim = -1;
    for (int i = 0; i < static_cast<int>(snapshot.candidates.size()); ++i) {
      const VictimCandidate& c = snapshot.candidates[i];
      // One prediction does not push out another before that had its chance.
      if (snapshot.for_prefetch && Pending(c.key)) continue;
      if (victim < 0 || Before(c, snapshot.candidates[victim])) victim = i;
    }
    if (victim < 0 || !snapshot.for_prefetch) return victim;
    return Pays(snapshot, snapshot.candidates[victim].key) ? victim : -1;
  }

 private:
  static constexpr double kInsertedWeight = 1.0 / 64;

  struct Layer {
    explicit Layer(int experts) : use(experts), pending(experts, 0) {}
    UseEstimate use;
    std::vector<uint8_t> pending;  // prefetched for a routing that has not come
    int insertions = 0;            // since the last call
    double inserted = 1;           // mean of a call
  };

  Layer& At(const MoeModelSpec& model, int layer) {
    if (layers_.empty()) {
      std::vector<Layer> layers;  // all or none, where memory runs out
      layers.reserve(model.layers.size());
      for (const MoeLayerSpec& spec : model.layers) layers.emplace_back(spec.num_experts);
      layers_ = std::move(layers);
    }
    return layers_[layer];
  }

  bool Pending(ExpertKey key) const {
    return !layers_.empty() && layers_[key.layer].pending[key.expert] != 0;
  }

  double Worth(ExpertKey key) const {
    return layers_.empty() ? 0 : layers_[key.layer].use.Worth(key.expert);
  }

  bool Before(const VictimCandidate& a, const VictimCandidate& b) const {
    const bool pending_a = Pending(a.key), pending_b = Pending(b.key);
    if (pending_a != pending_b) return pending_b;
    const double worth_a = Worth(a.key), worth_b = Worth(b.key);
    if (worth_a != worth_b) return worth_a < worth_b;
    return std::max(a.last_used, a.inserted) < std::max(b.last_used, b.inserted);
  }

  bool Pays(const VictimSnapshot& snapshot, ExpertKey victim) const {
    // Clearly more where a CPU spares its transfer, or experts of about equal worth would go round.
    constexpr double kDispensable = 0.2;
    const double incoming = Worth(snapshot.incoming), leaving = Worth(victim);
    if (snapshot.dispensable) return incoming > (1 + kDispensable) * leaving;
    if (snapshot.probability < 0 || layers_.empty()) return true;
    // A right prefetch replaces whom the load would have. A wrong one costs the uses that the
    // victim would have had until it had to leave anyway, about a call over the calls' insertions.
    const double horizon = 1 / std::max(kInsertedWeight, layers_[victim.layer].inserted);
    const double lost = (1 - snapshot.probability) * (leaving - incoming) * horizon;
    return snapshot.probability * snapshot.hidden > lost;
  }

  const std::unique_ptr<CapacityRule> rule_;
  std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<ResidencyPolicy> MakeWorthCache(std::unique_ptr<CapacityRule> rule) {
  return std::make_unique<WorthCache>(std::move(rule));
}

}  // namespace moert
