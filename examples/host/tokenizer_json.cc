// tokenizer.json: the model and the added tokens.
#include "host/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "host/utf8.h"
#include "util/printable.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

constexpr int64_t kMaxTokens = (int64_t{1} << 31) - 1;

}  // namespace

ByteAlphabet::ByteAlphabet() {
  std::fill(std::begin(to_byte_), std::end(to_byte_), -1);
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable =
        (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
    to_byte_[printable ? b : next++] = b;
  }
}

bool ByteAlphabet::ToBytes(absl::string_view text, std::string* bytes) const {
  bytes->clear();
  while (!text.empty()) {
    const Utf8Unit unit = ScanUtf8(text);
    if (unit.kind != Utf8Unit::kValid || unit.code_point >= std::size(to_byte_)) return false;
    const int byte = to_byte_[unit.code_point];
    if (byte < 0) return false;
    bytes->push_back(static_cast<char>(byte));
    text.remove_prefix(unit.length);
  }
  return true;
}

std::string ShowShort(absl::string_view text) {
  return util::Printable(text, 60);
}

const nlohmann::json* FindMember(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string StringMember(const nlohmann::json& object, const char* key) {
  const nlohmann::json* value = FindMember(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

absl::StatusOr<Tokenizer> TokenizerJsonReader::Read(absl::string_view text) {
  MOERT_ASSIGN_OR_RETURN(const Json root, util::ParseJsonObject(text, name_, kTokenizerLimits));
  byte_level_ahead_ = HasByteLevel(root);
  const Json* model = FindMember(root, "model");
  if (model == nullptr || !model->is_object()) return Error("model", "is missing");
  MOERT_RETURN_IF_ERROR(ReadModel(*model));
  MOERT_RETURN_IF_ERROR(ReadAddedTokens(root));
  MOERT_RETURN_IF_ERROR(ReadNormalizer(root));
  if (const Json* pre = FindMember(root, "pre_tokenizer")) {
    MOERT_RETURN_IF_ERROR(ReadPreTokenizer(*pre, "pre_tokenizer"));
  }
  if (out_.byte_fallback_ && !spaces_marked_) {
    return Error("normalizer",
                 "does not replace spaces by U+2581, and neither does pre_tokenizer; "
                 "byte_fallback is supported only with one of them");
  }
  if (!byte_level_ && !out_.byte_fallback_) {
    return Error("pre_tokenizer",
                 "has no ByteLevel stage, and model.byte_fallback is not true; only BPE tokenizers "
                 "over bytes, or with bytes to fall back on, are supported");
  }
  if (const Json* post = FindMember(root, "post_processor")) {
    MOERT_RETURN_IF_ERROR(ReadPostProcessor(*post, "post_processor"));
  }
  return std::move(out_);
}

absl::Status TokenizerJsonReader::Error(absl::string_view field, absl::string_view message) const {
  return absl::InvalidArgumentError(fmt::format("{}:{}{} {}", name_, field.empty() ? "" : " field ",
                                                std::string(field), std::string(message)));
}

absl::StatusOr<bool> TokenizerJsonReader::Bool(const Json& object, const std::string& where,
                                               const char* key, bool missing) const {
  const Json* value = FindMember(object, key);
  if (value == nullptr) return missing;
  if (!value->is_boolean()) return Error(where + "." + key, "is not true or false");
  return value->get<bool>();
}

absl::StatusOr<int32_t> TokenizerJsonReader::Id(const Json& value, const std::string& where) const {
  if (!value.is_number_integer()) return Error(where, "is not an integer");
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() >= kMaxTokens;
  const int64_t id = huge ? kMaxTokens : value.get<int64_t>();
  if (id < 0 || id >= kMaxTokens) {
    return Error(where, fmt::format("is {}, not in 0..{}", value.dump(), kMaxTokens - 1));
  }
  return static_cast<int32_t>(id);
}

absl::Status TokenizerJsonReader::CheckId(int32_t id, size_t tokens,
                                          const std::string& where) const {
  if (static_cast<size_t>(id) < 4 * tokens + 1024) return absl::OkStatus();
  return Error(where, fmt::format("has id {}, far beyond its {} tokens", id, tokens));
}

void TokenizerJsonReader::SetToken(int32_t id, std::string bytes) {
  if (id >= static_cast<int32_t>(out_.bytes_.size())) {
    out_.bytes_.resize(id + 1);
    out_.known_.resize(id + 1, false);
  }
  out_.bytes_[id] = std::move(bytes);
  out_.known_[id] = true;
}

absl::Status TokenizerJsonReader::ReadModel(const Json& model) {
  const std::string type = StringMember(model, "type");
  if (type != "BPE" && FindMember(model, "type") != nullptr) {  // old files have none
    return Error("model.type",
                 fmt::format("is \"{}\"; only \"BPE\" is supported", ShowShort(type)));
  }
  MOERT_ASSIGN_OR_RETURN(const bool fallback, Bool(model, "model", "byte_fallback", false));
  // Where the pre-tokenizer has turned everything into bytes there is nothing to fall back from.
  out_.byte_fallback_ = fallback && !byte_level_ahead_;
  MOERT_ASSIGN_OR_RETURN(out_.ignore_merges_, Bool(model, "model", "ignore_merges", false));
  if (const Json* dropout = FindMember(model, "dropout")) {
    if (!dropout->is_number() || dropout->get<double>() != 0.0) {
      return Error("model.dropout", "is not 0: encoding would be random");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!StringMember(model, key).empty()) {
      return Error(std::string("model.") + key, "is set, which is not supported");
    }
  }
  MOERT_RETURN_IF_ERROR(ReadVocab(model));
  return ReadMerges(model);
}

absl::Status TokenizerJsonReader::ReadVocab(const Json& model) {
  const Json* vocab = FindMember(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return Error("model.vocab", "is not an object");
  out_.byte_ids_.fill(-1);
  std::string bytes;
  for (const auto& [token, value] : vocab->items()) {
    const std::string where = fmt::format("model.vocab[\"{}\"]", ShowShort(token));
    MOERT_ASSIGN_OR_RETURN(const int32_t id, Id(value, where));
    MOERT_RETURN_IF_ERROR(CheckId(id, vocab->size(), where));
    if (id < out_.size() && out_.known_[id]) {
      return Error(where, fmt::format("has id {}, as another token has", id));
    }
    ids_.emplace(token, id);
    // Text that is not written in the byte alphabet stands for itself, as added tokens do.
    if (out_.byte_fallback_) {
      AddCharacters(token, id);
      continue;
    }
    const bool is_bytes = alphabet_.ToBytes(token, &bytes);
    if (!is_bytes) bytes = token;
    if (is_bytes && bytes.size() == 1) out_.byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
    if (is_bytes && out_.ignore_merges_) out_.whole_.emplace(bytes, id);
    SetToken(id, bytes);
  }
  for (int byte = 0; byte < 256 && out_.byte_fallback_; ++byte) {
    if (out_.byte_ids_[byte] < 0) {
      return Error("model.vocab", fmt::format("lacks <0x{:02X}>, which byte_fallback needs", byte));
    }
  }
  return absl::OkStatus();
}

void TokenizerJsonReader::AddCharacters(const std::string& token, int32_t id) {
  unsigned byte = 0;
  if (token.size() == 6 && token[5] == '>' && absl::StartsWith(token, "<0x") &&
      absl::SimpleHexAtoi(token.substr(3, 2), &byte)) {
    out_.byte_ids_[byte] = id;
    SetToken(id, std::string(1, static_cast<char>(byte)));
    return;
  }
  if (!token.empty()) {
    const Utf8Unit unit = ScanUtf8(token);
    if (unit.kind == Utf8Unit::kValid && static_cast<size_t>(unit.length) == token.size()) {
      out_.chars_.emplace(token, id);
    }
  }
  if (out_.ignore_merges_) out_.whole_.emplace(token, id);
  SetToken(id, absl::StrReplaceAll(token, {{kSpaceMark, " "}}));
}

absl::Status TokenizerJsonReader::ReadMerges(const Json& model) {
  const Json* merges = FindMember(model, "merges");
  if (merges == nullptr || !merges->is_array()) return Error("model.merges", "is not an array");
  out_.merges_.reserve(merges->size());
  std::string left, right;
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    const Json& merge = (*merges)[rank];
    const auto where = [&] { return fmt::format("model.merges[{}]", rank); };
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else if (merge.is_string()) {  // "left right": older files
      const std::string& both = merge.get_ref<const std::string&>();
      const size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
        return Error(where(), "is not two tokens separated by one space");
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      return Error(where(), "is neither a string nor a pair of strings");
    }
    int32_t ids[3];
    const std::string* const parts[] = {&left, &right};
    const std::string whole = left + right;
    for (int i = 0; i < 3; ++i) {
      const std::string& token = i < 2 ? *parts[i] : whole;
      const auto it = ids_.find(token);
      if (it == ids_.end()) {
        return Error(where(),
                     fmt::format("names \"{}\", which model.vocab lacks", ShowShort(token)));
      }
      ids[i] = it->second;
    }
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(ids[0])) << 32 | static_cast<uint32_t>(ids[1]);
    // If a pair is listed twice, the first, better rank counts.
    out_.merges_.emplace(key, Tokenizer::Merge{static_cast<int32_t>(rank), ids[2]});
  }
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadAddedTokens(const Json& root) {
  const Json* added = FindMember(root, "added_tokens");
  if (added == nullptr) return absl::OkStatus();
  if (!added->is_array()) return Error("added_tokens", "is not an array");
  for (size_t i = 0; i < added->size(); ++i) {
    const Json& entry = (*added)[i];
    const std::string where = fmt::format("added_tokens[{}]", i);
    const Json* id_field = FindMember(entry, "id");
    if (id_field == nullptr) return Error(where + ".id", "is missing");
    Tokenizer::AddedToken token;
    MOERT_ASSIGN_OR_RETURN(token.id, Id(*id_field, where + ".id"));
    token.content = StringMember(entry, "content");
    if (token.content.empty()) return Error(where + ".content", "is not a non-empty string");
    MOERT_ASSIGN_OR_RETURN(token.lstrip, Bool(entry, where, "lstrip", false));
    MOERT_ASSIGN_OR_RETURN(token.rstrip, Bool(entry, where, "rstrip", false));
    MOERT_ASSIGN_OR_RETURN(const bool single, Bool(entry, where, "single_word", false));
    if (single) return Error(where + ".single_word", "is true, which is not supported");
    MOERT_ASSIGN_OR_RETURN(const bool normalized, Bool(entry, where, "normalized", false));
    // The token would be searched for in a text whose spaces are already replaced.
    if (normalized && out_.byte_fallback_) {
      return Error(where + ".normalized", "is true, which is not supported with byte_fallback");
    }
    const auto it = ids_.find(token.content);
    if (it != ids_.end() && it->second != token.id) {
      return Error(where, fmt::format("\"{}\" has id {}, but {} in model.vocab",
                                      ShowShort(token.content), token.id, it->second));
    }
    if (it == ids_.end() && token.id < out_.size() && out_.known_[token.id]) {
      return Error(where, fmt::format("has id {}, as another token has", token.id));
    }
    MOERT_RETURN_IF_ERROR(CheckId(token.id, ids_.size() + added->size(), where));
    SetToken(token.id, token.content);
    out_.added_.push_back(std::move(token));
  }
  std::stable_sort(out_.added_.begin(), out_.added_.end(), [](const auto& a, const auto& b) {
    return a.content.size() > b.content.size();
  });
  for (size_t i = 0; i < out_.added_.size(); ++i) {
    const uint8_t first = static_cast<uint8_t>(out_.added_[i].content[0]);
    out_.added_by_first_byte_[first].push_back(static_cast<int32_t>(i));
  }
  return absl::OkStatus();
}

}  // namespace moert::host
