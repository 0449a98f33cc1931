#include "moert/offline/calibration.h"

#include <fmt/format.h>

#include <new>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/status_macros.h"
#include "model/config_fields.h"
#include "model/model_json.h"
#include "pack/calibration_lines.h"
#include "pack/sealed_json.h"

namespace moert {
namespace {

constexpr char kFormatName[] = "moert calibration";
constexpr int64_t kMaxTokens = int64_t{1} << 50;
constexpr double kMaxNorm = 1e30;
constexpr JsonLimits kLimits = {.max_bytes = 512'000'000, .max_depth = 8, .max_values = 16'000'000};

absl::Status Error(const std::string& source, const absl::Status& why) {
  return absl::Status(why.code(), fmt::format("{}: {}", source, std::string(why.message())));
}
absl::Status Error(const std::string& source, const std::string& what) {
  return InvalidArgument("{}: {}", source, what);
}

void WriteLayer(const LayerCalibration& layer, JsonWriter* out) {
  out->BeginObject();
  out->Field("cross_layer_accuracy", layer.cross_layer_accuracy);
  out->Key("delta").Values(layer.delta);
  if (!layer.loss_per_square.empty()) out->Key("loss_per_square").Values(layer.loss_per_square);
  out->Field("output_norm", layer.output_norm);
  out->Key("selections").Values(layer.selections);
  out->Key("weight_sums").Values(layer.weight_sums);
  out->EndObject();
}

absl::StatusOr<LayerCalibration> LayerFromJson(JsonValue object, int num_experts, size_t schemes,
                                               const std::string& source) {
  if (!object.is_object()) return Error(source, "not an object");
  ConfigFields f(object, source);
  LayerCalibration layer;
  layer.selections = f.Ints("selections", 0, kMaxTokens);
  layer.weight_sums = f.Reals("weight_sums", -kMaxNorm, kMaxNorm, num_experts);
  layer.output_norm = f.Real("output_norm", 0, kMaxNorm);
  layer.cross_layer_accuracy = f.Real("cross_layer_accuracy", 0, 1);
  layer.delta =
      f.Reals("delta", 0, kMaxNorm,
              static_cast<int64_t>(num_experts) * kLinearBlocks * static_cast<int64_t>(schemes));
  if (f.Has("loss_per_square")) layer.loss_per_square = f.Reals("loss_per_square", 0, kMaxNorm, 2);
  MOERT_RETURN_IF_ERROR(f.status());
  if (layer.selections.size() != static_cast<size_t>(num_experts)) {
    return Error(source, fmt::format("selections has {} entries for {} experts",
                                     layer.selections.size(), num_experts));
  }
  return layer;
}

absl::StatusOr<Calibration> Parse(JsonValue object, const std::string& source) {
  ConfigFields f(object, source);
  if (f.String("format") != kFormatName) return Error(source, "is no calibration file");
  const int64_t version = f.Int("format_version", 0, INT32_MAX);
  MOERT_RETURN_IF_ERROR(f.status());
  if (version != kCalibrationFormatVersion) {
    return Error(source, fmt::format("has format version {}, this build reads {}", version,
                                     kCalibrationFormatVersion));
  }
  Calibration c;
  const auto model = f.Find("model");
  if (!model) return Error(source, "model is missing");
  MOERT_ASSIGN_OR_RETURN(c.model, ModelFromJson(*model, source + ": model"));
  c.source_identity = f.String("source_identity");
  c.tokens = f.Int("tokens", 1, kMaxTokens);
  c.window = f.Int("window", 1, kMaxTokens);
  c.tokens_checksum = f.String("tokens_checksum");
  c.method = f.String("method");
  c.hadamard = f.Bool("hadamard");
  MOERT_RETURN_IF_ERROR(f.status());
  const auto schemes = f.Find("schemes");
  const size_t count = schemes && schemes->is_array() ? schemes->size() : 0;
  if (count < 1 || count > Scheme::All().size()) {
    return Error(source, "schemes is not a list of schemes");
  }
  for (const JsonValue name : schemes->elements()) {
    if (!name.is_string()) return Error(source, "schemes: not a name");
    const auto scheme = Scheme::Parse(*name.AsString());
    if (!scheme.ok()) return Error(source, scheme.status());
    for (const Scheme& other : c.schemes) {
      if (other == *scheme) return Error(source, "schemes: " + scheme->Name() + " is listed twice");
    }
    c.schemes.push_back(*scheme);
  }
  if (f.Has("probe_tokens")) {
    c.probe_tokens = f.Int("probe_tokens", 1, kMaxTokens);
    const auto scheme = Scheme::Parse(f.String("probe_scheme"));
    MOERT_RETURN_IF_ERROR(f.status());
    if (!scheme.ok()) return Error(source, scheme.status());
    c.probe_scheme = *scheme;
  }
  const auto layers = f.Find("layers");
  if (!layers || !layers->is_array() || layers->size() != c.model.layers.size()) {
    return Error(source, fmt::format("layers is not a list of {}", c.model.layers.size()));
  }
  for (const JsonValue entry : layers->elements()) {
    const size_t l = c.layers.size();
    MOERT_ASSIGN_OR_RETURN(LayerCalibration layer,
                           LayerFromJson(entry, c.model.layers[l].num_experts, c.schemes.size(),
                                         fmt::format("{}: layer {}", source, l)));
    if (layer.loss_per_square.empty() != (c.probe_tokens == 0)) {
      return Error(source, fmt::format("layer {}: loss_per_square goes with probe_tokens", l));
    }
    c.layers.push_back(std::move(layer));
  }
  return c;
}

}  // namespace

std::string CalibrationToJson(const Calibration& c) {
  JsonWriter out;
  out.BeginObject();
  out.Field("format", kFormatName).Field("format_version", kCalibrationFormatVersion);
  out.Field("hadamard", c.hadamard);
  out.Key("layers").BeginArray();
  for (const LayerCalibration& l : c.layers) WriteLayer(l, &out);
  out.EndArray().Field("method", c.method).Key("model");
  WriteModel(c.model, &out);
  if (c.probe_tokens > 0) {
    out.Field("probe_scheme", c.probe_scheme.Name()).Field("probe_tokens", c.probe_tokens);
  }
  out.Key("schemes").BeginArray();
  for (const Scheme& s : c.schemes) out.String(s.Name());
  out.EndArray().Field("source_identity", c.source_identity).Field("tokens", c.tokens);
  out.Field("tokens_checksum", c.tokens_checksum).Field("window", c.window).EndObject();
  return SealedText(out.Take());
}

absl::StatusOr<Calibration> ReadCalibration(const std::string& path, Env* env) try {
  MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Read(env, path, kLimits));
  try {
    MOERT_ASSIGN_OR_RETURN(Calibration calibration, Parse(document.root(), path));
    MOERT_RETURN_IF_ERROR(CheckSeal(document, path));
    return calibration;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
} catch (...) {
  return ExceptionStatus("reading a calibration");
}

std::string LayerCalibrationToLine(const LayerCalibration& layer) {
  JsonWriter out;
  WriteLayer(layer, &out);
  return SealedText(out.Take());
}

absl::StatusOr<LayerCalibration> LayerCalibrationFromLine(const std::string& line, int num_experts,
                                                          size_t schemes,
                                                          const std::string& source) {
  MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(line, source, kLimits));
  try {
    MOERT_ASSIGN_OR_RETURN(LayerCalibration layer,
                           LayerFromJson(document.root(), num_experts, schemes, source));
    MOERT_RETURN_IF_ERROR(CheckSeal(document, source));
    return layer;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(source);
  }
}

}  // namespace moert
