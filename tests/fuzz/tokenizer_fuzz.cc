// tokenizer.json; what stands behind a zero byte is encoded with it.
#include "fuzz/fuzz.h"
#include "host/tokenizer.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(all.find('\0'), size);
  const auto tokenizer = host::Tokenizer::Parse(all.substr(0, zero), "fuzz");
  if (!tokenizer.ok()) return 0;
  const absl::string_view text = zero < size ? all.substr(zero + 1)
                                             : absl::string_view(
                                                   "A b\xE2\x96\x81"
                                                   "c 12 \xFF<s>\n");
  const auto ids = tokenizer->EncodePrompt(text.substr(0, 200));
  if (!ids.ok()) return 0;
  host::StreamDecoder stream(&*tokenizer);
  for (const int32_t id : *ids) {
    FUZZ_REQUIRE(id >= 0 && id < tokenizer->size());
    FUZZ_REQUIRE(stream.Push(id).ok());
  }
  FUZZ_REQUIRE(tokenizer->DecodeBytes(*ids).ok());
  return 0;
}
