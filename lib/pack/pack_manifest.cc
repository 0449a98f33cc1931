#include "pack/pack_manifest.h"

#include <fmt/format.h>

#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "model/config_fields.h"
#include "model/model_json.h"
#include "pack/sealed_json.h"

namespace moert {
namespace {

constexpr char kFormatName[] = "moert expert pack";
constexpr size_t kMaxVersions = 64;
constexpr size_t kMaxFiles = 65536;
constexpr size_t kMaxRecords = 2'000'000;

absl::Status Error(const std::string& source, const std::string& what) {
  return InvalidArgument("{}: {}", source, what);
}

absl::StatusOr<JsonValue> List(JsonValue object, const char* key, const std::string& source,
                               size_t limit) {
  const auto list = object.Find(key);
  if (!list || !list->is_array() || list->size() > limit) {
    return Error(source, fmt::format("{} is not a list of at most {} entries", key, limit));
  }
  return *list;
}

absl::StatusOr<PackFile> ParseFile(JsonValue v, const std::string& source) {
  if (!v.is_object()) return Error(source, "not an object");
  ConfigFields fields(v, source);
  PackFile file;
  file.name = fields.String("name");
  file.bytes = fields.Int("bytes", 0, INT64_MAX);
  MOERT_RETURN_IF_ERROR(fields.status());
  // A pack's files lie in its folder; any other path is an attempt to read other files.
  if (!IsPlainFileName(file.name) || file.name[0] == '.') {
    return Error(source, "its name is not a plain file name");
  }
  return file;
}

// The caller adds to the message which record it is.
absl::StatusOr<PackRecord> ParseRecord(JsonValue v, const PackManifest& m, int64_t bytes) {
  if (v.size() != 4 || !v.is_array()) {
    return absl::InvalidArgumentError("not a list of file, offset, bytes and checksum");
  }
  int64_t numbers[3] = {-1, -1, -1};
  std::optional<uint64_t> checksum;
  int i = 0;
  for (const JsonValue e : v.elements()) {
    if (i < 3) {
      numbers[i++] = e.AsInt().value_or(-1);
    } else {
      checksum = ParseHex(e);
    }
  }
  const auto [file, offset, size] = numbers;
  if (file < 0 || offset < 0 || size < 0 || !checksum) {
    return absl::InvalidArgumentError(
        "file, offset and bytes must be integers, checksum 16 hex digits");
  }
  if (file >= static_cast<int64_t>(m.files.size())) {
    return InvalidArgument("file is {}, but there are {}", file, m.files.size());
  }
  if (size != bytes) return InvalidArgument("bytes is {}, but its format takes {}", size, bytes);
  const PackFile& f = m.files[file];
  const auto end = Checked<int64_t>(bytes).RoundUp(kRecordAlignment).Add(offset).value();
  if (offset % kRecordAlignment != 0 || !end || *end > f.bytes) {
    return InvalidArgument(
        "offset is {}, legal is a multiple of {} with {} bytes before the end of {} at {}", offset,
        kRecordAlignment, bytes, Printable(f.name), f.bytes);
  }
  return PackRecord{static_cast<int>(file), offset, size, *checksum};
}

// Record sizes of one version, computed once per distinct (layer shape, format).
class RecordSizes {
 public:
  absl::StatusOr<int64_t> Get(const MoeLayerSpec& layer, const ExpertFormat& format) {
    const RecordContents contents = {layer.activation.gated, layer.expert_bias};
    if (last_ && hidden_ == layer.hidden && intermediate_ == layer.intermediate &&
        contents_ == contents && format_ == format) {
      return *last_;
    }
    MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, ExpertRecordLayout(layer, format));
    hidden_ = layer.hidden;
    intermediate_ = layer.intermediate;
    contents_ = contents;
    format_ = format;
    last_ = layout.bytes;
    return layout.bytes;
  }

 private:
  int64_t hidden_ = 0, intermediate_ = 0;
  RecordContents contents_;
  ExpertFormat format_;
  std::optional<int64_t> last_;
};

absl::Status ParseRecords(JsonValue object, const std::string& source, PackManifest* m) {
  const size_t count = m->IndexRecords();
  MOERT_ASSIGN_OR_RETURN(const JsonValue records, List(object, "records", source, kMaxRecords));
  if (const size_t found = records.size(); found != count) {
    return Error(source, fmt::format("records has {} entries, but model and versions need {}",
                                     found, count));
  }
  auto entry = records.elements().begin();
  m->records.reserve(count);
  RecordSizes sizes;
  int64_t last_total = INT64_MAX;
  std::vector<int64_t> totals(m->versions.size(), 0);
  for (int l = 0; l < m->model.num_layers(); ++l) {
    const MoeLayerSpec& layer = m->model.layers[l];
    for (int v = 0; v < m->num_versions(); ++v) {
      const PackVersion& version = m->versions[v];
      for (int e = 0; e < layer.num_experts; ++e) {
        MOERT_ASSIGN_OR_RETURN(const int64_t bytes, sizes.Get(layer, version.format(l, e)));
        auto record = ParseRecord(*entry, *m, bytes);
        ++entry;
        if (!record.ok()) {
          return Error(fmt::format("{}: record {}", source, RecordTensorName(l, e, version.name)),
                       std::string(record.status().message()));
        }
        m->records.push_back(*record);
        totals[v] += bytes / kSectionAlignment;
      }
    }
  }
  for (size_t v = 0; v < totals.size(); ++v) {
    if (totals[v] > last_total) return Error(source, "versions are not listed most bits first");
    last_total = totals[v];
  }
  return absl::OkStatus();
}

absl::StatusOr<PackManifest> Parse(JsonValue object, const std::string& source) {
  ConfigFields fields(object, source);
  if (fields.String("format") != kFormatName) {
    fields.Fail("format", fmt::format("legal is \"{}\"", kFormatName));
  }
  const int64_t format_version = fields.Int("format_version", 0, INT32_MAX);
  MOERT_RETURN_IF_ERROR(fields.status());
  if (format_version != kPackFormatVersion) {
    return InvalidArgument(
        "{}: is of pack format version {}, this build reads version {}: quantize the model again, "
        "or use the release that wrote the pack",
        source, format_version, kPackFormatVersion);
  }
  PackManifest m;
  m.source_identity = fields.String("source_identity", "");
  MOERT_RETURN_IF_ERROR(fields.status());
  const auto model = fields.Find("model");
  if (!model || !model->is_object()) return Error(source, "model is not an object");
  MOERT_ASSIGN_OR_RETURN(m.model, ModelFromJson(*model, source + ": model"));
  if (const auto q = fields.Find("quantizer")) {
    if (!q->is_object()) return Error(source, "quantizer is not an object");
    m.quantizer_json = JsonWriter().Copy(*q).Take();
  }

  MOERT_ASSIGN_OR_RETURN(const JsonValue versions, List(object, "versions", source, kMaxVersions));
  for (const JsonValue entry : versions.elements()) {
    MOERT_ASSIGN_OR_RETURN(
        PackVersion v,
        VersionFromJson(entry, m.model, fmt::format("{}: version {}", source, m.versions.size())));
    m.versions.push_back(std::move(v));
  }
  if (m.versions.empty()) return Error(source, "versions is empty");

  MOERT_ASSIGN_OR_RETURN(const JsonValue files, List(object, "files", source, kMaxFiles));
  for (const JsonValue entry : files.elements()) {
    MOERT_ASSIGN_OR_RETURN(PackFile f,
                           ParseFile(entry, fmt::format("{}: file {}", source, m.files.size())));
    m.files.push_back(std::move(f));
  }

  const auto constants = fields.Find("constants");
  if (!constants) return Error(source, "constants is missing");
  MOERT_ASSIGN_OR_RETURN(m.constants, ParseFile(*constants, source + ": constants"));
  MOERT_ASSIGN_OR_RETURN(const JsonValue checksums,
                         List(*constants, "checksums", source, m.model.layers.size()));
  for (const JsonValue c : checksums.elements()) {
    const auto value = ParseHex(c);
    if (!value) return Error(source, "constants: a checksum is not 16 hex digits");
    m.constants_checksums.push_back(*value);
  }
  if (m.constants_checksums.size() != m.model.layers.size()) {
    return Error(source, "constants: checksums must list all layers");
  }
  MOERT_RETURN_IF_ERROR(ParseRecords(object, source, &m));
  return m;
}

}  // namespace

size_t PackManifest::IndexRecords() {
  first_record.clear();
  size_t count = 0;
  for (const MoeLayerSpec& l : model.layers) {
    first_record.push_back(count);
    count += static_cast<size_t>(l.num_experts) * versions.size();
  }
  return count;
}

std::string RecordTensorName(int layer, int expert, const std::string& version) {
  return fmt::format("layers.{}.experts.{}.{}", layer, expert, version);
}

std::string ManifestToJson(const PackManifest& m) {
  JsonWriter out;
  out.BeginObject().Key("constants").BeginObject();
  out.Field("bytes", m.constants.bytes).Key("checksums").BeginArray();
  for (const uint64_t c : m.constants_checksums) out.String(HexOf(c));
  out.EndArray().Field("name", m.constants.name).EndObject();
  out.Key("files").BeginArray();
  for (const PackFile& f : m.files) {
    out.BeginObject().Field("bytes", f.bytes).Field("name", f.name).EndObject();
  }
  out.EndArray().Field("format", kFormatName).Field("format_version", kPackFormatVersion);
  out.Key("model");
  WriteModel(m.model, &out);
  const auto quantizer = JsonDocument::Parse(m.quantizer_json, "quantizer");
  out.Key("quantizer");
  if (quantizer.ok()) {
    out.Copy(quantizer->root());
  } else {
    out.BeginObject().EndObject();
  }
  out.Key("records").BeginArray();
  for (const PackRecord& r : m.records) {
    out.BeginArray().Int(r.file).Int(r.offset).Int(r.bytes).String(HexOf(r.checksum)).EndArray();
  }
  out.EndArray().Field("source_identity", m.source_identity).Key("versions").BeginArray();
  for (const PackVersion& v : m.versions) WriteVersion(v, &out);
  out.EndArray().EndObject();
  return SealedText(out.Take());
}

namespace {

// If there is no manifest, tells the user who named the folder what a pack is.
absl::Status WhyNoManifest(const std::string& dir, const std::string& path,
                           const absl::Status& read) {
  std::error_code ec;
  if (std::filesystem::exists(path, ec)) return read;
  const bool checkpoint = std::filesystem::exists(dir + "/config.json", ec);
  return absl::Status(read.code(), absl::StrCat(read.message(),
                                                "; an expert pack is a folder that moert-pack "
                                                "quantize or QuantizeJob writes",
                                                checkpoint ? ", this one is a checkpoint" : ""));
}

}  // namespace

absl::StatusOr<PackManifest> ReadManifest(const std::string& dir, Env* env) {
  const std::string path = dir + "/" + kManifestFile;
  const JsonLimits limits = {.max_bytes = 256'000'000, .max_depth = 8, .max_values = 16'000'000};
  const auto read = JsonDocument::Read(env, path, limits);
  if (!read.ok()) return WhyNoManifest(dir, path, read.status());
  const JsonDocument& document = *read;
  try {
    // Illegal values are reported by field; the checksum finds damage that leaves legal values.
    MOERT_ASSIGN_OR_RETURN(PackManifest manifest, Parse(document.root(), path));
    MOERT_RETURN_IF_ERROR(CheckSeal(document, path));
    return manifest;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
}

}  // namespace moert
