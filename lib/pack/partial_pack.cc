#include "pack/partial_pack.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/folder.h"
#include "base/hash64.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "moert/tools/env.h"

namespace moert {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "moert partial pack 1";
constexpr int64_t kMaxJournalBytes = int64_t{256} << 20;
constexpr size_t kHexDigits = 16;

// A line ends with the checksum of the text before it, so that a line cut off by a crash is
// recognized.
std::string SealLine(std::string text) {
  Hasher64 hasher;
  hasher.Add(text);
  return fmt::format("{} {:016x}\n", text, hasher.Finish());
}

std::optional<uint64_t> ParseHex(absl::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != kHexDigits || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// Removes the next intact line from `text` and returns it without its checksum.
std::optional<absl::string_view> TakeLine(absl::string_view* text) {
  const size_t end = text->find('\n');
  if (end == absl::string_view::npos || end < kHexDigits + 1) return std::nullopt;
  const absl::string_view content = text->substr(0, end - kHexDigits - 1);
  Hasher64 hasher;
  hasher.Add(content);
  const auto seal = ParseHex(text->substr(end - kHexDigits, kHexDigits));
  if (!seal || *seal != hasher.Finish()) return std::nullopt;
  text->remove_prefix(end + 1);
  return content;
}

std::string LayerText(size_t index, const PartialPack::DoneLayer& layer) {
  std::string text = fmt::format("layer {} {:016x}", index, layer.constants);
  for (const uint64_t checksum : layer.records) text += fmt::format(" {:016x}", checksum);
  return text;
}

std::optional<PartialPack::DoneLayer> ParseLayer(absl::string_view text, size_t index) {
  const std::string begin = fmt::format("layer {}", index);
  if (text.substr(0, begin.size()) != begin) return std::nullopt;
  text.remove_prefix(begin.size());
  PartialPack::DoneLayer layer;
  for (bool first = true; !text.empty(); first = false) {
    if (text.size() < kHexDigits + 1 || text[0] != ' ') return std::nullopt;
    const auto value = ParseHex(text.substr(1, kHexDigits));
    if (!value) return std::nullopt;
    if (first) {
      layer.constants = *value;
    } else {
      layer.records.push_back(*value);
    }
    text.remove_prefix(kHexDigits + 1);
  }
  return layer;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const auto file, Env::Default()->Open(path, FileAccess::kBuffered));
  if (file->size() > kMaxJournalBytes) {
    return DataLoss("{}: {} bytes are no journal", path, file->size());
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  MOERT_RETURN_IF_ERROR(
      file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  return text;
}

bool Exists(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0;
}

absl::Status MakeFolder(const std::string& path, int mode) {
  if (::mkdir(path.c_str(), static_cast<mode_t>(mode)) == 0 || errno == EEXIST)
    return absl::OkStatus();
  return PosixError(errno, fmt::format("{}: cannot create this folder", path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartialPack>> PartialPack::Open(const std::string& final_path,
                                                               uint64_t job, int mode) {
  std::string name = final_path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const std::string path = name + ".partial";
  if (Exists(name)) {
    if (!Exists(path + "/pack")) RemoveTree(path);  // a writer died between its last two steps
    return AlreadyExists("{}: already exists", name);
  }
  MOERT_RETURN_IF_ERROR(MakeFolder(path, mode));
  const std::string lock_path = path + "/lock";
  Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.get() < 0) return PosixError(errno, fmt::format("{}: open", lock_path));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Aborted("{}: another process is writing this pack", path);
  }
  std::unique_ptr<PartialPack> partial(new PartialPack(path, name, mode, std::move(lock)));
  if (Exists(path + "/journal") && Exists(partial->pack_path())) {
    MOERT_RETURN_IF_ERROR(partial->ReadJournal(job));
  } else {
    MOERT_RETURN_IF_ERROR(partial->Begin(job));
  }
  return partial;
}

// Makes the journal appear either complete or not at all, before any layer.
absl::Status PartialPack::Begin(uint64_t job) {
  RemoveTree(pack_path());
  RemoveTree(path_ + "/journal.new");
  MOERT_RETURN_IF_ERROR(MakeFolder(pack_path(), mode_));
  MOERT_ASSIGN_OR_RETURN(journal_, FileWriter::Create(path_ + "/journal.new"));
  MOERT_RETURN_IF_ERROR(journal_->Append(SealLine(fmt::format("{} {:016x}", kMagic, job))));
  MOERT_RETURN_IF_ERROR(journal_->Sync());
  if (::rename((path_ + "/journal.new").c_str(), (path_ + "/journal").c_str()) != 0) {
    return PosixError(errno, fmt::format("{}/journal: rename", path_));
  }
  return SyncDirectory(path_);
}

absl::Status PartialPack::ReadJournal(uint64_t job) {
  const std::string journal = path_ + "/journal";
  MOERT_ASSIGN_OR_RETURN(const std::string text, ReadText(journal));
  absl::string_view rest = text;
  const auto first = TakeLine(&rest);
  if (!first || *first != fmt::format("{} {:016x}", kMagic, job)) {
    return FailedPrecondition(
        "{}: holds an unfinished pack of another model or with other settings; repeat that command "
        "to complete it, or remove the folder",
        path_);
  }
  int64_t intact = static_cast<int64_t>(text.size() - rest.size());
  while (const auto line = TakeLine(&rest)) {
    auto layer = ParseLayer(*line, done_.size());
    if (!layer) break;
    done_.push_back(std::move(*layer));
    intact = static_cast<int64_t>(text.size() - rest.size());
  }
  MOERT_ASSIGN_OR_RETURN(journal_, FileWriter::Resume(journal, intact));
  return absl::OkStatus();
}

absl::Status PartialPack::Append(const DoneLayer& layer) {
  MOERT_RETURN_IF_ERROR(journal_->Append(SealLine(LayerText(done_.size(), layer))));
  MOERT_RETURN_IF_ERROR(journal_->Sync());
  done_.push_back(layer);
  return absl::OkStatus();
}

absl::Status PartialPack::Commit() {
  MOERT_RETURN_IF_ERROR(SyncDirectory(pack_path()));
  if (::rename(pack_path().c_str(), final_path_.c_str()) != 0) {
    const int error = errno;
    if (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR) {
      return AlreadyExists("{}: already exists", final_path_);
    }
    return PosixError(error, fmt::format("{}: rename from {}", final_path_, pack_path()));
  }
  RemoveTree(path_);
  const std::string parent = fs::path(final_path_).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace moert
