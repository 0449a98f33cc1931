#include "moert/offline/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/exception_status.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/architectures/architecture.h"
#include "checkpoint/config_account.h"
#include "checkpoint/other_files.h"
#include "checkpoint/other_ways.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/rope_config.h"

namespace moert {
namespace {

// Every field is looked for in the text: its size is what a lookup costs.
constexpr JsonLimits kConfigLimits = {
    .max_bytes = 2'000'000, .max_depth = 16, .max_values = 200'000};
constexpr int64_t kMaxVocabulary = int64_t{1} << 31;
constexpr int64_t kMaxPositions = int64_t{1} << 31;

// Which layers look only at the last sliding_window positions.
void ReadSlidingWindow(const Architecture& family, ConfigFields& fields, HfConfig& config) {
  const size_t layers = static_cast<size_t>(config.num_hidden_layers);
  config.mixers.assign(layers, {});
  const int64_t width = fields.Int("sliding_window", 0, kMaxPositions, 0);
  const bool used = fields.Bool("use_sliding_window", family.window_without_flag);
  const int64_t first = fields.Int("max_window_layers", 0, kMaxLayerCount, 0);
  const int64_t window = used ? width : 0;
  const MixerConfig windowed{MixerKind::kWindow, window};
  if (const auto types = fields.Find("layer_types")) {
    if (!types->is_array() || types->size() != layers) {
      return fields.Fail("layer_types", fmt::format("legal is a list of {} names", layers));
    }
    auto layer = config.mixers.begin();
    for (const JsonValue type : types->elements()) {
      if (type.Is("sliding_attention")) {
        if (window == 0) {
          return fields.Fail("layer_types", "sliding_attention needs a sliding_window in force");
        }
        *layer = windowed;
      } else if (!type.Is("full_attention")) {
        return fields.Fail("layer_types", "legal names are full_attention and sliding_attention");
      }
      ++layer;
    }
    return;
  }
  if (window == 0) return;
  for (size_t i = static_cast<size_t>(first); i < layers; ++i) config.mixers[i] = windowed;
}

// The scores' factor of DeepSeek's YaRN: the square of its factor for mscale_all_dim.
double LatentScale(const RopeConfig& rope) {
  if (rope.kind != RopeKind::kYarn || rope.mscale_all_dim == 0 || rope.factor <= 1) return 1;
  const double factor = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  return factor * factor;
}

// Latent attention: sizes of a head are fields of their own.
void ReadLatentHeads(ConfigFields& fields, HfConfig& config) {
  LatentAttentionConfig& l = config.latent;
  l.kv_rank = fields.Int("kv_lora_rank", 1, kMaxWidth);
  l.q_rank = fields.Int("q_lora_rank", 1, kMaxWidth, 0);
  l.nope_dim = fields.Int("qk_nope_head_dim", 1, kMaxHeadDim);
  l.rope_dim = fields.Int("qk_rope_head_dim", 2, kMaxHeadDim);
  l.value_dim = fields.Int("v_head_dim", 1, kMaxHeadDim);
  if (l.rope_dim % 2 != 0) fields.Fail("qk_rope_head_dim", "legal is an even number");
  config.head_dim = l.nope_dim + l.rope_dim;
  fields.Int("qk_head_dim", config.head_dim, config.head_dim, config.head_dim);
  WithoutEffect(fields, {"head_dim"}, "latent attention has sizes of its own", &config.unused);
  ReadAttentionBias(fields, config);
}

void ReadHeads(const Architecture& family, ConfigFields& fields, HfConfig& config) {
  config.num_attention_heads = static_cast<int>(fields.Int("num_attention_heads", 1, kMaxHeads));
  config.num_key_value_heads = static_cast<int>(
      fields.Int("num_key_value_heads", 1, config.num_attention_heads, config.num_attention_heads));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.Fail("num_key_value_heads", fmt::format("legal is a divisor of num_attention_heads ({})",
                                                   config.num_attention_heads));
  }
  if (family.latent_attention) return ReadLatentHeads(fields, config);
  std::optional<int64_t> derived;
  if (config.hidden_size % config.num_attention_heads == 0) {
    derived = config.hidden_size / config.num_attention_heads;
  }
  config.head_dim = fields.Int("head_dim", 1, kMaxHeadDim, derived);
  if (config.head_dim % 2 != 0) fields.Fail("head_dim", "legal is an even number");
}

void ReadAttention(const Architecture& family, ConfigFields& fields, HfConfig& config) {
  ReadHeads(family, fields, config);
  const int64_t rotated = family.latent_attention ? config.latent.rope_dim : config.head_dim;
  config.rope = ReadRopeConfig(
      fields, {family.rope_theta, family.partial_rotary, config.max_position_embeddings, rotated},
      &config.unused);
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  if (family.latent_attention) config.attention_scale *= LatentScale(config.rope);
  if (family.own_layer_types) {
    config.mixers.assign(static_cast<size_t>(config.num_hidden_layers), {});
  } else {
    ReadSlidingWindow(family, fields, config);
  }
}

void ReadCommon(const Architecture& family, ConfigFields& fields, HfConfig& config) {
  config.vocab_size = fields.Int("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = fields.Int("hidden_size", 1, kMaxWidth);
  config.num_hidden_layers = static_cast<int>(fields.Int("num_hidden_layers", 1, kMaxLayerCount));
  config.max_position_embeddings = fields.Int("max_position_embeddings", 1, kMaxPositions);
  config.norm_eps = fields.Real("rms_norm_eps", 0.0, 1.0, family.norm_eps);
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  config.activation = fields.ActivationOf("hidden_act", "silu");
  fields.Expect("mlp_bias", false);
  config.bos_token_id = fields.Int("bos_token_id", -1, config.vocab_size - 1, -1);
  config.eos_token_ids = fields.Ints("eos_token_id", 0, config.vocab_size - 1, true);
  config.is_moe.assign(static_cast<size_t>(config.num_hidden_layers), true);
  ReadAttention(family, fields, config);
}

// Fields of other families that this one did not ask for, at the value that changes nothing.
void AccountForOthers(const char* dense_width, ConfigFields& fields,
                      std::vector<UnusedField>* unused) {
  for (const std::string& key : fields.Unasked()) {
    if (key == dense_width) WithoutEffect(fields, {dense_width}, "no layer is dense", unused);
    if (key == "attention_bias" || key == "use_sliding_window") fields.Expect(key.c_str(), false);
  }
}

absl::StatusOr<HfConfig> ReadFamily(const Architecture& family, ConfigFields& fields,
                                    HfConfig config) {
  ReadCommon(family, fields, config);
  MOERT_RETURN_IF_ERROR(fields.status());
  config.moe.architecture = config.model_type;
  family.read(fields, config);
  if (std::find(config.is_moe.begin(), config.is_moe.end(), false) != config.is_moe.end()) {
    config.dense_intermediate = fields.Int(family.dense_width, 1, kMaxFfnWidth);
  }
  AccountForOthers(family.dense_width, fields, &config.unused);
  MOERT_RETURN_IF_ERROR(fields.status());
  AccountForFields(FieldScope::kModel, "", fields, &config.unused);
  MOERT_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<HfConfig> Read(JsonValue object, const std::string& source) {
  ConfigFields fields(object, source);
  HfConfig config;
  config.model_type = fields.String("model_type");
  MOERT_RETURN_IF_ERROR(fields.status());
  const auto all = Architectures();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Architecture* a) {
    return config.model_type == a->model_type;
  });
  if (found == all.end()) {
    return absl::UnimplementedError(fmt::format(
        "{}: model_type is \"{}\", which is not supported; supported are: {}; {}", source,
        Printable(config.model_type), fmt::join(SupportedArchitectures(), ", "), kOtherWays));
  }
  config.tensor_prefix = (*found)->tensor_prefix;
  config.quantization = ReadQuantizationConfig(fields, &config.unused);
  if (const char* key = (*found)->text_config) {
    const auto text = fields.Find(key);
    if (!text || !text->is_object()) fields.Fail(key, "legal is an object");
    MOERT_RETURN_IF_ERROR(fields.status());
    ConfigFields inner(*text, fmt::format("{}: {}", source, key));
    if (inner.Has("quantization_config")) {
      config.quantization = ReadQuantizationConfig(inner, &config.unused);
    }
    MOERT_RETURN_IF_ERROR(inner.status());
    MOERT_ASSIGN_OR_RETURN(config, ReadFamily(**found, inner, std::move(config)));
    fields.Expect("tie_word_embeddings", config.tie_word_embeddings);
    AccountForFields(FieldScope::kAround, "", fields, &config.unused);
    MOERT_RETURN_IF_ERROR(fields.status());
  } else {
    MOERT_ASSIGN_OR_RETURN(config, ReadFamily(**found, fields, std::move(config)));
  }
  if (const absl::Status s = config.moe.Validate(); !s.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}", source, fmt::string_view(s.message().data(), s.message().size())));
  }
  return config;
}

}  // namespace

int HfConfig::MoeLayerIndex(int model_layer) const {
  if (model_layer < 0 || model_layer >= num_hidden_layers) return -1;
  if (!is_moe[static_cast<size_t>(model_layer)]) return -1;
  return static_cast<int>(std::count(is_moe.begin(), is_moe.begin() + model_layer, true));
}

std::vector<std::string> SupportedArchitectures() {
  std::vector<std::string> names;
  for (const Architecture* a : Architectures()) names.emplace_back(a->model_type);
  return names;
}

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

// Where there is no file, who named the folder is told what it is.
absl::Status WhyNoConfig(const std::string& model_dir, const std::string& path,
                         const absl::Status& read) {
  std::error_code ec;
  if (std::filesystem::exists(path, ec)) return read;
  return absl::Status(read.code(),
                      fmt::format("{}{}", std::string(read.message()), OtherFiles(model_dir)));
}

}  // namespace

absl::StatusOr<HfConfig> LoadHfConfig(const std::string& model_dir, Env* env) try {
  try {
    const std::string path = model_dir + "/config.json";
    const auto document = JsonDocument::Read(env, path, kConfigLimits);
    if (!document.ok()) return WhyNoConfig(model_dir, path, document.status());
    MOERT_ASSIGN_OR_RETURN(HfConfig config, Read(document->root(), path));
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
