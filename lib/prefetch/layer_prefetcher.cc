#include "prefetch/layer_prefetcher.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "plan/layer_planner.h"
#include "prefetch/prediction_modes.h"
#include "prefetch/prefetch_rule.h"
#include "prefetch/window_estimate.h"
#include "store/version_manager.h"
#include "transfer/link_pacer.h"

namespace moert {
namespace {

// Marks of an expert in the prediction for a layer.
constexpr uint8_t kRanked = 1;
constexpr uint8_t kAdmitted = 2;  // present or on its way already
constexpr uint8_t kIssued = 3;    // the prefetch was started

constexpr double kGuessedRecall = 0.9;
constexpr double kGuessedPrecision = 0.8;
constexpr size_t kRanks = 16;

/// The rule of a policy as an object; null: it has none.
std::unique_ptr<PrefetchPolicy> ByRule(const PrefetchPolicy* policy) {
  const std::optional<PrefetchRule> rule = policy == nullptr ? std::nullopt : policy->rule();
  return rule.has_value() ? MakePrefetchPolicy(*rule) : nullptr;
}

}  // namespace

LayerPrefetcher::LayerPrefetcher(const PrefetcherParts& parts)
    : model_(parts.model),
      by_rule_(ByRule(parts.policy)),
      policy_(by_rule_ != nullptr ? by_rule_.get() : parts.policy),
      precision_policy_(parts.precision),
      link_(parts.link),
      cpu_offload_(parts.cpu_offload),
      store_(parts.store),
      versions_(parts.versions),
      window_(std::make_unique<WindowEstimate>(parts.model->num_layers(), parts.profile)) {
  // Wishes for other versions are fulfilled between steps, so a step's time does not show their
  // cost.
  if (parts.controlled && versions_ == nullptr) {
    modes_ = std::make_unique<PredictionModes>(model_->num_layers());
  }
  late_.resize(kRanks);
  recall_.resize(model_->num_layers(), Ewma<running_mean::kPredictionRecall>(0));
  measured_.resize(model_->num_layers());
  outlook_.resize(model_->num_layers());
  if (policy_ == nullptr) return;
  // A first guess, for the capacities when the engine is opened.
  const int64_t window_ns = parts.profile->LayerNs(/*prefill=*/false, 1);
  for (int l = 1; l < model_->num_layers(); ++l) {
    const int64_t transfer_ns = link_->TransferNs(store_->layout({l, 0}, 0).bytes);
    recall_[l] = Ewma<running_mean::kPredictionRecall>(kGuessedRecall);
    measured_[l] = {kGuessedRecall, static_cast<double>(window_ns) /
                                        static_cast<double>(std::max<int64_t>(1, transfer_ns))};
  }
  outlook_ = measured_;
}

LayerPrefetcher::~LayerPrefetcher() = default;

bool LayerPrefetcher::Prefetching(Phase phase) const {
  return policy_ != nullptr && (modes_ == nullptr || modes_->predicting(phase));
}

bool LayerPrefetcher::wants_next_gate(Phase phase) const {
  return Prefetching(phase) && WantsNextGate(policy_);
}

bool LayerPrefetcher::wants_resident_forward(Phase phase) const {
  return Prefetching(phase) && WantsResidentForward(policy_) &&
         (modes_ == nullptr || modes_->asks());
}

void LayerPrefetcher::AskedHost(int64_t ns) {
  if (modes_ != nullptr) modes_->Asked(ns);
}

void LayerPrefetcher::Resolve(const PolicyContext& context, const RoutingResult& routing) {
  if (policy_ == nullptr) return;
  PredictionYield* const yield = modes_ == nullptr ? nullptr : modes_->yield(context.phase);
  if (yield != nullptr) {
    // Waiting time since the last routing is due to misses of the layer before.
    yield->Missed(
        std::min(stalled_ns_ - routed_stalled_ns_, window_->WindowNs(context, routing.tokens)));
  }
  routed_ns_ = context.now_ns;
  routed_stalled_ns_ = stalled_ns_;
  window_->Routed(context, routing.tokens, routed_stalled_ns_);
  if (context.layer == 0) {
    step_ = context.step;
    step_begin_ns_ = context.now_ns;
    step_stalled_ns_ = stalled_ns_;
  }
  policy_->Observe(LayerEvent::Routed(context, routing.view()));
  const int64_t cancelled = store_->CancelPrefetches(context.layer, routing.counts);
  stats_.cancelled += cancelled;
  stats_.issued -= cancelled;
  CountWaiting(context, routing);
  Prediction& prediction = PredictionOf(context.layer);
  if (prediction.layer != context.layer) return;
  if (prediction.late >= 0) {
    late_[std::min(prediction.late_rank, kRanks - 1)].Add(routing.counts[prediction.late] > 0 ? 1
                                                                                              : 0);
  }
  int lookups = 0, recalled = 0;
  bool waits = false;      // whether the call waits for any expert
  int64_t wrongly_ns = 0;  // how long wrong prefetches still occupy the link
  for (int e = 0; e < routing.num_experts; ++e) {
    const ExpertKey key{context.layer, e};
    const bool issued = prediction.marks[e] == kIssued &&
                        (store_->Latest(key).record != nullptr || store_->Arriving(key));
    stats_.top_score += issued && !routing.top_score.empty() && routing.top_score[e];
    if (routing.counts[e] == 0) {
      if (issued && store_->Arriving(key)) {
        wrongly_ns += link_->TransferNs(store_->layout(key, 0).bytes) - prediction.hidden_ns[e];
      }
      continue;
    }
    waits = waits || store_->Latest(key).record == nullptr;
    stats_.active += issued;
    if (issued && yield != nullptr) yield->Saved(prediction.hidden_ns[e]);
    ++lookups;
    recalled += prediction.marks[e] != 0;
    stats_.recalled_in_window += prediction.marks[e] >= kAdmitted;
  }
  if (waits && wrongly_ns > 0 && yield != nullptr) yield->Saved(-wrongly_ns);
  prediction.layer = -1;
  stats_.predicted += lookups;
  stats_.recalled += recalled;
  if (context.phase == Phase::kDecode && lookups > 0) {
    recall_[context.layer].Add(static_cast<double>(recalled) / lookups);
    measured_[context.layer].recall = recall_[context.layer].mean();
  }
}

void LayerPrefetcher::Predict(const PolicyContext& context, const RoutingResult& routing,
                              int64_t now_ns, bool resident_forward) {
  if (!Prefetching(context.phase)) return;
  PrefetchSnapshot snapshot;
  snapshot.context = context;
  snapshot.target_layer = (context.layer + 1) % model_->num_layers();
  snapshot.routing = routing.view();
  snapshot.predicted_scores = routing.next_scores;
  snapshot.resident_forward = resident_forward;
  snapshot.window_ns = WindowNs(context, routing, now_ns);
  Rank(&snapshot);
}

void LayerPrefetcher::Rank(PrefetchSnapshot* snapshot) {
  const PolicyContext& context = snapshot->context;
  const int target = snapshot->target_layer;
  snapshot->target = store_->Layer(target);
  snapshot->transfer_ns = link_->TransferNs(store_->layout({target, 0}, 0).bytes);
  std::vector<PrefetchCandidate> ranked = policy_->Rank(*snapshot);
  const auto illegal = [&](const PrefetchCandidate& candidate) {
    return candidate.key.layer != target || candidate.key.expert < 0 ||
           candidate.key.expert >= model_->layers[target].num_experts;
  };
  const auto end = std::remove_if(ranked.begin(), ranked.end(), illegal);
  stats_.policy_fallbacks += ranked.end() - end;
  ranked.erase(end, ranked.end());
  if (ranked.empty()) return;
  if (context.phase == Phase::kDecode) {
    measured_[target].transfers = static_cast<double>(snapshot->window_ns) /
                                  static_cast<double>(std::max<int64_t>(1, snapshot->transfer_ns));
  }
  Prediction& prediction = PredictionOf(target);
  prediction.layer = -1;  // invalid until its arrays are allocated
  prediction.late = -1;
  prediction.marks.assign(model_->layers[target].num_experts, 0);
  prediction.hidden_ns.assign(prediction.marks.size(), 0);
  prediction.layer = target;
  Admit(context, ranked, snapshot->window_ns, &prediction);
}

int64_t LayerPrefetcher::WindowNs(const PolicyContext& context, const RoutingResult& routing,
                                  int64_t now_ns) const {
  // A prompt loads much of a layer, and these loads hide its computation. Only the time after the
  // last of them is left for the next layer. The few loads of a decode step do not matter.
  const bool prefill = context.phase == Phase::kPrefill;
  for (int e = 0; prefill && e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0 || !store_->Arriving({context.layer, e})) continue;
    const int64_t idle_ns = window_->IdleNs(context, routing.tokens);
    if (idle_ns >= 0) return idle_ns;
    break;
  }
  // Only the rest of the window counts: queueing the demand loads may have taken several batches.
  const int64_t computed_ns = now_ns - routed_ns_ - (stalled_ns_ - routed_stalled_ns_);
  return std::max<int64_t>(0, window_->WindowNs(context, routing.tokens) - computed_ns);
}

void LayerPrefetcher::WaitedForLoads(int64_t begin_ns, int64_t now_ns) {
  stalled_ns_ += now_ns - begin_ns;
  window_->Waited(now_ns);
}

void LayerPrefetcher::Hint(const PolicyContext& context, ExpertKey key) {
  if (versions_ != nullptr) {
    versions_->Want(context, key, 1);
  } else if (store_->Latest(key).record == nullptr && !store_->Arriving(key)) {
    stats_.issued += store_->StartLoad(key, 0, LoadReason::kPrefetch, context);
  }
}

void LayerPrefetcher::Admit(const PolicyContext& context,
                            const std::vector<PrefetchCandidate>& ranked, int64_t window_ns,
                            Prediction* prediction) {
  std::vector<uint8_t>& marks = prediction->marks;
  for (const PrefetchCandidate& candidate : ranked) marks[candidate.key.expert] = kRanked;
  if (versions_ != nullptr) {
    for (const PrefetchCandidate& candidate : ranked) {
      versions_->Want(context, candidate.key, candidate.score);
    }
    return;
  }
  counts_.assign(marks.size(), 0);
  for (const PrefetchCandidate& candidate : ranked) {
    counts_[candidate.key.expert] = candidate.tokens;
  }
  // A present expert that is predicted must not be evicted for one that is predicted with less
  // confidence.
  ranked_.clear();
  ranked_.reserve(ranked.size());
  const absl::Cleanup unpin = [&] {  // also if a policy throws
    for (const Ranked& r : ranked_) {
      if (r.pinned) store_->Unpin(r.key);
    }
    ranked_.clear();
  };
  for (const PrefetchCandidate& candidate : ranked) {
    const bool present = store_->Latest(candidate.key).record != nullptr;
    const int version =
        TransferVersion(precision_policy_, context, candidate.key, counts_,
                        /*prefetch=*/true, store_->num_versions(), &stats_.policy_fallbacks);
    ranked_.push_back({candidate.key, version, present, candidate.probability,
                       !present && !store_->Arriving(candidate.key)});
    if (present) store_->Pin(candidate.key);
  }
  int64_t used_ns = 0;
  for (size_t rank = 0; rank < ranked_.size(); ++rank) {
    const ExpertKey key = ranked_[rank].key;
    if (store_->Latest(key).record != nullptr) {
      marks[key.expert] = kAdmitted;
      continue;
    }
    const bool arriving = store_->Arriving(key);
    const int64_t transfer_ns = link_->TransferNs(store_->layout(key, ranked_[rank].version).bytes);
    const int64_t left_ns = window_ns - used_ns;
    used_ns += transfer_ns;
    if (!arriving && !Begin(context, rank, transfer_ns, left_ns, window_ns, prediction)) {
      if (ranked_[rank].probability >= 0) used_ns -= transfer_ns;  // the next one may pay
      continue;
    }
    marks[key.expert] = arriving ? kAdmitted : kIssued;
  }
}

bool LayerPrefetcher::Begin(const PolicyContext& context, size_t rank, int64_t transfer_ns,
                            int64_t left_ns, int64_t window_ns, Prediction* prediction) {
  const ExpertKey key = ranked_[rank].key;
  const bool late = left_ns > 0 && left_ns < transfer_ns;
  if (late) {
    prediction->late = key.expert;
    prediction->late_rank = rank;
  }
  const bool useful_late = !cpu_offload_ || store_->HasFreeSlot(key.layer);
  const bool fits = transfer_ns <= left_ns || (late && useful_late);
  const bool admitted = ranked_[rank].probability >= 0
                            ? fits && BenefitPays(rank, transfer_ns, left_ns, window_ns)
                            : fits && (!late || LatePays(rank, transfer_ns, left_ns));
  const int64_t hidden_ns = std::min(transfer_ns, left_ns);
  const float hidden = static_cast<float>(hidden_ns) / static_cast<float>(transfer_ns);
  if (!admitted || !StartLoad(context, rank, hidden, prediction)) return false;
  ++stats_.issued;
  ranked_[rank].waits = false;
  prediction->hidden_ns[key.expert] = hidden_ns;
  if (modes_ != nullptr) modes_->yield(context.phase)->Admitted();
  return true;
}

bool LayerPrefetcher::LatePays(size_t rank, int64_t transfer_ns, int64_t window_ns) const {
  const double precision = LatePrecision(rank);
  // If right, the expert arrives earlier by the window. If wrong, a demand load waits for the rest
  // of the transfer, and the evicted expert may be missed later: together at most one transfer.
  return precision * static_cast<double>(window_ns) >
         (1 - precision) * static_cast<double>(transfer_ns);
}

void LayerPrefetcher::CountWaiting(const PolicyContext& context, const RoutingResult& routing) {
  if (context.phase != Phase::kDecode) return;
  bool waits = false;
  for (int e = 0; e < routing.num_experts && !waits; ++e) {
    waits = routing.counts[e] > 0 && store_->Latest({context.layer, e}).record == nullptr;
  }
  waiting_.Add(waits ? 1 : 0);
}

bool LayerPrefetcher::BenefitPays(size_t rank, int64_t transfer_ns, int64_t left_ns,
                                  int64_t window_ns) const {
  const double p = ranked_[rank].probability;
  const double held_ns = static_cast<double>(std::max<int64_t>(0, transfer_ns - left_ns));
  double none_waits = 1;  // probability that no other absent expert is needed
  for (size_t r = 0; r < ranked_.size(); ++r) {
    if (r != rank && ranked_[r].waits) none_waits *= 1 - ranked_[r].probability;
  }
  const double later_layers = held_ns / static_cast<double>(std::max<int64_t>(1, window_ns));
  none_waits *= std::pow(1 - waiting_.mean(), later_layers);
  const double saved_ns = p * static_cast<double>(std::min(transfer_ns, left_ns));
  return saved_ns > (1 - p) * held_ns * (1 - none_waits);
}

double LayerPrefetcher::LatePrecision(size_t rank) const {
  constexpr double kGuess = 4;  // weight of the guess, in samples
  double precision = kGuessedPrecision;
  for (size_t r = 0; r <= std::min(rank, kRanks - 1); ++r) {
    const double seen = late_[r].samples();
    precision = (kGuess * precision + late_[r].mean() * seen) / (kGuess + seen);
  }
  return precision;
}

bool LayerPrefetcher::StartLoad(const PolicyContext& context, size_t rank, float hidden,
                                Prediction* prediction) {
  const ExpertKey key = ranked_[rank].key;
  const int version = ranked_[rank].version;
  LoadHint hint;
  hint.probability = ranked_[rank].probability;
  hint.hidden = hidden;
  if (store_->StartLoad(key, version, LoadReason::kPrefetch, context, hint)) return true;
  if (hint.probability >= 0) return false;  // the residency policy has decided who stays
  for (size_t lower = ranked_.size() - 1; lower > rank; --lower) {
    if (!ranked_[lower].pinned) continue;
    ranked_[lower].pinned = false;
    store_->Unpin(ranked_[lower].key);
    prediction->marks[ranked_[lower].key.expert] = kRanked;
    return store_->StartLoad(key, version, LoadReason::kPrefetch, context);
  }
  return false;
}

void LayerPrefetcher::CountServed(const ServedCount& count) {
  const int64_t begun = count.arrived + count.late + count.wasted;
  stats_.issued += begun;
  stats_.cancelled += std::max<int64_t>(0, count.listed - begun);
  stats_.active += count.arrived + count.late;
}

void LayerPrefetcher::EndCall(const PolicyContext& context, int64_t tokens, int64_t now_ns) {
  if (policy_ == nullptr) return;
  if (context.layer != model_->num_layers() - 1 || context.step != step_) return;
  if (modes_ != nullptr) {
    modes_->StepDone(context.phase, tokens, now_ns - step_begin_ns_, stalled_ns_ - step_stalled_ns_,
                     &stats_);
  }
  if (context.phase != Phase::kDecode) return;
  const bool counts = modes_ == nullptr || modes_->counts();
  for (size_t l = 0; l < outlook_.size(); ++l) {
    outlook_[l] = counts ? measured_[l] : PrefetchOutlook{};
  }
}

}  // namespace moert
