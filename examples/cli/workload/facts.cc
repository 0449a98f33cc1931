#include "cli/workload/facts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr double kLruShares[] = {0.2, 0.4, 0.6};

/// Least recently used, over the distinct experts of each step.
class LruCount {
 public:
  LruCount(int experts, double share)
      : capacity_(std::max<int64_t>(1, std::llround(share * experts))), last_use_(experts, -1) {}

  void Use(int expert, bool counted) {
    const bool hit = held_.count({last_use_[expert], expert}) != 0;
    if (hit) held_.erase({last_use_[expert], expert});
    if (!hit && static_cast<int64_t>(held_.size()) == capacity_) held_.erase(held_.begin());
    last_use_[expert] = tick_++;
    held_.insert({last_use_[expert], expert});
    lookups_ += counted;
    hits_ += counted && hit;
  }
  double ratio() const {
    return lookups_ == 0 ? 0 : static_cast<double>(hits_) / static_cast<double>(lookups_);
  }

 private:
  const int64_t capacity_;
  std::vector<int64_t> last_use_;
  std::set<std::pair<int64_t, int>> held_;
  int64_t tick_ = 0, hits_ = 0, lookups_ = 0;
};

struct LayerCounts {
  std::vector<int64_t> uses;
  std::vector<LruCount> lru;
  std::map<int64_t, std::vector<int32_t>> previous;  // of each request, its last token's experts
  int64_t predicted = 0, in_topk = 0, in_quarter = 0;
};

class Measure {
 public:
  explicit Measure(const MoeModelSpec& model) : model_(model), layers_(model.layers.size()) {
    for (size_t l = 0; l < layers_.size(); ++l) {
      const int experts = model.layers[l].num_experts;
      layers_[l].uses.assign(experts, 0);
      for (const double share : kLruShares) layers_[l].lru.emplace_back(experts, share);
    }
  }

  void Add(const TraceCall& call, bool counted) {
    LayerCounts& layer = layers_[call.layer];
    const MoeLayerSpec& spec = model_.layers[call.layer];
    const int experts = spec.num_experts;
    const int k = spec.routing.top_k;
    Recall(call, &layer);
    std::vector<int32_t> distinct(call.ids.begin(), call.ids.end());
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    for (const int32_t e : distinct) {
      for (LruCount& lru : layer.lru) lru.Use(e, counted);
    }
    density_ += static_cast<double>(distinct.size()) / experts;
    ++calls_;
    for (int64_t t = 0; t < call.tokens; ++t) {
      const auto ids = call.ids.subspan(t * k, k);
      for (const int32_t e : ids) ++layer.uses[e];
      if (call.phase == Phase::kDecode && !call.request_ids.empty()) {
        std::vector<int32_t>& before = layer.previous[call.request_ids[t]];
        if (!before.empty()) {
          reuse_slots_ += k;
          for (const int32_t e : ids) {
            reused_ += std::find(before.begin(), before.end(), e) != before.end();
          }
        }
        before.assign(ids.begin(), ids.end());
      }
      if (!call.scores.empty()) Scores(call.scores.subspan(t * experts, experts), k);
    }
    predicted_.assign(call.next_scores.begin(), call.next_scores.end());
    predicted_layer_ = call.layer + 1;  // the wrap to layer 0 is of another token
    predicted_step_ = call.step;
  }

  RoutingFacts Result(int64_t steps) const {
    RoutingFacts f;
    f.steps = steps;
    const auto ratio = [](double a, double b) { return b == 0 ? 0 : a / b; };
    f.density = ratio(density_, static_cast<double>(calls_));
    f.reuse = ratio(static_cast<double>(reused_), static_cast<double>(reuse_slots_));
    const auto count = static_cast<double>(layers_.size());
    int64_t predicted = 0, in_topk = 0, in_quarter = 0;
    for (const LayerCounts& layer : layers_) {
      for (int i = 0; i < 3; ++i) f.lru[i] += layer.lru[i].ratio() / count;
      const auto all = static_cast<double>(layer.predicted);
      f.recall_topk.push_back(ratio(static_cast<double>(layer.in_topk), all));
      f.recall_quarter.push_back(ratio(static_cast<double>(layer.in_quarter), all));
      predicted += layer.predicted;
      in_topk += layer.in_topk;
      in_quarter += layer.in_quarter;
      Skew(layer.uses, count, &f);
    }
    f.mean_recall_topk = ratio(static_cast<double>(in_topk), static_cast<double>(predicted));
    f.mean_recall_quarter = ratio(static_cast<double>(in_quarter), static_cast<double>(predicted));
    const auto scored = static_cast<double>(scored_);
    f.top_score = ratio(top_score_, scored);
    f.topk_mass = ratio(topk_mass_, scored);
    f.beta_over_top = ratio(beta_over_top_, scored);
    return f;
  }

 private:
  void Recall(const TraceCall& call, LayerCounts* layer) {
    if (predicted_.empty() || predicted_layer_ != call.layer || predicted_step_ != call.step) {
      return;
    }
    const int experts = model_.layers[call.layer].num_experts;
    const int k = model_.layers[call.layer].routing.top_k;
    const int64_t quarter = std::llround(0.25 * experts);
    for (int64_t t = 0; t < call.tokens; ++t) {
      const float* scores = predicted_.data() + t * experts;
      for (int j = 0; j < k; ++j) {
        const float mine = scores[call.ids[t * k + j]];
        const int64_t above =
            std::count_if(scores, scores + experts, [&](float s) { return s > mine; });
        ++layer->predicted;
        layer->in_topk += above < k;
        layer->in_quarter += above < quarter;
      }
    }
  }

  void Scores(absl::Span<const float> scores, int k) {
    if (k >= static_cast<int>(scores.size())) return;
    sorted_.assign(scores.begin(), scores.end());
    std::partial_sort(sorted_.begin(), sorted_.begin() + k + 1, sorted_.end(), std::greater<>());
    if (!(sorted_[0] > 0)) return;
    ++scored_;
    top_score_ += sorted_[0];
    topk_mass_ += std::accumulate(sorted_.begin(), sorted_.begin() + k, 0.0);
    beta_over_top_ += sorted_[k] / sorted_[0];
  }

  static void Skew(std::vector<int64_t> uses, double layers, RoutingFacts* f) {
    const double total = static_cast<double>(std::accumulate(uses.begin(), uses.end(), int64_t{0}));
    if (total == 0) return;
    std::sort(uses.begin(), uses.end(), std::greater<>());
    const auto experts = static_cast<double>(uses.size());
    double quarter = 0, entropy = 0;
    for (size_t i = 0; i < uses.size(); ++i) {
      const double p = static_cast<double>(uses[i]) / total;
      if (static_cast<double>(i) < 0.25 * experts) quarter += p;
      if (p > 0) entropy -= p * std::log(p);
    }
    f->most_used += static_cast<double>(uses[0]) / total * experts / layers;
    f->quarter_share += quarter / layers;
    f->entropy += entropy / std::log(experts) / layers;
  }

  const MoeModelSpec& model_;
  std::vector<LayerCounts> layers_;
  std::vector<float> predicted_, sorted_;
  int predicted_layer_ = -1;
  int64_t predicted_step_ = -1;
  double density_ = 0, top_score_ = 0, topk_mass_ = 0, beta_over_top_ = 0;
  int64_t calls_ = 0, reused_ = 0, reuse_slots_ = 0, scored_ = 0;
};

}  // namespace

absl::StatusOr<RoutingFacts> MeasureRouting(TraceReader* trace, int64_t max_steps) {
  // Caches are warm after an eighth of the steps: count them first.
  int64_t total = 0;
  for (int pass = 0; pass < 2; ++pass) {
    MOERT_RETURN_IF_ERROR(trace->Rewind());
    Measure measure(trace->header().model);
    int64_t steps = 0, last = -1;
    while (true) {
      MOERT_ASSIGN_OR_RETURN(const TraceCall* call, trace->Next());
      if (call == nullptr) break;
      if (call->step != last) {
        if (max_steps > 0 && steps == max_steps) break;
        ++steps;
        last = call->step;
      }
      if (pass == 1) measure.Add(*call, steps > total / 8);
      if (pass == 0 && max_steps > 0 && steps == max_steps) break;
    }
    total = steps;
    if (pass == 1) return measure.Result(total);
  }
  return absl::InternalError("unreachable");
}

nlohmann::json ToJson(const RoutingFacts& f) {
  return {{"steps", f.steps},
          {"density", f.density},
          {"reuse", f.reuse},
          {"lru_hit_ratio", {{"20%", f.lru[0]}, {"40%", f.lru[1]}, {"60%", f.lru[2]}}},
          {"recall_topk", f.recall_topk},
          {"recall_quarter", f.recall_quarter},
          {"mean_recall_topk", f.mean_recall_topk},
          {"mean_recall_quarter", f.mean_recall_quarter},
          {"most_used_over_uniform", f.most_used},
          {"most_used_quarter_share", f.quarter_share},
          {"entropy", f.entropy},
          {"top_score", f.top_score},
          {"topk_mass", f.topk_mass},
          {"beta_over_top", f.beta_over_top}};
}

}  // namespace moert::cli
