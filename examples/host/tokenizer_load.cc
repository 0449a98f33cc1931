// Reads tokenizer.json and tokenizer_config.json from a model's folder.
#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "host/tokenizer.h"
#include "host/tokenizer_json.h"
#include "moert/tools/env.h"
#include "util/status_macros.h"

namespace moert::host {

using Json = nlohmann::json;

absl::StatusOr<Tokenizer> Tokenizer::Parse(absl::string_view json, const std::string& name) {
  try {
    return TokenizerJsonReader(name).Read(json);
  } catch (const std::exception& e) {  // out of memory, or a type error of the JSON library
    return absl::InvalidArgumentError(fmt::format("{}: {}", name, e.what()));
  }
}

// add_bos_token and bos_token, in the forms that transformers has written over time.
absl::Status Tokenizer::ApplyConfig(absl::string_view text, const std::string& name) {
  MOERT_ASSIGN_OR_RETURN(const Json config, util::ParseJsonObject(text, name, kTokenizerLimits));
  const Json* add = FindMember(config, "add_bos_token");
  if (add == nullptr) return absl::OkStatus();
  if (!add->is_boolean()) {
    return absl::InvalidArgumentError(fmt::format("{}: add_bos_token is not true or false", name));
  }
  const Json* field = FindMember(config, "bos_token");
  std::string token;
  if (field != nullptr && field->is_string()) token = field->get<std::string>();
  if (field != nullptr && field->is_object()) token = StringMember(*field, "content");
  const auto it = std::find_if(added_.begin(), added_.end(),
                               [&](const AddedToken& t) { return t.content == token; });
  const bool there = it != added_.end() && !before_.empty() && before_[0] == it->id;
  if (add->get<bool>()) {
    if (it == added_.end()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: add_bos_token is true, but bos_token \"{}\" is none of the added tokens "
                      "of tokenizer.json",
                      name, ShowShort(token)));
    }
    if (!there) before_.insert(before_.begin(), it->id);
  } else if (there) {
    before_.erase(before_.begin());
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const auto file, Env::Default()->Open(path, FileAccess::kBuffered));
  if (file->size() > kTokenizerLimits.max_bytes) {
    return absl::InvalidArgumentError(fmt::format("{}: {} bytes, the limit is {}", path,
                                                  file->size(), kTokenizerLimits.max_bytes));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  MOERT_RETURN_IF_ERROR(
      file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  return text;
}

}  // namespace

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return Parse(text, path);
}

absl::StatusOr<Tokenizer> Tokenizer::LoadModel(const std::string& dir) {
  MOERT_ASSIGN_OR_RETURN(Tokenizer tokenizer, Load(dir + "/tokenizer.json"));
  const std::string path = dir + "/tokenizer_config.json";
  const auto text = ReadText(path);
  if (absl::IsNotFound(text.status())) return tokenizer;
  MOERT_RETURN_IF_ERROR(text.status());
  MOERT_RETURN_IF_ERROR(tokenizer.ApplyConfig(*text, path));
  return tokenizer;
}

}  // namespace moert::host
