// One token: logits -> scores, k experts, weights, for every routing kind.
#include "route/route_token.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "moert/router.h"

namespace moert {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Models up to this many experts route without touching the heap.
using ExpertFloats = absl::InlinedVector<float, 256>;

void Softmax(absl::Span<const float> logits, float* out) {
  const float top = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += out[i] = std::exp(logits[i] - top);
  for (size_t i = 0; i < logits.size(); ++i) out[i] /= sum;
}

void Sigmoid(absl::Span<const float> logits, float* out) {
  for (size_t i = 0; i < logits.size(); ++i) out[i] = 1.0f / (1.0f + std::exp(-logits[i]));
}

void SqrtSoftplus(absl::Span<const float> logits, float* out) {
  for (size_t i = 0; i < logits.size(); ++i) {
    // log(1 + e^x) without overflow, and accurate for small results.
    const float x = logits[i];
    out[i] = std::sqrt(std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))));
  }
}

void Scores(RoutingKind kind, absl::Span<const float> logits, float* scores) {
  switch (kind) {
    case RoutingKind::kSigmoidGrouped:
    case RoutingKind::kTopKSigmoid:
      return Sigmoid(logits, scores);
    case RoutingKind::kSqrtSoftplusGrouped:
      return SqrtSoftplus(logits, scores);
    default:
      return Softmax(logits, scores);
  }
}

/// The score by which groups are ranked: the sum of the two highest keys (DeepSeek-V3) or the
/// highest key (DeepSeek-V2, which routes by softmax).
float GroupScore(RoutingKind kind, absl::Span<const float> keys) {
  int32_t best[2] = {0, 0};
  const int wanted = kind != RoutingKind::kSoftmaxTopK && keys.size() > 1 ? 2 : 1;
  TopK(keys, wanted, best);
  return wanted == 2 ? keys[best[0]] + keys[best[1]] : keys[best[0]];
}

/// One pick of sparsemixer: the highest of the logits not yet `taken`, and its softmax weight among
/// the logits that are close to it. Closeness is relative: (max - logit) / max(|logit|, max), over
/// all logits, the taken one included, as the model was trained.
int32_t SparseMixerPick(absl::Span<const float> logits, int32_t taken, float threshold,
                        float* weight) {
  int32_t best = taken == 0 ? 1 : 0;
  for (int32_t e = 0; e < static_cast<int32_t>(logits.size()); ++e) {
    if (e != taken && logits[e] > logits[best]) best = e;
  }
  const float top = logits[best];
  float sum = 0;
  for (int32_t e = 0; e < static_cast<int32_t>(logits.size()); ++e) {
    if (e == taken) continue;
    const float distance = (top - logits[e]) / std::max(std::abs(logits[e]), top);
    // Written so that 0 / 0, a logit equal to a top of 0, counts as close.
    if (!(distance > threshold)) sum += std::exp(logits[e] - top);
  }
  *weight = 1.0f / sum;
  return best;
}

/// Writes the keys experts are chosen by: [E], those of unselected groups at -inf.
void SelectionKeys(const RoutingSpec& spec, absl::Span<const float> values,
                   absl::Span<const float> bias, absl::Span<float> keys) {
  for (size_t e = 0; e < values.size(); ++e) keys[e] = values[e] + (bias.empty() ? 0 : bias[e]);
  MaskUnselectedGroups(spec, keys);
}

}  // namespace

void TopK(absl::Span<const float> values, int k, int32_t* ids) {
  int held = 0;
  for (int32_t e = 0; e < static_cast<int32_t>(values.size()); ++e) {
    if (held == k && !(values[e] > values[ids[k - 1]])) continue;
    int at = held < k ? held++ : k - 1;
    for (; at > 0 && values[e] > values[ids[at - 1]]; --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
}

void MaskUnselectedGroups(const RoutingSpec& spec, absl::Span<float> keys) {
  if (spec.top_groups == spec.num_groups) return;
  const int groups = spec.num_groups;
  const size_t size = keys.size() / groups;
  absl::InlinedVector<float, 64> group_scores(groups);
  absl::InlinedVector<int32_t, 64> selected(spec.top_groups);
  for (int g = 0; g < groups; ++g) {
    group_scores[g] = GroupScore(spec.kind, keys.subspan(g * size, size));
  }
  TopK(group_scores, spec.top_groups, selected.data());
  std::sort(selected.begin(), selected.end());
  for (int g = 0; g < groups; ++g) {
    if (std::binary_search(selected.begin(), selected.end(), g)) continue;
    std::fill_n(keys.begin() + g * size, size, kMinusInfinity);
  }
}

absl::Status CheckTokenIds(int layer, const RoutingSpec& spec, int64_t tokens,
                           absl::Span<const int32_t> token_ids) {
  if (static_cast<int64_t>(token_ids.size()) != tokens) {
    return InvalidArgument(
        "layer {} routes by token ids: the step has {}, and {} rows; give token_ids when the step "
        "begins",
        layer, token_ids.size(), tokens);
  }
  for (size_t t = 0; t < token_ids.size(); ++t) {
    if (token_ids[t] >= 0 && token_ids[t] < spec.hash_vocab) continue;
    return InvalidArgument("token_ids[{}] is {}: legal for layer {} is 0 to {}", t, token_ids[t],
                           layer, spec.hash_vocab - 1);
  }
  return absl::OkStatus();
}

void NormalizeWeights(const RoutingSpec& spec, absl::Span<float> weights) {
  // Softmax over the k chosen logits equals the full softmax renormalized over them.
  if (spec.renormalize || spec.kind == RoutingKind::kTopKSoftmax) {
    float sum = 0;
    for (const float w : weights) sum += w;
    // Sigmoids may all underflow; the published models guard the division like this.
    sum += 1e-20f;
    for (float& w : weights) w /= sum;
  }
  if (spec.scaling != 1.0f) {
    for (float& w : weights) w *= spec.scaling;
  }
}

void WeighChosen(const RoutingSpec& spec, absl::Span<const float> logits, float* scores,
                 const int32_t* ids, float* weights) {
  Scores(spec.kind, logits, scores);
  for (int j = 0; j < spec.top_k; ++j) weights[j] = scores[ids[j]];
  NormalizeWeights(spec, absl::MakeSpan(weights, spec.top_k));
}

absl::Status RouteToken(const RoutingSpec& spec, absl::Span<const float> logits,
                        absl::Span<const float> bias, float* scores, int32_t* ids, float* weights) {
  const int k = spec.top_k;
  const absl::Span<const float> all_scores(scores, logits.size());
  Scores(spec.kind, logits, scores);
  switch (spec.kind) {
    case RoutingKind::kSoftmaxTopK:
    case RoutingKind::kSigmoidGrouped:
    case RoutingKind::kSqrtSoftplusGrouped: {
      ExpertFloats keys(logits.size());
      SelectionKeys(spec, all_scores, bias, absl::MakeSpan(keys));
      TopK(keys, k, ids);
      break;
    }
    case RoutingKind::kTopKSoftmax:
    case RoutingKind::kTopKSigmoid:
      // Selects by logits, because different logits may have equal scores.
      TopK(logits, k, ids);
      break;
    case RoutingKind::kSparseMixer: {
      const float threshold = 2 * spec.sparsemixer_eps;
      ids[0] = SparseMixerPick(logits, -1, threshold, &weights[0]);
      ids[1] = SparseMixerPick(logits, ids[0], threshold, &weights[1]);
      for (int j = 0; j < k; ++j) weights[j] *= spec.scaling;
      return absl::OkStatus();
    }
    default:
      return InvalidArgument(
          "routing kind {} is none of softmax_topk, topk_softmax, sigmoid_grouped, sparsemixer, "
          "sqrt_softplus_grouped, topk_sigmoid",
          static_cast<int32_t>(spec.kind));
  }
  for (int j = 0; j < k; ++j) weights[j] = scores[ids[j]];
  NormalizeWeights(spec, absl::MakeSpan(weights, k));
  return absl::OkStatus();
}

}  // namespace moert
