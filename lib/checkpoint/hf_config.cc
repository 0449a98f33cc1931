#include "moert/offline/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

#include "absl/strings/str_split.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/config_account.h"
#include "checkpoint/decoder_config.h"
#include "checkpoint/family.h"
#include "checkpoint/moe_config.h"
#include "checkpoint/other_files.h"
#include "checkpoint/quantization_config.h"

namespace moert {
namespace {

// Every field is looked up in the text, so its size determines the cost of a lookup.
constexpr JsonLimits kConfigLimits = {
    .max_bytes = 8'000'000, .max_depth = 16, .max_values = 400'000, .not_finite = true};

// Accounts for fields of other families that this one did not read and that have the value without
// effect.
void AccountForOthers(const std::string& dense_width, ConfigFields& fields, HfConfig& config) {
  for (const std::string& key : fields.Unasked()) {
    if (key == dense_width) {
      WithoutEffect(fields, {dense_width.c_str()},
                    config.experts_only ? kOfTheHost : "no layer is dense", &config.unused);
    }
    if (key == "pruned_heads" && fields.Find("pruned_heads")->size() == 0) {
      WithoutEffect(fields, {"pruned_heads"}, "no head is pruned", &config.unused);
    }
    if (config.experts_only) continue;
    if (key == "attention_bias" || key == "use_sliding_window") fields.Expect(key.c_str(), false);
  }
}

// Collects the fields that the description declares to have no effect, by reason.
void TakeUnused(const FamilyFields& family, std::vector<UnusedField>* unused) {
  const std::vector<std::string> left = family.fields().Unasked();
  for (const JsonValue object : family.family().FindAll("unused")) {
    for (const JsonMember& reason : object.members()) {
      for (const JsonValue key : reason.value.elements()) {
        const std::string name = *key.AsString();
        if (std::find(left.begin(), left.end(), name) == left.end()) continue;
        family.fields().Has(name.c_str());
        unused->push_back({name, *reason.key.AsString()});
      }
    }
  }
}

absl::StatusOr<HfConfig> ReadFamily(const ModelFamily& description, ConfigFields& fields,
                                    HfConfig config) {
  const FamilyFields family(description, fields);
  fields.AlsoIn(description.Text("also_in").c_str());
  config.experts_only = !description.Flag("decoder") || !family.Holds("decoder_if");
  config.moe.architecture = config.model_type;
  config.hidden_size = family.Int("hidden", 1, kMaxWidth, 0);
  ReadMoePlaces(family, config);
  MOERT_RETURN_IF_ERROR(fields.status());
  if (!config.experts_only) ReadDecoder(family, config);
  if (config.experts_only) {
    config.vocab_size = fields.Int("vocab_size", 1, kMaxVocabulary, kMaxVocabulary);
    config.max_position_embeddings =
        fields.Int("max_position_embeddings", 1, kMaxPositions, kMaxPositions);
  }
  MOERT_RETURN_IF_ERROR(fields.status());
  ReadMoeLayers(family, config);
  family.Expect();
  if (description.Find("fp4_experts_if") && family.Holds("fp4_experts_if") &&
      config.quantization.form == StoredWeights::kFp8) {
    config.quantization.form = StoredWeights::kMxfp4Rows;
  }
  const std::string dense_width = description.Text("dense_width", "intermediate_size");
  const bool dense =
      std::find(config.is_moe.begin(), config.is_moe.end(), false) != config.is_moe.end();
  if ((dense || config.side_experts) && !config.experts_only) {
    config.dense_intermediate = fields.Int(dense_width.c_str(), 1, kMaxFfnWidth);
  }
  TakeUnused(family, &config.unused);
  MOERT_RETURN_IF_ERROR(fields.status());
  AccountForOthers(dense_width, fields, config);
  MOERT_RETURN_IF_ERROR(fields.status());
  AccountForFields(config.experts_only ? FieldScope::kExperts : FieldScope::kModel, "", fields,
                   &config.unused);
  MOERT_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<ModelFamily> FindFamily(const std::string& model_type, const std::string& source) {
  absl::StatusOr<ModelFamily> family = ModelFamily::Of(model_type);
  if (absl::IsNotFound(family.status())) {
    return Unimplemented("{}: model_type is \"{}\", which is not supported; supported are: {}; {}",
                         source, Printable(model_type), fmt::join(SupportedArchitectures(), ", "),
                         kOtherWays);
  }
  MOERT_RETURN_IF_ERROR(family.status());
  const std::string refused = family->Text("refused");
  if (refused.empty()) return family;
  return Unimplemented("{}: model_type is \"{}\", which is not read: {}; {}", source, model_type,
                       refused, kOtherWays);
}

absl::StatusOr<HfConfig> Read(JsonValue object, const std::string& source) {
  ConfigFields fields(object, source);
  HfConfig config;
  config.model_type = fields.String("model_type");
  MOERT_RETURN_IF_ERROR(fields.status());
  MOERT_ASSIGN_OR_RETURN(const ModelFamily family, FindFamily(config.model_type, source));
  config.quantization = ReadQuantizationConfig(fields, &config.unused);
  if (family.nested().empty()) {
    config.tensor_body = family.Text("body", config.tensor_body);
    MOERT_ASSIGN_OR_RETURN(config, ReadFamily(family, fields, std::move(config)));
  } else {
    config.tensor_prefix = family.Text("nested_prefix");
    config.tensor_body = family.Text("nested_body", config.tensor_prefix + "model.");
    std::optional<JsonValue> text = object;
    for (const absl::string_view key : absl::StrSplit(family.nested(), '.')) {
      if (text && text->is_object()) text = text->Find(key);
    }
    const std::string first = family.nested().substr(0, family.nested().find('.'));
    if (!fields.Has(first.c_str()) || !text || !text->is_object()) {
      fields.Fail(first.c_str(), "legal is an object");
    }
    MOERT_RETURN_IF_ERROR(fields.status());
    ConfigFields inner(*text, fmt::format("{}: {}", source, family.nested()));
    if (inner.Has("quantization_config")) {
      config.quantization = ReadQuantizationConfig(inner, &config.unused);
    }
    MOERT_RETURN_IF_ERROR(inner.status());
    MOERT_ASSIGN_OR_RETURN(config, ReadFamily(family, inner, std::move(config)));
    // The head belongs to the whole model, and so does this field.
    config.tie_word_embeddings =
        fields.Bool("tie_word_embeddings", config.tie_word_embeddings && !config.experts_only);
    AccountForFields(FieldScope::kAround, "", fields, &config.unused);
    MOERT_RETURN_IF_ERROR(fields.status());
  }
  if (const absl::Status s = config.moe.Validate(); !s.ok()) {
    return InvalidArgument("{}: {}", source,
                           fmt::string_view(s.message().data(), s.message().size()));
  }
  return config;
}

}  // namespace

int HfConfig::MoeLayerIndex(int model_layer) const {
  if (model_layer < 0 || model_layer >= num_hidden_layers) return -1;
  if (!is_moe[model_layer]) return -1;
  return static_cast<int>(std::count(is_moe.begin(), is_moe.begin() + model_layer, true));
}

namespace {

// The layer's own attention; null: the model's.
const WindowAttention* Own(const HfConfig& config, int layer) {
  const auto at = static_cast<size_t>(layer);
  if (!config.window || at >= config.mixers.size()) return nullptr;
  return config.mixers[at].kind == MixerKind::kWindow ? &*config.window : nullptr;
}

}  // namespace

int HfConfig::KvHeads(int layer) const {
  const WindowAttention* own = Own(*this, layer);
  return own != nullptr ? own->kv_heads : num_key_value_heads;
}

int64_t HfConfig::HeadDim(int layer) const {
  const WindowAttention* own = Own(*this, layer);
  return own != nullptr ? own->head_dim : head_dim;
}

int64_t HfConfig::ValueDim(int layer) const { return value_dim > 0 ? value_dim : HeadDim(layer); }

bool HfConfig::HasSinks(int layer) const {
  const WindowAttention* own = Own(*this, layer);
  return own != nullptr ? own->sinks : attention_sinks;
}

bool HfConfig::HasValues(int layer) const {
  return !values_are_keys || mixers[layer].kind == MixerKind::kWindow;
}

const RopeConfig& HfConfig::Rope(int layer) const {
  const WindowAttention* own = Own(*this, layer);
  return own != nullptr ? own->rope : rope;
}

std::vector<std::string> SupportedArchitectures() { return ModelFamily::ModelTypes(); }

absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view text, const std::string& source) try {
  try {
    MOERT_ASSIGN_OR_RETURN(const JsonDocument document,
                           JsonDocument::Parse(std::string(text), source, kConfigLimits));
    return Read(document.root(), source);
  } catch (const std::bad_alloc&) {
    return OutOfMemory(source);
  }
} catch (...) {
  return ExceptionStatus("reading a configuration");
}

namespace {

// If there is no file, tells the user who named the folder what the folder is.
absl::Status WhyNoConfig(const std::string& model_dir, const std::string& path,
                         const absl::Status& read) {
  std::error_code ec;
  if (std::filesystem::exists(path, ec)) return read;
  return absl::Status(read.code(),
                      fmt::format("{}{}", std::string(read.message()), OtherFiles(model_dir)));
}

// ModelOpt may describe the stored weights in a file of its own and not at all in config.json.
absl::Status LoadHfQuantConfig(const std::string& path, Env* env, HfConfig* config) {
  // It may name every layer.
  constexpr JsonLimits kLimits = {.max_bytes = 20'000'000, .max_depth = 16};
  const auto document = JsonDocument::Read(env, path, kLimits);
  if (absl::IsNotFound(document.status())) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(document.status());
  MOERT_ASSIGN_OR_RETURN(config->quantization,
                         ReadHfQuantConfig(document->root(), path, &config->unused));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfConfig> LoadHfConfig(const std::string& model_dir, Env* env) try {
  try {
    const std::string path = model_dir + "/config.json";
    const auto document = JsonDocument::Read(env, path, kConfigLimits);
    if (!document.ok()) return WhyNoConfig(model_dir, path, document.status());
    MOERT_ASSIGN_OR_RETURN(HfConfig config, Read(document->root(), path));
    if (config.quantization.form == StoredWeights::kPlain) {
      MOERT_RETURN_IF_ERROR(LoadHfQuantConfig(model_dir + "/hf_quant_config.json", env, &config));
    }
    const std::string generation = model_dir + "/generation_config.json";
    const auto extra = JsonDocument::Read(env, generation, kConfigLimits);
    if (absl::IsNotFound(extra.status())) return config;
    MOERT_RETURN_IF_ERROR(extra.status());
    ConfigFields fields(extra->root(), generation);
    const auto eos = fields.Ints("eos_token_id", 0, config.vocab_size - 1, true);
    MOERT_RETURN_IF_ERROR(fields.status());
    if (!eos.empty()) config.eos_token_ids = eos;
    return config;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(model_dir);
  }
} catch (...) {
  return ExceptionStatus("reading a configuration");
}

}  // namespace moert
