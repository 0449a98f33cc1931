#include "checkpoint/quantization_config.h"

#include <fmt/format.h>

#include "absl/status/statusor.h"
#include "base/enum_name.h"
#include "base/errors.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/config_account.h"
#include "checkpoint/other_files.h"
#include "checkpoint/safetensors_header.h"
#include "model/config_fields.h"
#include "moert/offline/quantization_config.h"

namespace moert {
namespace {

absl::Status Illegal(const std::string& what) { return absl::InvalidArgumentError(what); }

// The weights of one config group.
struct Weights {
  std::string format, strategy;
  int64_t bits = 0;
  int64_t group = -1;
  bool symmetric = true;
  bool floats = false;
  bool quantized_inputs = false;
  std::vector<int64_t> block;
};

absl::StatusOr<Weights> ReadWeights(JsonValue group, const std::string& format) {
  const auto weights = group.is_object() ? group.Find("weights") : std::nullopt;
  if (!weights || !weights->is_object()) return Illegal("a config group without weights");
  ConfigFields own(group, "config group"), fields(*weights, "config group: weights");
  Weights w;
  w.format = own.String("format", format);
  w.bits = fields.Int("num_bits", 1, 64);
  w.symmetric = fields.Bool("symmetric", true);
  w.strategy = fields.String("strategy", "");
  w.group = fields.Int("group_size", -1, kMaxGroup, -1);
  w.floats = fields.String("type", "int") == "float";
  w.block = fields.Ints("block_structure", 1, kMaxGroup);
  const auto inputs = group.Find("input_activations");
  w.quantized_inputs = inputs && inputs->is_object();
  MOERT_RETURN_IF_ERROR(own.status());
  MOERT_RETURN_IF_ERROR(fields.status());
  return w;
}

absl::StatusOr<QuantizationConfig> PackedInt4(const Weights& w) {
  QuantizationConfig config;
  config.form = StoredWeights::kPackedInt4;
  config.symmetric = w.symmetric;
  config.group = w.strategy == "channel" ? -1 : w.group;
  if (w.quantized_inputs) return Illegal("pack-quantized weights with quantized activations");
  if (w.strategy != "channel" && w.strategy != "group") {
    return Illegal(
        fmt::format("strategy \"{}\" of pack-quantized weights: legal are group, channel",
                    Printable(w.strategy)));
  }
  MOERT_RETURN_IF_ERROR(CheckInt4(w.bits, config.group));
  return config;
}

absl::StatusOr<QuantizationConfig> Int8(const Weights& w) {
  QuantizationConfig config;
  config.form = StoredWeights::kInt8;
  config.int8_inputs = w.quantized_inputs;
  const bool grouped = w.strategy == "group" && w.group == 128 && !w.quantized_inputs;
  if (w.bits != 8 || !w.symmetric || (w.strategy != "channel" && !grouped)) {
    return Illegal(
        "int-quantized weights: legal are symmetric 8 bits a channel, or in groups of 128 without "
        "quantized activations");
  }
  config.group = grouped ? w.group : -1;
  return config;
}

absl::StatusOr<QuantizationConfig> Fp8(const Weights& w) {
  QuantizationConfig config;
  config.form = StoredWeights::kFp8;
  const bool blocks =
      w.strategy == "block" && w.block == std::vector<int64_t>{kFp8BlockRows, kFp8BlockCols};
  if (w.bits == 8 && w.symmetric && (blocks || w.strategy == "channel" || w.strategy == "tensor")) {
    return config;
  }
  return Illegal(
      "float-quantized weights: legal are 8 bits with a scale a channel, a tensor or a block of "
      "[128, 128]");
}

absl::StatusOr<QuantizationConfig> ReadGroup(JsonValue object, const std::string& format) {
  MOERT_ASSIGN_OR_RETURN(const Weights w, ReadWeights(object, format));
  if (w.format == "pack-quantized") return PackedInt4(w);
  if (w.format == "int-quantized") return Int8(w);
  if (w.format == "float-quantized" || (w.format == "naive-quantized" && w.floats)) return Fp8(w);
  if (w.format == "nvfp4-pack-quantized") {
    if (w.bits != 4 || w.group != 16) return Illegal("nvfp4: legal are 4 bits in groups of 16");
    QuantizationConfig config;
    config.form = StoredWeights::kPackedFp4;
    config.group = w.group;
    return config;
  }
  return Illegal(fmt::format("compressed-tensors format \"{}\" is not read", Printable(w.format)));
}

// Reads the quantization_config of compressed-tensors: groups of modules, each with its own
// weights. Returns the form of all groups. If they differ, the second form may be fp8, whose
// tensors are recognized by their type. InvalidArgument says what is illegal, without naming the
// file.
absl::StatusOr<QuantizationConfig> ReadCompressedTensors(ConfigFields& fields) {
  const auto groups = fields.Find("config_groups");
  if (!groups || !groups->is_object() || groups->size() == 0) {
    return Illegal("compressed-tensors without config_groups");
  }
  const std::string format = fields.String("format", "");
  QuantizationConfig config;
  for (const JsonMember& member : groups->members()) {
    MOERT_ASSIGN_OR_RETURN(const QuantizationConfig group, ReadGroup(member.value, format));
    if (config.form == StoredWeights::kPlain || config.form == StoredWeights::kFp8) {
      config = group;
    } else if (!(group == config) && group.form != StoredWeights::kFp8) {
      return Illegal("config_groups with different weights");
    }
  }
  return config;
}

constexpr char kKey[] = "quantization_config";
constexpr char kModelopt[] = "modelopt";

constexpr char kRead[] =
    "read are: fp8 (e4m3, a scale a tensor, a channel or a block of [128, 128]), gptq, awq and "
    "auto-round (4 bits), compressed-tensors (pack-quantized int4, int-quantized int8, "
    "float-quantized, nvfp4-pack-quantized), mxfp4, and modelopt NVFP4 and FP8";

// Reads the fields of one method. `Fail` records errors of the whole object.
class Reader {
 public:
  Reader(const char* key, JsonValue object, ConfigFields* outer, std::vector<UnusedField>* unused)
      : key_(key), fields_(object, key), outer_(outer), unused_(unused) {}

  /// `method`: the method if the object does not name one.
  QuantizationConfig Read(const char* method) {
    const QuantizationConfig config = ReadMethod(fields_.String("quant_method", method));
    if (fields_.status().ok() && outer_->status().ok()) {
      RefuseChanges();
      AccountForFields(FieldScope::kQuantization, fmt::format("{}.", key_), fields_, unused_);
    }
    if (!fields_.status().ok()) {
      outer_->Fail(key_, fmt::format("{}; {}", fields_.status().message().data(), kRead));
    }
    return config;
  }

 private:
  QuantizationConfig ReadMethod(const std::string& method) {
    if (method == "fp8" || method == "fbgemm_fp8") {
      const QuantizationConfig fp8 = ReadFp8();
      return fields_.Has("quantized_layers") ? ReadModelopt() : fp8;
    }
    if (method == "gptq") return ReadGptq();
    if (method == "awq") return ReadAwq();
    if (method == "auto-round" || method == "intel/auto-round") return ReadAutoRound();
    if (method == "mxfp4") return {.form = StoredWeights::kMxfp4};
    if (method == kModelopt) return ReadModelopt();
    if (method == "compressed-tensors") {
      absl::StatusOr<QuantizationConfig> config = ReadCompressedTensors(fields_);
      if (config.ok()) return *config;
      Fail(std::string(config.status().message()));
      return {};
    }
    Fail(fmt::format("quant_method \"{}\" is not read", Printable(method)));
    return {};
  }

  void Fail(const std::string& what) {
    if (!fields_.status().ok()) return;  // a field that is missing says more
    outer_->Fail(key_, fmt::format("{}; {}; {}", what, kRead, kOtherWays));
  }

  // Refuses files in which all weights are transformed.
  void RefuseChanges() {
    for (const char* key : {"transform_config", "sparsity_config"}) {
      const auto object = fields_.Find(key);
      if (!object || object->size() == 0) continue;
      fields_.Fail(key, "legal is an empty object");
    }
    if (fields_.String("pack_dtype", "int32") != "int32") {
      fields_.Fail("pack_dtype", "legal is int32");
    }
  }

  // If no block size is given, the tensors tell whether a scale belongs to a row or to a matrix.
  QuantizationConfig ReadFp8() {
    const auto block = fields_.Ints("weight_block_size", 0, kMaxGroup);
    const std::string format = fields_.String("fmt", "e4m3");
    if ((format != "e4m3" && format != "float8_e4m3fn") ||
        (!block.empty() && block != std::vector<int64_t>{kFp8BlockRows, kFp8BlockCols})) {
      Fail("legal for fp8 are fmt \"e4m3\", and weight_block_size [128, 128] or none");
    }
    return {.form = StoredWeights::kFp8};
  }

  void CheckInt4Of(const QuantizationConfig& config) {
    const absl::Status status = CheckInt4(fields_.Int("bits", 1, 64), config.group);
    if (!status.ok()) Fail(std::string(status.message()));
  }

  // The packing of words: GPTQModel has both keys, other writers one.
  std::string Format(const char* missing) {
    const std::string format = fields_.String("format", missing);
    return fields_.String("checkpoint_format", format);
  }

  QuantizationConfig ReadGptq() {
    QuantizationConfig config;
    config.form = StoredWeights::kGptq;
    config.group = fields_.Int("group_size", -1, kMaxGroup);
    config.symmetric = fields_.Bool("sym", true);
    const std::string format = Format("gptq");
    config.less_one = format == "gptq";
    if (format != "gptq" && format != "gptq_v2") {
      Fail(fmt::format("checkpoint_format \"{}\": legal are gptq and gptq_v2", Printable(format)));
    }
    CheckInt4Of(config);
    return config;
  }

  QuantizationConfig ReadAwq() {
    QuantizationConfig config;
    config.form = StoredWeights::kAwq;
    config.group = fields_.Int("group_size", -1, kMaxGroup);
    config.symmetric = !fields_.Bool("zero_point", true);
    const std::string format = Format("gemm"), version = fields_.String("version", format);
    for (const std::string& name : {format, version}) {
      if (name == "gemm" || name == "GEMM") continue;
      Fail(fmt::format("version \"{}\": legal is gemm", Printable(name)));
    }
    if (config.symmetric) Fail("zero_point false: awq files have zero points");
    CheckInt4Of(config);
    return config;
  }

  // Tensors in GPTQ's or AWQ's form. Only "auto_gptq" stores zero points minus one.
  QuantizationConfig ReadAutoRound() {
    QuantizationConfig config;
    const std::string packing = fields_.String("packing_format", "auto_round:auto_gptq");
    const bool awq = packing == "auto_round:auto_awq" || packing == "auto_round:awq";
    config.less_one = packing == "auto_round:auto_gptq" || packing == "auto_round:gptq";
    config.form = awq ? StoredWeights::kAwq : StoredWeights::kGptq;
    config.group = fields_.Int("group_size", -1, kMaxGroup);
    config.symmetric = fields_.Bool("sym", true) && !awq;  // awq files have zeros all the same
    if (!awq && !config.less_one && packing != "auto_round" && packing != "auto_round:gptqmodel") {
      Fail(
          fmt::format("packing_format \"{}\": legal are auto_round, auto_round:auto_gptq, "
                      "auto_round:gptqmodel and auto_round:auto_awq",
                      Printable(packing)));
    }
    if (fields_.String("data_type", "int") != "int") Fail("data_type: legal is int");
    if (fields_.Int("act_bits", 1, 64, 16) < 16) Fail("act_bits below 16");
    CheckInt4Of(config);
    return config;
  }

  QuantizationConfig ReadModelopt() {
    if (fields_.Has("config_groups")) {
      unused_->push_back({fmt::format("{}.config_groups", key_), "quant_algo says it"});
    }
    const std::string algorithm = fields_.String("quant_algo", "");
    const auto layers = fields_.Find("quantized_layers");
    const int64_t group = fields_.Int("group_size", 1, kMaxGroup, 16);
    if (algorithm != "MIXED_PRECISION") return OfAlgorithm(algorithm, group);
    if (layers && layers->is_object()) return ReadMixed(*layers);
    Fail("MIXED_PRECISION without quantized_layers");
    return {};
  }

  // Layers in fp8 beside layers in one other form: the types of their tensors distinguish them.
  QuantizationConfig ReadMixed(JsonValue layers) {
    QuantizationConfig config = {.form = StoredWeights::kFp8};
    for (const JsonMember& layer : layers.members()) {
      if (!layer.value.is_object()) {
        Fail("quantized_layers: legal are objects");
        return {};
      }
      ConfigFields fields(layer.value, Printable(layer.key.text()));
      const std::string algorithm = fields.String("quant_algo", "");
      const int64_t group = fields.Int("group_size", 1, kMaxGroup, 16);
      if (!fields.status().ok()) Fail(std::string(fields.status().message()));
      const QuantizationConfig own = OfAlgorithm(algorithm, group);
      if (own.form != StoredWeights::kFp8) config = own;
    }
    return config;
  }

  QuantizationConfig OfAlgorithm(const std::string& algorithm, int64_t group) {
    if (algorithm == "FP8") return {.form = StoredWeights::kFp8};
    // The weights are the same whether or not activations are meant to be rounded.
    if ((algorithm == "NVFP4" || algorithm == "W4A16_NVFP4") && group == 16) {
      return {.form = StoredWeights::kModeloptFp4, .group = group};
    }
    Fail(fmt::format(
        "modelopt {} in groups of {}: legal are NVFP4 and W4A16_NVFP4 in groups of 16, and FP8",
        Printable(algorithm), group));
    return {};
  }

  const char* const key_;
  ConfigFields fields_;
  ConfigFields* const outer_;
  std::vector<UnusedField>* const unused_;
};

}  // namespace

absl::Status CheckInt4(int64_t bits, int64_t group) {
  if (bits == 4 && (group == -1 || (group > 0 && group % 32 == 0))) return absl::OkStatus();
  return InvalidArgument(
      "{} bits in groups of {}: legal are 4 bits in groups of a multiple of 32, or of -1, a row",
      bits, group);
}

QuantizationConfig ReadQuantizationConfig(ConfigFields& fields, std::vector<UnusedField>* unused) {
  const auto object = fields.Find(kKey);
  if (!object) return {};
  if (!object->is_object()) {
    fields.Fail(kKey, "legal is an object");
    return {};
  }
  return Reader(kKey, *object, &fields, unused).Read("");
}

absl::StatusOr<QuantizationConfig> ReadHfQuantConfig(JsonValue root, const std::string& path,
                                                     std::vector<UnusedField>* unused) {
  constexpr char kQuantization[] = "quantization";
  ConfigFields fields(root, path);
  const auto object = fields.Find(kQuantization);
  if (!object || !object->is_object()) {
    return InvalidArgument("{}: quantization is not an object", path);
  }
  const QuantizationConfig config = Reader(kQuantization, *object, &fields, unused).Read(kModelopt);
  if (!fields.status().ok()) return fields.status();
  return config;
}

int64_t QuantizationConfig::RecordGroup(int64_t k) const {
  for (const int64_t channels : {128, 64, 32}) {
    const bool part = group < 0 || group % channels == 0;
    if (part && (k % channels == 0 || k <= channels)) return channels;
  }
  return 0;
}

absl::string_view StoredWeightsName(StoredWeights form) {
  constexpr absl::string_view kNames[] = {"plain",
                                          "fp8",
                                          "gptq int4",
                                          "awq int4",
                                          "compressed-tensors int4",
                                          "compressed-tensors int8",
                                          "compressed-tensors nvfp4",
                                          "modelopt nvfp4",
                                          "mxfp4",
                                          "mxfp4 and fp8"};
  return EnumName(kNames, form);
}

}  // namespace moert
