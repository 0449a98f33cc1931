#include "checkpoint/compressed_tensors_config.h"

#include <fmt/format.h>

#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/safetensors_header.h"

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

}  // namespace

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

}  // namespace moert
