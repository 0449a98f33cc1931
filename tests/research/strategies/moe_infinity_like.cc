// moe-infinity-like: offloading by activation traces as MoE-Infinity (arXiv 2401.14361) does it,
// for comparison. The model's own routing, prefetch and eviction by the recorded sequence whose
// experts are most like those of the running one.
//
// Approximations:
//  - its activation matrices (tokens by layer and expert of one sequence) and their matching by
//    cosine distance are taken as published; the collection keeps the newest `traces` sequences
//    where the paper clusters them;
//  - a sequence ends after `sequence` decode steps, or when a prompt comes: policies are not told
//    when a request ends;
//  - its prefetch queue reaches over all later layers, those nearer first; here it reaches the next
//    layer. Eviction is by the predicted share of activations, less the deeper the layer, as
//    published.
#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "research/strategies/research_strategies.h"

namespace moert {
namespace {

using Matrix = std::vector<std::vector<double>>;  // [L][E], tokens

/// Shared by prefetch and eviction of one engine.
class ActivationTraces {
 public:
  ActivationTraces(int64_t sequence, int64_t traces) : sequence_(sequence), traces_(traces) {}

  void Routed(const PolicyContext& context, const RoutingView& routing) {
    const MoeModelSpec& model = *context.model;
    if (current_.empty()) Begin(model);
    if (context.layer == 0 && (context.phase == Phase::kPrefill || steps_ >= sequence_)) {
      if (steps_ > 0) seen_.push_back(current_);
      if (static_cast<int64_t>(seen_.size()) > traces_) seen_.pop_front();
      Begin(model);
    }
    steps_ += context.layer == 0 && context.phase == Phase::kDecode;
    std::vector<double>& row = current_[context.layer];
    for (size_t e = 0; e < row.size(); ++e) row[e] += routing.counts[e];
    matched_ = Nearest();
  }

  /// Predicted share of a layer's activations.
  double Share(ExpertKey key) const {
    const Matrix& matrix = matched_ != nullptr ? *matched_ : current_;
    if (matrix.empty()) return 0;
    double sum = 0;
    for (const double tokens : matrix[key.layer]) sum += tokens;
    return sum > 0 ? matrix[key.layer][key.expert] / sum : 0;
  }

 private:
  void Begin(const MoeModelSpec& model) {
    current_.clear();
    for (const MoeLayerSpec& layer : model.layers) current_.emplace_back(layer.num_experts, 0.0);
    steps_ = 0;
  }

  const Matrix* Nearest() const {
    const Matrix* nearest = nullptr;
    double best = -1;
    for (const Matrix& matrix : seen_) {
      double dot = 0, a = 0, b = 0;
      for (size_t l = 0; l < matrix.size(); ++l) {
        for (size_t e = 0; e < matrix[l].size(); ++e) {
          dot += matrix[l][e] * current_[l][e];
          a += matrix[l][e] * matrix[l][e];
          b += current_[l][e] * current_[l][e];
        }
      }
      const double cosine = a > 0 && b > 0 ? dot / std::sqrt(a * b) : 0;
      if (cosine <= best) continue;
      best = cosine;
      nearest = &matrix;
    }
    return nearest;
  }

  const int64_t sequence_, traces_;
  int64_t steps_ = 0;
  Matrix current_;
  std::deque<Matrix> seen_;
  const Matrix* matched_ = nullptr;
};

class TracePrefetch final : public PrefetchPolicy {
 public:
  explicit TracePrefetch(std::shared_ptr<ActivationTraces> traces) : traces_(std::move(traces)) {}

  void Observe(const LayerEvent& event) override {
    if (event.kind == LayerEvent::Kind::kRouted) traces_->Routed(event.context, event.routing);
  }

  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    if (snapshot.target_layer != snapshot.context.layer + 1) return {};
    const MoeLayerSpec& layer = snapshot.context.model->layers[snapshot.target_layer];
    std::vector<PrefetchCandidate> ranked;
    for (int e = 0; e < layer.num_experts; ++e) {
      const double share = traces_->Share({snapshot.target_layer, e});
      if (share > 0) ranked.push_back({{snapshot.target_layer, e}, static_cast<float>(share)});
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    const size_t most = layer.routing.top_k * static_cast<size_t>(snapshot.routing.tokens);
    if (ranked.size() > most) ranked.resize(most);
    return ranked;
  }

 private:
  const std::shared_ptr<ActivationTraces> traces_;
};

class TraceEviction final : public ResidencyPolicy {
 public:
  explicit TraceEviction(std::shared_ptr<ActivationTraces> traces) : traces_(std::move(traces)) {}

  int Victim(const VictimSnapshot& snapshot) override {
    const double layers = static_cast<double>(snapshot.context.model->layers.size());
    const auto priority = [&](const VictimCandidate& c) {
      constexpr double kFloor = 1e-3;  // so that the layer counts where nothing was activated
      return (traces_->Share(c.key) + kFloor) * (1 - c.key.layer / layers);
    };
    int victim = 0;
    for (int i = 1; i < static_cast<int>(snapshot.candidates.size()); ++i) {
      const VictimCandidate& a = snapshot.candidates[i];
      const VictimCandidate& b = snapshot.candidates[victim];
      const double pa = priority(a), pb = priority(b);
      if (pa < pb || (pa == pb && a.last_used < b.last_used)) victim = i;
    }
    return victim;
  }

 private:
  const std::shared_ptr<ActivationTraces> traces_;
};

}  // namespace

absl::StatusOr<Strategy> BuildMoeInfinityLike(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  MOERT_ASSIGN_OR_RETURN(const int64_t sequence, params.Integer("sequence", 128, 1, 1 << 20));
  MOERT_ASSIGN_OR_RETURN(const int64_t traces, params.Integer("traces", 100, 1, 4096));
  MOERT_ASSIGN_OR_RETURN(strategy.prefetch_control, params.Flag("control", true));
  const auto shared = std::make_shared<ActivationTraces>(sequence, traces);
  strategy.prefetch = std::make_unique<TracePrefetch>(shared);
  strategy.residency = std::make_unique<TraceEviction>(shared);
  return strategy;
}

}  // namespace moert
