// moert.json of an expert pack.
#include "fuzz/fuzz.h"
#include "pack/pack_manifest.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::MemoryEnv env(fuzz::SealedIfOdd(data, size));
  const auto manifest = ReadManifest("fuzz", &env);
  if (!manifest.ok()) return 0;
  FUZZ_REQUIRE(manifest->model.Validate().ok());
  size_t records = 0;
  for (const MoeLayerSpec& layer : manifest->model.layers) {
    records += static_cast<size_t>(layer.num_experts) * manifest->versions.size();
  }
  FUZZ_REQUIRE(manifest->records.size() == records);
  for (const PackRecord& r : manifest->records) {
    FUZZ_REQUIRE(r.file >= 0 && static_cast<size_t>(r.file) < manifest->files.size());
    FUZZ_REQUIRE(r.offset >= 0 && r.bytes > 0);
    FUZZ_REQUIRE(r.bytes <= manifest->files[static_cast<size_t>(r.file)].bytes - r.offset);
  }
  // An accepted file is written and read as the same.
  const std::string text = ManifestToJson(*manifest);
  fuzz::MemoryEnv again(text);
  const auto second = ReadManifest("fuzz", &again);
  FUZZ_REQUIRE(second.ok());
  FUZZ_REQUIRE(ManifestToJson(*second) == text);
  return 0;
}
