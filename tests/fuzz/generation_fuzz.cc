// generation_config.json, and a token drawn as it asks.
#include "fuzz/fuzz.h"
#include "host/generation_config.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFolder folder;
  folder.Write("generation_config.json",
               absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto config = host::ReadGenerationConfig(folder.path());
  if (!config.ok()) {
    FUZZ_REQUIRE(!config.status().message().empty());
    return 0;
  }
  FUZZ_REQUIRE(config->found && config->top_k >= 0);
  FUZZ_REQUIRE(config->sampling.Validate().ok());
  const float logits[] = {-3, 0.5f, 80, 79.5f, -1e30f};
  host::Sampler sampler(config->sampling);
  for (int i = 0; i < 3; ++i) {
    const auto token = sampler.Next(logits, {2, 0});
    FUZZ_REQUIRE(token.ok() && *token >= 0 && *token < 5);
  }
  return 0;
}
