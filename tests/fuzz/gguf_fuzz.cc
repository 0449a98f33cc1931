// A GGUF file's header.
#include "fuzz/fuzz.h"
#include "moert/offline/gguf.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::MemoryEnv env(std::string(reinterpret_cast<const char*>(data), size));
  const auto info = ReadGguf("fuzz.gguf", &env);
  if (!info.ok()) return 0;
  int64_t bytes = 0;
  for (const GgufTensor& tensor : info->tensors) {
    FUZZ_REQUIRE(tensor.bytes >= 0 && !tensor.type.empty());
    bytes = std::max(bytes, tensor.bytes);
  }
  FUZZ_REQUIRE(bytes <= static_cast<int64_t>(size));
  return 0;
}
