#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/hash64.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors_header.h"
#include "pack/model_cache.h"

namespace moert {
namespace {

constexpr int64_t kWholeFileBytes = int64_t{64} << 20;
constexpr int64_t kBlockBytes = 4096;
constexpr int64_t kSampleBlocks = 64;

void AddInt(Hasher64* hasher, int64_t v) {
  hasher->Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&v), sizeof(v)));
}

absl::Status AddRange(const RandomAccessFile& file, int64_t offset, int64_t bytes,
                      Hasher64* hasher) {
  std::vector<std::byte> buffer(std::min<int64_t>(bytes, 1 << 20));
  while (bytes > 0) {
    const auto part = absl::MakeSpan(buffer).subspan(0, std::min<int64_t>(bytes, 1 << 20));
    MOERT_RETURN_IF_ERROR(file.Read(offset, part));
    hasher->Add(part);
    offset += static_cast<int64_t>(part.size());
    bytes -= static_cast<int64_t>(part.size());
  }
  return absl::OkStatus();
}

// Files too large to read in full are identified by their header, a sample, and their time: two
// fine-tunes of one model have equal headers, and an edit in place may miss every sample.
absl::Status AddFile(const RandomAccessFile& file, Hasher64* hasher) {
  AddInt(hasher, file.size());
  if (file.size() <= kWholeFileBytes) return AddRange(file, 0, file.size(), hasher);
  struct stat st {};
  if (::stat(file.path().c_str(), &st) != 0) return PosixError(errno, file.path() + ": stat");
  AddInt(hasher, static_cast<int64_t>(st.st_mtim.tv_sec));
  AddInt(hasher, static_cast<int64_t>(st.st_mtim.tv_nsec));
  MOERT_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(file));
  MOERT_RETURN_IF_ERROR(AddRange(file, 0, header.data_offset, hasher));
  const int64_t step = (file.size() - header.data_offset - kBlockBytes) / kSampleBlocks;
  for (int64_t i = 0; i <= kSampleBlocks; ++i) {
    MOERT_RETURN_IF_ERROR(AddRange(file, header.data_offset + i * step, kBlockBytes, hasher));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> CheckpointIdentity(const std::string& model_dir, Env* env) {
  Hasher64 hasher;
  MOERT_ASSIGN_OR_RETURN(const auto config,
                         env->Open(model_dir + "/config.json", FileAccess::kBuffered));
  AddInt(&hasher, config->size());
  MOERT_RETURN_IF_ERROR(AddRange(*config, 0, config->size(), &hasher));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model_dir, env));
  for (int i = 0; i < checkpoint->num_files(); ++i) {
    MOERT_RETURN_IF_ERROR(AddFile(checkpoint->file(i), &hasher));
  }
  return fmt::format("{:016x}", hasher.Finish());
}

}  // namespace moert
