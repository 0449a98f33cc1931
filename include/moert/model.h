// A model as libmoert needs to know it: its MoE layers. Attention, embeddings and sampling are the
// host's. Layers are numbered 0..L-1 over the MoE layers only; `model_layer` is the host's number.
#ifndef MOERT_MODEL_H_
#define MOERT_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/scheme.h"

namespace moert {

/// How router logits become k experts and their weights (design: "Routing kinds"). fp32 throughout;
/// of equal scores the lower expert index wins. Policies read every kind's scores over all E
/// experts, without the selection bias. They are the full softmax of the logits, or the sigmoid
/// (square root of the softplus) of the kinds that have one.
enum class RoutingKind : int32_t {
  kSoftmaxTopK = 0,     // softmax over all E, then the k highest (Qwen-MoE, DeepSeek-V1/V2, OLMoE)
  kTopKSoftmax = 1,     // the k highest logits, then softmax over them (Mixtral)
  kSigmoidGrouped = 2,  // sigmoid + selection bias, best groups, then top-k (DeepSeek-V3 family)
  kSparseMixer = 3,     // two masked-softmax picks (Phi-3.5-MoE)
  kSqrtSoftplusGrouped = 4,  // as kSigmoidGrouped, scores sqrt(log(1 + e^logit)) (DeepSeek-V4)
  kTopKSigmoid = 5,          // the k highest logits, weights their sigmoids (Llama-4)
  kExternal = 6,  // the host's own: no gate is read or budgeted, layer calls bring their routing.
                  // Only top_k of RoutingSpec is read, and it may exceed E
};

struct RoutingSpec {
  RoutingKind kind = RoutingKind::kSoftmaxTopK;
  int top_k = 1;
  bool renormalize = false;  // divide the k weights by their sum
  float scaling = 1.0f;      // routed_scaling_factor
  // Group-limited selection: of num_groups groups of E / num_groups neighbouring experts, the
  // top_groups best stay eligible. Groups rank by the highest selection score (kSoftmaxTopK:
  // DeepSeek-V2), else by the sum of their two highest (DeepSeek-V3); equal ones by index.
  int num_groups = 1;
  int top_groups = 1;
  bool selection_bias = false;    // e_score_correction_bias: selects, never weighs
  float sparsemixer_eps = 0.01f;  // kSparseMixer: 2 * jitter_eps is the masking threshold
  bool logit_bias = false;        // a bias per expert is added to the logits (gpt-oss)
  bool weight_input = false;   // a weight multiplies the expert's input, not its output (Llama-4)
  bool expert_scales = false;  // weights are multiplied by a constant per expert, last (Gemma-4)
  /// Above 0: the k experts of a token are looked up by its id, which is below this number
  /// (StepInfo::token_ids); the logits give their weights (DeepSeek-V4's first layers).
  int64_t hash_vocab = 0;

  bool external() const { return kind == RoutingKind::kExternal; }  // the host routes: no gate

  friend bool operator==(const RoutingSpec&, const RoutingSpec&) = default;
};

enum class Activation : int32_t {
  kSilu = 0,
  kGelu = 1,      // by erf
  kGeluTanh = 2,  // its approximation
  kRelu2 = 3,     // max(x, 0) squared
};

/// The function between an expert's products: h = f(min(gate, limit)) * (clamp(up, -limit, limit) +
/// up_offset), where kSilu is x * sigmoid(alpha x). Without a gate: h = f(up). gpt-oss: kSilu,
/// alpha 1.702, limit 7, up_offset 1.
struct ExpertActivation {
  // A function alone stands for a plain gated one. NOLINTNEXTLINE(google-explicit-constructor)
  ExpertActivation(Activation f = Activation::kSilu) : function(f) {}

  Activation function = {};
  bool gated = true;
  float alpha = 1;      // kSilu only
  float limit = 0;      // 0: nothing is clamped; gated only
  float up_offset = 0;  // gated only

  /// Whether this is a plain gated function, without further parameters.
  bool plain() const { return gated && alpha == 1 && limit == 0 && up_offset == 0; }
  friend bool operator==(const ExpertActivation&, const ExpertActivation&) = default;
};

struct MoeLayerSpec {
  int model_layer = 0;
  int num_experts = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t shared_intermediate = 0;   // 0: no shared expert; several are stored as one wide one
  bool shared_gate = false;          // sigmoid(w . x) times the shared expert's output
  ExpertActivation activation = {};  // of routed and shared experts
  bool expert_bias = false;  // of gate, up and down of every routed expert, fp32 in its record
  RoutingSpec routing = {};
  friend bool operator==(const MoeLayerSpec&, const MoeLayerSpec&) = default;
};

struct MoeModelSpec {
  std::string architecture = {};  // HF model_type, for messages only
  std::vector<MoeLayerSpec> layers = {};

  int num_layers() const { return static_cast<int>(layers.size()); }
  int max_experts() const;
  int64_t total_experts() const;
  /// Names the first field that is out of range, its value and the legal range.
  absl::Status Validate() const;
  friend bool operator==(const MoeModelSpec&, const MoeModelSpec&) = default;
};

absl::string_view RoutingKindName(RoutingKind kind);
absl::string_view ActivationName(Activation a);

/// The record layout of a layer's routed expert, and of its shared expert, which is bf16.
absl::StatusOr<RecordLayout> ExpertRecordLayout(const MoeLayerSpec& layer,
                                                const ExpertFormat& format);
absl::StatusOr<RecordLayout> SharedRecordLayout(const MoeLayerSpec& layer);

}  // namespace moert

#endif  // MOERT_MODEL_H_
