#include "checkpoint/quantization_config.h"

#include <fmt/format.h>

#include <string>

#include "base/printable.h"
#include "checkpoint/config_account.h"
#include "checkpoint/other_ways.h"
#include "checkpoint/safetensors_header.h"

namespace moert {
namespace {

constexpr char kKey[] = "quantization_config";
constexpr int64_t kMaxGroup = int64_t{1} << 20;

constexpr char kRead[] =
    "read are: fp8 (e4m3, weight_block_size [128, 128]), gptq and awq (4 bits, group_size 32, 64 "
    "or "
    "128), compressed-tensors (pack-quantized int4, int-quantized int8, nvfp4-pack-quantized), "
    "mxfp4, and modelopt NVFP4";

// The fields of one method. `fail` records what is illegal of the whole object.
class Reader {
 public:
  Reader(JsonValue object, ConfigFields* outer, std::vector<UnusedField>* unused)
      : fields_(object, kKey), outer_(outer), unused_(unused) {}

  QuantizationConfig Read() {
    const std::string method = fields_.String("quant_method", "");
    QuantizationConfig config;
    if (method == "fp8") {
      ReadFp8(config);
    } else if (method == "gptq") {
      ReadGptq(config);
    } else if (method == "awq") {
      ReadAwq(config);
    } else if (method == "compressed-tensors") {
      ReadCompressedTensors(config);
    } else if (method == "mxfp4") {
      config.form = StoredWeights::kMxfp4;
    } else if (method == "modelopt") {
      ReadModelopt(config);
    } else {
      Fail(fmt::format("quant_method \"{}\" is not read", Printable(method)));
    }
    if (fields_.status().ok() && outer_->status().ok()) {
      RefuseChanges();
      AccountForFields(FieldScope::kQuantization, fmt::format("{}.", kKey), fields_, unused_);
    }
    if (!fields_.status().ok()) {
      outer_->Fail(kKey, fmt::format("{}; {}", fields_.status().message().data(), kRead));
    }
    return config;
  }

 private:
  void Fail(const std::string& what) {
    if (!fields_.status().ok()) return;  // a field that is missing says more
    outer_->Fail(kKey, fmt::format("{}; {}; {}", what, kRead, kOtherWays));
  }

  // Some files treat a part of their weights in another way, or transform all of them.
  void RefuseChanges() {
    for (const char* key : {"dynamic", "transform_config", "sparsity_config"}) {
      const auto object = fields_.Find(key);
      if (!object || object->size() == 0) continue;
      fields_.Fail(key, "legal is an empty object");
    }
    if (fields_.String("pack_dtype", "int32") != "int32") {
      fields_.Fail("pack_dtype", "legal is int32");
    }
  }

  void ReadFp8(QuantizationConfig& config) {
    config.form = StoredWeights::kFp8Blocks;
    const auto block = fields_.Ints("weight_block_size", 0, kMaxGroup);
    if (fields_.String("fmt", "e4m3") != "e4m3" ||
        block != std::vector<int64_t>{kFp8BlockRows, kFp8BlockCols}) {
      Fail("legal for fp8 are fmt \"e4m3\" and weight_block_size [128, 128]");
    }
  }

  void ReadInt4(QuantizationConfig& config, int64_t bits) {
    const int64_t group = config.group;
    if (bits != 4 || (group != 32 && group != 64 && group != 128)) {
      Fail(fmt::format("{} bits in groups of {}: legal are 4 bits in groups of 32, 64 or 128", bits,
                       group));
    }
  }

  void ReadGptq(QuantizationConfig& config) {
    config.form = StoredWeights::kGptq;
    config.group = fields_.Int("group_size", -1, kMaxGroup);
    config.symmetric = fields_.Bool("sym", true);
    const std::string format = fields_.String("checkpoint_format", "gptq");
    config.less_one = format == "gptq";
    if (format != "gptq" && format != "gptq_v2") {
      Fail(fmt::format("checkpoint_format \"{}\": legal are gptq and gptq_v2", Printable(format)));
    }
    ReadInt4(config, fields_.Int("bits", 1, 64));
  }

  void ReadAwq(QuantizationConfig& config) {
    config.form = StoredWeights::kAwq;
    config.group = fields_.Int("group_size", -1, kMaxGroup);
    config.symmetric = !fields_.Bool("zero_point", true);
    const std::string version = fields_.String("version", "gemm");
    if (version != "gemm" && version != "GEMM") {
      Fail(fmt::format("version \"{}\": legal is gemm", Printable(version)));
    }
    if (config.symmetric) Fail("zero_point false: awq files have zero points");
    ReadInt4(config, fields_.Int("bits", 1, 64));
  }

  // All groups of config_groups must agree on weights: which modules they name, tensors tell.
  void ReadCompressedTensors(QuantizationConfig& config) {
    const auto groups = fields_.Find("config_groups");
    if (!groups || !groups->is_object() || groups->size() == 0) {
      return Fail("compressed-tensors without config_groups");
    }
    const std::string format = fields_.String("format", "");
    bool first = true;
    for (const JsonMember& member : groups->members()) {
      QuantizationConfig group;
      ReadGroup(member.value, format, group);
      if (!first && !(group == config)) Fail("config_groups with different weights");
      config = group;
      first = false;
    }
  }

  void ReadGroup(JsonValue object, const std::string& format, QuantizationConfig& config) {
    const auto weights = object.is_object() ? object.Find("weights") : std::nullopt;
    if (!weights || !weights->is_object()) return Fail("a config group without weights");
    ConfigFields w(*weights, fmt::format("{}.weights", kKey));
    const int64_t bits = w.Int("num_bits", 1, 64);
    config.symmetric = w.Bool("symmetric", true);
    const std::string strategy = w.String("strategy", "");
    config.group = w.Int("group_size", -1, kMaxGroup, -1);
    const auto inputs = object.Find("input_activations");
    const bool quantized_inputs = inputs && inputs->is_object();
    if (!w.status().ok()) return Fail(std::string(w.status().message()));
    if (format == "pack-quantized") {
      config.form = StoredWeights::kPackedInt4;
      if (quantized_inputs) Fail("pack-quantized weights with quantized activations");
      return ReadInt4(config, strategy == "group" ? bits : 0);
    }
    if (format == "int-quantized") {
      config.form = StoredWeights::kInt8;
      config.int8_inputs = quantized_inputs;
      const bool grouped = strategy == "group" && config.group == 128 && !quantized_inputs;
      if (bits != 8 || !config.symmetric || (strategy != "channel" && !grouped)) {
        Fail(
            "int-quantized weights: legal are symmetric 8 bits a channel, or in groups of 128 "
            "without quantized activations");
      }
      if (!grouped) config.group = -1;
      return;
    }
    if (format == "nvfp4-pack-quantized") {
      config.form = StoredWeights::kPackedFp4;
      if (bits != 4 || config.group != 16) Fail("nvfp4: legal are 4 bits in groups of 16");
      return;
    }
    Fail(fmt::format("compressed-tensors format \"{}\" is not read", Printable(format)));
  }

  void ReadModelopt(QuantizationConfig& config) {
    if (fields_.Has("config_groups")) {
      unused_->push_back({"quantization_config.config_groups", "quant_algo says it"});
    }
    config.form = StoredWeights::kModeloptFp4;
    config.group = fields_.Int("group_size", 1, kMaxGroup, 16);
    const std::string algorithm = fields_.String("quant_algo", "");
    if (algorithm != "NVFP4" || config.group != 16) {
      Fail(fmt::format("modelopt {} in groups of {}: legal is NVFP4 in groups of 16",
                       Printable(algorithm), config.group));
    }
  }

  ConfigFields fields_;
  ConfigFields* const outer_;
  std::vector<UnusedField>* const unused_;
};

}  // namespace

QuantizationConfig ReadQuantizationConfig(ConfigFields& fields, std::vector<UnusedField>* unused) {
  const auto object = fields.Find(kKey);
  if (!object) return {};
  if (!object->is_object()) {
    fields.Fail(kKey, "legal is an object");
    return {};
  }
  return Reader(*object, &fields, unused).Read();
}

absl::string_view StoredWeightsName(StoredWeights form) {
  switch (form) {
    case StoredWeights::kPlain:
      return "plain";
    case StoredWeights::kFp8Blocks:
      return "fp8 blocks";
    case StoredWeights::kGptq:
      return "gptq int4";
    case StoredWeights::kAwq:
      return "awq int4";
    case StoredWeights::kPackedInt4:
      return "compressed-tensors int4";
    case StoredWeights::kInt8:
      return "compressed-tensors int8";
    case StoredWeights::kPackedFp4:
      return "compressed-tensors nvfp4";
    case StoredWeights::kModeloptFp4:
      return "modelopt nvfp4";
    case StoredWeights::kMxfp4:
      return "mxfp4";
  }
  return "invalid";
}

}  // namespace moert
