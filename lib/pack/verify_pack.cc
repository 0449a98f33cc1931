#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "base/checked_math.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/hash64.h"
#include "base/status_macros.h"
#include "moert/offline/pack.h"
#include "pack/expert_pack.h"
#include "pack/pack_manifest.h"
#include "pack/pack_writer.h"

namespace moert {
namespace {

class Verifier {
 public:
  Verifier(const std::string& dir, Env* env, ThreadPool* pool,
           const std::function<void(int64_t, int64_t)>& progress)
      : dir_(dir), env_(env), pool_(pool), progress_(progress) {}

  absl::StatusOr<PackVerification> Run() {
    MOERT_ASSIGN_OR_RETURN(manifest_, ReadManifest(dir_, env_));
    ExpertPackOptions options;
    options.env = env_;
    options.direct_io = false;
    // Opening the pack checks that all files exist and have the right size.
    MOERT_ASSIGN_OR_RETURN(pack_, OpenExpertPack(dir_, options));
    for (const PackFile& f : manifest_.files) {
      MOERT_ASSIGN_OR_RETURN(auto file, env_->Open(dir_ + "/" + f.name, FileAccess::kBuffered));
      files_.push_back(std::move(file));
      result_.bytes += f.bytes;
    }
    result_.bytes += manifest_.constants.bytes;
    result_.records = static_cast<int64_t>(manifest_.records.size());
    CheckFileStarts();
    MOERT_RETURN_IF_ERROR(CheckConstants());
    MOERT_RETURN_IF_ERROR(CheckRecords());
    return std::move(result_);
  }

 private:
  struct Key {
    int layer, version, expert;
  };

  void Damage(std::string line) { result_.damage.push_back(std::move(line)); }

  const std::string& VersionName(int v) const { return manifest_.versions[v].name; }

  // Compares the first bytes of a file with those that a writer produces for these tensors.
  void CheckStart(const RandomAccessFile& file, const std::vector<TensorSpec>& tensors) {
    const auto expected = SafetensorsFileStart(tensors);
    std::string found(expected.ok() ? expected->size() : 0, '\0');
    const absl::Status read =
        file.Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(found.data()), found.size()));
    if (!expected.ok() || !read.ok() || found != *expected) {
      Damage(fmt::format("{}: its header is damaged", file.path()));
    }
  }

  // The writer's order is the manifest's, so each file's header is known.
  void CheckFileStarts() {
    std::vector<std::vector<TensorSpec>> tensors(files_.size());
    size_t index = 0;
    for (int l = 0; l < manifest_.model.num_layers(); ++l) {
      const int experts = manifest_.model.layers[l].num_experts;
      for (int v = 0; v < manifest_.num_versions(); ++v) {
        for (int e = 0; e < experts; ++e, ++index) {
          const PackRecord& r = manifest_.records[index];
          tensors[r.file].push_back(RecordTensor(l, e, VersionName(v), r.bytes));
          keys_.push_back({l, v, e});
        }
      }
    }
    for (size_t f = 0; f < files_.size(); ++f) CheckStart(*files_[f], tensors[f]);
  }

  absl::Status CheckConstants() {
    MOERT_ASSIGN_OR_RETURN(const auto tensors, ConstantTensors(manifest_.model));
    const std::string path = dir_ + "/" + manifest_.constants.name;
    MOERT_ASSIGN_OR_RETURN(const auto file, env_->Open(path, FileAccess::kBuffered));
    CheckStart(*file, tensors);
    for (int l = 0; l < manifest_.model.num_layers(); ++l) {
      const auto constants = pack_->ReadConstants(l);
      if (constants.ok()) continue;
      if (absl::IsResourceExhausted(constants.status())) return constants.status();
      Damage(std::string(constants.status().message()));
    }
    return absl::OkStatus();
  }

  // Empty: the record is intact. Runs on the pool's threads, in which no exception may escape.
  std::string CheckRecord(size_t index, std::vector<std::byte>* buffer) const {
    const PackRecord& r = manifest_.records[index];
    const RandomAccessFile& file = *files_[r.file];
    const Key& key = keys_[index];
    const std::string name =
        fmt::format("{}: tensor \"{}\" (layer {}, expert {}, version {})", file.path(),
                    RecordTensorName(key.layer, key.expert, VersionName(key.version)), key.layer,
                    key.expert, VersionName(key.version));
    buffer->resize(RoundUp(r.bytes, kRecordAlignment));
    const absl::Status read = file.Read(r.offset, absl::MakeSpan(*buffer));
    if (!read.ok()) return fmt::format("{}: {}", name, read.message());
    const auto data = absl::MakeConstSpan(*buffer).subspan(0, r.bytes);
    if (Hash64(data) != r.checksum) {
      return fmt::format("{} is damaged: its checksum is {:016x}, {} says {:016x}", name,
                         Hash64(data), kManifestFile, r.checksum);
    }
    const bool zero = std::all_of(buffer->begin() + r.bytes, buffer->end(),
                                  [](std::byte b) { return b == std::byte{0}; });
    return zero ? "" : fmt::format("{}: the padding behind it is not zero", name);
  }

  absl::Status CheckRecords() {
    const size_t threads = static_cast<size_t>(pool_->num_threads());
    std::vector<std::vector<std::byte>> buffers(threads);
    const size_t count = manifest_.records.size();
    const size_t batch = 64 * threads;  // between two calls of progress
    for (size_t first = 0; first < count; first += batch) {
      const size_t n = std::min(batch, count - first);
      std::vector<std::string> outcomes(n);
      std::atomic<bool> no_memory{false};  // which is no damage
      pool_->Run(static_cast<int64_t>(n), [&](int64_t i, int worker) {
        const size_t at = static_cast<size_t>(i);
        try {
          outcomes[at] = CheckRecord(first + at, &buffers[worker]);
        } catch (const std::bad_alloc&) {
          no_memory = true;
        }
      });
      if (no_memory) return OutOfMemory(dir_);
      for (std::string& outcome : outcomes) {
        if (!outcome.empty()) Damage(std::move(outcome));
      }
      if (progress_) progress_(static_cast<int64_t>(first + n), static_cast<int64_t>(count));
    }
    return absl::OkStatus();
  }

  const std::string& dir_;
  Env* const env_;
  ThreadPool* const pool_;
  const std::function<void(int64_t, int64_t)>& progress_;
  PackManifest manifest_;
  std::unique_ptr<ExpertSource> pack_;
  std::vector<std::unique_ptr<RandomAccessFile>> files_;
  std::vector<Key> keys_;  // by record
  PackVerification result_;
};

}  // namespace

absl::StatusOr<PackVerification> VerifyPack(
    const std::string& dir, Env* env, ThreadPool* pool,
    const std::function<void(int64_t done, int64_t total)>& progress) try {
  return Verifier(dir, env, pool, progress).Run();
} catch (...) {
  return ExceptionStatus(dir);
}

}  // namespace moert
