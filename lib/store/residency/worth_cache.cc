// WorthCache: a cache that keeps the experts that the next calls will want most, by UseEstimate.
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/ewma.h"
#include "store/residency/cache_policy.h"
#include "store/residency/capacity.h"
#include "store/residency/use_estimate.h"
#include "store/state_bytes.h"

namespace moert {
namespace {

class WorthCache : public CachePolicy {
 public:
  explicit WorthCache(const ResidencyRule& rule)
      : rule_(rule), dealer_(MakeSlotDealer(rule.capacity)) {}

  std::optional<ResidencyRule> rule() const override { return rule_; }

  int64_t StateBytes(const PolicyScope& scope) const override {
    constexpr int64_t kExpert = UseEstimate::kBytesPerExpert + 2;
    return PerExpert(scope, kExpert) +
           scope.model->num_layers() * int64_t{sizeof(Layer) + sizeof(int64_t)} +
           PerLayerExpert(scope, sizeof(int32_t)) + dealer_->StateBytes(scope);
  }

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    MakeLayers(*snapshot.model);
    return dealer_->Capacity(snapshot);
  }

  void Observe(const LayerEvent& event) override {
    switch (event.kind) {
      case LayerEvent::Kind::kRouted: {
        MakeLayers(*event.context.model);
        Layer& layer = layers_[event.context.layer];
        // Before the update: the order in which the cache kept experts when the call came.
        dealer_->Observe(event, layer.use.Order());
        layer.use.Observe(event.routing);
        std::fill(layer.pending.begin(), layer.pending.end(), 0);
        layer.inserted += running_mean::kInserted.weight * (layer.insertions - layer.inserted);
        layer.insertions = 0;
        layer.least.reset();
        return;
      }
      case LayerEvent::Kind::kInserted: {
        if (layers_.empty()) return;
        Layer& layer = layers_[event.key.layer];
        layer.pending[event.key.expert] = event.prefetched;
        ++layer.insertions;
        layer.demanded +=
            running_mean::kDemanded.weight * ((event.prefetched ? 0 : 1) - layer.demanded);
        Hold(event.key, 1);
        return;
      }
      case LayerEvent::Kind::kEvicted:
        if (layers_.empty()) return;
        layers_[event.key.layer].pending[event.key.expert] = 0;
        Hold(event.key, 0);
        return;
    }
  }

  int Victim(const VictimSnapshot& snapshot) override {
    int victim = -1;
    for (int i = 0; i < static_cast<int>(snapshot.candidates.size()); ++i) {
      const VictimCandidate& c = snapshot.candidates[i];
      // A prefetch does not evict another prefetched expert before the routing it was meant for.
      if (snapshot.for_prefetch && Pending(c.key)) continue;
      if (victim < 0 || Before(c, snapshot.candidates[victim])) victim = i;
    }
    if (victim < 0 || !snapshot.for_prefetch) return victim;
    return Pays(snapshot, snapshot.candidates[victim].key) ? victim : -1;
  }

  void LendUse(int layer, int experts, LentLayer* loan) const override {
    loan->use.resize(experts);
    if (layers_.empty()) return;
    const Layer& mine = layers_[layer];
    loan->calls = mine.use.calls();
    loan->inserted = mine.inserted;
    loan->use.assign(mine.use.use().begin(), mine.use.use().end());
  }
  void ResumeUse(int layer, const LentLayer& loan) override {
    if (layers_.empty()) return;
    Layer& mine = layers_[layer];
    mine.use.Resume(loan.calls, loan.use);
    mine.inserted = loan.inserted;
    std::fill(mine.pending.begin(), mine.pending.end(), 0);
    mine.insertions = 0;
    mine.least.reset();
  }

 protected:
  struct Layer {
    explicit Layer(int experts) : use(experts), pending(experts, 0), held(experts, 0) {}
    /// The worth of the expert that would leave first; infinite if none may leave. `spared` [E]:
    /// experts with a value above 0 may not leave; empty: all may.
    double Least(absl::Span<const int32_t> spared) const {
      double least = std::numeric_limits<double>::infinity();
      for (size_t e = 0; e < held.size(); ++e) {
        if (held[e] == 0 || pending[e] != 0 || (!spared.empty() && spared[e] > 0)) continue;
        least = std::min(least, use.Worth(static_cast<int>(e)));
      }
      return least;
    }

    UseEstimate use;
    std::vector<uint8_t> pending;  // prefetched for a routing that has not come
    std::vector<uint8_t> held;     // in the cache
    std::optional<double> least;   // Least({}), if known
    int insertions = 0;            // since the last call
    double inserted = 1;           // mean number of insertions per call
    double demanded = 1;           // share of insertions that a call waits for
  };

  double Worth(ExpertKey key) const {
    return layers_.empty() ? 0 : layers_[key.layer].use.Worth(key.expert);
  }

  std::vector<Layer> layers_;

 private:
  void Hold(ExpertKey key, uint8_t held) {
    layers_[key.layer].held[key.expert] = held;
    layers_[key.layer].least.reset();
  }

  void MakeLayers(const MoeModelSpec& model) {
    if (!layers_.empty()) return;
    std::vector<Layer> layers;  // all or none, if memory runs out
    layers.reserve(model.layers.size());
    for (const MoeLayerSpec& spec : model.layers) layers.emplace_back(spec.num_experts);
    layers_ = std::move(layers);
  }

  bool Pending(ExpertKey key) const {
    return !layers_.empty() && layers_[key.layer].pending[key.expert] != 0;
  }

  bool Before(const VictimCandidate& a, const VictimCandidate& b) const {
    const bool pending_a = Pending(a.key), pending_b = Pending(b.key);
    if (pending_a != pending_b) return pending_b;
    const double worth_a = Worth(a.key), worth_b = Worth(b.key);
    if (worth_a != worth_b) return worth_a < worth_b;
    return std::max(a.last_used, a.inserted) < std::max(b.last_used, b.inserted);
  }

  bool Pays(const VictimSnapshot& snapshot, ExpertKey victim) const {
    const double incoming = Worth(snapshot.incoming), leaving = Worth(victim);
    if (snapshot.dispensable) return ClearlyWorthMore(incoming, leaving);
    if (snapshot.probability < 0 || layers_.empty()) return true;
    // A right prefetch evicts the expert that the demand load would have evicted. A wrong one costs
    // the uses that the victim would have had before it left anyway: within about 1 / inserted
    // calls.
    const double horizon =
        1 / std::max(running_mean::kInserted.weight, layers_[victim.layer].inserted);
    const double lost = (1 - snapshot.probability) * (leaving - incoming) * horizon;
    return snapshot.probability * snapshot.hidden > lost;
  }

  const ResidencyRule rule_;
  const std::unique_ptr<SlotDealer> dealer_;
};

/// The layers share all slots: a newcomer replaces the expert that is worth least, whatever its
/// layer. Layers whose misses are not predicted keep more experts.
class SharedWorthCache final : public WorthCache {
 public:
  using WorthCache::WorthCache;

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    slots_ = static_cast<double>(snapshot.slots);
    return WorthCache::Capacity(snapshot);
  }

  void Observe(const LayerEvent& event) override {
    WorthCache::Observe(event);
    if (event.kind != LayerEvent::Kind::kRouted) return;
    now_ = event.context.layer;
    distinct_.resize(layers_.size(), 0);
    distinct_[now_] = std::count_if(event.routing.counts.begin(), event.routing.counts.end(),
                                    [](int32_t count) { return count > 0; });
    used_.assign(event.routing.counts.begin(), event.routing.counts.end());
  }

  /// False if a step uses clearly more experts than there are slots, as a prompt does: layers would
  /// only take slots from each other in turn.
  bool Shares() const override {
    constexpr double kTooMany = 1.6;
    const int64_t used = std::accumulate(distinct_.begin(), distinct_.end(), int64_t{0});
    return static_cast<double>(used) <= kTooMany * slots_;
  }

  int Donor(bool for_call) override {
    const double horizon = Horizon(), least_exposed = LeastExposed();
    int donor = -1;
    double least = std::numeric_limits<double>::infinity();
    for (int l = 0; l < static_cast<int>(layers_.size()); ++l) {
      // A miss costs less if predictions bring the expert in time. The first layer is not
      // predicted.
      const double exposed = std::max(least_exposed, layers_[l].demanded);
      const double worth = Least(l, for_call) * Within(l, horizon) * exposed;
      if (worth >= least) continue;
      least = worth;
      donor = l;
    }
    return donor;
  }

 private:
  double Least(int l, bool for_call) {
    Layer& layer = layers_[l];
    if (l == now_ && !for_call) return layer.Least(used_);
    if (!layer.least.has_value()) layer.least = layer.Least({});
    return *layer.least;
  }

  /// The number of layer calls in which as many experts are inserted as there are slots.
  double Horizon() const {
    double inserted = 0;
    for (const Layer& layer : layers_) inserted += layer.inserted;
    return slots_ * static_cast<double>(layers_.size()) / std::max(inserted, 1e-3);
  }

  /// The share of the horizon that is left when the layer is called next: an expert has to stay
  /// that long to be used. Matters if a step brings about as many experts as there are slots.
  double Within(int layer, double horizon) const {
    constexpr double kLeast = 0.02;
    const int layers = static_cast<int>(layers_.size());
    const int calls = (layer - now_ + layers - 1) % layers + 1;
    return std::max(kLeast, 1 - calls / horizon);
  }

  /// The least cost of a miss, as a share of the cost when a call waits for all of it: its transfer
  /// still holds the link. 1 if calls wait for half of the insertions, as the link is then the
  /// limit.
  double LeastExposed() const {
    constexpr double kLeast = 0.3, kBusy = 2;
    double demanded = 0;
    for (const Layer& layer : layers_) demanded += layer.demanded;
    return std::clamp(kBusy * demanded / static_cast<double>(layers_.size()), kLeast, 1.0);
  }

  double slots_ = 0;
  std::vector<int64_t> distinct_;  // [L] experts of each layer's last call
  int now_ = 0;                    // the layer that was called last
  std::vector<int32_t> used_;      // [E] tokens of its experts in that call
};

}  // namespace

std::unique_ptr<CachePolicy> MakeWorthCache(const ResidencyRule& rule) {
  if (rule.shared_slots) return std::make_unique<SharedWorthCache>(rule);
  return std::make_unique<WorthCache>(rule);
}

}  // namespace moert
