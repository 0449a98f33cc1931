// The kernels of latent attention against fp64 over the bf16 numbers that they read.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "device_array.h"
#include "device_step.h"
#include "host/blocks/rope.h"
#include "host/cuda/head_products_kernel.h"
#include "host/cuda/latent_attention_kernel.h"
#include "host/cuda/latent_kernel.h"
#include "step_rows.h"

namespace moert::test {
namespace {

using namespace host;

TEST_CASE("a small matrix a head") {
  std::mt19937 rng(1);
  for (const int rows : {1, 3, 8, 9, 70}) {
    for (const auto& [heads, in, out] : {std::tuple{4, 16, 32}, {3, 128, 512}, {5, 40, 24}}) {
      INFO(rows << " rows, " << heads << " heads " << in << " -> " << out);
      const int stride = out + 8;
      const auto x = Rounded(RandomFloats(rows * heads * in, &rng));
      const auto w = Rounded(RandomFloats(heads * out * in, &rng));
      DeviceArray<uint16_t> dx(x), dw(w), dy(static_cast<size_t>(rows) * heads * stride);
      HeadProducts p{dx.get(), dw.get(), dy.get(), stride};
      p.rows = rows;
      p.heads = heads;
      p.in = in;
      p.out = out;
      REQUIRE(LaunchHeadProducts(p, nullptr) == 0);
      const auto got = dy.Get();
      std::vector<double> expected;
      std::vector<float> written;
      size_t left = 0;
      for (int row = 0; row < rows * heads; ++row) {
        for (int n = 0; n < stride; ++n) {
          const uint16_t y = got[row * stride + n];
          if (n >= out) {
            left += y == 0xffff;
            continue;
          }
          double sum = 0;
          for (int k = 0; k < in; ++k) {
            sum += static_cast<double>(Bf16ToF32(x[row * in + k])) *
                   Bf16ToF32(w[(row % heads * out + n) * in + k]);
          }
          expected.push_back(sum);
          written.push_back(Bf16ToF32(y));
        }
      }
      CHECK(RelativeError(written, expected) < 3e-3);
      CHECK(left == static_cast<size_t>(rows) * heads * 8);
    }
  }
  HeadProducts odd;
  odd.rows = odd.heads = odd.out = 1;
  odd.in = 12;
  CHECK(LaunchHeadProducts(odd, nullptr) != 0);
}

struct Shape {
  int heads, kv_rank, rope_dim, window;
  std::vector<std::pair<int, int>> sequences;  // tokens stored before, and rows of the step
};
constexpr int kLayers = 2, kLayer = 1;

/// Inputs of a shape and what attention must answer.
struct Problem {
  explicit Problem(const Shape& s)
      : shape(s), key_dim(static_cast<int>(LatentKeyDim(s.kv_rank, s.rope_dim))) {
    std::mt19937 rng(s.heads * 1000 + s.kv_rank);
    size_t cached = 0;
    for (const auto& [before, added] : s.sequences) {
      rows += added;
      cached += static_cast<size_t>(kLayers) * (before + added + 3) * key_dim;
    }
    q = Rounded(RandomFloats(static_cast<size_t>(rows) * s.heads * key_dim, &rng, 2));
    k = Rounded(RandomFloats(cached, &rng));
    keys = std::make_unique<DeviceArray<uint16_t>>(k);
    const StepRows step(s.sequences);
    std::vector<SequenceCache> caches;
    size_t at = 0, row = 0;
    for (const auto& [before, added] : s.sequences) {
      const int64_t capacity = before + added + 3;
      // Memory behind the last key must not matter: no number.
      for (int l = 0; l < kLayers; ++l) {
        const size_t tail = at + (l * capacity + before + added) * key_dim;
        std::fill_n(k.begin() + tail, 3 * key_dim, 0xffff);
      }
      for (int i = 0; i < added; ++i, ++row) {
        for (int h = 0; h < s.heads; ++h) {
          Expect(at + kLayer * capacity * key_dim, before + i, row * s.heads + h);
        }
      }
      SequenceCache cache;
      cache.keys = keys->get() + at;
      cache.capacity = capacity;
      caches.push_back(cache);
      at += kLayers * capacity * key_dim;
    }
    last = step.last;
    keys->Set(k);
    queries = std::make_unique<DeviceArray<uint16_t>>(q);
    row_inputs = std::make_unique<DeviceArray<RowInput>>(step.rows);
    sequences = std::make_unique<DeviceArray<SequenceCache>>(caches);
    tiles = std::make_unique<DeviceArray<QueryTile>>(step.tiles);
    num_tiles = static_cast<int>(step.tiles.size());
  }

  void Expect(size_t base, int position, size_t pair) {
    const int begin = shape.window > 0 ? std::max(0, position + 1 - shape.window) : 0;
    std::vector<double> p;
    for (int key = begin; key <= position; ++key) {
      double dot = 0;
      for (int d = 0; d < key_dim; ++d) {
        dot += static_cast<double>(Bf16ToF32(q[pair * key_dim + d])) *
               Bf16ToF32(k[base + static_cast<size_t>(key) * key_dim + d]);
      }
      p.push_back(dot * kScale);
    }
    const double highest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - highest);
    for (int d = 0; d < shape.kv_rank; ++d) {
      double mixed = 0;
      for (int key = begin; key <= position; ++key) {
        mixed += p[key - begin] * Bf16ToF32(k[base + static_cast<size_t>(key) * key_dim + d]);
      }
      expected.push_back(mixed / sum);
    }
  }

  LatentAttentionArgs Args(uint16_t* out) const {
    LatentAttentionArgs a;
    a.inputs = {row_inputs->get(), sequences->get(), tiles->get()};
    a.queries = queries->get();
    a.out = out;
    a.rows = rows;
    a.heads = shape.heads;
    a.key_dim = key_dim;
    a.value_dim = shape.kv_rank;
    a.layer = kLayer;
    a.window = shape.window;
    a.scale = kScale;
    return a;
  }
  std::vector<uint16_t> Decode(int parts) const {
    DeviceArray<uint16_t> out(expected.size());
    DeviceArray<float> partials(LatentPartialBytes(rows, shape.heads, shape.kv_rank, parts) /
                                sizeof(float));
    REQUIRE(LaunchLatentDecode(Args(out.get()), parts, partials.get(), nullptr) == 0);
    return out.Get();
  }

  static constexpr float kScale = 0.07f;
  const Shape shape;
  const int key_dim;
  int rows = 0, last = 0, num_tiles = 0;
  std::vector<uint16_t> q, k;
  std::vector<double> expected;
  std::unique_ptr<DeviceArray<uint16_t>> keys, queries;
  std::unique_ptr<DeviceArray<RowInput>> row_inputs;
  std::unique_ptr<DeviceArray<SequenceCache>> sequences;
  std::unique_ptr<DeviceArray<QueryTile>> tiles;
};

std::vector<Shape> Shapes(const std::vector<std::pair<int, int>>& sequences) {
  std::vector<Shape> shapes;
  for (const auto& [heads, kv_rank, rope_dim] :
       {std::tuple{4, 32, 8}, {16, 512, 64}, {24, 512, 64}, {3, 80, 24}}) {
    for (const int window : {0, 70}) {
      shapes.push_back({heads, kv_rank, rope_dim, window, sequences});
    }
  }
  return shapes;
}

TEST_CASE("few rows over latents, in parts") {
  for (const Shape& shape : Shapes({{0, 1}, {126, 3}, {700, 1}})) {
    INFO(shape.heads << " x " << shape.kv_rank << " + " << shape.rope_dim << " window "
                     << shape.window);
    const Problem problem(shape);
    const auto out = problem.Decode(LatentPartsFor(problem.last));
    // Weights are rounded to bf16 on the way.
    CHECK(RelativeError(Widened(out), problem.expected) < 1e-2);
    CHECK(problem.Decode(kLatentParts) == out);
  }
}

TEST_CASE("few rows over latents: parts of more keys than the least") {
  const Problem problem({2, 32, 8, 0, {{4094, 1}, {4095, 2}, {9000, 1}}});
  const auto out = problem.Decode(kLatentParts);
  CHECK(RelativeError(Widened(out), problem.expected) < 1e-2);
  const Problem alone({2, 32, 8, 0, {{4094, 1}}});
  CHECK(RelativeError(Widened(alone.Decode(kLatentParts)), alone.expected) < 1e-2);
}

TEST_CASE("many rows over latents") {
  for (const Shape& shape : Shapes({{0, 70}, {150, 3}, {63, 66}})) {
    INFO(shape.heads << " x " << shape.kv_rank << " + " << shape.rope_dim << " window "
                     << shape.window);
    const Problem problem(shape);
    DeviceArray<uint16_t> out(problem.expected.size());
    REQUIRE(LaunchLatentPrefill(problem.Args(out.get()), problem.num_tiles, nullptr) == 0);
    CHECK(RelativeError(Widened(out.Get()), problem.expected) < 1e-2);
  }
}

TEST_CASE("sizes of latents that cannot run are refused") {
  LatentAttentionArgs a;
  a.rows = a.heads = 1;
  for (const auto& [key_dim, value_dim] : {std::pair{40, 32}, {592, 512}, {576, 528}, {48, 0}}) {
    a.key_dim = key_dim;
    a.value_dim = value_dim;
    CHECK(LaunchLatentDecode(a, 1, nullptr, nullptr) != 0);
    CHECK(LaunchLatentPrefill(a, 1, nullptr) != 0);
  }
}

std::vector<double> Normed(const float* x, int width, const float* weight) {
  double squares = 0;
  for (int i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i] / width;
  std::vector<double> y;
  for (int i = 0; i < width; ++i) y.push_back(x[i] / std::sqrt(squares + 1e-6) * weight[i]);
  return y;
}

TEST_CASE("latents, rotated keys and queries in two parts") {
  std::mt19937 rng(2);
  for (const auto& [heads, q_rank, kv_rank, nope, rope_dim] :
       {std::tuple{4, 24, 32, 16, 8}, {9, 0, 512, 128, 64}, {3, 1536, 80, 24, 20}}) {
    INFO(heads << " heads, ranks " << q_rank << ", " << kv_rank);
    RopeConfig config;
    config.dim = rope_dim;
    config.kind = RopeKind::kYarn;
    config.factor = 4;
    config.original_max_positions = 16;
    Rope rope(config);
    rope.Extend(64);
    const int rows = 3, capacity = 40, key_dim = static_cast<int>(LatentKeyDim(kv_rank, rope_dim));
    const int query = nope + rope_dim, before = q_rank > 0 ? q_rank : heads * query;
    const int stride = before + kv_rank + rope_dim;
    const auto x = RandomFloats(rows * stride, &rng), bias = RandomFloats(stride, &rng);
    const auto up = RandomFloats(rows * heads * query, &rng);
    const auto qw = RandomFloats(q_rank, &rng), kw = RandomFloats(kv_rank, &rng);
    const std::vector<RowInput> inputs = {{0, 7, 0, 0}, {0, 8, 0, 1}, {0, 39, 1, 0}};
    const size_t cached = static_cast<size_t>(kLayers) * capacity * key_dim;
    DeviceArray<float> projected(x), b(bias), q_weight(qw), k_weight(kw), queries(up);
    DeviceArray<float> frequencies(rope.inverse_frequencies(0));
    DeviceArray<uint16_t> keys(2 * cached), q_latents(static_cast<size_t>(rows) * q_rank);
    DeviceArray<uint16_t> plain(static_cast<size_t>(rows) * heads * nope);
    DeviceArray<uint16_t> absorbed(static_cast<size_t>(rows) * heads * key_dim);
    std::vector<SequenceCache> caches(2);
    caches[0].keys = keys.get();
    caches[1].keys = keys.get() + cached;
    caches[0].capacity = caches[1].capacity = capacity;
    DeviceArray<SequenceCache> sequences(caches);
    DeviceArray<RowInput> row_inputs(inputs);
    LatentSizes s;
    s.inputs = {row_inputs.get(), sequences.get(), nullptr};
    s.rows = rows;
    s.heads = heads;
    s.q_rank = q_rank;
    s.kv_rank = kv_rank;
    s.nope_dim = nope;
    s.rope_dim = rope_dim;
    s.key_dim = key_dim;
    s.layer = kLayer;
    s.eps = 1e-6f;
    s.frequencies = frequencies.get();
    s.factors[0] = rope.attention_factor(0);
    REQUIRE(LaunchLatentKeys({s, projected.get(), stride, before, b.get(), q_weight.get(),
                              k_weight.get(), q_latents.get()},
                             nullptr) == 0);
    LatentQueries to{s, q_rank > 0 ? queries.get() : projected.get(),
                     q_rank > 0 ? heads * query : stride, plain.get(), absorbed.get()};
    REQUIRE(LaunchLatentQueries(to, nullptr) == 0);

    const auto key_got = Widened(keys.Get()), latent_got = Widened(q_latents.Get());
    const auto plain_got = Widened(plain.Get()), absorbed_got = Widened(absorbed.Get());
    for (int r = 0; r < rows; ++r) {
      std::vector<float> y(x.begin() + r * stride, x.begin() + (r + 1) * stride);
      for (int i = 0; i < stride; ++i) y[i] += bias[i];
      if (q_rank > 0) {
        const auto from = latent_got.begin() + r * q_rank;
        CHECK(RelativeError({from, from + q_rank}, Normed(y.data(), q_rank, qw.data())) < 3e-3);
      }
      std::vector<double> key = Normed(y.data() + before, kv_rank, kw.data());
      float* const turned = y.data() + before + kv_rank;
      rope.Rotate(0, inputs[r].position, turned);
      key.insert(key.end(), turned, turned + rope_dim);
      key.resize(key_dim);  // zeros
      const auto at = key_got.begin() + inputs[r].sequence * cached +
                      (kLayer * capacity + inputs[r].position) * key_dim;
      CHECK(RelativeError({at, at + key_dim}, key) < 3e-3);
      for (int h = 0; h < heads; ++h) {
        const float* from =
            q_rank > 0 ? up.data() + (r * heads + h) * query : x.data() + r * stride + h * query;
        const auto first = plain_got.begin() + (r * heads + h) * nope;
        CHECK(RelativeError({first, first + nope}, {from, from + nope}) < 3e-3);
        std::vector<float> last(from + nope, from + query);
        rope.Rotate(0, inputs[r].position, last.data());
        last.resize(key_dim - kv_rank);
        const auto second = absorbed_got.begin() + (r * heads + h) * key_dim + kv_rank;
        CHECK(RelativeError({second, second + key_dim - kv_rank}, {last.begin(), last.end()}) <
              3e-3);
        CHECK(std::isnan(absorbed_got[(r * heads + h) * key_dim]));  // the product's
      }
    }
  }
}

}  // namespace
}  // namespace moert::test
