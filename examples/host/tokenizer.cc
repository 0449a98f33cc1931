#include "host/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/nfc_ranges.h"
#include "host/tokenizer_json.h"
#include "host/utf8.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Whether NFC might change a text that contains this character. Errs on the side of true: that is
// reported as an error, never encoded differently without notice.
bool NfcMayChange(char32_t c) {
  const auto* const range =
      std::lower_bound(std::begin(kMayChangeInNfc), std::end(kMayChangeInNfc), c,
                       [](const CodePoints& r, char32_t value) { return r.last < value; });
  return range != std::end(kMayChangeInNfc) && c >= range->first;
}

absl::Status CheckNfc(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = ScanUtf8(text.substr(at));
    if (unit.kind == Utf8Unit::kValid && NfcMayChange(unit.code_point)) {
      return absl::UnimplementedError(fmt::format(
          "this tokenizer normalizes text to NFC, which is not implemented for U+{:04X} at byte {}",
          static_cast<uint32_t>(unit.code_point), at));
    }
    at += unit.length;
  }
  return absl::OkStatus();
}

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

const Tokenizer::AddedToken* Tokenizer::MatchAdded(absl::string_view text) const {
  for (const int32_t index : added_by_first_byte_[static_cast<uint8_t>(text[0])]) {
    const AddedToken& token = added_[index];
    if (text.substr(0, token.content.size()) == token.content) return &token;
  }
  return nullptr;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text) const {
  if (nfc_) MOERT_RETURN_IF_ERROR(CheckNfc(text));
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  size_t plain = 0;  // begin of the text not yet encoded
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = MatchAdded(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t end = at + token->content.size();
    while (token->lstrip && at > plain && IsSpace(text[at - 1])) --at;
    while (token->rstrip && end < text.size() && IsSpace(text[end])) ++end;
    MOERT_RETURN_IF_ERROR(EncodePlain(text.substr(plain, at - plain), plain == 0, &ids));
    ids.push_back(token->id);
    plain = at = end;
  }
  MOERT_RETURN_IF_ERROR(EncodePlain(text.substr(plain), plain == 0, &ids));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodePrompt(absl::string_view text) const {
  MOERT_ASSIGN_OR_RETURN(const std::vector<int32_t> inner, Encode(text));
  std::vector<int32_t> ids = before_;
  ids.insert(ids.end(), inner.begin(), inner.end());
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string Tokenizer::MarkSpaces(absl::string_view text, bool first) const {
  std::string marked;
  marked.reserve(text.size() + text.size() / 2 + kSpaceMark.size());
  const bool there = text[0] == ' ' || text.substr(0, kSpaceMark.size()) == kSpaceMark;
  if (prepend_ == Prepend::kAlways || (prepend_ == Prepend::kUnlessThere && !there) ||
      (prepend_ == Prepend::kFirst && first && !there)) {
    absl::StrAppend(&marked, kSpaceMark);
  }
  for (const char c : text) {
    if (c == ' ') {
      absl::StrAppend(&marked, kSpaceMark);
    } else {
      marked += c;
    }
  }
  return marked;
}

absl::Status Tokenizer::EncodePlain(absl::string_view text, bool first,
                                    std::vector<int32_t>* ids) const {
  if (text.empty()) return absl::OkStatus();
  if (byte_fallback_) {
    const std::string marked = MarkSpaces(text, first);
    absl::string_view rest = marked;
    while (split_spaces_ && !rest.empty()) {
      const size_t next = std::min(rest.find(kSpaceMark, 1), rest.size());
      MOERT_RETURN_IF_ERROR(EncodePiece(rest.substr(0, next), ids));
      rest.remove_prefix(next);
    }
    return rest.empty() ? absl::OkStatus() : EncodePiece(rest, ids);
  }
  std::string prefixed;
  if (add_prefix_space_ && !IsSpace(text[0])) {
    prefixed.reserve(text.size() + 1);
    prefixed.push_back(' ');
    prefixed.append(text.data(), text.size());
    text = prefixed;
  }
  std::vector<absl::string_view> pieces;
  MOERT_RETURN_IF_ERROR(pre_tokenizer_.Split(text, &pieces));
  for (const absl::string_view piece : pieces) MOERT_RETURN_IF_ERROR(EncodePiece(piece, ids));
  return absl::OkStatus();
}

absl::Status Tokenizer::FirstSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const {
  symbols->reserve(piece.size());
  while (!piece.empty()) {
    size_t length = 1;
    if (byte_fallback_) {
      const Utf8Unit unit = ScanUtf8(piece);
      length = static_cast<size_t>(unit.length);
      if (const auto it = chars_.find(piece.substr(0, length)); it != chars_.end()) {
        symbols->push_back(it->second);
        piece.remove_prefix(length);
        continue;
      }
    }
    for (const char c : piece.substr(0, length)) {
      const uint8_t byte = static_cast<uint8_t>(c);
      if (byte_ids_[byte] < 0) {
        return absl::InvalidArgumentError(
            fmt::format("the vocabulary has no token for byte 0x{:02X}", byte));
      }
      symbols->push_back(byte_ids_[byte]);
    }
    piece.remove_prefix(length);
  }
  return absl::OkStatus();
}

// Applies merges in order of rank, leftmost first among equals, with a heap over the adjacent pairs
// of a linked list: O(n log n) also for a piece of a million letters.
absl::Status Tokenizer::EncodePiece(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    const auto it = whole_.find(piece);
    if (it != whole_.end()) {
      ids->push_back(it->second);
      return absl::OkStatus();
    }
  }
  struct Symbol {
    int32_t id;
    int64_t prev, next;  // -1: none
  };
  struct Candidate {
    int32_t rank;
    int64_t left;
    int32_t left_id, right_id;  // the pair it was made from: stale if the symbols have changed
    int32_t result;
    bool operator<(const Candidate& o) const {  // the heap's top is the greatest
      return rank != o.rank ? rank > o.rank : left > o.left;
    }
  };
  std::vector<int32_t> first;
  MOERT_RETURN_IF_ERROR(FirstSymbols(piece, &first));
  const int64_t n = static_cast<int64_t>(first.size());
  std::vector<Symbol> symbols(n);
  for (int64_t i = 0; i < n; ++i) symbols[i] = {first[i], i - 1, i + 1 < n ? i + 1 : -1};
  std::priority_queue<Candidate> heap;
  const auto consider = [&](int64_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const int32_t a = symbols[left].id, b = symbols[symbols[left].next].id;
    const auto it = merges_.find(PairKey(a, b));
    if (it != merges_.end()) heap.push({it->second.rank, left, a, b, it->second.result});
  };
  for (int64_t i = 0; i + 1 < n; ++i) consider(i);
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Symbol& left = symbols[c.left];
    if (left.id != c.left_id || left.next < 0 || symbols[left.next].id != c.right_id) continue;
    Symbol& right = symbols[left.next];
    left.id = c.result;
    left.next = right.next;
    right.id = -1;  // no candidate names -1, so those that began here are stale
    if (left.next >= 0) symbols[left.next].prev = c.left;
    consider(left.prev);
    consider(c.left);
  }
  for (int64_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
  return absl::OkStatus();
}

absl::Status Tokenizer::AppendBytes(absl::Span<const int32_t> ids, std::string* out) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= size() || !known_[ids[i]]) {
      return absl::InvalidArgumentError(
          fmt::format("token {} at index {} is not in the vocabulary of {}", ids[i], i, size()));
    }
    *out += bytes_[ids[i]];
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::DecodeBytes(absl::Span<const int32_t> ids) const {
  std::string out;
  MOERT_RETURN_IF_ERROR(AppendBytes(ids, &out));
  if (prepend_ != Prepend::kNever && !out.empty() && out[0] == ' ') out.erase(0, 1);
  return out;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids) const {
  MOERT_ASSIGN_OR_RETURN(const std::string bytes, DecodeBytes(ids));
  return ToValidUtf8(bytes);
}

absl::StatusOr<std::string> StreamDecoder::Push(int32_t id) {
  MOERT_RETURN_IF_ERROR(tokenizer_->AppendBytes({&id, 1}, &held_));
  size_t ready = 0;
  while (ready < held_.size()) {
    const Utf8Unit unit = ScanUtf8(absl::string_view(held_).substr(ready));
    if (unit.kind == Utf8Unit::kIncomplete) break;
    ready += unit.length;
  }
  std::string out = ToValidUtf8(absl::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
  return out;
}

std::string StreamDecoder::Finish() {
  std::string out = ToValidUtf8(held_);
  held_.clear();
  return out;
}

}  // namespace moert::host
