#include "moert/prefetcher.h"

#include <algorithm>

#include "store/version_manager.h"

namespace moert {

Prefetcher::Prefetcher(const MoeModelSpec* model, PrefetchPolicy* policy,
                       const HardwareProfile* profile, ExpertStore* store, VersionManager* versions,
                       EngineStats* stats)
    : model_(model),
      policy_(policy),
      profile_(profile),
      store_(store),
      versions_(versions),
      stats_(stats) {}

void Prefetcher::Resolve(const PolicyContext& context, const RoutingResult& routing) {
  if (policy_ == nullptr) return;
  policy_->Observe(context, routing.view());
  store_->CancelPrefetches(context.layer, routing.counts);
  if (predicted_layer_ != context.layer) return;
  for (int e = 0; e < routing.num_experts; ++e) {
    stats_->prefetch_top_score += issued_[e] && !routing.top_score.empty() && routing.top_score[e];
    if (routing.counts[e] == 0) continue;
    stats_->prefetch_active += issued_[e];
    ++stats_->prefetch_predicted;
    stats_->prefetch_recalled += predicted_[e];
  }
  predicted_layer_ = -1;
}

void Prefetcher::Predict(const PolicyContext& context, const RoutingResult& routing) {
  if (policy_ == nullptr) return;
  const int target = (context.layer + 1) % model_->num_layers();
  const std::vector<PrefetchCandidate> ranked =
      policy_->Rank({context, target, routing.view(), routing.next_scores, store_->Layer(target)});

  predicted_layer_ = target;
  predicted_.assign(model_->layers[target].num_experts, 0);
  issued_.assign(predicted_.size(), 0);
  const double window_ns = layer_ns_ > 0 ? layer_ns_
                                         : static_cast<double>(profile_->LayerNs(
                                               context.phase == Phase::kPrefill, routing.tokens));
  double used_ns = 0;
  for (const PrefetchCandidate& candidate : ranked) {
    const ExpertKey key = candidate.key;
    if (key.layer != target || key.expert < 0 || key.expert >= model_->layers[target].num_experts) {
      ++stats_->policy_fallbacks;
      continue;
    }
    predicted_[key.expert] = 1;
    if (versions_ != nullptr) {
      versions_->Want(context, key, candidate.score);
      continue;
    }
    if (store_->Latest(key).record != nullptr || store_->Arriving(key)) continue;
    constexpr int kVersion = 0;
    used_ns += static_cast<double>(profile_->TransferNs(store_->layout(key, kVersion).bytes));
    if (used_ns > window_ns) continue;
    if (!store_->StartLoad(key, kVersion, LoadReason::kPrefetch, context)) continue;
    ++stats_->prefetch_issued;
    issued_[key.expert] = 1;
  }
}

void Prefetcher::ObserveLayerTime(int64_t ns) {
  constexpr double kWeight = 0.1;
  const double t = static_cast<double>(ns);
  layer_ns_ = layer_ns_ == 0 ? t : layer_ns_ + kWeight * (t - layer_ns_);
}

}  // namespace moert
