// A hardware profile.
#include "fuzz/fuzz.h"
#include "moert/tools/profile.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto profile = LoadProfile(fuzz::ScratchFile(data, size));
  if (profile.ok()) FUZZ_REQUIRE(profile->link_bytes_per_s >= 1 && profile->link_latency_ns >= 0);
  return 0;
}
