#include "pack/sealed_json.h"

#include <fmt/format.h>

#include <charconv>

#include "base/hash64.h"

namespace moert {
namespace {

using nlohmann::json;

uint64_t Seal(const json& doc) {
  Hasher64 hasher;
  hasher.Add(doc.dump(-1, ' ', true, json::error_handler_t::replace));
  return hasher.Finish();
}

}  // namespace

std::string HexOf(uint64_t v) { return fmt::format("{:016x}", v); }

std::optional<uint64_t> ParseHex(const json& v) {
  if (!v.is_string()) return std::nullopt;
  const std::string& s = v.get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, 16);
  if (s.size() != 16 || error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

std::string SealedText(json doc) {
  doc["checksum"] = HexOf(Seal(doc));
  return doc.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
}

absl::Status CheckSeal(json doc, const std::string& source) {
  const auto it = doc.find("checksum");
  const auto sealed = it == doc.end() ? std::nullopt : ParseHex(*it);
  if (!sealed) {
    return absl::InvalidArgumentError(source + ": checksum is missing or not 16 hex digits");
  }
  doc.erase("checksum");
  if (Seal(doc) == *sealed) return absl::OkStatus();
  return absl::DataLossError(fmt::format("{}: damaged: its checksum is {:016x}, it says {:016x}",
                                         source, Seal(doc), *sealed));
}

}  // namespace moert
