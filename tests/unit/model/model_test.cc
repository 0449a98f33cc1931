#include "moert/model.h"

#include <functional>
#include <limits>

#include "support/catch.h"

namespace moert {
namespace {

MoeModelSpec Good() {
  MoeModelSpec spec;
  spec.architecture = "qwen2_moe";
  for (int i = 0; i < 3; ++i) {
    MoeLayerSpec l;
    l.model_layer = 2 * i + 1;
    l.num_experts = 8;
    l.hidden = 64;
    l.intermediate = 32;
    l.shared_intermediate = 16;
    l.shared_gate = true;
    l.routing.top_k = 2;
    spec.layers.push_back(l);
  }
  return spec;
}

TEST_CASE("a legal model spec validates and counts its experts") {
  MoeModelSpec spec = Good();
  spec.layers[1].num_experts = 16;
  CHECK(spec.Validate().ok());
  CHECK(spec.num_layers() == 3);
  CHECK(spec.max_experts() == 16);
  CHECK(spec.total_experts() == 32);
}

TEST_CASE("an illegal field is named with its value and its range") {
  struct Case {
    std::function<void(MoeModelSpec&)> spoil;
    const char* message;
  };
  const Case cases[] = {
      {[](MoeModelSpec& s) { s.layers.clear(); }, "number of MoE layers is 0, legal is 1 to 4096"},
      {[](MoeModelSpec& s) { s.layers[1].num_experts = 0; },
       "MoE layer 1: num_experts is 0, legal is 1 to 65536"},
      {[](MoeModelSpec& s) { s.layers[2].model_layer = 3; },
       "MoE layer 2: model_layer is 3, legal is 4 to 2147483647"},
      {[](MoeModelSpec& s) { s.layers[0].hidden = -1; },
       "MoE layer 0: hidden is -1, legal is 1 to 1048576"},
      {[](MoeModelSpec& s) { s.layers[1].hidden = 128; },
       "MoE layer 1: hidden is 128, legal is 64 as in the first layer"},
      {[](MoeModelSpec& s) { s.layers[0].routing.top_k = 9; },
       "MoE layer 0: top_k is 9, legal is 1 to 8"},
      {[](MoeModelSpec& s) { s.layers[0].shared_intermediate = 0; },
       "MoE layer 0: shared_gate is true, but shared_intermediate is 0"},
      {[](MoeModelSpec& s) { s.layers[0].routing.num_groups = 3; },
       "MoE layer 0: num_groups is 3, legal is a divisor of num_experts (8)"},
      {[](MoeModelSpec& s) {
         s.layers[0].routing.num_groups = 8;
         s.layers[0].routing.top_groups = 1;
       },
       "MoE layer 0: top_k is 2, but 1 of 8 groups hold only 1 experts"},
      {[](MoeModelSpec& s) {
         s.layers[0].routing.scaling = std::numeric_limits<float>::infinity();
       },
       "MoE layer 0: scaling is inf, legal is a finite number above 0"},
      {[](MoeModelSpec& s) {
         s.layers[0].routing.kind = RoutingKind::kSparseMixer;
         s.layers[0].routing.top_k = 1;
       },
       "MoE layer 0: top_k of sparsemixer routing is 1, legal is 2 to 2"},
      {[](MoeModelSpec& s) {
         s.layers[0].routing.kind = RoutingKind::kTopKSoftmax;
         s.layers[0].routing.num_groups = s.layers[0].routing.top_groups = 2;
       },
       "MoE layer 0: num_groups is set, but topk_softmax routing knows neither groups nor a "
       "selection bias"},
      {[](MoeModelSpec& s) {
         s.layers[1].routing.kind = RoutingKind::kSparseMixer;
         s.layers[1].routing.selection_bias = true;
       },
       "MoE layer 1: selection_bias is set, but sparsemixer routing knows neither groups nor a "
       "selection bias"},
  };
  for (const Case& c : cases) {
    MoeModelSpec spec = Good();
    c.spoil(spec);
    const absl::Status status = spec.Validate();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()) == c.message);
  }
}

}  // namespace
}  // namespace moert
