#include "host/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <utility>

#include "host/utf8.h"
#include "util/printable.h"
#include "util/status_macros.h"

namespace moert::host {

const char kGpt2Pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

namespace {

std::string Pcre2Message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

class PreTokenizer::Pattern {
 public:
  static absl::StatusOr<std::unique_ptr<Pattern>> Compile(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    // UCP makes \s Unicode white space, as in Oniguruma; MATCH_INVALID_UTF makes bytes that are not
    // UTF-8 match nothing instead of failing the whole text.
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                      &error, &offset, nullptr);
    if (code == nullptr) {
      return absl::InvalidArgumentError(fmt::format("regular expression '{}': {} at byte {}",
                                                    util::Printable(pattern, 200),
                                                    Pcre2Message(error), offset));
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter runs
    return std::unique_ptr<Pattern>(new Pattern(code));
  }
  ~Pattern() { pcre2_code_free(code_); }

  absl::Status Split(absl::string_view text, std::vector<absl::string_view>* pieces) const {
    std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
        pcre2_match_data_create_from_pattern(code_, nullptr), pcre2_match_data_free);
    if (match == nullptr) return absl::ResourceExhaustedError("out of memory");
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    size_t done = 0, from = 0;
    while (from < text.size()) {
      const int rc = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                 from, 0, match.get(), nullptr);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return absl::InvalidArgumentError(
            fmt::format("splitting text at byte {}: {}", from, Pcre2Message(rc)));
      }
      const size_t begin = bounds[0], end = bounds[1];
      if (end <= begin) {  // an empty match splits nothing: continue after the next character
        if (begin >= text.size()) break;
        from = begin + ScanUtf8(text.substr(begin)).length;
        continue;
      }
      if (begin > done) pieces->push_back(text.substr(done, begin - done));
      pieces->push_back(text.substr(begin, end - begin));
      done = from = end;
    }
    if (done < text.size()) pieces->push_back(text.substr(done));
    return absl::OkStatus();
  }

 private:
  explicit Pattern(pcre2_code* code) : code_(code) {}
  pcre2_code* const code_;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

absl::Status PreTokenizer::AddPattern(const std::string& pattern) {
  MOERT_ASSIGN_OR_RETURN(auto compiled, Pattern::Compile(pattern));
  patterns_.push_back(std::move(compiled));
  return absl::OkStatus();
}

absl::Status PreTokenizer::Split(absl::string_view text,
                                 std::vector<absl::string_view>* pieces) const {
  std::vector<absl::string_view> current = {text}, next;
  for (const auto& pattern : patterns_) {
    next.clear();
    for (const absl::string_view piece : current) {
      MOERT_RETURN_IF_ERROR(pattern->Split(piece, &next));
    }
    current.swap(next);
  }
  pieces->insert(pieces->end(), current.begin(), current.end());
  return absl::OkStatus();
}

}  // namespace moert::host
