#include "made_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

namespace made {
namespace {

constexpr float kDeviation = 0.02f;

// Root mean square of a hidden value of an expert: activation of the gate times up, both of which
// are normal with this deviation.
double HiddenRms(double deviation, bool gpt_oss) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(0, deviation);
  double sum = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double gate = normal(random), up = normal(random);
    const double silu = gate / (1 + std::exp(-(gpt_oss ? 1.702 : 1.0) * gate));
    sum += silu * silu * (gpt_oss ? (up + 1) * (up + 1) : up * up);
  }
  return std::sqrt(sum / kDraws);
}

// Root of the mean sum of squared weights: a softmax over the k largest of normal logits.
double WeightRms(const Shape& shape, double deviation) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> logits(static_cast<size_t>(shape.experts));
  double sum = 0;
  constexpr int kDraws = 300;
  for (int i = 0; i < kDraws; ++i) {
    for (double& logit : logits) logit = normal(random);
    std::partial_sort(logits.begin(), logits.begin() + shape.top_k, logits.end(), std::greater<>());
    double total = 0, squares = 0;
    for (int64_t k = 0; k < shape.top_k; ++k) {
      const double weight = std::exp(logits[static_cast<size_t>(k)] - logits[0]);
      total += weight;
      squares += weight * weight;
    }
    sum += squares / (total * total);
  }
  return std::sqrt(sum / kDraws);
}

// Deviations that depend on how large the residual stream has become.
struct LayerScale {
  float down, common;
};

LayerScale ScaleOf(const Shape& shape, const Routing& routing, int layer, double added) {
  const auto hidden = static_cast<double>(shape.hidden);
  const double rest = (hidden - 1) * std::pow(1 + routing.change * routing.change, layer);
  const double norm = std::sqrt(rest + kCommon * kCommon);
  return {static_cast<float>(routing.change * norm / std::sqrt(hidden) / added),
          static_cast<float>(routing.skew * kDeviation * std::sqrt(rest) / kCommon)};
}

uint64_t Next(uint64_t* state) {
  uint64_t x = *state;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return *state = x;
}

struct Block {
  size_t values, bytes;
  size_t scale_at, scale_bytes;  // the whole block where it has no scale
  float levels;                  // deviation of uniform random bits, in scales
};
Block BlockOf(Type type) {
  switch (type) {
    case Type::kQ8:
      return {32, 34, 0, 2, 73.9f};
    case Type::kQ4:
      return {32, 18, 0, 2, 4.61f};
    case Type::kQ4K:
      return {256, 144, 0, 4, 258.3f};
    case Type::kQ6K:
      return {256, 210, 208, 2, 1365.3f};
    case Type::kBf16:
      return {32, 64, 0, 64, 18918.6f};
    default:
      return {32, 17, 0, 1, 2.93f};
  }
}

// Layers whose down projections Q4_K_M keeps in Q6_K.
bool MoreBits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Scales are small normal numbers of fp16.
uint16_t Half(float value) {
  int exponent;
  const float mantissa = std::frexp(value, &exponent);  // 0.5 to 1
  auto bits = static_cast<int>(std::lround((mantissa * 2 - 1) * 1024));
  return static_cast<uint16_t>(std::clamp(((exponent + 14) << 10) + bits, 0, 0x7bff));
}

}  // namespace

Shape GptOss(int64_t experts) {
  return {"gpt-oss", 2880, 2880, experts, 4, 201088, 64, 64, 8, Type::kMxfp4, true};
}

Shape DeepSeekV3Experts() { return {"qwen3moe", 7168, 2048, 256, 8, 129280, 128, 128, 8}; }

std::vector<Tensor> Tensors(const Shape& of, int layers, const Routing& routing) {
  const double root = std::sqrt(static_cast<double>(of.hidden));
  const double logits = kDeviation * root * std::sqrt(1 + routing.skew * routing.skew);
  const double added = std::sqrt(static_cast<double>(of.intermediate)) *
                       HiddenRms(kDeviation * root, of.gpt_oss) * WeightRms(of, logits);
  std::vector<Tensor> all = {
      {"token_embd.weight", Type::kQ8, {of.hidden, of.vocabulary}, Kind::kEmbedding, 1},
      {"output_norm.weight", Type::kF32, {of.hidden}, Kind::kOnes},
      {"output.weight", Type::kQ8, {of.hidden, of.vocabulary}}};
  for (int l = 0; l < layers; ++l) {
    const std::string block = "blk." + std::to_string(l) + ".";
    const LayerScale scale = ScaleOf(of, routing, l, added);
    const auto add = [&](const char* name, Type type, std::vector<int64_t> shape,
                         Kind kind = Kind::kNormal, float deviation = kDeviation) {
      all.push_back({block + name + ".weight", type, std::move(shape), kind, deviation});
    };
    const auto add_bias = [&](const char* name, std::vector<int64_t> shape) {
      if (!of.gpt_oss) return;
      all.push_back({block + name + ".bias", Type::kF32, std::move(shape), Kind::kZeros});
    };
    const auto add_both = [&](const char* name, Type type, std::vector<int64_t> shape,
                              Kind kind = Kind::kNormal, float deviation = kDeviation) {
      add(name, type, shape, kind, deviation);
      add_bias(name, {shape.begin() + 1, shape.end()});
    };
    add("attn_norm", Type::kF32, {of.hidden}, Kind::kOnes);
    add_both("attn_q", Type::kQ8, {of.hidden, of.heads * of.head});
    add_both("attn_k", Type::kQ8, {of.hidden, of.kv_heads * of.head});
    add_both("attn_v", Type::kQ8, {of.hidden, of.kv_heads * of.head});
    // Attention adds little beside the experts.
    add_both("attn_output", Type::kQ8, {of.heads * of.head, of.hidden}, Kind::kAdded, 0.001f);
    if (of.gpt_oss) {
      add("attn_sinks", Type::kF32, {of.heads}, Kind::kZeros);
      add("post_attention_norm", Type::kF32, {of.hidden}, Kind::kOnes);
    } else {
      add("attn_q_norm", Type::kF32, {of.head}, Kind::kOnes);
      add("attn_k_norm", Type::kF32, {of.head}, Kind::kOnes);
      add("ffn_norm", Type::kF32, {of.hidden}, Kind::kOnes);
    }
    add("ffn_gate_inp", Type::kF32, {of.hidden, of.experts}, Kind::kRouter);
    all.back().common = scale.common;
    add_bias("ffn_gate_inp", {of.experts});
    add_both("ffn_gate_exps", of.type, {of.hidden, of.intermediate, of.experts});
    const bool more_bits = of.type == Type::kQ4K && MoreBits(l, layers);
    add_both("ffn_down_exps", more_bits ? Type::kQ6K : of.type,
             {of.intermediate, of.hidden, of.experts}, Kind::kAdded, scale.down);
    add_both("ffn_up_exps", of.type, {of.hidden, of.intermediate, of.experts});
  }
  return all;
}

size_t RowBytes(Type type, int64_t columns) {
  const auto count = static_cast<size_t>(columns);
  const Block of = BlockOf(type);
  return type == Type::kF32 ? 4 * count : count / of.values * of.bytes;
}

Filler::Filler(const Tensor& tensor, uint64_t seed)
    : tensor_(tensor), state_(seed * 0x9e3779b97f4a7c15 + 1), random_(seed) {}

void Filler::Fill(int64_t first, int64_t count, std::vector<char>* out) {
  const int64_t columns = tensor_.shape[0];
  out->resize(RowBytes(tensor_.type, columns) * static_cast<size_t>(count));
  if (tensor_.type == Type::kF32) {
    FillFloats(count, reinterpret_cast<float*>(out->data()));
    return;
  }
  FillBlocks(out);
  if (tensor_.kind == Kind::kEmbedding) SetCommon(count, out->data());
  if (tensor_.kind == Kind::kAdded) ClearFirst(first, count, out->data());
}

void Filler::FillFloats(int64_t count, float* out) {
  const int64_t columns = tensor_.shape[0];
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < count; ++r, out += columns) {
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = tensor_.kind == Kind::kOnes    ? 1
               : tensor_.kind == Kind::kZeros ? 0
                                              : tensor_.deviation * normal(random_);
    }
    if (tensor_.kind == Kind::kRouter) out[0] = tensor_.common * normal(random_);
  }
}

void Filler::FillBlocks(std::vector<char>* out) {
  const Block of = BlockOf(tensor_.type);
  const float scale = tensor_.deviation / of.levels;
  if (tensor_.type == Type::kBf16) return FillBf16(scale, out->size(), out->data());
  // The second scale of Q4_K is subtracted: the mean of its codes is 7.5.
  const std::array<uint16_t, 2> halves = {Half(scale), Half(7.5f * scale)};
  // A scale of MXFP4 is a power of two: the two nearest, so often that mean squares are right.
  int power;
  const float above = std::frexp(scale, &power) * 2;  // 1 to 2
  const auto larger = static_cast<uint64_t>((above * above - 1) / 3 * 65536);
  const size_t codes = of.scale_at == 0 ? of.scale_bytes : 0;
  const size_t codes_end = of.scale_at == 0 ? of.bytes : of.scale_at;
  for (size_t at = 0; at < out->size(); at += of.bytes) {
    char* const block = out->data() + at;
    std::memcpy(block + of.scale_at, halves.data(), of.scale_bytes);
    if (tensor_.type == Type::kMxfp4) {
      block[0] = static_cast<char>(127 + power - 1 + ((Next(&state_) & 65535) < larger));
    }
    for (size_t i = codes; i < codes_end; i += 8) {
      const uint64_t bits = Next(&state_);
      std::memcpy(block + i, &bits, std::min<size_t>(8, codes_end - i));
    }
  }
}

void Filler::FillBf16(float scale, size_t bytes, char* out) {
  for (const char* end = out + bytes; out < end;) {
    const uint64_t bits = Next(&state_);
    for (int i = 0; i < 64; i += 16, out += 2) {
      const float value = scale * static_cast<float>(static_cast<int16_t>(bits >> i));
      std::memcpy(out, reinterpret_cast<const char*>(&value) + 2, 2);
    }
  }
}

// The first block of every row: 127 scales are kCommon, so its others are small.
void Filler::SetCommon(int64_t count, char* out) const {
  const uint16_t scale = Half(kCommon / 127);
  for (int64_t r = 0; r < count; ++r, out += RowBytes(tensor_.type, tensor_.shape[0])) {
    std::memcpy(out, &scale, 2);
    for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<char>(i == 0 ? 127 : out[2 + i] / 16);
  }
}

// The first row of every matrix is zeros, or nearly so in MXFP4: blocks without a scale.
void Filler::ClearFirst(int64_t first, int64_t count, char* out) const {
  const Block of = BlockOf(tensor_.type);
  const size_t row = RowBytes(tensor_.type, tensor_.shape[0]);
  for (int64_t r = 0; r < count; ++r, out += row) {
    if ((first + r) % tensor_.shape[1] != 0) continue;
    for (size_t at = of.scale_at; at < row; at += of.bytes)
      std::memset(out + at, 0, of.scale_bytes);
  }
}

}  // namespace made
