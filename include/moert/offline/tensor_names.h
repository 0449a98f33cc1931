// How a model family names the tensors of its MoE layers.
#ifndef MOERT_OFFLINE_TENSOR_NAMES_H_
#define MOERT_OFFLINE_TENSOR_NAMES_H_

#include <array>
#include <string>

namespace moert {

enum class Projection { kGate = 0, kUp = 1, kDown = 2 };

/// Patterns in which {layer} is the model's layer number, {expert} the expert, {projection} one of
/// `projections`. A pattern is empty where the family has no such tensor.
struct MoeTensorNames {
  std::string expert = {};
  std::array<std::string, 3> projections = {};  // gate, up, down
  std::string router = {};                      // [experts, hidden]
  std::string selection_bias = {};              // [experts]
  std::string shared_expert = {};
  std::string shared_gate = {};    // [1, hidden]
  std::string router_bias = {};    // [experts]: added to the logits
  std::string expert_scales = {};  // [experts]
  std::string hash_experts = {};   // [vocabulary, top_k]
  /// In tensors of all experts, gate's and up's rows take turns (gpt-oss); else gate's come first.
  bool interleaved = false;

  std::string Expert(int model_layer, int expert_index, Projection p) const;
  /// The beginning of the names of tensors that hold all experts of a layer: Expert()'s name up to
  /// the expert.
  std::string ExpertsPrefix(int model_layer) const;
  std::string Router(int model_layer) const;
  std::string SelectionBias(int model_layer) const;
  std::string SharedExpert(int model_layer, Projection p) const;
  std::string SharedGate(int model_layer) const;
  std::string RouterBias(int model_layer) const;
  std::string ExpertScales(int model_layer) const;
  std::string HashExperts(int model_layer) const;
};

}  // namespace moert

#endif  // MOERT_OFFLINE_TENSOR_NAMES_H_
