// The header of a safetensors file, and the reading of its tensors.
#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"
#include "moert/offline/checkpoint.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  fuzz::MemoryEnv env(bytes);
  const auto checkpoint = Checkpoint::Open("fuzz.safetensors", &env);
  if (!checkpoint.ok()) return 0;
  int64_t end = -1;
  for (const TensorInfo& t : (*checkpoint)->tensors()) {
    int64_t elements = 1;
    for (const int64_t d : t.shape) {
      FUZZ_REQUIRE(d >= 0);
      FUZZ_REQUIRE(!__builtin_mul_overflow(elements, d, &elements));
    }
    if (t.unknown_type.empty()) {
      FUZZ_REQUIRE(t.elements() == elements);
    } else {
      FUZZ_REQUIRE((t.bytes + 15) / 16 <= elements && t.elements() == t.bytes);
      FUZZ_REQUIRE(absl::IsUnimplemented((*checkpoint)->Get(t.name).status()));
      elements = t.bytes;
    }
    FUZZ_REQUIRE(t.offset >= 8 && t.bytes >= 0);
    FUZZ_REQUIRE(end < 0 || t.offset == end);
    end = t.offset + t.bytes;
    FUZZ_REQUIRE(end <= static_cast<int64_t>(size));
    FUZZ_REQUIRE((*checkpoint)->Find(t.name) != nullptr);
    std::vector<float> values(static_cast<size_t>(std::min<int64_t>(elements, 1000)));
    const int64_t first = elements - static_cast<int64_t>(values.size());
    (void)(*checkpoint)->CheckWeightType(t);
    (void)(*checkpoint)->ReadAsF32(t, first, absl::MakeSpan(values));
    std::vector<uint16_t> rounded(values.size());
    (void)(*checkpoint)->ReadAsBf16(t, 0, absl::MakeSpan(rounded));
  }
  FUZZ_REQUIRE(end < 0 || end == static_cast<int64_t>(size));
  return 0;
}
