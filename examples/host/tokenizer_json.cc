// Reads tokenizer.json. The file is untrusted: every field is checked before it is used, and errors
// name the file and the field.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "examples/host/tokenizer.h"
#include "examples/host/utf8.h"
#include "format/json.h"

namespace moert::host {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr JsonLimits kJsonLimits = {
    .max_bytes = kMaxFileBytes, .max_depth = 16, .max_values = 8'000'000};
constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// GPT-2's printable stand-ins for bytes: the printable ones are themselves, the others follow from
// U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    std::fill(std::begin(to_byte_), std::end(to_byte_), -1);
    int next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable =
          (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      to_byte_[printable ? b : next++] = b;
    }
  }
  // False when `text` has a character that stands for no byte.
  bool ToBytes(absl::string_view text, std::string* bytes) const {
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

 private:
  int to_byte_[0x200];
};

// A string for a message, cut where it would be long.
std::string Show(absl::string_view text) {
  if (text.size() <= 60) return std::string(text);
  return ToValidUtf8(text.substr(0, 60)) + "...";
}

std::string EscapeRegex(absl::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (c > 0 && !absl::ascii_isalnum(static_cast<unsigned char>(c))) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// Members that may be absent or null.
std::string OptionalString(const Json& object, const char* key) {
  const Json* value = Find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

}  // namespace

class TokenizerJsonReader {
 public:
  explicit TokenizerJsonReader(const std::string& name) : name_(name) {}

  absl::StatusOr<Tokenizer> Read(absl::string_view text) {
    MOERT_ASSIGN_OR_RETURN(const Json root, ParseJsonObject(text, name_, kJsonLimits));
    byte_level_ahead_ = HasByteLevel(root);
    const Json* model = Find(root, "model");
    if (model == nullptr || !model->is_object()) return Error("model", "is missing");
    MOERT_RETURN_IF_ERROR(ReadModel(*model));
    MOERT_RETURN_IF_ERROR(ReadAddedTokens(root));
    MOERT_RETURN_IF_ERROR(ReadNormalizer(root));
    if (const Json* pre = Find(root, "pre_tokenizer")) {
      MOERT_RETURN_IF_ERROR(ReadPreTokenizer(*pre, "pre_tokenizer"));
    }
    if (out_.byte_fallback_ && !spaces_marked_) {
      return Error("normalizer",
                   "does not replace spaces by U+2581, and neither does pre_tokenizer; "
                   "byte_fallback is supported only with one of them");
    }
    if (!byte_level_ && !out_.byte_fallback_) {
      return Error(
          "pre_tokenizer",
          "has no ByteLevel stage, and model.byte_fallback is not true; only BPE tokenizers "
          "over bytes, or with bytes to fall back on, are supported");
    }
    if (const Json* post = Find(root, "post_processor")) {
      MOERT_RETURN_IF_ERROR(ReadPostProcessor(*post, "post_processor"));
    }
    return std::move(out_);
  }

 private:
  absl::Status Error(absl::string_view field, absl::string_view message) const {
    return absl::InvalidArgumentError(fmt::format("{}:{}{} {}", name_,
                                                  field.empty() ? "" : " field ",
                                                  std::string(field), std::string(message)));
  }

  absl::StatusOr<bool> Bool(const Json& object, const std::string& where, const char* key,
                            bool missing) const {
    const Json* value = Find(object, key);
    if (value == nullptr) return missing;
    if (!value->is_boolean()) return Error(where + "." + key, "is not true or false");
    return value->get<bool>();
  }

  absl::StatusOr<int32_t> Id(const Json& value, const std::string& where) const {
    if (!value.is_number_integer()) return Error(where, "is not an integer");
    const bool huge = value.is_number_unsigned() && value.get<uint64_t>() >= kMaxTokens;
    const int64_t id = huge ? kMaxTokens : value.get<int64_t>();
    if (id < 0 || id >= kMaxTokens) {
      return Error(where, fmt::format("is {}, not in 0..{}", value.dump(), kMaxTokens - 1));
    }
    return static_cast<int32_t>(id);
  }

  // Tables go up to the highest id. Ids far beyond the number of tokens would make them mostly
  // holes, and a small file take much memory: not a real vocabulary.
  absl::Status CheckId(int32_t id, size_t tokens, const std::string& where) const {
    if (static_cast<size_t>(id) < 4 * tokens + 1024) return absl::OkStatus();
    return Error(where, fmt::format("has id {}, far beyond its {} tokens", id, tokens));
  }

  void SetToken(int32_t id, std::string bytes) {
    if (id >= static_cast<int32_t>(out_.bytes_.size())) {
      out_.bytes_.resize(id + 1);
      out_.known_.resize(id + 1, false);
    }
    out_.bytes_[id] = std::move(bytes);
    out_.known_[id] = true;
  }

  absl::Status ReadModel(const Json& model) {
    const std::string type = OptionalString(model, "type");
    if (type != "BPE" && Find(model, "type") != nullptr) {  // old files have none
      return Error("model.type", fmt::format("is \"{}\"; only \"BPE\" is supported", Show(type)));
    }
    MOERT_ASSIGN_OR_RETURN(const bool fallback, Bool(model, "model", "byte_fallback", false));
    // Where the pre-tokenizer has turned everything into bytes there is nothing to fall back from.
    out_.byte_fallback_ = fallback && !byte_level_ahead_;
    MOERT_ASSIGN_OR_RETURN(out_.ignore_merges_, Bool(model, "model", "ignore_merges", false));
    if (const Json* dropout = Find(model, "dropout")) {
      if (!dropout->is_number() || dropout->get<double>() != 0.0) {
        return Error("model.dropout", "is not 0: encoding would be random");
      }
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!OptionalString(model, key).empty()) {
        return Error(std::string("model.") + key, "is set, which is not supported");
      }
    }
    MOERT_RETURN_IF_ERROR(ReadVocab(model));
    return ReadMerges(model);
  }

  absl::Status ReadVocab(const Json& model) {
    const Json* vocab = Find(model, "vocab");
    if (vocab == nullptr || !vocab->is_object()) return Error("model.vocab", "is not an object");
    out_.byte_ids_.fill(-1);
    std::string bytes;
    for (const auto& [token, value] : vocab->items()) {
      const std::string where = fmt::format("model.vocab[\"{}\"]", Show(token));
      MOERT_ASSIGN_OR_RETURN(const int32_t id, Id(value, where));
      MOERT_RETURN_IF_ERROR(CheckId(id, vocab->size(), where));
      if (id < out_.size() && out_.known_[id]) {
        return Error(where, fmt::format("has id {}, as another token has", id));
      }
      ids_.emplace(token, id);
      // What is not written in the byte alphabet stands for itself, as added tokens do.
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
        return Error("model.vocab",
                     fmt::format("lacks <0x{:02X}>, which byte_fallback needs", byte));
      }
    }
    return absl::OkStatus();
  }

  // A token of a vocabulary whose symbols are characters: <0x41> is a byte, U+2581 a space.
  void AddCharacters(const std::string& token, int32_t id) {
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

  absl::Status ReadMerges(const Json& model) {
    const Json* merges = Find(model, "merges");
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
          return Error(where(), fmt::format("names \"{}\", which model.vocab lacks", Show(token)));
        }
        ids[i] = it->second;
      }
      const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(ids[0])) << 32 |
                           static_cast<uint32_t>(ids[1]);
      // Of a pair listed twice the first, better rank counts.
      out_.merges_.emplace(key, Tokenizer::Merge{static_cast<int32_t>(rank), ids[2]});
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokens(const Json& root) {
    const Json* added = Find(root, "added_tokens");
    if (added == nullptr) return absl::OkStatus();
    if (!added->is_array()) return Error("added_tokens", "is not an array");
    for (size_t i = 0; i < added->size(); ++i) {
      const Json& entry = (*added)[i];
      const std::string where = fmt::format("added_tokens[{}]", i);
      const Json* id_field = Find(entry, "id");
      if (id_field == nullptr) return Error(where + ".id", "is missing");
      Tokenizer::AddedToken token;
      MOERT_ASSIGN_OR_RETURN(token.id, Id(*id_field, where + ".id"));
      token.content = OptionalString(entry, "content");
      if (token.content.empty()) return Error(where + ".content", "is not a non-empty string");
      MOERT_ASSIGN_OR_RETURN(token.lstrip, Bool(entry, where, "lstrip", false));
      MOERT_ASSIGN_OR_RETURN(token.rstrip, Bool(entry, where, "rstrip", false));
      MOERT_ASSIGN_OR_RETURN(const bool single, Bool(entry, where, "single_word", false));
      if (single) return Error(where + ".single_word", "is true, which is not supported");
      MOERT_ASSIGN_OR_RETURN(const bool normalized, Bool(entry, where, "normalized", false));
      // It would be looked for in a text whose spaces are already written otherwise.
      if (normalized && out_.byte_fallback_) {
        return Error(where + ".normalized", "is true, which is not supported with byte_fallback");
      }
      const auto it = ids_.find(token.content);
      if (it != ids_.end() && it->second != token.id) {
        return Error(where, fmt::format("\"{}\" has id {}, but {} in model.vocab",
                                        Show(token.content), token.id, it->second));
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

  absl::Status ReadNormalizer(const Json& root) {
    const Json* normalizer = Find(root, "normalizer");
    if (normalizer == nullptr) return absl::OkStatus();
    const std::string type = OptionalString(*normalizer, "type");
    if (type == "Sequence") {
      const Json* list = Find(*normalizer, "normalizers");
      if (list != nullptr && list->is_array() && list->empty()) return absl::OkStatus();
    }
    if (out_.byte_fallback_) return ReadSpaceNormalizer(*normalizer, type);
    if (type != "NFC") {
      return Error("normalizer.type",
                   fmt::format("is \"{}\"; supported are none and \"NFC\"", Show(type)));
    }
    out_.nfc_ = true;
    return absl::OkStatus();
  }

  // Prepend and Replace, in this order or one of them alone.
  absl::Status ReadSpaceNormalizer(const Json& normalizer, const std::string& type) {
    std::vector<const Json*> stages = {&normalizer};
    if (const Json* list = Find(normalizer, "normalizers"); type == "Sequence" && list != nullptr) {
      if (!list->is_array()) return Error("normalizer.normalizers", "is not an array");
      stages.clear();
      for (const Json& stage : *list) stages.push_back(&stage);
    }
    for (size_t i = 0; i < stages.size(); ++i) {
      const std::string where =
          type == "Sequence" ? fmt::format("normalizer.normalizers[{}]", i) : "normalizer";
      const std::string kind = OptionalString(*stages[i], "type");
      if (kind == "Prepend" && OptionalString(*stages[i], "prepend") == kSpaceMark && i == 0) {
        out_.prepend_ = Tokenizer::Prepend::kAlways;
        continue;
      }
      const Json* pattern = Find(*stages[i], "pattern");
      if (kind == "Replace" && pattern != nullptr && OptionalString(*pattern, "String") == " " &&
          OptionalString(*stages[i], "content") == kSpaceMark) {
        spaces_marked_ = true;
        continue;
      }
      return Error(where,
                   fmt::format("is {}; supported with byte_fallback are Prepend U+2581, then "
                               "Replace of a space by U+2581",
                               Show(stages[i]->dump(-1, ' ', true))));
    }
    return absl::OkStatus();
  }

  absl::Status ReadMetaspace(const Json& pre, const std::string& where) {
    if (OptionalString(pre, "replacement") != kSpaceMark) {
      return Error(where + ".replacement", "is not U+2581");
    }
    MOERT_ASSIGN_OR_RETURN(const bool old, Bool(pre, where, "add_prefix_space", true));
    MOERT_ASSIGN_OR_RETURN(out_.split_spaces_, Bool(pre, where, "split", true));
    std::string scheme = OptionalString(pre, "prepend_scheme");
    if (scheme.empty()) scheme = old ? "always" : "never";
    if (scheme == "always") {
      out_.prepend_ = Tokenizer::Prepend::kUnlessThere;
    } else if (scheme == "first") {
      out_.prepend_ = Tokenizer::Prepend::kFirst;
    } else if (scheme != "never") {
      return Error(where + ".prepend_scheme",
                   fmt::format("is \"{}\"; legal are always, first, never", Show(scheme)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadPostProcessor(const Json& post, const std::string& where) {
    const std::string type = OptionalString(post, "type");
    if (type == "ByteLevel") return absl::OkStatus();  // only about offsets
    if (type == "Sequence") {
      const Json* list = Find(post, "processors");
      if (list == nullptr || !list->is_array()) {
        return Error(where + ".processors", "is not an array");
      }
      for (size_t i = 0; i < list->size(); ++i) {
        const std::string inner = fmt::format("{}.processors[{}]", where, i);
        if (OptionalString((*list)[i], "type") == "Sequence") {
          return Error(inner, "is a Sequence within a Sequence, which is not supported");
        }
        MOERT_RETURN_IF_ERROR(ReadPostProcessor((*list)[i], inner));
      }
      return absl::OkStatus();
    }
    if (type != "TemplateProcessing") {
      return Error(where + ".type", fmt::format("is \"{}\"; supported are ByteLevel, "
                                                "TemplateProcessing and a Sequence of them",
                                                Show(type)));
    }
    const Json* single = Find(post, "single");
    if (single == nullptr || !single->is_array())
      return Error(where + ".single", "is not an array");
    bool text_seen = false;
    for (size_t i = 0; i < single->size(); ++i) {
      const std::string inner = fmt::format("{}.single[{}]", where, i);
      if (Find((*single)[i], "Sequence") != nullptr) {
        if (text_seen) return Error(inner, "is the text a second time");
        text_seen = true;
        continue;
      }
      const Json* special = Find((*single)[i], "SpecialToken");
      const std::string name = special != nullptr ? OptionalString(*special, "id") : "";
      const Json* all = Find(post, "special_tokens");
      const Json* entry = name.empty() || all == nullptr ? nullptr : Find(*all, name.c_str());
      const Json* ids = entry != nullptr ? Find(*entry, "ids") : nullptr;
      if (ids == nullptr || !ids->is_array()) {
        return Error(inner,
                     "is neither the text nor a token that special_tokens lists with its ids");
      }
      for (const Json& value : *ids) {
        MOERT_ASSIGN_OR_RETURN(const int32_t id, Id(value, inner));
        if (id >= out_.size() || !out_.known_[id]) {
          return Error(inner, fmt::format("has id {}, which is not in the vocabulary", id));
        }
        (text_seen ? out_.after_ : out_.before_).push_back(id);
      }
    }
    return text_seen ? absl::OkStatus() : Error(where + ".single", "has no place for the text");
  }

  static bool HasByteLevel(const Json& root) {
    const Json* pre = Find(root, "pre_tokenizer");
    if (pre == nullptr) return false;
    if (OptionalString(*pre, "type") == "ByteLevel") return true;
    const Json* list = Find(*pre, "pretokenizers");
    if (list == nullptr || !list->is_array()) return false;
    for (const Json& stage : *list) {
      if (OptionalString(stage, "type") == "ByteLevel") return true;
    }
    return false;
  }

  absl::Status ReadPreTokenizer(const Json& pre, const std::string& where) {
    const std::string type = OptionalString(pre, "type");
    if (out_.byte_fallback_) {
      if (type != "Metaspace" || spaces_marked_) {
        return Error(
            where + ".type",
            fmt::format("is \"{}\"; supported with byte_fallback are none, behind a normalizer "
                        "that replaces spaces, and Metaspace without one",
                        Show(type)));
      }
      spaces_marked_ = true;
      return ReadMetaspace(pre, where);
    }
    if (type == "Sequence") {
      const Json* list = Find(pre, "pretokenizers");
      if (list == nullptr || !list->is_array()) {
        return Error(where + ".pretokenizers", "is not an array");
      }
      for (size_t i = 0; i < list->size(); ++i) {
        const std::string inner = fmt::format("{}.pretokenizers[{}]", where, i);
        if (OptionalString((*list)[i], "type") == "Sequence") {
          return Error(inner, "is a Sequence within a Sequence, which is not supported");
        }
        MOERT_RETURN_IF_ERROR(ReadPreTokenizer((*list)[i], inner));
      }
      return absl::OkStatus();
    }
    if (byte_level_) return Error(where, "follows ByteLevel, which must come last");
    if (type == "ByteLevel") {
      byte_level_ = true;
      MOERT_ASSIGN_OR_RETURN(const bool prefix, Bool(pre, where, "add_prefix_space", true));
      MOERT_ASSIGN_OR_RETURN(const bool use_regex, Bool(pre, where, "use_regex", true));
      if (prefix && has_pattern_) {
        return Error(where + ".add_prefix_space", "is true behind a Split, which is not supported");
      }
      out_.add_prefix_space_ = prefix;
      return use_regex ? AddPattern(kGpt2Pattern, where) : absl::OkStatus();
    }
    if (type == "Digits") {
      MOERT_ASSIGN_OR_RETURN(const bool each, Bool(pre, where, "individual_digits", false));
      return AddPattern(each ? "\\p{N}" : "\\p{N}+", where);
    }
    if (type == "Split") {
      const std::string behavior = OptionalString(pre, "behavior");
      MOERT_ASSIGN_OR_RETURN(const bool invert, Bool(pre, where, "invert", false));
      // Inverting swaps matches and gaps, which Isolated treats alike.
      (void)invert;
      if (behavior != "Isolated") {
        return Error(where + ".behavior",
                     fmt::format("is \"{}\"; only \"Isolated\" is supported", Show(behavior)));
      }
      const Json* pattern = Find(pre, "pattern");
      const std::string regex = pattern ? OptionalString(*pattern, "Regex") : "";
      const std::string literal = pattern ? OptionalString(*pattern, "String") : "";
      if (regex.empty() && literal.empty()) {
        return Error(where + ".pattern", "has neither a Regex nor a String");
      }
      return AddPattern(regex.empty() ? EscapeRegex(literal) : regex, where + ".pattern");
    }
    return Error(
        where + ".type",
        fmt::format("is \"{}\"; supported are Sequence, Split, Digits and ByteLevel", Show(type)));
  }

  absl::Status AddPattern(const std::string& pattern, const std::string& where) {
    has_pattern_ = true;
    const absl::Status status = out_.pre_tokenizer_.AddPattern(pattern);
    return status.ok() ? status : Error(where, status.message());
  }

  const std::string& name_;
  const ByteAlphabet alphabet_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  bool byte_level_ahead_ = false;  // the pre-tokenizer has a ByteLevel stage
  bool byte_level_ = false;        // it was read
  bool spaces_marked_ = false;     // something replaces spaces by U+2581
  bool has_pattern_ = false;
  Tokenizer out_;
};

absl::StatusOr<Tokenizer> Tokenizer::Parse(absl::string_view json, const std::string& name) {
  try {
    return TokenizerJsonReader(name).Read(json);
  } catch (const std::exception& e) {  // out of memory, or a type error of the JSON library
    return absl::InvalidArgumentError(fmt::format("{}: {}", name, e.what()));
  }
}

// add_bos_token and bos_token, in the forms that transformers has written over time.
absl::Status Tokenizer::ApplyConfig(absl::string_view text, const std::string& name) {
  MOERT_ASSIGN_OR_RETURN(const Json config, ParseJsonObject(text, name, kJsonLimits));
  const Json* add = Find(config, "add_bos_token");
  if (add == nullptr) return absl::OkStatus();
  if (!add->is_boolean()) {
    return absl::InvalidArgumentError(fmt::format("{}: add_bos_token is not true or false", name));
  }
  const Json* field = Find(config, "bos_token");
  std::string token;
  if (field != nullptr && field->is_string()) token = field->get<std::string>();
  if (field != nullptr && field->is_object()) token = OptionalString(*field, "content");
  const auto it = std::find_if(added_.begin(), added_.end(),
                               [&](const AddedToken& t) { return t.content == token; });
  const bool there = it != added_.end() && !before_.empty() && before_[0] == it->id;
  if (add->get<bool>()) {
    if (it == added_.end()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: add_bos_token is true, but bos_token \"{}\" is none of the added tokens "
                      "of tokenizer.json",
                      name, Show(token)));
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
  if (file->size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes, the limit is {}", path, file->size(), kMaxFileBytes));
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
