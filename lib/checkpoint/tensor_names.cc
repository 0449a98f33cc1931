#include "moert/offline/tensor_names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace moert {

std::string MoeTensorNames::InLayer(const std::string& pattern, int model_layer) {
  return absl::StrReplaceAll(pattern, {{"{layer}", absl::StrCat(model_layer)}});
}

std::string MoeTensorNames::Expert(int model_layer, int expert_index, Projection p) const {
  return absl::StrReplaceAll(expert, {{"{layer}", absl::StrCat(model_layer)},
                                      {"{expert}", absl::StrCat(expert_index)},
                                      {"{projection}", projections[static_cast<int>(p)]}});
}

std::string MoeTensorNames::ExpertsPrefix(int model_layer) const {
  return InLayer(expert.substr(0, expert.find("{expert}")), model_layer);
}

std::string MoeTensorNames::Router(int model_layer) const { return InLayer(router, model_layer); }

std::string MoeTensorNames::SelectionBias(int model_layer) const {
  return InLayer(selection_bias, model_layer);
}

std::string MoeTensorNames::SharedExpert(int model_layer, Projection p) const {
  const auto at = static_cast<size_t>(p);
  return absl::StrReplaceAll(
      shared_expert, {{"{layer}", absl::StrCat(model_layer)},
                      {"{projection}",
                       shared_projections[at].empty() ? projections[at] : shared_projections[at]}});
}

std::string MoeTensorNames::RouterBias(int model_layer) const {
  return InLayer(router_bias, model_layer);
}

std::string MoeTensorNames::ExpertScales(int model_layer) const {
  return InLayer(expert_scales, model_layer);
}

std::string MoeTensorNames::HashExperts(int model_layer) const {
  return InLayer(hash_experts, model_layer);
}

std::string MoeTensorNames::SharedGate(int model_layer) const {
  return InLayer(shared_gate, model_layer);
}

}  // namespace moert
