// Splits text into the pieces that BPE may not merge across: the "pre_tokenizer" of tokenizer.json.
#ifndef MOERT_EXAMPLES_HOST_PRE_TOKENIZER_H_
#define MOERT_EXAMPLES_HOST_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moert::host {

/// A sequence of regular expressions, each splitting the pieces of the one before it; matches and
/// the text between them are pieces of their own ("Isolated"), so that pieces always concatenate to
/// the text. Thread-safe after construction.
class PreTokenizer {
 public:
  PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Appends a stage. `pattern` is UTF-8 in the syntax common to Oniguruma and PCRE2.
  absl::Status AddPattern(const std::string& pattern);

  /// Appends the pieces of `text` to `pieces`; they borrow from `text`. Bytes that are not UTF-8
  /// match no pattern and so come back inside the pieces between matches.
  absl::Status Split(absl::string_view text, std::vector<absl::string_view>* pieces) const;

 private:
  class Pattern;
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

/// The pattern of a ByteLevel pre-tokenizer with use_regex, GPT-2's.
extern const char kGpt2Pattern[];

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_PRE_TOKENIZER_H_
