#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/bytes_text.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "examples/cli/common/args.h"
#include "examples/cli/common/report.h"
#include "examples/cli/pack/commands.h"
#include "format/hf_config.h"
#include "format/pack_manifest.h"
#include "format/safetensors.h"

namespace moert::cli {
namespace {

using nlohmann::json;

constexpr char kCommand[] = "moert-pack info";

bool IsFile(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}
bool Exists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

/// What the experts of a model take in one version: sums over all layers and experts.
struct Totals {
  int64_t bytes = 0;
  int64_t weights = 0;
  int64_t padded_weights = 0;

  void Add(const RecordLayout& layout) {
    bytes += layout.bytes;
    for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
      weights += m->rows * m->k;
      padded_weights += m->padded_rows * m->padded_k;
    }
  }
  double bits() const { return 8.0 * static_cast<double>(bytes) / static_cast<double>(weights); }
  /// Share of the stored weights that are padding.
  double padding() const {
    return 1.0 - static_cast<double>(weights) / static_cast<double>(padded_weights);
  }
};

absl::StatusOr<Totals> TotalsOf(const MoeModelSpec& model, const PackVersion& version) {
  Totals totals;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[static_cast<size_t>(l)];
    for (int e = 0; e < layer.num_experts; ++e) {
      MOERT_ASSIGN_OR_RETURN(
          const RecordLayout layout,
          MakeRecordLayout(layer.hidden, layer.intermediate, version.format(l, e)));
      totals.Add(layout);
    }
  }
  return totals;
}

json ModelJson(const MoeModelSpec& model) {
  const MoeLayerSpec& first = model.layers.front();
  return {{"architecture", model.architecture}, {"moe_layers", model.num_layers()},
          {"experts", model.total_experts()},   {"experts_per_layer", first.num_experts},
          {"top_k", first.routing.top_k},       {"hidden", first.hidden},
          {"intermediate", first.intermediate}, {"shared_intermediate", first.shared_intermediate}};
}

json VersionJson(const PackVersion& version, const Totals& totals) {
  json formats = json::array();
  for (const ExpertFormat& f : version.formats) {
    formats.push_back({f.gate.Name(), f.up.Name(), f.down.Name()});
  }
  return {{"name", version.name},
          {"formats", std::move(formats)},
          {"bytes", totals.bytes},
          {"stored_bits", totals.bits()},
          {"padding", totals.padding()}};
}

void PrintModel(const json& m) {
  fmt::print("  {}: {} MoE layers, {} experts of {} x {} a layer, {} a token, shared expert {}\n",
             m["architecture"].get<std::string>(), m["moe_layers"].get<int>(),
             m["experts_per_layer"].get<int>(), m["hidden"].get<int64_t>(),
             m["intermediate"].get<int64_t>(), m["top_k"].get<int>(),
             m["shared_intermediate"].get<int64_t>());
}

void PrintVersions(const json& versions) {
  fmt::print("  {:<20} {:>12} {:>12} {:>9}\n", "scheme", "stored bits", "bytes", "padding");
  for (const json& v : versions) {
    fmt::print("  {:<20} {:>12.3f} {:>12} {:>8.1f}%\n", v["name"].get<std::string>(),
               v["stored_bits"].get<double>(), BytesText(v["bytes"].get<int64_t>()),
               100 * v["padding"].get<double>());
  }
}

absl::StatusOr<json> PackInfo(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const PackManifest m, ReadManifest(path, Env::Default()));
  json versions = json::array();
  for (const PackVersion& v : m.versions) {
    MOERT_ASSIGN_OR_RETURN(const Totals totals, TotalsOf(m.model, v));
    versions.push_back(VersionJson(v, totals));
  }
  int64_t bytes = m.constants.bytes;
  for (const PackFile& f : m.files) bytes += f.bytes;
  return json{{"kind", "pack"},
              {"path", path},
              {"format_version", kPackFormatVersion},
              {"model", ModelJson(m.model)},
              {"versions", std::move(versions)},
              {"quantizer", json::parse(m.quantizer_json, nullptr, false)},
              {"source_identity", m.source_identity},
              {"files", m.files.size() + 1},
              {"bytes", bytes}};
}

// A checkpoint, and what its experts would take in each scheme.
absl::StatusOr<json> CheckpointInfo(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(path));
  json schemes = json::array();
  for (const Scheme& scheme : Scheme::All()) {
    const PackVersion version = PackVersion::Uniform(scheme);
    MOERT_ASSIGN_OR_RETURN(const Totals totals, TotalsOf(config.moe, version));
    schemes.push_back(VersionJson(version, totals));
  }
  return json{{"kind", "checkpoint"},
              {"path", path},
              {"model", ModelJson(config.moe)},
              {"schemes", std::move(schemes)}};
}

absl::StatusOr<json> FileInfo(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(path));
  json tensors = json::array();
  for (const TensorInfo& t : checkpoint->tensors()) {
    tensors.push_back({{"name", t.name},
                       {"dtype", std::string(DTypeName(t.dtype))},
                       {"shape", t.shape},
                       {"bytes", t.bytes}});
  }
  return json{{"kind", "safetensors"},
              {"path", path},
              {"bytes", checkpoint->file(0).size()},
              {"tensors", std::move(tensors)}};
}

absl::StatusOr<json> Info(const std::string& path) {
  if (IsFile(path)) return FileInfo(path);
  if (Exists(path + "/" + kManifestFile)) return PackInfo(path);
  if (Exists(path + "/config.json")) return CheckpointInfo(path);
  return absl::NotFoundError(
      fmt::format("{}: neither an expert pack ({}), nor a checkpoint (config.json), nor a file",
                  path, kManifestFile));
}

void Print(const json& info) {
  const std::string kind = info["kind"];
  fmt::print("{}: {}\n", info["path"].get<std::string>(), kind);
  if (kind == "safetensors") {
    for (const json& t : info["tensors"]) {
      fmt::print("  {:<50} {:<5} {}\n", t["name"].get<std::string>(), t["dtype"].get<std::string>(),
                 t["shape"].dump());
    }
    return;
  }
  PrintModel(info["model"]);
  if (kind == "checkpoint") return PrintVersions(info["schemes"]);
  PrintVersions(info["versions"]);
  fmt::print("  quantizer {}, {} files, {}\n", info["quantizer"].dump(),
             info["files"].get<int64_t>(), BytesText(info["bytes"].get<int64_t>()));
}

}  // namespace

int InfoMain(int argc, const char* const* argv) {
  std::string path, json_path;
  ArgParser parser(kCommand,
                   "Describes an expert pack, a checkpoint (and what its experts would take in "
                   "each scheme), or a safetensors file.");
  parser.AddPositional("PACK|DIR|FILE", &path, "what to describe");
  parser.AddString("json", &json_path, "writes the description to a file, or - for stdout");
  const absl::Status parsed = parser.Parse(argc, argv);
  if (!parsed.ok()) return ReportError(kCommand, parsed);
  if (parser.help_requested()) {
    fmt::print("{}", parser.Help());
    return kExitOk;
  }
  const absl::StatusOr<json> info = Info(path);
  if (!info.ok()) return ReportError(kCommand, info.status());
  if (json_path != "-") Print(*info);
  if (!json_path.empty()) {
    const absl::Status written = WriteJson(json_path, *info);
    if (!written.ok()) return ReportError(kCommand, written);
  }
  return kExitOk;
}

}  // namespace moert::cli
