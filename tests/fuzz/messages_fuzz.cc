// Messages about a file: the first byte chooses a reader, the others are the file. A message is
// printable ASCII and short for any file: nothing of it reaches a terminal raw.
#include "checkpoint/safetensors_header.h"
#include "fuzz/fuzz.h"
#include "host/tokenizer.h"
#include "moert/offline/calibration.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/plan.h"
#include "moert/offline/token_file.h"
#include "moert/tools/profile.h"
#include "moert/tools/trace.h"
#include "pack/pack_manifest.h"

using namespace moert;

namespace {

/// A folder whose index is the bytes, and every shard too.
absl::Status OpenShards(const std::string& bytes) {
  static const fuzz::ScratchFolder folder;
  folder.Write("model.safetensors.index.json", "");
  fuzz::MemoryEnv env(bytes);
  return Checkpoint::Open(folder.path(), &env).status();
}

absl::Status ReadAs(int kind, const std::string& bytes) {
  fuzz::MemoryEnv env(bytes);
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  switch (kind) {
    case 0:
      return ReadSafetensorsHeader(fuzz::MemoryFile("f", bytes)).status();
    case 1:
      return ReadManifest("f", &env).status();
    case 2:
      return ReadPlan("f", &env).status();
    case 3:
      return ReadCalibration("f", &env).status();
    case 4:
      return ParseHfConfig(bytes, "f").status();
    case 5:
      return OpenShards(bytes);
    case 6:
      return LoadProfile(fuzz::ScratchFile(data, bytes.size())).status();
    case 7:
      return OpenTrace(fuzz::ScratchFile(data, bytes.size())).status();
    case 8:
      return ReadTokenFile(fuzz::ScratchFile(data, bytes.size()), 1000, 0).status();
    default:
      return host::Tokenizer::Parse(bytes, "f").status();
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kKinds = 10;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const absl::Status status = ReadAs(data[0] % kKinds, bytes);
  FUZZ_REQUIRE(status.message().size() < 4000);
  for (const char c : status.message()) FUZZ_REQUIRE(c >= 0x20 && c < 0x7f);
  return 0;
}
