// What libmoert needs to know of a model: its MoE layers. Attention, embeddings and sampling are
// the host's. Layers are numbered 0..L-1 over the MoE layers only; `model_layer` is the host's
// number.
#ifndef MOERT_MODEL_H_
#define MOERT_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace moert {

/// How router logits become k experts and their weights (design: "Routing kinds"). fp32 throughout;
/// of equal scores the lower expert index wins. Every kind has scores over all E experts, which
/// policies read: the full softmax of the logits, or kSigmoidGrouped's sigmoid without the bias.
enum class RoutingKind : int32_t {
  kSoftmaxTopK = 0,     // softmax over all E, then the k highest (Qwen-MoE, DeepSeek-V1/V2, OLMoE)
  kTopKSoftmax = 1,     // the k highest logits, then softmax over them (Mixtral)
  kSigmoidGrouped = 2,  // sigmoid + selection bias, best groups, then top-k (DeepSeek-V3 family)
  kSparseMixer = 3,     // two masked-softmax picks (Phi-3.5-MoE)
  kExternal = 4,        // the host's own: no gate is read or budgeted, layer calls bring their
                        // routing. Of RoutingSpec top_k alone is read, and it may exceed E
};

struct RoutingSpec {
  RoutingKind kind = RoutingKind::kSoftmaxTopK;
  int top_k = 1;
  bool renormalize = false;  // divide the k weights by their sum
  float scaling = 1.0f;      // routed_scaling_factor
  // Group-limited selection (kSigmoidGrouped, kSoftmaxTopK): of num_groups groups of
  // E / num_groups neighbouring experts, the top_groups best stay eligible. A group is ranked by
  // the sum of its two highest selection scores (kSigmoidGrouped: DeepSeek-V3) or by its highest
  // (kSoftmaxTopK: DeepSeek-V2); of equal groups the lower index wins.
  int num_groups = 1;
  int top_groups = 1;
  bool selection_bias = false;    // e_score_correction_bias: selects, never weighs (same kinds)
  float sparsemixer_eps = 0.01f;  // kSparseMixer: 2 * jitter_eps is the masking threshold

  friend bool operator==(const RoutingSpec&, const RoutingSpec&) = default;
};

enum class Activation : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2 };

struct MoeLayerSpec {
  int model_layer = 0;
  int num_experts = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t shared_intermediate = 0;  // 0: no shared expert; several are stored as one wide one
  bool shared_gate = false;         // sigmoid(w . x) times the shared expert's output
  Activation activation = Activation::kSilu;
  RoutingSpec routing;

  friend bool operator==(const MoeLayerSpec&, const MoeLayerSpec&) = default;
};

struct MoeModelSpec {
  std::string architecture;  // HF model_type, for messages only
  std::vector<MoeLayerSpec> layers;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int max_experts() const;
  int64_t total_experts() const;
  /// Names the first field that is out of range, its value and the legal range.
  absl::Status Validate() const;

  friend bool operator==(const MoeModelSpec&, const MoeModelSpec&) = default;
};

absl::string_view RoutingKindName(RoutingKind kind);
absl::string_view ActivationName(Activation a);

}  // namespace moert

#endif  // MOERT_MODEL_H_
