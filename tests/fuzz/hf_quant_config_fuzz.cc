// hf_quant_config.json, which ModelOpt writes beside config.json.
#include "checkpoint/quantization_config.h"
#include "fuzz/fuzz.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto document =
      JsonDocument::Parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!document.ok()) return 0;
  std::vector<UnusedField> unused;
  const auto config = ReadHfQuantConfig(document->root(), "fuzz", &unused);
  if (!config.ok()) {
    FUZZ_REQUIRE(!config.status().message().empty());
    return 0;
  }
  FUZZ_REQUIRE(config->form != StoredWeights::kPlain);
  FUZZ_REQUIRE(config->group == -1 || (config->group >= 0 && config->group <= kMaxGroup));
  return 0;
}
