// How a model family names the tensors of its MoE layers.
#ifndef MOERT_OFFLINE_TENSOR_NAMES_H_
#define MOERT_OFFLINE_TENSOR_NAMES_H_

#include <array>
#include <string>
#include <utility>
#include <vector>

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
  /// Names of tensors that hold all experts of a layer, where they are no usual ones: gate and up
  /// together, gate, up, down.
  std::array<std::string, 4> stacked = {};
  bool down_turned = false;         // in `stacked`, down has its two sizes in the other order
  std::string shared_gate_up = {};  // gate and up of the shared expert in one
  std::array<std::string, 3> shared_projections = {};  // where they are others than `projections`
  /// Prefixes of the names of a layer's MoE tensors: each such tensor is read, or is known to be
  /// the host's (`host`). Empty: the prefix of the module that holds the experts.
  std::vector<std::string> blocks = {};
  /// Beginnings of names in `blocks` that the host reads, and what they are.
  std::vector<std::pair<std::string, std::string>> host = {};
  /// Not empty: a file may have experts beyond the layer's last one; this text says what they are.
  std::string further_experts = {};
  /// In tensors of all experts, rows of gate and up alternate (gpt-oss); else gate's rows come
  /// first.
  bool interleaved = false;

  std::string Expert(int model_layer, int expert_index, Projection p) const;
  /// The prefix of the names of tensors that hold all experts of a layer: Expert()'s name up to the
  /// expert.
  std::string ExpertsPrefix(int model_layer) const;
  std::string Router(int model_layer) const;
  std::string SelectionBias(int model_layer) const;
  std::string SharedExpert(int model_layer, Projection p) const;
  std::string SharedGate(int model_layer) const;
  std::string RouterBias(int model_layer) const;
  std::string ExpertScales(int model_layer) const;
  std::string HashExperts(int model_layer) const;
  /// A pattern with the layer filled in.
  static std::string InLayer(const std::string& pattern, int model_layer);
};

}  // namespace moert

#endif  // MOERT_OFFLINE_TENSOR_NAMES_H_
