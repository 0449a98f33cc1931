#include "host/read_tokens.h"

#include <fmt/format.h>

#include <cstring>

#include "absl/strings/match.h"
#include "host/tokenizer.h"
#include "host/utf8.h"
#include "moert/offline/token_file.h"
#include "util/input_file.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 20;
constexpr char kNoText[] = "is not UTF-8 text; files of token ids are named *.u16 or *.u32";

absl::StatusOr<std::string> ReadTextBytes(const std::string& path) {
  util::InputFile file(path);
  MOERT_RETURN_IF_ERROR(file.status());
  std::string text;
  char buffer[1 << 16];
  while (true) {
    MOERT_ASSIGN_OR_RETURN(const size_t got, file.Read(buffer, sizeof(buffer)));
    if (got == 0) break;
    if (std::memchr(buffer, 0, got) != nullptr) return file.Error(kNoText);
    if (text.size() + got > kMaxTextBytes) return file.Error("a text of more than 256 MiB");
    text.append(buffer, got);
  }
  if (text.empty()) return file.Error("is empty");
  return text;
}

bool IsText(absl::string_view text) {
  while (!text.empty()) {
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
    return absl::InvalidArgumentError(fmt::format("{}: {}", path, kNoText));
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
