#include "moert/router.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "model/check_layer.h"
#include "route/expert_cache_rule.h"
#include "route/gate_dots.h"
#include "route/grouping.h"
#include "route/route_token.h"
#include "route/substitution_ledger.h"

namespace moert {
namespace {

/// From this many tokens on, tokens are divided among the threads, and a job covers several tokens.
constexpr int64_t kManyTokens = 256;

absl::Status CheckConstants(int l, const MoeLayerSpec& layer, const RouterConstants& c) {
  const RoutingSpec& r = layer.routing;
  const int64_t experts = layer.num_experts;
  const auto check = [l](const char* what, size_t found, int64_t wanted) {
    if (static_cast<int64_t>(found) == wanted) return absl::OkStatus();
    return InvalidArgument("{} of layer {}: {} values; takes {}", what, l, found, wanted);
  };
  MOERT_RETURN_IF_ERROR(
      check("expert scales", c.expert_scales.size(), r.expert_scales ? experts : 0));
  if (c.gate.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(c.gate.size()) != experts * layer.hidden) {
    return InvalidArgument("gate of layer {}: {} values; takes [{}, {}]", l, c.gate.size(), experts,
                           layer.hidden);
  }
  MOERT_RETURN_IF_ERROR(
      check("selection bias", c.selection_bias.size(), r.selection_bias ? experts : 0));
  MOERT_RETURN_IF_ERROR(check("logit bias", c.logit_bias.size(), r.logit_bias ? experts : 0));
  MOERT_RETURN_IF_ERROR(
      check("experts by token id", c.hash_experts.size(), r.hash_vocab * r.top_k));
  for (size_t i = 0; i < c.hash_experts.size(); ++i) {
    const auto first = c.hash_experts.begin() + static_cast<int64_t>(i) / r.top_k * r.top_k;
    const auto here = c.hash_experts.begin() + static_cast<int64_t>(i);
    if (*here >= 0 && *here < experts && std::find(first, here, *here) == here) continue;
    return InvalidArgument(
        "experts by token id of layer {}, token id {}: legal are {} distinct ones in [0, {}), "
        "found {}",
        l, static_cast<int64_t>(i) / r.top_k, r.top_k, experts, *here);
  }
  return absl::OkStatus();
}

}  // namespace

Router::Router(const MoeModelSpec* model, std::vector<RouterConstants> layers, ThreadPool* pool)
    : model_(model),
      layers_(std::move(layers)),
      pool_(pool),
      ledger_(std::make_unique<SubstitutionLedger>()) {}

Router::~Router() = default;

absl::StatusOr<std::unique_ptr<Router>> Router::Create(const MoeModelSpec* model,
                                                       std::vector<absl::Span<const float>> gates,
                                                       std::vector<absl::Span<const float>> biases,
                                                       ThreadPool* pool) try {
  if (gates.size() != biases.size()) {
    return InvalidArgument("{} gates and {} biases: one of each a layer", gates.size(),
                           biases.size());
  }
  std::vector<RouterConstants> layers;
  for (size_t l = 0; l < gates.size(); ++l) layers.push_back({gates[l], biases[l], {}, {}, {}});
  return Create(model, std::move(layers), pool);
} catch (...) {
  return ExceptionStatus("creating a router");
}

absl::StatusOr<std::unique_ptr<Router>> Router::Create(const MoeModelSpec* model,
                                                       std::vector<RouterConstants> layers,
                                                       ThreadPool* pool) try {
  if (model == nullptr) return absl::InvalidArgumentError("model: must not be null");
  MOERT_RETURN_IF_ERROR(model->Validate());
  if (layers.size() != model->layers.size()) {
    return InvalidArgument("gates of {} layers: the model has {} MoE layers", layers.size(),
                           model->num_layers());
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const absl::Status status = CheckConstants(static_cast<int>(l), model->layers[l], layers[l]);
    if (!status.ok()) return status;
    if (!layers[l].gate.empty() && pool == nullptr) {
      return absl::InvalidArgumentError("pool: must not be null");
    }
  }
  return std::unique_ptr<Router>(new Router(model, std::move(layers), pool));
} catch (...) {
  return ExceptionStatus("creating a router");
}

void Router::Count(const RoutingResult& routing) {
  CountOwnChoice(routing.tokens * routing.top_k, routing.mass);
  CountSubstituted(routing.substituted, routing.mass_substituted);
  stats_.model_lookups += routing.model_lookups;
  stats_.model_hits += routing.model_hits;
}

void Router::CountOwnChoice(int64_t slots, double mass) {
  stats_.slots += slots;
  stats_.mass += mass;
}

void Router::CountSubstituted(int64_t slots, double mass) {
  stats_.slots_substituted += slots;
  stats_.mass_substituted += mass;
}

RouterStats Router::stats() const {
  RouterStats stats = stats_;
  stats.worst_slot_share = ledger_->worst_slot_share();
  stats.worst_mass_share = ledger_->worst_mass_share();
  return stats;
}

absl::Status Router::CheckLayer(int layer, bool gate) const {
  MOERT_RETURN_IF_ERROR(moert::CheckLayer(*model_, layer));
  if (!gate || !layers_[layer].gate.empty()) return absl::OkStatus();
  return FailedPrecondition("layer {} has no gate: it takes given routings only", layer);
}

int64_t Router::Logits(std::initializer_list<int> layers, const float* x, int64_t tokens) {
  // A job covers some experts and one token: a single token's gate is work for several threads, or
  // for the caller alone if the gate is small. With many tokens a job covers several tokens, so
  // that a gate's row is read once for them.
  constexpr int64_t kJobWeights = 32 << 10;
  const int64_t job_tokens = tokens >= kManyTokens ? 16 : 1;
  const int64_t hidden = model_->layers[0].hidden;
  int64_t experts = 0;
  for (const int layer : layers) experts += model_->layers[layer].num_experts;
  const int64_t a_job = std::max<int64_t>(1, kJobWeights / hidden);
  const int64_t jobs_a_token = CeilDiv(experts, a_job);
  logits_.resize(tokens * experts);
  pool_->Run(CeilDiv(tokens, job_tokens) * jobs_a_token, [&](int64_t job, int) {
    const int64_t begin = job / jobs_a_token * job_tokens, first = job % jobs_a_token * a_job;
    const int64_t end = std::min(tokens, begin + job_tokens);
    for (int64_t i = first; i < std::min(first + a_job, experts); ++i) {
      int64_t expert = i;
      auto layer = layers.begin();
      for (; expert >= model_->layers[*layer].num_experts; ++layer) {
        expert -= model_->layers[*layer].num_experts;
      }
      const RouterConstants& c = layers_[*layer];
      GateDots(x + begin * hidden, end - begin, c.gate.data() + expert * hidden, hidden,
               &logits_[begin * experts + i], experts);
      for (int64_t t = begin; t < end && !c.logit_bias.empty(); ++t) {
        logits_[t * experts + i] += c.logit_bias[expert];
      }
    }
  });
  return experts;
}

absl::Status Router::Route(int layer, const float* x, int64_t tokens, const RoutingRule& rule,
                           const LayerResidency& residency, absl::Span<const int64_t> request_ids,
                           bool next_gate, RoutingResult* r,
                           absl::Span<const int32_t> token_ids) try {
  MOERT_RETURN_IF_ERROR(CheckLayer(layer, /*gate=*/true));
  const MoeLayerSpec& spec = model_->layers[layer];
  const int k = spec.routing.top_k;
  const int experts = spec.num_experts;
  r->tokens = tokens;
  r->top_k = k;
  r->num_experts = experts;
  r->ids.resize(tokens * k);
  r->weights.resize(tokens * k);
  r->scores.resize(tokens * experts);
  const int next = (layer + 1) % model_->num_layers();
  if (next_gate) MOERT_RETURN_IF_ERROR(CheckLayer(next, /*gate=*/true));
  const bool hashed = spec.routing.hash_vocab > 0;
  if (hashed) MOERT_RETURN_IF_ERROR(LookUp(layer, tokens, token_ids, r));
  const int64_t stride = next_gate ? Logits({layer, next}, x, tokens) : Logits({layer}, x, tokens);
  MOERT_RETURN_IF_ERROR(ForEachToken(tokens, [&](int64_t t) {
    const auto logits = absl::MakeConstSpan(logits_).subspan(t * stride, experts);
    float* const scores = &r->scores[t * experts];
    if (hashed) {
      WeighChosen(spec.routing, logits, scores, &r->ids[t * k], &r->weights[t * k]);
      return absl::OkStatus();
    }
    return RouteToken(spec.routing, logits, layers_[layer].selection_bias, scores, &r->ids[t * k],
                      &r->weights[t * k]);
  }));
  MOERT_RETURN_IF_ERROR(Finish(layer, rule, residency, request_ids, r));

  r->next_scores.clear();
  if (!next_gate) return absl::OkStatus();
  return ScoreLogits(next, logits_.data() + experts, stride, tokens, &r->next_scores);
} catch (...) {
  return ExceptionStatus("routing");
}

absl::Status Router::Score(int layer, const float* x, int64_t tokens,
                           std::vector<float>* scores) try {
  MOERT_RETURN_IF_ERROR(CheckLayer(layer, /*gate=*/true));
  const int64_t stride = Logits({layer}, x, tokens);
  return ScoreLogits(layer, logits_.data(), stride, tokens, scores);
} catch (...) {
  return ExceptionStatus("scoring");
}

absl::Status Router::ScoreLogits(int layer, const float* logits, int64_t stride, int64_t tokens,
                                 std::vector<float>* scores) const {
  const MoeLayerSpec& spec = model_->layers[layer];
  const int experts = spec.num_experts;
  scores->resize(tokens * experts);
  return ForEachToken(tokens, [&](int64_t t) {
    absl::InlinedVector<int32_t, 16> ids(spec.routing.top_k);
    absl::InlinedVector<float, 16> weights(spec.routing.top_k);
    return RouteToken(spec.routing, absl::MakeConstSpan(logits + t * stride, experts),
                      layers_[layer].selection_bias, &(*scores)[t * experts], ids.data(),
                      weights.data());
  });
}

absl::Status Router::ForEachToken(int64_t tokens,
                                  absl::FunctionRef<absl::Status(int64_t token)> work) const {
  if (tokens < kManyTokens) {
    for (int64_t t = 0; t < tokens; ++t) MOERT_RETURN_IF_ERROR(work(t));
    return absl::OkStatus();
  }
  constexpr int64_t kJobTokens = 64;
  std::vector<absl::Status> statuses(CeilDiv(tokens, kJobTokens));
  pool_->Run(static_cast<int64_t>(statuses.size()), [&](int64_t job, int) {
    const int64_t end = std::min(tokens, (job + 1) * kJobTokens);
    try {
      for (int64_t t = job * kJobTokens; t < end && statuses[job].ok(); ++t) {
        statuses[job] = work(t);
      }
    } catch (...) {
      statuses[job] = ExceptionStatus("routing");
    }
  });
  for (const absl::Status& status : statuses) MOERT_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status Router::RouteGiven(int layer, int64_t tokens, absl::Span<const int32_t> ids,
                                absl::Span<const float> weights, absl::Span<const float> scores,
                                absl::Span<const float> next_scores, const RoutingRule& rule,
                                const LayerResidency& residency,
                                absl::Span<const int64_t> request_ids, RoutingResult* r) try {
  MOERT_RETURN_IF_ERROR(CheckLayer(layer, /*gate=*/false));
  const MoeLayerSpec& spec = model_->layers[layer];
  const int k = spec.routing.top_k;
  const int experts = spec.num_experts;
  const int next_experts = model_->layers[(layer + 1) % model_->num_layers()].num_experts;
  const auto check = [&](const char* what, size_t size, int64_t cols, bool may_be_empty) {
    if (static_cast<int64_t>(size) == tokens * cols || (size == 0 && may_be_empty)) {
      return absl::OkStatus();
    }
    return InvalidArgument("{} of layer {}: {} values; takes [{}, {}]{}", what, layer, size, tokens,
                           cols, may_be_empty ? " or none" : "");
  };
  MOERT_RETURN_IF_ERROR(check("ids", ids.size(), k, false));
  MOERT_RETURN_IF_ERROR(check("weights", weights.size(), k, false));
  MOERT_RETURN_IF_ERROR(check("scores", scores.size(), experts, true));
  MOERT_RETURN_IF_ERROR(check("next_scores", next_scores.size(), next_experts, true));
  for (int64_t slot = 0; slot < tokens * k; ++slot) {
    const int64_t first = slot / k * k;
    const bool repeated =
        std::find(ids.begin() + first, ids.begin() + slot, ids[slot]) != ids.begin() + slot;
    const bool absent = ids[slot] == -1 && rule.kind == RoutingRuleKind::kTopK;
    if (absent || (ids[slot] >= 0 && ids[slot] < experts && !repeated)) continue;
    return InvalidArgument(
        "ids of layer {}, token {}: expert {} {}; legal are {} distinct ones in [0, {}){}", layer,
        slot / k, ids[slot], repeated && ids[slot] != -1 ? "comes twice" : "does not exist", k,
        experts,
        rule.kind == RoutingRuleKind::kTopK ? ", or -1: not here"
                                            : ": a rule that substitutes needs all of them");
  }
  r->tokens = tokens;
  r->top_k = k;
  r->num_experts = experts;
  r->ids.assign(ids.begin(), ids.end());
  r->weights.assign(weights.begin(), weights.end());
  r->scores.assign(scores.begin(), scores.end());
  r->next_scores.assign(next_scores.begin(), next_scores.end());
  return Finish(layer, rule, residency, request_ids, r);
} catch (...) {
  return ExceptionStatus("routing");
}

absl::Status Router::LookUp(int layer, int64_t tokens, absl::Span<const int32_t> token_ids,
                            RoutingResult* r) const {
  const RoutingSpec& spec = model_->layers[layer].routing;
  MOERT_RETURN_IF_ERROR(CheckTokenIds(layer, spec, tokens, token_ids));
  for (int64_t t = 0; t < tokens; ++t) {
    const auto experts =
        layers_[layer].hash_experts.subspan(int64_t{token_ids[t]} * spec.top_k, spec.top_k);
    std::copy(experts.begin(), experts.end(), &r->ids[t * spec.top_k]);
  }
  return absl::OkStatus();
}

absl::Status Router::Finish(int layer, const RoutingRule& rule, const LayerResidency& residency,
                            absl::Span<const int64_t> request_ids, RoutingResult* r) {
  const absl::Span<const float> scales = layers_[layer].expert_scales;
  const absl::Cleanup scale = [&] {
    for (size_t i = 0; i < r->ids.size() && !scales.empty(); ++i) {
      if (r->ids[i] >= 0) r->weights[i] *= scales[r->ids[i]];
    }
  };
  GroupByExpert(r);
  NoteOwnChoice(residency, r);
  const bool hashed = model_->layers[layer].routing.hash_vocab > 0;
  if (rule.kind == RoutingRuleKind::kTopK || hashed) return absl::OkStatus();

  ExpertCacheOutcome outcome;
  MOERT_RETURN_IF_ERROR(
      ApplyExpertCacheRule(rule,
                           {&model_->layers[layer].routing, r->num_experts, r->tokens, r->scores,
                            layers_[layer].selection_bias, residency.resident, request_ids,
                            absl::MakeSpan(r->ids), absl::MakeSpan(r->weights)},
                           ledger_.get(), &outcome));
  r->substituted = outcome.substituted;
  r->mass_substituted = outcome.mass_substituted;
  r->top_score = std::move(outcome.top_score);
  if (r->substituted > 0) GroupByExpert(r);
  return absl::OkStatus();
}

}  // namespace moert
