// A routing trace.
#include "fuzz/fuzz.h"
#include "moert/tools/trace.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto reader = OpenTrace(fuzz::ScratchFile(data, size));
  if (!reader.ok()) return 0;
  const TraceHeader& header = (*reader)->header();
  FUZZ_REQUIRE(header.model.Validate().ok());
  for (size_t calls = 0; calls < 64; ++calls) {
    const auto call = (*reader)->Next();
    if (!call.ok() || *call == nullptr) break;
    FUZZ_REQUIRE((*call)->layer >= 0 && (*call)->layer < header.model.num_layers());
    for (const int32_t id : (*call)->ids) {
      FUZZ_REQUIRE(id >= -1 && id < header.model.layers[(*call)->layer].num_experts);
    }
  }
  return 0;
}
