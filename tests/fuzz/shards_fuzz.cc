// A checkpoint of several files: its index up to a zero byte, then what every shard holds.
#include "absl/strings/match.h"
#include "fuzz/fuzz.h"
#include "moert/offline/checkpoint.h"

using namespace moert;

namespace {

constexpr char kIndex[] = "model.safetensors.index.json";

class ShardEnv final : public Env {
 public:
  ShardEnv(absl::string_view index, absl::string_view shard) : index_(index), shard_(shard) {}
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                         FileAccess) override {
    if (absl::EndsWith(path, kIndex)) return std::make_unique<fuzz::MemoryFile>(path, index_);
    // A shard lies in the folder of its index.
    FUZZ_REQUIRE(absl::StartsWith(path, Folder().path() + "/"));
    FUZZ_REQUIRE(path.find('/', Folder().path().size() + 1) == std::string::npos);
    FUZZ_REQUIRE(!absl::EndsWith(path, "/..") && !absl::EndsWith(path, "/."));
    for (const char c : path) FUZZ_REQUIRE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    return std::make_unique<fuzz::MemoryFile>(path, shard_);
  }
  /// With an index to be found; what is in it comes from the environment.
  static const fuzz::ScratchFolder& Folder() {
    static const fuzz::ScratchFolder folder;
    static const std::string index = folder.Write(kIndex, "");
    return folder;
  }

 private:
  const std::string index_, shard_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  if (zero == absl::string_view::npos) return 0;
  ShardEnv env(all.substr(0, zero), all.substr(zero + 1));
  const auto checkpoint = Checkpoint::Open(ShardEnv::Folder().path(), &env);
  if (!checkpoint.ok()) {
    FUZZ_REQUIRE(!checkpoint.status().message().empty());
    return 0;
  }
  for (const TensorInfo& t : (*checkpoint)->tensors()) {
    FUZZ_REQUIRE((*checkpoint)->Find(t.name) != nullptr);
    std::vector<std::byte> bytes(static_cast<size_t>(t.bytes));
    FUZZ_REQUIRE((*checkpoint)->ReadBytes(t, 0, absl::MakeSpan(bytes)).ok());
  }
  return 0;
}
