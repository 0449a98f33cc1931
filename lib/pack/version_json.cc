#include "pack/pack_manifest.h"

#include <fmt/format.h>

#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "model/config_fields.h"

namespace moert {
namespace {

constexpr char kHadamard[] = "hadamard";
constexpr size_t kMaxFormats = 4096;

absl::Status Error(const std::string& source, const std::string& what) {
  return InvalidArgument("{}: {}", source, what);
}

absl::StatusOr<ExpertFormat> ParseFormat(JsonValue v, const std::string& source) {
  const auto error = [&] {
    return Error(
        source, fmt::format("a format is not a list of three scheme names, and \"{}\" if so stored",
                            kHadamard));
  };
  Scheme schemes[3];
  size_t count = 0;
  for (const JsonValue name : v.elements()) {
    if (!name.is_string() || count == 4 || (count == 3 && !name.Is(kHadamard))) return error();
    if (count < 3) {
      const auto parsed = Scheme::Parse(*name.AsString());
      if (!parsed.ok()) {
        return absl::Status(parsed.status().code(),
                            fmt::format("{}: {}", source, std::string(parsed.status().message())));
      }
      schemes[count] = *parsed;
    }
    ++count;
  }
  if (count < 3) return error();
  return ExpertFormat{schemes[0], schemes[1], schemes[2], count == 4};
}

// One index per expert. The caller adds to the message which layer it is.
absl::StatusOr<std::vector<int>> ParseIndices(JsonValue row, int experts, size_t formats) {
  if (!row.is_array() || row.size() != static_cast<size_t>(experts)) {
    return InvalidArgument(" must list {} experts", experts);
  }
  std::vector<int> indices;
  indices.reserve(experts);
  for (const JsonValue e : row.elements()) {
    const auto index = e.AsInt();
    if (!index || *index < 0 || *index >= static_cast<int64_t>(formats)) {
      return InvalidArgument(": legal is 0 to {}", formats - 1);
    }
    indices.push_back(static_cast<int>(*index));
  }
  return indices;
}

}  // namespace

void WriteVersion(const PackVersion& v, JsonWriter* out) {
  out->BeginObject();
  if (!v.assignment.empty()) {
    out->Key("assignment").BeginArray();
    for (const std::vector<int>& layer : v.assignment) out->Values(layer);
    out->EndArray();
  }
  out->Key("formats").BeginArray();
  for (const ExpertFormat& f : v.formats) {
    out->BeginArray().String(f.gate.Name()).String(f.up.Name()).String(f.down.Name());
    if (f.hadamard) out->String(kHadamard);
    out->EndArray();
  }
  out->EndArray().Field("name", v.name).EndObject();
}

absl::StatusOr<PackVersion> VersionFromJson(JsonValue v, const MoeModelSpec& model,
                                            const std::string& source) {
  if (!v.is_object()) return Error(source, "not an object");
  PackVersion version;
  ConfigFields fields(v, source);
  version.name = fields.String("name");
  MOERT_RETURN_IF_ERROR(fields.status());
  if (version.name.empty() || version.name.size() > 256) {
    return Error(source, "its name must have 1 to 256 bytes");
  }
  const auto formats = fields.Find("formats");
  if (!formats || !formats->is_array() || formats->size() > kMaxFormats) {
    return Error(source, fmt::format("formats is not a list of at most {} entries", kMaxFormats));
  }
  for (const JsonValue f : formats->elements()) {
    MOERT_ASSIGN_OR_RETURN(const ExpertFormat format, ParseFormat(f, source));
    version.formats.push_back(format);
  }
  if (version.formats.empty()) return Error(source, "formats is empty");
  const auto rows = fields.Find("assignment");
  if (!rows) return version;
  if (!rows->is_array() || rows->size() != model.layers.size()) {
    return Error(source, "assignment must list all layers");
  }
  for (const JsonValue row : rows->elements()) {
    const size_t l = version.assignment.size();
    auto indices = ParseIndices(row, model.layers[l].num_experts, version.formats.size());
    if (!indices.ok()) {
      return Error(source, fmt::format("assignment of layer {}{}", l, indices.status().message()));
    }
    version.assignment.push_back(*std::move(indices));
  }
  return version;
}

}  // namespace moert
