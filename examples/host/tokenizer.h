// BPE over bytes, or over characters with bytes to fall back on, from a tokenizer.json in the
// format of the Hugging Face tokenizers library.
#ifndef MOERT_EXAMPLES_HOST_TOKENIZER_H_
#define MOERT_EXAMPLES_HOST_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/pre_tokenizer.h"

namespace moert::host {

/// Lets TextIds be searched for a string_view without a copy.
struct TextHash {
  using is_transparent = void;
  size_t operator()(absl::string_view text) const {
    return std::hash<std::string_view>()({text.data(), text.size()});
  }
};
/// std::unordered_map stays consistent if memory runs out while it grows; Abseil's maps do not.
using TextIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

/// Text <-> token ids. Encoding over bytes is lossless: DecodeBytes(Encode(text)) == text, invalid
/// UTF-8 included, unless an added token strips white space. Tokenizers that write spaces as U+2581
/// cannot tell that character from a space, and some drop the first space of a text. Thread-safe
/// after Load.
class Tokenizer {
 public:
  /// Reads a tokenizer.json. Errors name the file and the field. Supported: model BPE without
  /// dropout; added tokens without single_word; post-processors ByteLevel and TemplateProcessing.
  /// Over bytes (GPT-2, Qwen, DeepSeek): normalizer none or NFC; pre-tokenizers ByteLevel, Split
  /// (Isolated) and Digits, alone or in a Sequence. With byte_fallback (Llama 2, Mixtral, Phi):
  /// spaces written as U+2581 by a normalizer (Prepend, Replace) or by the pre-tokenizer Metaspace.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);

  /// Reads DIR/tokenizer.json, and DIR/tokenizer_config.json if there is one: its add_bos_token
  /// decides whether a prompt begins with bos_token.
  static absl::StatusOr<Tokenizer> LoadModel(const std::string& dir);

  /// Load from the text of the file; `name` is for messages.
  static absl::StatusOr<Tokenizer> Parse(absl::string_view json, const std::string& name);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  /// Added (special) tokens in `text` are recognized first, leftmost and longest.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;

  /// The model's input for a prompt: Encode with the tokens that the post-processor
  /// puts around every text, most often one that marks its beginning.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(absl::string_view text) const;

  /// The exact bytes of the tokens, less the one space that encoding puts in front of a text; not
  /// necessarily UTF-8. InvalidArgument names an unknown id.
  absl::StatusOr<std::string> DecodeBytes(absl::Span<const int32_t> ids) const;

  /// DecodeBytes with invalid UTF-8 replaced by U+FFFD.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const;

  /// One more than the highest id.
  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }

 private:
  friend class StreamDecoder;
  friend class TokenizerJsonReader;
  struct Merge {
    int32_t rank;
    int32_t result;
  };
  struct AddedToken {
    std::string content;
    int32_t id;
    bool lstrip, rstrip;
  };

  Tokenizer() = default;
  // When a space is put in front of a text, for tokenizers that write spaces as U+2581.
  enum class Prepend {
    kNever,
    kAlways,       // the normalizer Prepend: always one more space
    kUnlessThere,  // Metaspace, for every stretch of text between added tokens
    kFirst,        // Metaspace, for the stretch that begins the text
  };

  // `first`: the stretch begins the text.
  absl::Status EncodePlain(absl::string_view text, bool first, std::vector<int32_t>* ids) const;
  absl::Status EncodePiece(absl::string_view piece, std::vector<int32_t>* ids) const;
  // `text` with U+2581 for spaces, cut before each of them if the tokenizer asks for it.
  std::string MarkSpaces(absl::string_view text, bool first) const;
  // The symbols that merging begins with: bytes, or characters.
  absl::Status FirstSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const;
  absl::Status AppendBytes(absl::Span<const int32_t> ids, std::string* out) const;
  absl::Status ApplyConfig(absl::string_view json, const std::string& name);
  // The longest added token at the front of `text`, or null.
  const AddedToken* MatchAdded(absl::string_view text) const;

  PreTokenizer pre_tokenizer_;
  bool nfc_ = false;
  bool add_prefix_space_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;  // symbols are characters, spaces are U+2581
  bool split_spaces_ = false;
  Prepend prepend_ = Prepend::kNever;
  std::vector<int32_t> before_, after_;         // what EncodePrompt puts around a text
  std::vector<std::string> bytes_;              // by id
  std::vector<bool> known_;                     // by id: ids may have holes
  std::array<int32_t, 256> byte_ids_{};         // the token of each single byte; -1: none
  TextIds whole_;                               // bytes -> id, when ignore_merges
  TextIds chars_;                               // one character -> id, when byte_fallback
  std::unordered_map<uint64_t, Merge> merges_;  // left id << 32 | right id
  std::vector<AddedToken> added_;               // longest first
  std::array<std::vector<int32_t>, 256> added_by_first_byte_;  // indices of added_
};

/// Turns tokens that come one by one into text that is valid UTF-8 at every moment: a character
/// whose bytes are spread over tokens is held back until it is complete. The concatenation of all
/// returned pieces equals Tokenizer::Decode of all ids, but for a space at the beginning, which a
/// continuation of other text needs.
class StreamDecoder {
 public:
  /// `tokenizer` is borrowed.
  explicit StreamDecoder(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  absl::StatusOr<std::string> Push(int32_t id);
  /// The bytes that were held back, as U+FFFD: they can no longer become a character.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_TOKENIZER_H_
