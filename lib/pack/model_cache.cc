#include "pack/model_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/bytes_text.h"
#include "base/descriptor.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/folder.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"
#include "pack/checkpoint_source.h"
#include "pack/expert_pack.h"
#include "pack/pack_writer.h"

namespace moert {
namespace {

namespace fs = std::filesystem;

constexpr char kRemedy[] =
    "the pack of a checkpoint is kept in a cache folder; name a writable one (cache_dir, --cache "
    "DIR), or use an existing pack (--experts PACK)";

// Held while one process looks for a pack and writes it; the others then find it. If locks do not
// work, several may write: each has a folder of its own, and the first rename wins.
class CacheLock {
 public:
  /// Logs a line if it has to wait.
  static absl::StatusOr<CacheLock> Take(const std::string& path, const OpenModelOptions& options) {
    // Does not follow links: a link to another user's lock, or to a file elsewhere, would be an
    // attack.
    CacheLock lock(
        Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)));
    if (lock.fd_.get() < 0) {
      if (errno != ELOOP) return lock;
      return FailedPrecondition("{}: is a symbolic link, a lock must not be one; {}", path,
                                kRemedy);
    }
    if (::flock(lock.fd_.get(), LOCK_EX | LOCK_NB) == 0) return lock;
    if (errno == EWOULDBLOCK && options.log != nullptr) {
      options.log(
          options.user,
          fmt::format("waiting for another process that holds {} (it writes the pack)", path));
    }
    while (::flock(lock.fd_.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
    return lock;
  }

 private:
  explicit CacheLock(Descriptor fd) : fd_(std::move(fd)) {}
  Descriptor fd_;
};

// A file beside a pack: holds the folder of the checkpoint from which the pack was made.
constexpr absl::string_view kOrigin = ".origin";

std::string OriginOf(const std::string& model_dir) {
  std::error_code ec;
  const fs::path path = fs::weakly_canonical(model_dir, ec);
  return ec ? model_dir : path.string();
}

// A pack without this file is never collected, so a failure here does no further harm.
void WriteOrigin(const std::string& pack_dir, const std::string& model_dir) {
  const std::string path = pack_dir + std::string(kOrigin);
  const absl::StatusOr<Descriptor> file = CreateFile(path, /*replace=*/true, 0600);
  const std::string origin = OriginOf(model_dir);
  if (file.ok()) (void)!::write(file->get(), origin.data(), origin.size());
}

bool HasOrigin(const std::string& path, const std::string& origin) {
  const auto file = Env::Default()->Open(path, FileAccess::kBuffered);
  if (!file.ok() || (*file)->size() != static_cast<int64_t>(origin.size())) return false;
  std::string text(origin.size(), '\0');
  return (*file)->Read(0, {reinterpret_cast<std::byte*>(text.data()), text.size()}).ok() &&
         text == origin;
}

// Removes what crashed writers and older versions of the library left for this checkpoint, and
// packs of the folder's former contents. Call it only under the lock. Open files of a removed pack
// stay usable.
void RemoveLeftovers(const std::string& cache_dir, const std::string& identity,
                     const std::string& current, const std::string& model_dir) {
  const absl::StatusOr<std::vector<std::string>> names = FolderNames(cache_dir);
  if (!names.ok()) return;
  const std::string origin = OriginOf(model_dir);
  for (const std::string& name : *names) {
    absl::string_view pack = name;
    if (absl::ConsumeSuffix(&pack, kOrigin) && !absl::StartsWith(pack, identity) &&
        HasOrigin(cache_dir + "/" + name, origin)) {
      const std::string dead = cache_dir + "/" + std::string(pack);
      RemoveTree(dead);
      RemoveTree(dead + ".lock");
      RemoveTree(cache_dir + "/" + name);
      continue;
    }
    bool old = absl::StartsWith(name, current + ".tmp-");
    for (int v = 0; v < kPackFormatVersion; ++v) {
      old = old || name == fmt::format("{}-v{}", identity, v);
    }
    if (old) RemoveTree(cache_dir + "/" + name);
  }
}

// Whoever can write the cache folder can have other weights computed: a folder that everybody may
// write is refused, and other users who may write it are reported.
absl::Status CheckFolder(const std::string& dir, const OpenModelOptions& options) {
  struct stat st {};
  if (::stat(dir.c_str(), &st) != 0) return PosixError(errno, fmt::format("{}: stat", dir));
  if ((st.st_mode & S_IWOTH) != 0) {
    return FailedPrecondition(
        "{}: everybody may write this folder (mode {:o}), so packs in it cannot be trusted; chmod "
        "o-w it, or name another (cache_dir, --cache DIR)",
        dir, st.st_mode & 07777);
  }
  const bool others = st.st_uid != ::geteuid() && st.st_uid != 0;
  if (options.log != nullptr && (others || (st.st_mode & S_IWGRP) != 0)) {
    options.log(options.user,
                fmt::format("{}: {} may write this cache folder, and so the weights in it", dir,
                            others ? "another user" : "its group"));
  }
  return absl::OkStatus();
}

absl::Status CheckSpace(const std::string& dir, int64_t bytes) {
  struct statvfs vfs {};
  if (::statvfs(dir.c_str(), &vfs) != 0) return absl::OkStatus();  // then writing will tell
  const uint64_t available = uint64_t{vfs.f_bavail} * uint64_t{vfs.f_frsize};
  if (available >= static_cast<uint64_t>(bytes)) return absl::OkStatus();
  return ResourceExhausted("{}: the pack needs {}, {} are free; {}", dir, BytesText(bytes),
                           BytesText(static_cast<int64_t>(available)), kRemedy);
}

absl::Status WritePack(const std::string& model_dir, const HfConfig& config,
                       const std::string& identity, const std::string& pack_dir,
                       const OpenModelOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model_dir));
  MOERT_ASSIGN_OR_RETURN(const auto experts, CheckpointExperts::Create(checkpoint.get(), &config));
  PackDescription description;
  description.model = config.moe;
  description.versions = {options.widen ? PackVersion::Uniform(Scheme{}) : StoredVersion(*experts)};
  description.quantizer_json = R"({"method":"none"})";
  description.source_identity = identity;
  description.owner_only = true;
  const std::string version = description.versions[0].name;
  MOERT_ASSIGN_OR_RETURN(const auto writer, PackWriter::Create(pack_dir, std::move(description)));
  MOERT_RETURN_IF_ERROR(
      CheckSpace(fs::path(pack_dir).parent_path().string(), writer->total_bytes()));
  if (options.log != nullptr) {
    options.log(
        options.user,
        fmt::format("packing {} as {} into {} ({}, once; opened in place, nothing is written)",
                    model_dir, version, pack_dir, BytesText(writer->total_bytes())));
  }
  const int64_t total = config.moe.total_experts();
  int64_t done = 0;
  std::vector<std::byte> record;
  for (int l = 0; l < config.moe.num_layers(); ++l) {
    for (int e = 0; e < config.moe.layers[l].num_experts; ++e) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, writer->Layout(l, e, 0));
      record.resize(layout.bytes);
      MOERT_RETURN_IF_ERROR(experts->ReadRecord(l, e, layout, record.data()));
      MOERT_RETURN_IF_ERROR(writer->WriteRecord(l, e, 0, record));
      if (options.progress != nullptr) options.progress(options.user, ++done, total);
    }
    MOERT_ASSIGN_OR_RETURN(const LayerConstants constants, experts->ReadConstants(l));
    MOERT_RETURN_IF_ERROR(writer->WriteConstants(l, constants));
  }
  const absl::Status finished = writer->Finish();
  return absl::IsAlreadyExists(finished) ? absl::OkStatus() : finished;
}

// Opens a cached pack if it is intact and of this checkpoint.
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenCached(const std::string& pack_dir,
                                                         const HfConfig& config,
                                                         const std::string& identity) {
  ExpertPackOptions pack_options;
  pack_options.source_identity = identity;
  MOERT_ASSIGN_OR_RETURN(auto source, OpenExpertPack(pack_dir, pack_options));
  if (!(source->model() == config.moe)) {
    return DataLoss("{}: not the model that it is cached for", pack_dir);
  }
  return source;
}

// Whether a status of opening a pack means that the pack is missing or damaged. Other errors (no
// memory, no descriptor, no permission, an I/O error) say nothing about the pack.
bool NeedsRebuild(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
}

// The name of the cache folder, which may not exist yet.
absl::StatusOr<std::string> CacheDirectoryName(const std::string& requested) {
  if (!requested.empty()) return requested;
  // The XDG specification requires that a relative path is ignored.
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/moert";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/moert";
  return FailedPrecondition("neither XDG_CACHE_HOME nor HOME names a folder; {}", kRemedy);
}

bool HasCacheDirectory(const std::string& requested) {
  const absl::StatusOr<std::string> dir = CacheDirectoryName(requested);
  std::error_code ec;
  return dir.ok() && fs::is_directory(*dir, ec);
}

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenOrWrite(const std::string& model_dir,
                                                          const OpenModelOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(model_dir));
  MOERT_ASSIGN_OR_RETURN(const std::string identity, CheckpointIdentity(model_dir, Env::Default()));
  MOERT_ASSIGN_OR_RETURN(const std::string cache_dir, CacheDirectory(options.cache_dir));
  MOERT_RETURN_IF_ERROR(CheckFolder(cache_dir, options));
  const bool widens = options.widen && config.quantization.form != StoredWeights::kPlain;
  const std::string name =
      fmt::format("{}-v{}{}", identity, kPackFormatVersion, widens ? "-bf16" : "");
  const std::string pack_dir = cache_dir + "/" + name;
  absl::StatusOr<std::unique_ptr<ExpertSource>> cached = OpenCached(pack_dir, config, identity);
  if (cached.ok() || !NeedsRebuild(cached.status())) return cached;
  if (options.mode == OpenMode::kPackIfThere) return OpenCheckpointSource(model_dir, options.widen);

  if (::access(cache_dir.c_str(), W_OK | X_OK) != 0) {
    return PosixError(errno, fmt::format("{}: not writable; {}", cache_dir, kRemedy));
  }
  MOERT_ASSIGN_OR_RETURN(const CacheLock lock,
                         CacheLock::Take(cache_dir + "/" + name + ".lock", options));
  cached = OpenCached(pack_dir, config, identity);
  if (cached.ok() || !NeedsRebuild(cached.status())) return cached;
  // A damaged pack is removed and rebuilt like a missing one.
  if (const int error = RemoveTree(pack_dir); error != 0) {
    return PosixError(error, fmt::format("{}: cannot be replaced; {}", pack_dir, kRemedy));
  }
  RemoveLeftovers(cache_dir, identity, name, model_dir);
  MOERT_RETURN_IF_ERROR(WritePack(model_dir, config, identity, pack_dir, options));
  WriteOrigin(pack_dir, model_dir);
  return OpenCached(pack_dir, config, identity);
}

}  // namespace

absl::StatusOr<std::string> CacheDirectory(const std::string& requested) {
  MOERT_ASSIGN_OR_RETURN(const std::string dir, CacheDirectoryName(requested));
  // A folder made here is accessible to its owner only: others must not see which models are used,
  // and whoever can write there can have other weights computed.
  std::error_code ec;
  if (fs::is_directory(dir, ec)) return dir;
  ec.clear();  // that it is not there
  const fs::path parent = fs::path(dir).parent_path();
  if (!parent.empty()) fs::create_directories(parent, ec);
  if (ec) return PosixError(ec.value(), fmt::format("{}: cannot be created; {}", dir, kRemedy));
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return PosixError(errno, fmt::format("{}: cannot be created; {}", dir, kRemedy));
  }
  return dir;
}

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenModel(const std::string& model_dir,
                                                        const OpenModelOptions& options) try {
  try {
    if (options.mode == OpenMode::kInPlace ||
        (options.mode == OpenMode::kPackIfThere && !HasCacheDirectory(options.cache_dir))) {
      return OpenCheckpointSource(model_dir, options.widen);
    }
    return OpenOrWrite(model_dir, options);
  } catch (...) {
    return ExceptionStatus(model_dir);
  }
} catch (...) {
  return ExceptionStatus("opening a model");
}

}  // namespace moert
