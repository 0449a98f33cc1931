// A checkpoint of several files: its index up to a zero byte, then what every shard holds. Where
// the index is empty there is none: the first of two numbered shards has the next two bytes'
// length.
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

/// Two numbered shards without an index.
class NumberedEnv final : public Env {
 public:
  explicit NumberedEnv(absl::string_view shards) {
    uint16_t length = 0;
    if (shards.size() >= 2) std::memcpy(&length, shards.data(), 2);
    shards.remove_prefix(std::min<size_t>(2, shards.size()));
    first_ = std::string(shards.substr(0, length));
    second_ = std::string(shards.substr(first_.size()));
  }
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                         FileAccess) override {
    return std::make_unique<fuzz::MemoryFile>(path,
                                              absl::EndsWith(path, kFirst) ? first_ : second_);
  }
  static const fuzz::ScratchFolder& Folder() {
    static const fuzz::ScratchFolder folder;
    static const std::string first = folder.Write(kFirst, ""), second = folder.Write(kSecond, "");
    return folder;
  }

 private:
  static constexpr char kFirst[] = "model-00001-of-00002.safetensors";
  static constexpr char kSecond[] = "model-00002-of-00002.safetensors";
  std::string first_, second_;
};

void ReadAll(const std::string& folder, Env* env) {
  const auto checkpoint = Checkpoint::Open(folder, env);
  if (!checkpoint.ok()) {
    FUZZ_REQUIRE(!checkpoint.status().message().empty());
    return;
  }
  for (const TensorInfo& t : (*checkpoint)->tensors()) {
    FUZZ_REQUIRE((*checkpoint)->Find(t.name) != nullptr);
    std::vector<std::byte> bytes(static_cast<size_t>(t.bytes));
    FUZZ_REQUIRE((*checkpoint)->ReadBytes(t, 0, absl::MakeSpan(bytes)).ok());
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  if (zero == absl::string_view::npos) return 0;
  if (zero == 0) {
    NumberedEnv env(all.substr(1));
    ReadAll(NumberedEnv::Folder().path(), &env);
    return 0;
  }
  ShardEnv env(all.substr(0, zero), all.substr(zero + 1));
  ReadAll(ShardEnv::Folder().path(), &env);
  return 0;
}
