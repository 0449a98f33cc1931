#include "pack/version_json.h"

#include <fmt/format.h>

#include "base/status_macros.h"
#include "model/config_fields.h"

namespace moert {
namespace {

using nlohmann::json;

constexpr char kHadamard[] = "hadamard";
constexpr size_t kMaxFormats = 4096;

absl::Status Error(const std::string& source, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", source, what));
}

absl::StatusOr<const json*> List(const json& object, const char* key, const std::string& source,
                                 size_t limit) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array() || it->size() > limit) {
    return Error(source, fmt::format("{} is not a list of at most {} entries", key, limit));
  }
  return &*it;
}

absl::StatusOr<ExpertFormat> ParseFormat(const json& v, const std::string& source) {
  const bool hadamard = v.is_array() && v.size() == 4 && v[3] == kHadamard;
  if (!v.is_array() || v.size() != (hadamard ? 4 : 3) || !v[0].is_string() || !v[1].is_string() ||
      !v[2].is_string()) {
    return Error(source, fmt::format("a format is not a list of three scheme names, and \"{}\" "
                                     "if so stored",
                                     kHadamard));
  }
  Scheme schemes[3];
  for (size_t i = 0; i < 3; ++i) {
    const auto parsed = Scheme::Parse(v[i].get_ref<const std::string&>());
    if (!parsed.ok()) return Error(source, std::string(parsed.status().message()));
    schemes[i] = *parsed;
  }
  return ExpertFormat{schemes[0], schemes[1], schemes[2], hadamard};
}

}  // namespace

json VersionToJson(const PackVersion& v) {
  json formats = json::array();
  for (const ExpertFormat& f : v.formats) {
    formats.push_back({f.gate.Name(), f.up.Name(), f.down.Name()});
    if (f.hadamard) formats.back().push_back(kHadamard);
  }
  json version = {{"name", v.name}, {"formats", std::move(formats)}};
  if (!v.assignment.empty()) version["assignment"] = v.assignment;
  return version;
}

absl::StatusOr<PackVersion> VersionFromJson(const json& v, const MoeModelSpec& model,
                                            const std::string& source) {
  if (!v.is_object()) return Error(source, "not an object");
  PackVersion version;
  ConfigFields fields(v, source);
  version.name = fields.String("name");
  MOERT_RETURN_IF_ERROR(fields.status());
  if (version.name.empty() || version.name.size() > 256) {
    return Error(source, "its name must have 1 to 256 bytes");
  }
  MOERT_ASSIGN_OR_RETURN(const json* formats, List(v, "formats", source, kMaxFormats));
  for (const json& f : *formats) {
    MOERT_ASSIGN_OR_RETURN(const ExpertFormat format, ParseFormat(f, source));
    version.formats.push_back(format);
  }
  if (version.formats.empty()) return Error(source, "formats is empty");
  if (!fields.Has("assignment")) return version;
  MOERT_ASSIGN_OR_RETURN(const json* rows, List(v, "assignment", source, model.layers.size()));
  if (rows->size() != model.layers.size()) return Error(source, "assignment must list all layers");
  for (size_t l = 0; l < rows->size(); ++l) {
    const json& row = (*rows)[l];
    const size_t experts = static_cast<size_t>(model.layers[l].num_experts);
    if (!row.is_array() || row.size() != experts) {
      return Error(source, fmt::format("assignment of layer {} must list {} experts", l, experts));
    }
    std::vector<int> indices;
    for (const json& e : row) {
      const bool legal = e.is_number_unsigned() && e.get<uint64_t>() < version.formats.size();
      if (!legal) {
        return Error(source, fmt::format("assignment of layer {}: legal is 0 to {}", l,
                                         version.formats.size() - 1));
      }
      indices.push_back(static_cast<int>(e.get<uint64_t>()));
    }
    version.assignment.push_back(std::move(indices));
  }
  return version;
}

}  // namespace moert
