// Runs a made-up model of big_gguf on the CPU, experts and routers alone, and compares its routing
// with what was recorded of trained models (made_model.h).
#include "made_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <list>
#include <numeric>
#include <string>
#include <vector>

#include "support/catch.h"

namespace {

using made::Type;

float OfHalf(const char* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return bits == 0 ? 0 : std::ldexp(1 + static_cast<float>(bits & 1023) / 1024, (bits >> 10) - 15);
}

constexpr std::array<float, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int Byte(const char* at) { return static_cast<unsigned char>(*at); }
int Nibble(const char* bytes, size_t i, size_t half) {
  return i % (2 * half) < half ? Byte(bytes + i % half) & 15 : Byte(bytes + i % half) >> 4;
}

// Scales (0 to 7) and minima (8 to 15) of a block of Q4_K, of 6 bits each.
int SixBits(const char* at, size_t i) {
  if (i % 8 < 4) return Byte(at + i % 4 + i / 8 * 4) & 63;
  const int low = Byte(at + 8 + i % 4);
  return (i < 8 ? low & 15 : low >> 4) | (Byte(at + i % 4 + i / 8 * 4) >> 6 << 4);
}

float OfQ4K(const char* at, size_t i) {
  const int code = Nibble(at + 16 + i / 64 * 32, i, 32);
  return OfHalf(at) * static_cast<float>(SixBits(at + 4, i / 32) * code) -
         OfHalf(at + 2) * static_cast<float>(SixBits(at + 4, 8 + i / 32));
}

float OfQ6K(const char* at, size_t i) {
  const size_t half = i / 128, rest = i % 128;
  const int low =
      rest < 64 ? Byte(at + half * 64 + rest) & 15 : Byte(at + half * 64 + rest - 64) >> 4;
  const int high = Byte(at + 128 + half * 32 + rest % 32) >> (rest / 32 * 2) & 3;
  const auto scale = static_cast<signed char>(at[192 + i / 16]);
  return OfHalf(at + 208) * static_cast<float>(scale * ((high << 4 | low) - 32));
}

// A value of a block, decoded as ggml does.
float ValueOf(Type type, const char* at, size_t i) {
  switch (type) {
    case Type::kQ8:
      return OfHalf(at) * static_cast<float>(static_cast<signed char>(at[2 + i]));
    case Type::kQ4:
      return OfHalf(at) * static_cast<float>(Nibble(at + 2, i, 16) - 8);
    case Type::kQ4K:
      return OfQ4K(at, i);
    case Type::kQ6K:
      return OfQ6K(at, i);
    case Type::kMxfp4:
      return std::ldexp(kE2m1[static_cast<size_t>(Nibble(at + 1, i, 16))], Byte(at) - 128);
    default: {
      float value = 0;
      std::memcpy(reinterpret_cast<char*>(&value) + 2, at + 2 * i, 2);
      return value;
    }
  }
}

size_t BlockValues(Type type) { return type == Type::kQ4K || type == Type::kQ6K ? 256 : 32; }

// All values of a tensor.
std::vector<float> ValuesOf(const made::Tensor& tensor) {
  int64_t rows = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  std::vector<char> bytes;
  made::Filler(tensor, std::hash<std::string>()(tensor.name)).Fill(0, rows, &bytes);
  std::vector<float> out(static_cast<size_t>(rows * tensor.shape[0]));
  if (tensor.type == Type::kF32) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  const size_t values = BlockValues(tensor.type);
  const size_t block = made::RowBytes(tensor.type, static_cast<int64_t>(values));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = ValueOf(tensor.type, bytes.data() + i / values * block, i % values);
  }
  return out;
}

using Rows = std::vector<std::vector<float>>;
using Choices = std::vector<std::vector<int>>;

std::vector<float> Normalized(const std::vector<float>& x) {
  const float squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0f);
  std::vector<float> out = x;
  for (float& v : out) v /= std::sqrt(squares / static_cast<float>(x.size()));
  return out;
}

std::vector<float> Times(const float* matrix, size_t rows, const std::vector<float>& x) {
  std::vector<float> out(rows);
  for (size_t r = 0; r < rows; ++r, matrix += x.size()) {
    out[r] = std::inner_product(x.begin(), x.end(), matrix, 0.0f);
  }
  return out;
}

std::vector<int> Best(const std::vector<float>& logits, size_t k) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<long>(k), order.end(),
                    [&](int a, int b) {
                      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                    });
  order.resize(k);
  return order;
}

struct Model {
  made::Shape shape;
  std::vector<made::Tensor> tensors;

  std::vector<float> Values(const std::string& name) const {
    for (const made::Tensor& tensor : tensors) {
      if (tensor.name == name + ".weight") return ValuesOf(tensor);
    }
    FAIL("no tensor " << name);
    return {};
  }
};

// Adds a layer's experts to every row, and says which each row chose.
Choices RunLayer(const Model& model, int layer, const std::vector<float>& router, Rows* stream) {
  const std::string block = "blk." + std::to_string(layer) + ".ffn_";
  const auto gate = model.Values(block + "gate_exps"), up = model.Values(block + "up_exps"),
             down = model.Values(block + "down_exps");
  const auto hidden = static_cast<size_t>(model.shape.hidden);
  const auto inner = static_cast<size_t>(model.shape.intermediate);
  Choices chosen;
  for (std::vector<float>& x : *stream) {
    const std::vector<float> input = Normalized(x);
    const std::vector<float> logits =
        Times(router.data(), static_cast<size_t>(model.shape.experts), input);
    chosen.push_back(Best(logits, static_cast<size_t>(model.shape.top_k)));
    float total = 0;
    for (int e : chosen.back()) total += std::exp(logits[static_cast<size_t>(e)]);
    for (int e : chosen.back()) {
      const size_t at = static_cast<size_t>(e) * hidden * inner;
      std::vector<float> h = Times(&gate[at], inner, input);
      const std::vector<float> u = Times(&up[at], inner, input);
      for (size_t i = 0; i < inner; ++i) h[i] = h[i] / (1 + std::exp(-h[i])) * u[i];
      const std::vector<float> y = Times(&down[at], hidden, h);
      const float weight = std::exp(logits[static_cast<size_t>(e)]) / total;
      for (size_t i = 0; i < hidden; ++i) x[i] += weight * y[i];
    }
  }
  return chosen;
}

double Hits(const Choices& rows, size_t capacity) {
  std::list<int> kept;  // most recent first
  size_t hits = 0, lookups = 0;
  for (const std::vector<int>& row : rows) {
    for (int e : row) {
      const auto found = std::find(kept.begin(), kept.end(), e);
      hits += found != kept.end();
      ++lookups;
      if (found != kept.end()) kept.erase(found);
      kept.push_front(e);
      if (kept.size() > capacity) kept.pop_back();
    }
  }
  return static_cast<double>(hits) / static_cast<double>(lookups);
}

double Overlap(const Choices& a, const Choices& b) {
  size_t same = 0, all = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (int e : a[t]) same += std::count(b[t].begin(), b[t].end(), e) > 0;
    all += a[t].size();
  }
  return static_cast<double>(same) / static_cast<double>(all);
}

struct Measured {
  double overlap = 0;               // of what the next gate names with what is chosen, mean
  std::array<double, 3> hits = {};  // of LRU caches of 25, 50, 75 % of a layer's experts, mean
};

Measured Measure(const made::Routing& routing, Type type) {
  constexpr int kLayers = 5, kTokens = 600;
  Model model;
  model.shape.hidden = 256, model.shape.vocabulary = kTokens;
  model.shape.intermediate = std::max<int64_t>(64, static_cast<int64_t>(BlockValues(type)));
  model.shape.type = type;
  model.tensors = made::Tensors(model.shape, kLayers, routing);
  const std::vector<float> embedding = model.Values("token_embd");
  Rows stream;
  for (size_t t = 0; t < kTokens; ++t) {
    stream.emplace_back(embedding.begin() + static_cast<long>(t * 256),
                        embedding.begin() + static_cast<long>((t + 1) * 256));
  }
  Measured found;
  Choices predicted;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto router = [&](int l) {
      return model.Values("blk." + std::to_string(l) + ".ffn_gate_inp");
    };
    Rows inputs = stream;
    const Choices chosen = RunLayer(model, layer, router(layer), &stream);
    if (layer > 0) found.overlap += Overlap(chosen, predicted) / (kLayers - 1);
    for (size_t i = 0; i < 3; ++i) found.hits[i] += Hits(chosen, 32 * (i + 1)) / kLayers;
    if (layer + 1 == kLayers) break;
    const std::vector<float> next = router(layer + 1);
    predicted.clear();
    for (const std::vector<float>& x : inputs)
      predicted.push_back(Best(Times(next.data(), 128, Normalized(x)), 8));
  }
  return found;
}

}  // namespace

TEST_CASE("a made-up model routes as recorded models do") {
  const Type type = GENERATE(Type::kQ4, Type::kQ4K, Type::kMxfp4, Type::kBf16);
  const Measured found = Measure(made::kRecorded, type);
  CAPTURE(found.overlap, found.hits[0], found.hits[1], found.hits[2]);
  CHECK(std::abs(found.overlap - 0.805) < 0.03);
  CHECK(std::abs(found.hits[0] - 0.58) < 0.05);
  CHECK(std::abs(found.hits[1] - 0.85) < 0.03);
  CHECK(std::abs(found.hits[2] - 0.96) < 0.02);
}

TEST_CASE("without skew routing is uniform, and the next gate still sees another input") {
  const Measured found = Measure({}, Type::kQ4);
  CAPTURE(found.overlap, found.hits[0], found.hits[1], found.hits[2]);
  CHECK(found.overlap < 0.85);
  CHECK(std::abs(found.hits[0] - 0.25) < 0.06);
  CHECK(std::abs(found.hits[1] - 0.50) < 0.06);
}
