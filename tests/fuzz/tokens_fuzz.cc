// Token files: a byte of the kind (.u16, .u32, text), two of the vocabulary's size, one of the
// limit, then the file. Text is encoded by a tokenizer of 256 bytes, so that every id is known.
#include <algorithm>
#include <vector>

#include "fmt/format.h"
#include "fuzz/fuzz.h"
#include "host/read_tokens.h"

using namespace moert;

namespace {

std::string TokenizerOfBytes() {
  std::string vocab;
  for (int b = 0; b < 256; ++b) vocab += fmt::format("{}\"<0x{:02X}>\":{}", b > 0 ? "," : "", b, b);
  return R"({"model":{"type":"BPE","byte_fallback":true,"merges":[],"vocab":{)" + vocab + "}}}";
}

const fuzz::ScratchFolder& Folder() {
  static const fuzz::ScratchFolder folder;
  static const std::string tokenizer = folder.Write("tokenizer.json", TokenizerOfBytes());
  return folder;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  constexpr const char* kNames[] = {"ids.u16", "ids.u32", "text.txt"};
  constexpr size_t kWidths[] = {2, 4, 1};
  const int kind = data[0] % 3;
  const size_t width = kWidths[kind], count = (size - 4) / width, limit = data[3];
  const int64_t vocab = 1 + data[1] + 256 * data[2];
  const uint8_t* const file = data + 4;
  const std::string path =
      Folder().Write(kNames[kind], {reinterpret_cast<const char*>(file), size - 4});
  const auto ids = host::ReadTokens(path, Folder().path(), vocab, static_cast<int64_t>(limit));
  if (!ids.ok()) return 0;
  FUZZ_REQUIRE(ids->size() == (limit > 0 ? std::min(limit, count) : count));
  for (size_t i = 0; i < ids->size(); ++i) {
    uint32_t id = 0;
    for (size_t b = width; b-- > 0;) id = id << 8 | file[i * width + b];
    FUZZ_REQUIRE(static_cast<uint32_t>((*ids)[i]) == id && id < vocab);
  }
  return 0;
}
