// Reads tokenizer.json. The file is untrusted: every field is checked before it is used, and errors
// name the file and the field.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "examples/host/tokenizer.h"
#include "examples/host/utf8.h"

namespace moert::host {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 24;

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
    const Json root = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) return Error("", "is not valid JSON");
    if (!root.is_object()) return Error("", "is not a JSON object");
    const Json* model = Find(root, "model");
    if (model == nullptr || !model->is_object()) return Error("model", "is missing");
    MOERT_RETURN_IF_ERROR(ReadModel(*model));
    MOERT_RETURN_IF_ERROR(ReadAddedTokens(root));
    MOERT_RETURN_IF_ERROR(ReadNormalizer(root));
    if (const Json* pre = Find(root, "pre_tokenizer")) {
      MOERT_RETURN_IF_ERROR(ReadPreTokenizer(*pre, "pre_tokenizer"));
    }
    if (!byte_level_) {
      return Error("pre_tokenizer",
                   "has no ByteLevel stage; only byte-level BPE tokenizers are supported");
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
    if (fallback) return Error("model.byte_fallback", "is true, which is not supported");
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
      if (id < out_.size() && out_.known_[id]) {
        return Error(where, fmt::format("has id {}, as another token has", id));
      }
      ids_.emplace(token, id);
      // What is not written in the byte alphabet stands for itself, as added tokens do.
      const bool is_bytes = alphabet_.ToBytes(token, &bytes);
      if (!is_bytes) bytes = token;
      if (is_bytes && bytes.size() == 1) out_.byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
      if (is_bytes && out_.ignore_merges_) out_.whole_.emplace(bytes, id);
      SetToken(id, bytes);
    }
    // Ids far beyond the number of tokens would make the table mostly holes: not a real vocabulary.
    if (out_.bytes_.size() > 4 * ids_.size() + 65536) {
      return Error("model.vocab", fmt::format("has ids up to {} but only {} tokens",
                                              out_.bytes_.size() - 1, ids_.size()));
    }
    return absl::OkStatus();
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
      const auto it = ids_.find(token.content);
      if (it != ids_.end() && it->second != token.id) {
        return Error(where, fmt::format("\"{}\" has id {}, but {} in model.vocab",
                                        Show(token.content), token.id, it->second));
      }
      if (it == ids_.end() && token.id < out_.size() && out_.known_[token.id]) {
        return Error(where, fmt::format("has id {}, as another token has", token.id));
      }
      if (token.id > out_.size() + 65536) {
        return Error(where, fmt::format("has id {}, far beyond the vocabulary of {}", token.id,
                                        out_.size()));
      }
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
    if (type != "NFC") {
      return Error("normalizer.type",
                   fmt::format("is \"{}\"; supported are none and \"NFC\"", Show(type)));
    }
    out_.nfc_ = true;
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer(const Json& pre, const std::string& where) {
    const std::string type = OptionalString(pre, "type");
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
  bool byte_level_ = false;
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

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(fmt::format("{}: cannot be opened", path));
  const int64_t size = file.tellg();
  if (size < 0 || size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes, the limit is {}", path, size, kMaxFileBytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size)) {
    return absl::DataLossError(fmt::format("{}: cannot be read", path));
  }
  return Parse(text, path);
}

}  // namespace moert::host
