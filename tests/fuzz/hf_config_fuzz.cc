// config.json of every architecture, and the rotary tables that follow from it.
#include "fuzz/fuzz.h"
#include "host/blocks/rope.h"
#include "moert/offline/hf_config.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config =
      ParseHfConfig(absl::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!config.ok()) {
    FUZZ_REQUIRE(!config.status().message().empty());
    return 0;
  }
  FUZZ_REQUIRE(config->moe.Validate().ok());
  FUZZ_REQUIRE(static_cast<int>(config->is_moe.size()) == config->num_hidden_layers);
  FUZZ_REQUIRE(config->MoeLayerIndex(config->moe.layers.back().model_layer) ==
               config->moe.num_layers() - 1);
  if (config->experts_only) return 0;  // it says nothing of a decoder
  FUZZ_REQUIRE(static_cast<int>(config->mixers.size()) == config->num_hidden_layers);
  FUZZ_REQUIRE(config->rope.dim >= 2 && config->rope.dim <= config->head_dim);
  FUZZ_REQUIRE(config->num_attention_heads % config->num_key_value_heads == 0);
  host::Rope rope(config->rope);
  rope.Extend(3);
  std::vector<float> x(static_cast<size_t>(config->head_dim), 1.0f);
  rope.Rotate(rope.SetOf(config->max_position_embeddings), 2, x.data());
  return 0;
}
