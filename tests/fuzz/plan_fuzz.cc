// A plan, as `moert-pack quantize --plan` reads it.
#include "fuzz/fuzz.h"
#include "moert/offline/plan.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::MemoryEnv env(std::string(reinterpret_cast<const char*>(data), size));
  const auto plan = ReadPlan("fuzz", &env);
  if (!plan.ok()) return 0;
  FUZZ_REQUIRE(plan->model.Validate().ok());
  for (int l = 0; l < plan->model.num_layers(); ++l) {
    const MoeLayerSpec& layer = plan->model.layers[static_cast<size_t>(l)];
    for (int e = 0; e < layer.num_experts; ++e) {
      FUZZ_REQUIRE(ExpertRecordLayout(layer, plan->version.format(l, e)).ok());
    }
  }
  // An accepted file is written and read as the same.
  const std::string text = PlanToJson(*plan);
  fuzz::MemoryEnv again(text);
  const auto second = ReadPlan("fuzz", &again);
  FUZZ_REQUIRE(second.ok());
  FUZZ_REQUIRE(PlanToJson(*second) == text);
  return 0;
}
