#include "host/read_tokens.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "host/tokenizer.h"
#include "host/utf8.h"
#include "moert/offline/token_file.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

absl::StatusOr<std::string> ReadTextBytes(const std::string& path) {
  const auto error = [&](const char* what) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path, what));
  };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  struct stat info {};
  if (file == nullptr || ::fstat(fileno(file.get()), &info) != 0)
    return error(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return error("is a directory");
  std::string text;
  char buffer[1 << 16];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, got);
    if (text.size() > kMaxTextBytes) return error("a text of more than 1 GiB");
  }
  if (std::ferror(file.get()) != 0) return error(std::strerror(errno));
  if (text.empty()) return error("is empty");
  return text;
}

bool IsText(absl::string_view text) {
  while (!text.empty()) {
    if (text[0] == '\0') return false;
    const Utf8Unit unit = ScanUtf8(text);
    if (unit.kind != Utf8Unit::kValid) return false;
    text.remove_prefix(static_cast<size_t>(unit.length));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& path,
                                                const std::string& model_dir, int64_t vocab_size,
                                                int64_t limit) {
  if (absl::EndsWith(path, ".u16") || absl::EndsWith(path, ".u32")) {
    return ReadTokenFile(path, vocab_size, limit);
  }
  MOERT_ASSIGN_OR_RETURN(const std::string text, ReadTextBytes(path));
  if (!IsText(text)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: is not UTF-8 text; files of token ids are named *.u16 or *.u32", path));
  }
  MOERT_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::LoadModel(model_dir));
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.EncodePrompt(text);
  if (!ids.ok()) {
    return absl::Status(ids.status().code(),
                        fmt::format("{}: {}", path, std::string(ids.status().message())));
  }
  if (limit > 0 && static_cast<int64_t>(ids->size()) > limit)
    ids->resize(static_cast<size_t>(limit));
  for (const int32_t id : *ids) {
    if (id < vocab_size) continue;
    return absl::InvalidArgumentError(
        fmt::format("{}: the tokenizer of {} gives token {}, the model has {}", path, model_dir, id,
                    vocab_size));
  }
  return ids;
}

}  // namespace moert::host
