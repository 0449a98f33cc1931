// One token: logits -> scores, k experts, weights, for every routing kind.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fmt_absl.h"
#include "fmt/format.h"
#include "moert/router.h"

namespace moert {
namespace {

void Softmax(absl::Span<const float> logits, float* out) {
  const float top = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += out[i] = std::exp(logits[i] - top);
  for (size_t i = 0; i < logits.size(); ++i) out[i] /= sum;
}

/// The k highest of `values`, highest first, lower index first among equals.
void TopK(absl::Span<const float> values, int k, int32_t* ids) {
  int held = 0;
  for (int32_t e = 0; e < static_cast<int32_t>(values.size()); ++e) {
    if (held == k && !(values[e] > values[ids[k - 1]])) continue;
    int at = held < k ? held++ : k - 1;
    for (; at > 0 && values[e] > values[ids[at - 1]]; --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
}

void Renormalize(int k, float* weights) {
  float sum = 0;
  for (int j = 0; j < k; ++j) sum += weights[j];
  for (int j = 0; j < k; ++j) weights[j] /= sum;
}

}  // namespace

absl::Status RouteToken(const RoutingSpec& spec, absl::Span<const float> logits,
                        absl::Span<const float> bias, float* scores, int32_t* ids, float* weights) {
  const int k = spec.top_k;
  switch (spec.kind) {
    case RoutingKind::kSoftmaxTopK:
      Softmax(logits, scores);
      TopK(absl::MakeConstSpan(scores, logits.size()), k, ids);
      for (int j = 0; j < k; ++j) weights[j] = scores[ids[j]];
      if (spec.renormalize) Renormalize(k, weights);
      break;
    case RoutingKind::kTopKSoftmax:
      // Softmax over the k chosen equals the full softmax renormalized over them.
      Softmax(logits, scores);
      TopK(logits, k, ids);
      for (int j = 0; j < k; ++j) weights[j] = scores[ids[j]];
      Renormalize(k, weights);
      break;
    default:
      return absl::UnimplementedError(
          fmt::format("routing kind {}: the CPU router has softmax_topk, topk_softmax",
                      RoutingKindName(spec.kind)));
  }
  if (spec.scaling != 1.0f) {
    for (int j = 0; j < k; ++j) weights[j] *= spec.scaling;
  }
  return absl::OkStatus();
}

}  // namespace moert
