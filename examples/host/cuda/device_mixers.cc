#include "host/cuda/device_mixers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "host/blocks/latent_attention.h"
#include "host/cuda/delta_net_kernel.h"
#include "host/cuda/head_products_kernel.h"
#include "host/cuda/latent_attention_kernel.h"
#include "host/cuda/output_gate_kernel.h"
#include "host/cuda/rope_kernel.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

using gpu::Buffer;
using gpu::Carver;

absl::Status CheckSize(const char* field, int64_t value, int64_t multiple, int64_t most) {
  if (value % multiple == 0 && value <= most) return absl::OkStatus();
  const std::string multiples = multiple > 1 ? fmt::format("multiples of {} ", multiple) : "";
  return absl::UnimplementedError(
      fmt::format("config.json: {} {}; the example decoder runs {}up to {} on a device, and others "
                  "with --backend cpu",
                  field, value, multiples, most));
}

/// Grouped attention's heads: values may not be wider than keys, whose room they have.
absl::Status CheckHeads(const HfConfig& config) {
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    MOERT_RETURN_IF_ERROR(CheckSize("head_dim", config.HeadDim(i), 16, kMaxHeadDim));
    MOERT_RETURN_IF_ERROR(CheckSize("v_head_dim", config.ValueDim(i), 1, config.HeadDim(i)));
  }
  const auto long_rope = [](const RopeConfig& rope) { return rope.kind == RopeKind::kLongRope; };
  if (!config.window || !(long_rope(config.rope) || long_rope(config.window->rope))) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      "config.json: rope_parameters longrope of some layers; the example decoder runs it on a "
      "device where all layers have the same, and others with --backend cpu");
}

/// Parts of latent attention that a step of this shape may need.
int LatentParts(const StepShape& shape) {
  return LatentPartsFor(int64_t{shape.pieces} * kPieceKeys - 1);
}

int Span(const MixerConfig& mixer, MixerKind kind) {
  return mixer.kind == kind ? static_cast<int>(mixer.span) : 0;
}

}  // namespace

absl::Status CheckDeviceMixers(const HfConfig& config) {
  if (config.compressed.q_rank > 0 || config.hyper.streams > 0) {
    return absl::UnimplementedError(fmt::format(
        "config.json: model_type {}: the example decoder runs attention to compressed entries and "
        "hyper-connections with --backend cpu, not on a device",
        config.model_type));
  }
  if (config.side_experts) {
    return absl::UnimplementedError(fmt::format(
        "config.json: model_type {}: the example decoder runs experts beside a dense block with "
        "--backend cpu, not on a device",
        config.model_type));
  }
  if (config.indexer.block_size > 0 || !config.activation.plain()) {
    return absl::UnimplementedError(
        fmt::format("config.json: model_type {}: the example decoder runs attention to chosen "
                    "blocks and clamped "
                    "dense blocks with --backend cpu, not on a device",
                    config.model_type));
  }
  if (config.delta_net.key_heads > 0) {
    MOERT_RETURN_IF_ERROR(
        CheckSize("linear_key_head_dim", config.delta_net.key_dim, 1, kMaxDeltaKeyDim));
  }
  const LatentAttentionConfig& l = config.latent;
  if (l.kv_rank == 0) return CheckHeads(config);
  MOERT_RETURN_IF_ERROR(CheckSize("kv_lora_rank", l.kv_rank, 16, kMaxLatentValueDim));
  MOERT_RETURN_IF_ERROR(CheckSize("qk_nope_head_dim", l.nope_dim, 8, int64_t{1} << 16));
  return CheckSize("qk_rope_head_dim", l.rope_dim, 2, kMaxLatentKeyDim - kMaxLatentValueDim);
}

absl::Status CheckDeviceLength(const HfConfig& config, int64_t max_tokens) {
  if (config.indexer.heads == 0 || max_tokens <= config.indexer.top_k) return absl::OkStatus();
  return absl::UnimplementedError(fmt::format(
      "config.json: index_topk {}: on a device a sequence has at most as many tokens, so that each "
      "sees all others, not {}; longer ones run with --backend cpu",
      config.indexer.top_k, max_tokens));
}

absl::Status DeviceMixers::Init(const HfConfig& config, const DeviceWeights& weights,
                                DenseProducts* products, int64_t max_rows, CUstream_st* stream) {
  config_ = &config;
  weights_ = &weights;
  products_ = products;
  stream_ = stream;
  int attention = 0, nets = 0;
  int64_t channels = 0;
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    const bool net = config.mixers[i].kind == MixerKind::kDeltaNet;
    place_.push_back(net ? nets++ : attention++);
    channels_before_.push_back(channels);
    if (!net) channels += config.KvHeads(i) * config.HeadDim(i);
    widest_head_ = std::max(widest_head_, static_cast<int>(config.HeadDim(i)));
  }
  Carver count;
  Carve(&count, max_rows);
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  Carver carver(memory_.data());
  Carve(&carver, max_rows);
  // One piece, for a usual batch; Reserve makes more.
  StepShape usual;
  usual.rows = std::min<int64_t>(max_rows, latent() ? 1 : 64);
  MOERT_ASSIGN_OR_RETURN(partials_, Buffer::Device(PartialBytesOf(usual)));
  return absl::OkStatus();
}

void DeviceMixers::Carve(Carver* c, int64_t rows) {
  MixerWidths widest;
  for (int i = 0; i < config_->num_hidden_layers; ++i) {
    const MixerWidths widths = MixerWidthsOf(*config_, i);
    widest.projected = std::max(widest.projected, widths.projected);
    widest.mixed = std::max(widest.mixed, widths.mixed);
  }
  projected_ = c->Take<float>(rows * widest.projected);
  mixed_ = c->Take<uint16_t>(rows * widest.mixed);
  if (const LatentAttentionConfig& l = config_->latent; l.kv_rank > 0) {
    const int64_t heads = rows * config_->num_attention_heads;
    q_latents_ = c->Take<uint16_t>(rows * l.q_rank);
    queries_ = c->Take<float>(l.q_rank > 0 ? heads * (l.nope_dim + l.rope_dim) : 0);
    nope_ = c->Take<uint16_t>(heads * l.nope_dim);
    absorbed_ = c->Take<uint16_t>(heads * LatentKeyDim(l.kv_rank, l.rope_dim));
    mixed_latents_ = c->Take<uint16_t>(heads * l.kv_rank);
  }
  if (const DeltaNetConfig& d = config_->delta_net; d.key_heads > 0) {
    const int64_t values = d.value_heads * d.value_dim;
    convolved_ = c->Take<float>(rows * (2 * d.key_heads * d.key_dim + values));
    recurred_ = c->Take<float>(rows * values);
  }
}

int64_t DeviceMixers::PartialBytesOf(const StepShape& shape) const {
  if (shape.tiles > 0) return 0;
  if (latent()) {
    return LatentPartialBytes(shape.rows, config_->num_attention_heads,
                              static_cast<int>(config_->latent.kv_rank), LatentParts(shape));
  }
  return PartialBytes(shape.rows, config_->num_attention_heads, widest_head_, shape.pieces);
}

absl::Status DeviceMixers::Reserve(const StepShape& shape,
                                   absl::FunctionRef<absl::Status()> before_move) {
  const int64_t bytes = PartialBytesOf(shape);
  if (bytes <= partials_.bytes()) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(before_move());
  // Twice the bytes, as longer sequences soon need more pieces; latent attention's parts are
  // bounded.
  MOERT_ASSIGN_OR_RETURN(partials_, Buffer::Device(latent() ? bytes : 2 * bytes));
  return absl::OkStatus();
}

absl::Status DeviceMixers::Enqueue(int layer, const StepInputs& inputs, const StepShape& shape) {
  if (config_->mixers[layer].kind == MixerKind::kDeltaNet) return DeltaNet(layer, inputs, shape);
  return latent() ? Latent(layer, inputs, shape) : Grouped(layer, inputs, shape);
}

RopeArgs DeviceMixers::RopeOf(int layer, const StepInputs& inputs, const StepShape& shape) const {
  const MixerWeights& w = weights_->layers[layer].mixer;
  const MixerConfig& mixer = config_->mixers[layer];
  RopeArgs rope;
  rope.inputs = inputs;
  rope.qkv = projected_;
  rope.bias = w.in.bias();
  rope.q_weight = Floats(w.q_norm.weight);
  rope.k_weight = Floats(w.k_norm.weight);
  rope.norm_full = config_->qk_norm == QkNorm::kFull;
  rope.norm_eps = static_cast<float>(config_->norm_eps);
  rope.clip = static_cast<float>(config_->clip_qkv);
  const DeviceRope& device_rope = weights_->RopeOf(mixer);
  rope.frequencies = Floats(device_rope.frequencies);
  rope.factors[0] = device_rope.factors[0];
  rope.factors[1] = device_rope.factors[1];
  // A norm without weights may precede a rotation that keeps lengths: the result is the same.
  rope.norm_last = config_->qk_norm == QkNorm::kPerHeadRotated ||
                   (config_->qk_norm == QkNorm::kPerHeadL2 && rope.factors[0] != 1);
  rope.rotated = mixer.rotate ? static_cast<int32_t>(config_->Rope(layer).dim / 2) : 0;
  if (!mixer.rotate) {
    rope.temperature_scale = static_cast<float>(config_->temperature.scale);
    rope.temperature_floor = static_cast<float>(config_->temperature.floor);
  }
  rope.rows = static_cast<int32_t>(shape.rows);
  rope.heads = config_->num_attention_heads;
  rope.kv_heads = config_->KvHeads(layer);
  rope.head_dim = static_cast<int32_t>(config_->HeadDim(layer));
  rope.value_scale = static_cast<float>(config_->value_scale);
  rope.extra = config_->attention_gate ? rope.heads * rope.head_dim : 0;
  rope.channels_before = channels_before_[layer];
  return rope;
}

AttentionArgs DeviceMixers::AttentionOf(int layer, const StepInputs& inputs,
                                        const StepShape& shape) const {
  const MixerWeights& w = weights_->layers[layer].mixer;
  AttentionArgs attention;
  attention.inputs = inputs;
  attention.queries = projected_;
  attention.query_stride = w.in.out();
  attention.out = mixed_;
  attention.rows = static_cast<int32_t>(shape.rows);
  attention.heads = config_->num_attention_heads;
  attention.kv_heads = config_->KvHeads(layer);
  attention.head_dim = static_cast<int32_t>(config_->HeadDim(layer));
  attention.channels_before = channels_before_[layer];
  attention.window = Span(config_->mixers[layer], MixerKind::kWindow);
  attention.chunk = Span(config_->mixers[layer], MixerKind::kChunk);
  attention.sinks = Floats(w.sinks);
  return attention;
}

absl::Status DeviceMixers::Grouped(int layer, const StepInputs& inputs, const StepShape& shape) {
  const RopeArgs rope = RopeOf(layer, inputs, shape);
  const AttentionArgs attention = AttentionOf(layer, inputs, shape);
  if (shape.tiles == 0 && RotatesInDecode(rope)) {
    RETURN_IF_CUDA_ERROR(
        LaunchDecodeAttention({attention, rope}, shape.pieces, partials(), stream_));
  } else {
    RETURN_IF_CUDA_ERROR(LaunchRope(rope, stream_));
    RETURN_IF_CUDA_ERROR(shape.tiles > 0
                             ? LaunchPrefillAttention(attention, shape.tiles, stream_)
                             : LaunchDecodeAttention(attention, shape.pieces, partials(), stream_));
  }
  if (!config_->attention_gate) return absl::OkStatus();
  const int gates = (rope.heads + 2 * rope.kv_heads) * rope.head_dim;
  OutputGate gate;
  gate.mixed = mixed_;
  gate.gates = projected_ + gates;
  gate.stride = attention.query_stride;
  gate.bias = rope.bias == nullptr ? nullptr : rope.bias + gates;
  gate.rows = rope.rows;
  gate.width = rope.extra;
  RETURN_IF_CUDA_ERROR(LaunchOutputGate(gate, stream_));
  return absl::OkStatus();
}

LatentSizes DeviceMixers::LatentSizesOf(int layer, const StepInputs& inputs,
                                        const StepShape& shape) const {
  const LatentAttentionConfig& l = config_->latent;
  LatentSizes s;
  s.inputs = inputs;
  s.rows = static_cast<int32_t>(shape.rows);
  s.heads = config_->num_attention_heads;
  s.q_rank = static_cast<int32_t>(l.q_rank);
  s.kv_rank = static_cast<int32_t>(l.kv_rank);
  s.nope_dim = static_cast<int32_t>(l.nope_dim);
  s.rope_dim = static_cast<int32_t>(l.rope_dim);
  s.key_dim = static_cast<int32_t>(LatentKeyDim(l.kv_rank, l.rope_dim));
  s.layer = place_[layer];
  s.eps = kLatentEps;
  s.frequencies = Floats(weights_->rope.frequencies);
  s.factors[0] = weights_->rope.factors[0];
  s.factors[1] = weights_->rope.factors[1];
  return s;
}

/// Computes queries, normalized latents and rotated keys, and absorbs keys into the queries.
absl::Status DeviceMixers::LatentQueriesOf(int layer, const LatentSizes& s) {
  const MixerWeights& w = weights_->layers[layer].mixer;
  LatentKeys keys;
  keys.sizes = s;
  keys.projected = projected_;
  keys.stride = w.in.out();
  keys.keys = w.in.out() - s.kv_rank - s.rope_dim;
  keys.bias = w.in.bias();
  keys.q_weight = Floats(w.q_norm.weight);
  keys.k_weight = Floats(w.k_norm.weight);
  keys.q_latents = q_latents_;
  RETURN_IF_CUDA_ERROR(LaunchLatentKeys(keys, stream_));
  LatentQueries queries;
  queries.sizes = s;
  queries.queries = projected_;
  queries.stride = w.in.out();
  queries.nope = nope_;
  queries.absorbed = absorbed_;
  if (!w.q_up.empty()) {
    MOERT_RETURN_IF_ERROR(products_->Multiply(w.q_up, q_latents_, s.rows, queries_));
    queries.queries = queries_;
    queries.stride = w.q_up.out();
  }
  RETURN_IF_CUDA_ERROR(LaunchLatentQueries(queries, stream_));
  HeadProducts absorb{nope_, w.key.weights(), absorbed_, s.key_dim};
  absorb.rows = s.rows;
  absorb.heads = s.heads;
  absorb.in = s.nope_dim;
  absorb.out = s.kv_rank;
  RETURN_IF_CUDA_ERROR(LaunchHeadProducts(absorb, stream_));
  return absl::OkStatus();
}

absl::Status DeviceMixers::Latent(int layer, const StepInputs& inputs, const StepShape& shape) {
  const LatentSizes s = LatentSizesOf(layer, inputs, shape);
  MOERT_RETURN_IF_ERROR(LatentQueriesOf(layer, s));
  LatentAttentionArgs a;
  a.inputs = inputs;
  a.queries = absorbed_;
  a.out = mixed_latents_;
  a.rows = s.rows;
  a.heads = s.heads;
  a.key_dim = s.key_dim;
  a.value_dim = s.kv_rank;
  a.layer = s.layer;
  a.window = Span(config_->mixers[layer], MixerKind::kWindow);
  a.chunk = Span(config_->mixers[layer], MixerKind::kChunk);
  a.scale = static_cast<float>(config_->attention_scale);
  RETURN_IF_CUDA_ERROR(shape.tiles > 0
                           ? LaunchLatentPrefill(a, shape.tiles, stream_)
                           : LaunchLatentDecode(a, LatentParts(shape), partials(), stream_));
  const MixerWeights& w = weights_->layers[layer].mixer;
  const auto value_dim = static_cast<int32_t>(config_->latent.value_dim);
  HeadProducts values{mixed_latents_, w.value.weights(), mixed_, value_dim};
  values.rows = s.rows;
  values.heads = s.heads;
  values.in = s.kv_rank;
  values.out = value_dim;
  RETURN_IF_CUDA_ERROR(LaunchHeadProducts(values, stream_));
  return absl::OkStatus();
}

absl::Status DeviceMixers::DeltaNet(int layer, const StepInputs& inputs, const StepShape& shape) {
  const MixerWeights& w = weights_->layers[layer].mixer;
  const DeltaNetConfig& d = config_->delta_net;
  DeltaNetArgs a;
  a.inputs = inputs;
  a.projected = projected_;
  a.stride = w.in.out();
  a.convolution = Floats(w.convolution);
  a.rate = Floats(w.rate);
  a.dt_bias = Floats(w.dt_bias);
  a.norm_weight = Floats(w.q_norm.weight);
  a.norm_eps = static_cast<float>(config_->norm_eps);
  a.convolved = convolved_;
  a.recurred = recurred_;
  a.out = mixed_;
  a.rows = static_cast<int32_t>(shape.rows);
  a.tiles = shape.tiles;
  a.key_heads = d.key_heads;
  a.value_heads = d.value_heads;
  a.key_dim = static_cast<int32_t>(d.key_dim);
  a.value_dim = static_cast<int32_t>(d.value_dim);
  a.kernel = static_cast<int32_t>(d.kernel);
  a.layer = place_[layer];
  a.state = StateSizeOf(d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.kernel);
  RETURN_IF_CUDA_ERROR(LaunchDeltaNet(a, stream_));
  return absl::OkStatus();
}

}  // namespace moert::host
