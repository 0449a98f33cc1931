// Reads tokenizer.json: what the files tokenizer_json.cc (model, added tokens) and
// tokenizer_stages.cc (what happens before and after the model) share.
#ifndef MOERT_EXAMPLES_HOST_TOKENIZER_JSON_H_
#define MOERT_EXAMPLES_HOST_TOKENIZER_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/tokenizer.h"
#include "util/json.h"

namespace moert::host {

/// U+2581, which stands for a space in the vocabularies that SentencePiece made.
inline constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";

inline constexpr util::JsonLimits kTokenizerLimits = {
    .max_bytes = int64_t{64} << 20, .max_depth = 16, .max_values = 3'000'000};

/// A string for a message: ASCII and escapes, cut where it would be long.
std::string ShowShort(absl::string_view text);
/// Null if absent, null, or `object` is none.
const nlohmann::json* FindMember(const nlohmann::json& object, const char* key);
/// Empty if absent or no string.
std::string StringMember(const nlohmann::json& object, const char* key);

/// GPT-2's printable stand-ins for bytes: the printable ones are themselves, the others follow from
/// U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet();
  /// False when `text` has a character that stands for no byte.
  bool ToBytes(absl::string_view text, std::string* bytes) const;

 private:
  int to_byte_[0x200];
};

/// The file is untrusted: every field is checked before it is used, and errors name the file and
/// the field.
class TokenizerJsonReader {
 public:
  /// `name` is borrowed.
  explicit TokenizerJsonReader(const std::string& name) : name_(name) {}

  absl::StatusOr<Tokenizer> Read(absl::string_view text);

 private:
  using Json = nlohmann::json;

  absl::Status Error(absl::string_view field, absl::string_view message) const;
  absl::StatusOr<bool> Bool(const Json& object, const std::string& where, const char* key,
                            bool missing) const;
  absl::StatusOr<int32_t> Id(const Json& value, const std::string& where) const;

  // Tables go up to the highest id. Ids far beyond the number of tokens would make them mostly
  // holes, and a small file take much memory: not a real vocabulary.
  absl::Status CheckId(int32_t id, size_t tokens, const std::string& where) const;
  void SetToken(int32_t id, std::string bytes);
  absl::Status ReadModel(const Json& model);
  absl::Status ReadVocab(const Json& model);

  // A token of a vocabulary whose symbols are characters: <0x41> is a byte, U+2581 a space.
  void AddCharacters(const std::string& token, int32_t id);
  absl::Status ReadMerges(const Json& model);
  absl::Status ReadAddedTokens(const Json& root);
  absl::Status ReadNormalizer(const Json& root);

  // Prepend and Replace, in this order or one of them alone.
  absl::Status ReadSpaceNormalizer(const Json& normalizer, const std::string& type);
  absl::Status ReadSequence(const Json& pre, const std::string& where);
  absl::Status ReadSplit(const Json& pre, const std::string& where);
  absl::Status ReadMetaspace(const Json& pre, const std::string& where);
  absl::Status ReadPostProcessor(const Json& post, const std::string& where);
  static bool HasByteLevel(const Json& root);
  absl::Status ReadPreTokenizer(const Json& pre, const std::string& where);
  absl::Status AddPattern(const std::string& pattern, const std::string& where);

  const std::string& name_;
  const ByteAlphabet alphabet_;
  TextIds ids_;
  bool byte_level_ahead_ = false;  // the pre-tokenizer has a ByteLevel stage
  bool byte_level_ = false;        // it was read
  bool spaces_marked_ = false;     // something replaces spaces by U+2581
  bool has_pattern_ = false;
  Tokenizer out_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_TOKENIZER_JSON_H_
