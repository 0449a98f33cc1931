#include "moert/model.h"

#include <algorithm>
#include <cmath>

#include "base/enum_name.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"

namespace moert {
namespace {

// Far above any published model; the limits ensure that the product of two of them fits in 64 bits.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxExperts = 65536;
constexpr int64_t kMaxTopK = 256;
constexpr int64_t kMaxHidden = int64_t{1} << 20;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

absl::Status CheckRange(size_t layer, const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidArgument("MoE layer {}: {} is {}, legal is {} to {}", layer, field, value, low,
                         high);
}

absl::Status CheckPositive(size_t layer, const char* field, float value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return InvalidArgument("MoE layer {}: {} is {}, legal is a finite number above 0", layer, field,
                         value);
}

absl::Status ValidateRouting(size_t i, const MoeLayerSpec& layer) {
  const RoutingSpec& r = layer.routing;
  MOERT_RETURN_IF_ERROR(CheckRange(i, "routing kind", static_cast<int64_t>(r.kind), 0, 6));
  if (r.external()) return CheckRange(i, "top_k", r.top_k, 1, kMaxTopK);
  MOERT_RETURN_IF_ERROR(
      CheckRange(i, "top_k", r.top_k, 1, std::min<int64_t>(layer.num_experts, kMaxTopK)));
  MOERT_RETURN_IF_ERROR(CheckPositive(i, "scaling", r.scaling));
  MOERT_RETURN_IF_ERROR(CheckRange(i, "num_groups", r.num_groups, 1, layer.num_experts));
  if (layer.num_experts % r.num_groups != 0) {
    return InvalidArgument("MoE layer {}: num_groups is {}, legal is a divisor of num_experts ({})",
                           i, r.num_groups, layer.num_experts);
  }
  MOERT_RETURN_IF_ERROR(CheckRange(i, "top_groups", r.top_groups, 1, r.num_groups));
  const int64_t eligible = int64_t{layer.num_experts} / r.num_groups * r.top_groups;
  if (r.top_k > eligible) {
    return InvalidArgument("MoE layer {}: top_k is {}, but {} of {} groups hold only {} experts", i,
                           r.top_k, r.top_groups, r.num_groups, eligible);
  }
  MOERT_RETURN_IF_ERROR(CheckRange(i, "hash_vocab", r.hash_vocab, 0, kMaxVocabulary));
  if (r.kind == RoutingKind::kTopKSoftmax || r.kind == RoutingKind::kSparseMixer ||
      r.kind == RoutingKind::kTopKSigmoid) {
    const absl::string_view kind = RoutingKindName(r.kind);
    if (r.num_groups != 1 || r.selection_bias) {
      return InvalidArgument(
          "MoE layer {}: {} is set, but {} routing knows neither groups nor a selection bias", i,
          r.num_groups != 1 ? "num_groups" : "selection_bias", kind);
    }
  }
  if (r.kind == RoutingKind::kSparseMixer) {
    MOERT_RETURN_IF_ERROR(CheckRange(i, "top_k of sparsemixer routing", r.top_k, 2, 2));
    MOERT_RETURN_IF_ERROR(CheckPositive(i, "sparsemixer_eps", r.sparsemixer_eps));
    if (r.hash_vocab > 0) {
      return InvalidArgument(
          "MoE layer {}: hash_vocab is set, but sparsemixer weighs only what it chose itself", i);
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateActivation(size_t i, const ExpertActivation& a) {
  MOERT_RETURN_IF_ERROR(CheckRange(i, "activation", static_cast<int64_t>(a.function), 0, 3));
  if (a.function == Activation::kSilu ? !(std::isfinite(a.alpha) && a.alpha > 0) : a.alpha != 1) {
    return InvalidArgument(
        "MoE layer {}: activation alpha is {}, legal is {}", i, a.alpha,
        a.function == Activation::kSilu ? "a finite number above 0" : "1: not silu");
  }
  const bool legal = std::isfinite(a.limit) && a.limit >= 0 && std::isfinite(a.up_offset) &&
                     (a.gated || (a.limit == 0 && a.up_offset == 0));
  if (legal) return absl::OkStatus();
  return InvalidArgument(
      "MoE layer {}: activation limit is {} and up_offset {}: legal are finite numbers, the limit "
      "not below 0; both 0 without a gate",
      i, a.limit, a.up_offset);
}

}  // namespace

int MoeModelSpec::max_experts() const {
  int most = 0;
  for (const MoeLayerSpec& l : layers) most = std::max(most, l.num_experts);
  return most;
}

int64_t MoeModelSpec::total_experts() const {
  int64_t total = 0;
  for (const MoeLayerSpec& l : layers) total += l.num_experts;
  return total;
}

absl::Status MoeModelSpec::Validate() const {
  const int64_t count = static_cast<int64_t>(layers.size());
  if (count < 1 || count > kMaxLayers) {
    return InvalidArgument("number of MoE layers is {}, legal is 1 to {}", count, kMaxLayers);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const MoeLayerSpec& l = layers[i];
    const int64_t lowest = i == 0 ? 0 : int64_t{layers[i - 1].model_layer} + 1;
    MOERT_RETURN_IF_ERROR(CheckRange(i, "model_layer", l.model_layer, lowest, INT32_MAX));
    MOERT_RETURN_IF_ERROR(CheckRange(i, "num_experts", l.num_experts, 1, kMaxExperts));
    MOERT_RETURN_IF_ERROR(CheckRange(i, "hidden", l.hidden, 1, kMaxHidden));
    if (l.hidden != layers[0].hidden) {
      return InvalidArgument("MoE layer {}: hidden is {}, legal is {} as in the first layer", i,
                             l.hidden, layers[0].hidden);
    }
    MOERT_RETURN_IF_ERROR(CheckRange(i, "intermediate", l.intermediate, 1, kMaxIntermediate));
    MOERT_RETURN_IF_ERROR(
        CheckRange(i, "shared_intermediate", l.shared_intermediate, 0, kMaxIntermediate));
    if (l.shared_gate && l.shared_intermediate == 0) {
      return InvalidArgument("MoE layer {}: shared_gate is true, but shared_intermediate is 0", i);
    }
    MOERT_RETURN_IF_ERROR(ValidateActivation(i, l.activation));
    MOERT_RETURN_IF_ERROR(ValidateRouting(i, l));
  }
  return absl::OkStatus();
}

absl::string_view RoutingKindName(RoutingKind kind) {
  constexpr absl::string_view kNames[] = {
      "softmax_topk",          "topk_softmax", "sigmoid_grouped", "sparsemixer",
      "sqrt_softplus_grouped", "topk_sigmoid", "external"};
  return EnumName(kNames, kind);
}

absl::string_view ActivationName(Activation a) {
  constexpr absl::string_view kNames[] = {"silu", "gelu", "gelu_tanh", "relu2"};
  return EnumName(kNames, a);
}

absl::StatusOr<RecordLayout> ExpertRecordLayout(const MoeLayerSpec& layer,
                                                const ExpertFormat& format) {
  return MakeRecordLayout(layer.hidden, layer.intermediate, format,
                          {layer.activation.gated, layer.expert_bias});
}

absl::StatusOr<RecordLayout> SharedRecordLayout(const MoeLayerSpec& layer) {
  return MakeRecordLayout(layer.hidden, layer.shared_intermediate, ExpertFormat::Uniform(Scheme{}),
                          {layer.activation.gated, /*biases=*/false});
}

}  // namespace moert
