#include "pack/sealed_json.h"

#include <fmt/format.h>

#include <charconv>

#include "base/errors.h"
#include "base/hash64.h"
#include "base/json_scan.h"

namespace moert {
namespace {

constexpr char kKey[] = "checksum";

// Adds text without the spaces between its tokens.
void AddCompact(absl::string_view text, Hasher64* hasher) {
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const token = p;
    while (p < end && !json_scan::IsSpace(*p)) p = *p == '"' ? json_scan::SkipString(p) : p + 1;
    hasher->Add(absl::string_view(token, static_cast<size_t>(p - token)));
    while (p < end && json_scan::IsSpace(*p)) ++p;
  }
}

// The checksum of all members but the checksum.
uint64_t Seal(JsonValue root) {
  Hasher64 hasher;
  absl::string_view separator = "{";
  for (const JsonMember& m : root.members()) {
    if (m.key.Is(kKey)) continue;
    hasher.Add(separator);
    hasher.Add(m.key.text());
    hasher.Add(":");
    AddCompact(m.value.text(), &hasher);
    separator = ",";
  }
  if (separator == "{") hasher.Add("{");
  hasher.Add("}");
  return hasher.Finish();
}

}  // namespace

std::string HexOf(uint64_t v) { return fmt::format("{:016x}", v); }

std::optional<uint64_t> ParseHex(JsonValue v) {
  const absl::string_view quoted = v.text();
  if (!v.is_string() || quoted.size() != 18) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(quoted.data() + 1, quoted.data() + 17, value, 16);
  if (error != std::errc() || end != quoted.data() + 17) return std::nullopt;
  return value;
}

std::string SealedText(const std::string& object) {
  const auto document = JsonDocument::Parse(
      object, "", {.max_bytes = UINT32_MAX, .max_depth = 64, .max_values = INT64_MAX});
  if (!document.ok()) return object;  // no object: whoever reads it says so
  const JsonValue root = document->root();
  std::string sealed = fmt::format("\"{}\":\"{}\"", kKey, HexOf(Seal(root)));
  // Members are copied as they are.
  std::string text = "{";
  const auto add = [&text](absl::string_view member) {
    if (text.size() > 1) text += ',';
    text.append(member.data(), member.size());
  };
  text.reserve(object.size() + sealed.size() + 3);
  for (const JsonMember& m : root.members()) {
    const absl::string_view key = m.key.text(), value = m.value.text();
    if (!sealed.empty() && key.substr(1) > absl::string_view(kKey)) {
      add(sealed);
      sealed.clear();
    }
    add({key.data(), static_cast<size_t>(value.data() + value.size() - key.data())});
  }
  if (!sealed.empty()) add(sealed);
  return text + "}\n";
}

absl::Status CheckSeal(const JsonDocument& document, const std::string& source) {
  const JsonValue root = document.root();
  const auto member = root.Find(kKey);
  const auto sealed = member ? ParseHex(*member) : std::nullopt;
  if (!sealed) {
    return absl::InvalidArgumentError(source + ": checksum is missing or not 16 hex digits");
  }
  const uint64_t found = Seal(root);
  if (found == *sealed) return absl::OkStatus();
  return DataLoss("{}: damaged: its checksum is {:016x}, it says {:016x}", source, found, *sealed);
}

}  // namespace moert
