// tokenizer.json: what happens to a text before the model and to ids after it.
#include <fmt/format.h>

#include <vector>

#include "absl/strings/ascii.h"
#include "host/tokenizer_json.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

std::string EscapeRegex(absl::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (c > 0 && !absl::ascii_isalnum(static_cast<unsigned char>(c))) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

}  // namespace

absl::Status TokenizerJsonReader::ReadNormalizer(const Json& root) {
  const Json* normalizer = FindMember(root, "normalizer");
  if (normalizer == nullptr) return absl::OkStatus();
  const std::string type = StringMember(*normalizer, "type");
  if (type == "Sequence") {
    const Json* list = FindMember(*normalizer, "normalizers");
    if (list != nullptr && list->is_array() && list->empty()) return absl::OkStatus();
  }
  if (out_.byte_fallback_) return ReadSpaceNormalizer(*normalizer, type);
  if (type != "NFC") {
    return Error("normalizer.type",
                 fmt::format("is \"{}\"; supported are none and \"NFC\"", ShowShort(type)));
  }
  out_.nfc_ = true;
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadSpaceNormalizer(const Json& normalizer,
                                                      const std::string& type) {
  std::vector<const Json*> stages = {&normalizer};
  if (const Json* list = FindMember(normalizer, "normalizers");
      type == "Sequence" && list != nullptr) {
    if (!list->is_array()) return Error("normalizer.normalizers", "is not an array");
    stages.clear();
    for (const Json& stage : *list) stages.push_back(&stage);
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::string where =
        type == "Sequence" ? fmt::format("normalizer.normalizers[{}]", i) : "normalizer";
    const std::string kind = StringMember(*stages[i], "type");
    if (kind == "Prepend" && StringMember(*stages[i], "prepend") == kSpaceMark && i == 0) {
      out_.prepend_ = Tokenizer::Prepend::kAlways;
      continue;
    }
    const Json* pattern = FindMember(*stages[i], "pattern");
    if (kind == "Replace" && pattern != nullptr && StringMember(*pattern, "String") == " " &&
        StringMember(*stages[i], "content") == kSpaceMark) {
      spaces_marked_ = true;
      continue;
    }
    return Error(where, fmt::format("is {}; supported with byte_fallback are Prepend U+2581, then "
                                    "Replace of a space by U+2581",
                                    ShowShort(stages[i]->dump(-1, ' ', true))));
  }
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadPreTokenizer(const Json& pre, const std::string& where) {
  const std::string type = StringMember(pre, "type");
  if (out_.byte_fallback_) {
    if (type != "Metaspace" || spaces_marked_) {
      return Error(
          where + ".type",
          fmt::format("is \"{}\"; supported with byte_fallback are none, behind a normalizer "
                      "that replaces spaces, and Metaspace without one",
                      ShowShort(type)));
    }
    spaces_marked_ = true;
    return ReadMetaspace(pre, where);
  }
  if (type == "Sequence") return ReadSequence(pre, where);
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
  if (type == "Split") return ReadSplit(pre, where);
  return Error(where + ".type",
               fmt::format("is \"{}\"; supported are Sequence, Split, Digits and ByteLevel",
                           ShowShort(type)));
}

absl::Status TokenizerJsonReader::ReadSequence(const Json& pre, const std::string& where) {
  const Json* list = FindMember(pre, "pretokenizers");
  if (list == nullptr || !list->is_array()) {
    return Error(where + ".pretokenizers", "is not an array");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string inner = fmt::format("{}.pretokenizers[{}]", where, i);
    if (StringMember((*list)[i], "type") == "Sequence") {
      return Error(inner, "is a Sequence within a Sequence, which is not supported");
    }
    MOERT_RETURN_IF_ERROR(ReadPreTokenizer((*list)[i], inner));
  }
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadSplit(const Json& pre, const std::string& where) {
  const std::string behavior = StringMember(pre, "behavior");
  MOERT_ASSIGN_OR_RETURN(const bool invert, Bool(pre, where, "invert", false));
  // Inverting swaps matches and gaps, which Isolated treats alike.
  (void)invert;
  if (behavior != "Isolated") {
    return Error(where + ".behavior",
                 fmt::format("is \"{}\"; only \"Isolated\" is supported", ShowShort(behavior)));
  }
  const Json* pattern = FindMember(pre, "pattern");
  const std::string regex = pattern ? StringMember(*pattern, "Regex") : "";
  const std::string literal = pattern ? StringMember(*pattern, "String") : "";
  if (regex.empty() && literal.empty()) {
    return Error(where + ".pattern", "has neither a Regex nor a String");
  }
  return AddPattern(regex.empty() ? EscapeRegex(literal) : regex, where + ".pattern");
}

absl::Status TokenizerJsonReader::ReadMetaspace(const Json& pre, const std::string& where) {
  if (StringMember(pre, "replacement") != kSpaceMark) {
    return Error(where + ".replacement", "is not U+2581");
  }
  MOERT_ASSIGN_OR_RETURN(const bool old, Bool(pre, where, "add_prefix_space", true));
  MOERT_ASSIGN_OR_RETURN(out_.split_spaces_, Bool(pre, where, "split", true));
  std::string scheme = StringMember(pre, "prepend_scheme");
  if (scheme.empty()) scheme = old ? "always" : "never";
  if (scheme == "always") {
    out_.prepend_ = Tokenizer::Prepend::kUnlessThere;
  } else if (scheme == "first") {
    out_.prepend_ = Tokenizer::Prepend::kFirst;
  } else if (scheme != "never") {
    return Error(where + ".prepend_scheme",
                 fmt::format("is \"{}\"; legal are always, first, never", ShowShort(scheme)));
  }
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::AddPattern(const std::string& pattern, const std::string& where) {
  has_pattern_ = true;
  const absl::Status status = out_.pre_tokenizer_.AddPattern(pattern);
  return status.ok() ? status : Error(where, status.message());
}

absl::Status TokenizerJsonReader::ReadPostProcessor(const Json& post, const std::string& where) {
  const std::string type = StringMember(post, "type");
  if (type == "ByteLevel") return absl::OkStatus();  // only about offsets
  if (type == "Sequence") {
    const Json* list = FindMember(post, "processors");
    if (list == nullptr || !list->is_array()) {
      return Error(where + ".processors", "is not an array");
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string inner = fmt::format("{}.processors[{}]", where, i);
      if (StringMember((*list)[i], "type") == "Sequence") {
        return Error(inner, "is a Sequence within a Sequence, which is not supported");
      }
      MOERT_RETURN_IF_ERROR(ReadPostProcessor((*list)[i], inner));
    }
    return absl::OkStatus();
  }
  if (type != "TemplateProcessing") {
    return Error(where + ".type", fmt::format("is \"{}\"; supported are ByteLevel, "
                                              "TemplateProcessing and a Sequence of them",
                                              ShowShort(type)));
  }
  const Json* single = FindMember(post, "single");
  if (single == nullptr || !single->is_array()) return Error(where + ".single", "is not an array");
  bool text_seen = false;
  for (size_t i = 0; i < single->size(); ++i) {
    const std::string inner = fmt::format("{}.single[{}]", where, i);
    if (FindMember((*single)[i], "Sequence") != nullptr) {
      if (text_seen) return Error(inner, "is the text a second time");
      text_seen = true;
      continue;
    }
    const Json* special = FindMember((*single)[i], "SpecialToken");
    const std::string name = special != nullptr ? StringMember(*special, "id") : "";
    const Json* all = FindMember(post, "special_tokens");
    const Json* entry = name.empty() || all == nullptr ? nullptr : FindMember(*all, name.c_str());
    const Json* ids = entry != nullptr ? FindMember(*entry, "ids") : nullptr;
    if (ids == nullptr || !ids->is_array()) {
      return Error(inner, "is neither the text nor a token that special_tokens lists with its ids");
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

bool TokenizerJsonReader::HasByteLevel(const Json& root) {
  const Json* pre = FindMember(root, "pre_tokenizer");
  if (pre == nullptr) return false;
  if (StringMember(*pre, "type") == "ByteLevel") return true;
  const Json* list = FindMember(*pre, "pretokenizers");
  if (list == nullptr || !list->is_array()) return false;
  for (const Json& stage : *list) {
    if (StringMember(stage, "type") == "ByteLevel") return true;
  }
  return false;
}

}  // namespace moert::host
