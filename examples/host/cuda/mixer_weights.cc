#include "host/cuda/mixer_weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "host/blocks/matrix_part.h"
#include "host/blocks/mixer.h"
#include "host/cuda/channel_order.h"
#include "moert/offline/linear_weight.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

using Part = DeviceMatrix::Part;

/// The channels of delta nets.
struct DeltaWidths {
  explicit DeltaWidths(const DeltaNetConfig& d)
      : keys(d.key_heads * d.key_dim), values(d.value_heads * d.value_dim) {}
  int64_t keys, values;
  int64_t channels() const { return 2 * keys + values; }  // of the convolution
};

/// An order of channels: `before` channels as they are, then rotated ones in RotationOrder.
std::vector<int64_t> RotatedBehind(const RopeConfig& rope, int64_t before) {
  std::vector<int64_t> order(static_cast<size_t>(before + rope.dim));
  std::iota(order.begin(), order.end(), 0);
  const std::vector<int64_t> rotation = RotationOrder(rope, rope.dim);
  for (size_t i = 0; i < rotation.size(); ++i) {
    order[static_cast<size_t>(before) + i] = before + rotation[i];
  }
  return order;
}

}  // namespace

MixerWidths MixerWidthsOf(const HfConfig& config, int layer) {
  const int64_t heads = config.num_attention_heads;
  if (config.mixers[layer].kind == MixerKind::kDeltaNet) {
    const DeltaWidths d(config.delta_net);
    return {d.channels() + d.values + 2 * config.delta_net.value_heads, d.values};
  }
  if (const LatentAttentionConfig& l = config.latent; l.kv_rank > 0) {
    const int64_t queries = l.q_rank > 0 ? l.q_rank : heads * (l.nope_dim + l.rope_dim);
    return {queries + l.kv_rank + l.rope_dim, heads * l.value_dim};
  }
  const int64_t q = heads * config.HeadDim(layer);
  const int64_t kv = config.KvHeads(layer) * config.HeadDim(layer);
  return {(config.attention_gate ? 2 * q : q) + 2 * kv, q};
}

absl::StatusOr<MixerWeights> MixerWeights::Load(const Checkpoint& checkpoint,
                                                const HfConfig& config, int layer) {
  MixerWeights w;
  const std::string prefix = LayerPrefix(config, layer);
  if (config.mixers[layer].kind == MixerKind::kDeltaNet) {
    MOERT_RETURN_IF_ERROR(w.LoadDeltaNet(checkpoint, config, prefix + "linear_attn."));
    return w;
  }
  const std::string name = prefix + "self_attn.";
  if (config.latent.kv_rank == 0 && config.ValueDim(layer) != config.HeadDim(layer)) {
    MOERT_RETURN_IF_ERROR(w.LoadSpreadOut(checkpoint, config, layer, name + "o_proj"));
    MOERT_RETURN_IF_ERROR(w.LoadGrouped(checkpoint, config, layer, name));
    return w;
  }
  MOERT_ASSIGN_OR_RETURN(
      w.out,
      DeviceMatrix::Load(checkpoint, config.quantization,
                         {{name + "o_proj", config.hidden_size, config.attention_output_bias}},
                         MixerWidthsOf(config, layer).mixed));
  MOERT_RETURN_IF_ERROR(config.latent.kv_rank > 0 ? w.LoadLatent(checkpoint, config, name)
                                                  : w.LoadGrouped(checkpoint, config, layer, name));
  return w;
}

absl::Status MixerWeights::LoadSpreadOut(const Checkpoint& checkpoint, const HfConfig& config,
                                         int layer, const std::string& name) {
  if (config.attention_output_bias) {
    return absl::UnimplementedError(
        "config.json: v_head_dim differs from head_dim, and o_proj has a bias; the example decoder "
        "runs such a model with --backend cpu");
  }
  const int64_t rows = config.hidden_size * config.num_attention_heads;
  const int64_t values = config.ValueDim(layer), room = config.HeadDim(layer);
  MOERT_ASSIGN_OR_RETURN(
      const LinearWeight weight,
      LinearWeight::Open(checkpoint, config.quantization, name, config.hidden_size,
                         config.num_attention_heads * values));
  std::vector<uint16_t> stored(static_cast<size_t>(rows * values));
  std::vector<uint16_t> spread(static_cast<size_t>(rows * room));
  MOERT_RETURN_IF_ERROR(weight.Read(0, absl::MakeSpan(stored)));
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(stored.begin() + i * values, values, spread.begin() + i * room);
  }
  MOERT_ASSIGN_OR_RETURN(
      out, DeviceMatrix::FromHost(spread, config.hidden_size, config.num_attention_heads * room));
  return absl::OkStatus();
}

absl::Status MixerWeights::LoadGrouped(const Checkpoint& checkpoint, const HfConfig& config,
                                       int layer, const std::string& name) {
  const int heads = config.num_attention_heads, kv_heads = config.KvHeads(layer);
  const int64_t dim = config.HeadDim(layer), q = heads * dim, kv = kv_heads * dim;
  const int64_t stride = config.attention_gate ? 2 * dim : dim;
  const bool bias = config.qkv_bias;
  const std::vector<int64_t> rotation = RotationOrder(config.Rope(layer), dim);
  std::vector<Part> parts = {
      {name + "q_proj", q, bias}, {name + "k_proj", kv, bias}, {name + "v_proj", kv, bias}};
  if (config.attention_gate || !rotation.empty()) {
    parts[0].order = RowsOfHeads(heads, stride, 0, dim, rotation);
    parts[0].rows = heads * stride;
  }
  if (!rotation.empty()) {
    parts[1].order = RowsOfHeads(kv_heads, dim, 0, dim, rotation);
    parts[1].rows = kv;
  }
  if (const int64_t values = config.ValueDim(layer); values != dim) {
    std::vector<int64_t> within(static_cast<size_t>(dim), kZeroRow);
    std::iota(within.begin(), within.begin() + values, 0);
    parts[2].order = RowsOfHeads(kv_heads, values, 0, dim, within);
    parts[2].rows = kv_heads * values;
  }
  if (config.attention_gate) {
    parts.push_back(
        {name + "q_proj", q, bias, RowsOfHeads(heads, stride, dim, dim), heads * stride});
  }
  MOERT_ASSIGN_OR_RETURN(
      in, DeviceMatrix::Load(checkpoint, config.quantization, parts, config.hidden_size));
  if (config.HasSinks(layer)) {
    MOERT_ASSIGN_OR_RETURN(const auto scores,
                           checkpoint.ReadF32(name + config.sinks_name, {heads}));
    MOERT_ASSIGN_OR_RETURN(sinks, ToDevice(scores));
  }
  return LoadHeadNorms(checkpoint, config, layer, name);
}

absl::Status MixerWeights::LoadHeadNorms(const Checkpoint& checkpoint, const HfConfig& config,
                                         int layer, const std::string& name) {
  const int64_t dim = config.HeadDim(layer);
  const bool rotates = config.mixers[layer].rotate;
  const bool behind = config.qk_norm == QkNorm::kPerHeadRotated;
  if (config.qk_norm == QkNorm::kPerHeadL2) {
    if (!rotates) return absl::OkStatus();
    MOERT_ASSIGN_OR_RETURN(q_norm, DeviceNorm::Ones(dim));
    MOERT_ASSIGN_OR_RETURN(k_norm, DeviceNorm::Ones(dim));
    return absl::OkStatus();
  }
  if (config.qk_norm == QkNorm::kNone || (behind && !rotates)) return absl::OkStatus();
  const NormKind kind = config.norm == NormKind::kRmsOffset ? NormKind::kRmsOffset : NormKind::kRms;
  const std::vector<int64_t> rotation = RotationOrder(config.Rope(layer), dim);
  const auto load = [&](const char* part, int heads) {
    const int count = config.qk_norm == QkNorm::kFull ? heads : 1;
    const auto order = rotation.empty() ? rotation : RowsOfHeads(count, dim, 0, dim, rotation);
    return DeviceNorm::Load(checkpoint, name + part, kind, count * dim, order);
  };
  MOERT_ASSIGN_OR_RETURN(q_norm,
                         load(behind ? "query_layernorm" : "q_norm", config.num_attention_heads));
  MOERT_ASSIGN_OR_RETURN(k_norm, load(behind ? "key_layernorm" : "k_norm", config.KvHeads(layer)));
  return absl::OkStatus();
}

absl::Status MixerWeights::LoadLatent(const Checkpoint& checkpoint, const HfConfig& config,
                                      const std::string& name) {
  const LatentAttentionConfig& l = config.latent;
  const int heads = config.num_attention_heads;
  const int64_t hidden = config.hidden_size, query = l.nope_dim + l.rope_dim;
  const int64_t latent_key = l.kv_rank + l.rope_dim;
  const Part keys = {name + "kv_a_proj_with_mqa", latent_key, config.qkv_bias,
                     RotatedBehind(config.rope, l.kv_rank), latent_key};
  Part queries = {"", heads * query, false,
                  RowsOfHeads(heads, query, 0, query, RotatedBehind(config.rope, l.nope_dim)),
                  heads * query};
  if (l.q_rank == 0) {
    queries.name = name + "q_proj";
    MOERT_ASSIGN_OR_RETURN(
        in, DeviceMatrix::Load(checkpoint, config.quantization, {queries, keys}, hidden));
  } else {
    queries.name = name + "q_b_proj";
    MOERT_ASSIGN_OR_RETURN(
        in, DeviceMatrix::Load(checkpoint, config.quantization,
                               {{name + "q_a_proj", l.q_rank, config.qkv_bias}, keys}, hidden));
    MOERT_ASSIGN_OR_RETURN(
        q_norm, DeviceNorm::Load(checkpoint, name + "q_a_layernorm", NormKind::kRms, l.q_rank));
    MOERT_ASSIGN_OR_RETURN(
        q_up, DeviceMatrix::Load(checkpoint, config.quantization, {queries}, l.q_rank));
  }
  MOERT_ASSIGN_OR_RETURN(
      k_norm, DeviceNorm::Load(checkpoint, name + "kv_a_layernorm", NormKind::kRms, l.kv_rank));
  return LoadAbsorbed(checkpoint, config, name + "kv_b_proj");
}

absl::Status MixerWeights::LoadAbsorbed(const Checkpoint& checkpoint, const HfConfig& config,
                                        const std::string& name) {
  const LatentAttentionConfig& l = config.latent;
  const int heads = config.num_attention_heads;
  const int64_t head = l.nope_dim + l.value_dim;
  const Part values = {name, heads * l.value_dim, false,
                       RowsOfHeads(heads, head, l.nope_dim, l.value_dim), heads * head};
  MOERT_ASSIGN_OR_RETURN(value,
                         DeviceMatrix::Load(checkpoint, config.quantization, {values}, l.kv_rank));
  // A head's key matrix takes queries to latents: transposed.
  MOERT_ASSIGN_OR_RETURN(
      const LinearWeight weight,
      LinearWeight::Open(checkpoint, config.quantization, name, heads * head, l.kv_rank));
  std::vector<uint16_t> transposed(static_cast<size_t>(heads * l.kv_rank * l.nope_dim));
  std::vector<uint16_t> rows(static_cast<size_t>(l.nope_dim * l.kv_rank));
  for (int64_t h = 0; h < heads; ++h) {
    MOERT_RETURN_IF_ERROR(weight.Read(h * head, absl::MakeSpan(rows)));
    uint16_t* const to = transposed.data() + h * l.kv_rank * l.nope_dim;
    for (int64_t i = 0; i < l.nope_dim; ++i) {
      for (int64_t j = 0; j < l.kv_rank; ++j) to[j * l.nope_dim + i] = rows[i * l.kv_rank + j];
    }
  }
  MOERT_ASSIGN_OR_RETURN(key, DeviceMatrix::FromHost(transposed, heads * l.kv_rank, l.nope_dim));
  return absl::OkStatus();
}

absl::Status MixerWeights::LoadDeltaNet(const Checkpoint& checkpoint, const HfConfig& config,
                                        const std::string& name) {
  const DeltaNetConfig& d = config.delta_net;
  const DeltaWidths widths(d);
  const int64_t channels = widths.channels();
  MOERT_ASSIGN_OR_RETURN(in, DeviceMatrix::Load(checkpoint, config.quantization,
                                                DeltaNetParts(d, name), config.hidden_size));
  MOERT_ASSIGN_OR_RETURN(
      out, DeviceMatrix::Load(checkpoint, config.quantization,
                              {{name + "out_proj", config.hidden_size}}, widths.values));
  MOERT_ASSIGN_OR_RETURN(const auto kernel,
                         checkpoint.ReadF32(name + "conv1d.weight", {channels, 1, d.kernel}));
  std::vector<float> by_position(kernel.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < d.kernel; ++t) by_position[t * channels + c] = kernel[c * d.kernel + t];
  }
  MOERT_ASSIGN_OR_RETURN(convolution, ToDevice(by_position));
  MOERT_ASSIGN_OR_RETURN(auto rates, checkpoint.ReadF32(name + "A_log", {d.value_heads}));
  for (float& a : rates) a = std::exp(a);
  MOERT_ASSIGN_OR_RETURN(rate, ToDevice(rates));
  MOERT_ASSIGN_OR_RETURN(const auto dt, checkpoint.ReadF32(name + "dt_bias", {d.value_heads}));
  MOERT_ASSIGN_OR_RETURN(dt_bias, ToDevice(dt));
  MOERT_ASSIGN_OR_RETURN(q_norm,
                         DeviceNorm::Load(checkpoint, name + "norm", NormKind::kRms, d.value_dim));
  return absl::OkStatus();
}

absl::StatusOr<MixerWeights> MixerWeights::Random(const HfConfig& config, int layer,
                                                  uint64_t* seed) {
  MixerWeights w;
  const auto matrix = [&](DeviceMatrix* m, int64_t out, int64_t in) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(*m, DeviceMatrix::Random(out, in, ++*seed));
    return absl::OkStatus();
  };
  const auto norm = [](DeviceNorm* n, int64_t width) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(*n, DeviceNorm::Ones(width));
    return absl::OkStatus();
  };
  const auto zeros = [](int64_t count) {
    return ToDevice(std::vector<float>(static_cast<size_t>(count)));
  };
  const MixerWidths widths = MixerWidthsOf(config, layer);
  MOERT_RETURN_IF_ERROR(matrix(&w.in, widths.projected, config.hidden_size));
  MOERT_RETURN_IF_ERROR(matrix(&w.out, config.hidden_size, widths.mixed));
  const int64_t heads = config.num_attention_heads;
  if (config.mixers[layer].kind == MixerKind::kDeltaNet) {
    const DeltaNetConfig& d = config.delta_net;
    const int64_t taps = DeltaWidths(d).channels() * d.kernel;
    MOERT_ASSIGN_OR_RETURN(w.convolution,
                           ToDevice(std::vector<float>(static_cast<size_t>(taps),
                                                       1.0f / static_cast<float>(d.kernel))));
    MOERT_ASSIGN_OR_RETURN(w.rate, zeros(d.value_heads));
    MOERT_ASSIGN_OR_RETURN(w.dt_bias, zeros(d.value_heads));
    MOERT_RETURN_IF_ERROR(norm(&w.q_norm, d.value_dim));
    return w;
  }
  if (const LatentAttentionConfig& l = config.latent; l.kv_rank > 0) {
    if (l.q_rank > 0) {
      MOERT_RETURN_IF_ERROR(norm(&w.q_norm, l.q_rank));
      MOERT_RETURN_IF_ERROR(matrix(&w.q_up, heads * (l.nope_dim + l.rope_dim), l.q_rank));
    }
    MOERT_RETURN_IF_ERROR(norm(&w.k_norm, l.kv_rank));
    MOERT_RETURN_IF_ERROR(matrix(&w.key, heads * l.kv_rank, l.nope_dim));
    MOERT_RETURN_IF_ERROR(matrix(&w.value, heads * l.value_dim, l.kv_rank));
    return w;
  }
  if (config.HasSinks(layer)) {
    MOERT_ASSIGN_OR_RETURN(w.sinks, zeros(heads));
  }
  if (config.qk_norm == QkNorm::kNone) return w;
  const bool full = config.qk_norm == QkNorm::kFull;
  const int64_t dim = config.HeadDim(layer);
  MOERT_RETURN_IF_ERROR(norm(&w.q_norm, (full ? heads : 1) * dim));
  MOERT_RETURN_IF_ERROR(norm(&w.k_norm, (full ? config.KvHeads(layer) : 1) * dim));
  return w;
}

}  // namespace moert::host
