// Both attention kernels against fp64 over the bf16 keys and values that they read.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "device_array.h"
#include "device_step.h"
#include "host/cuda/attention_kernel.h"
#include "step_rows.h"

namespace moert::test {
namespace {

using namespace host;

struct Shape {
  int heads, kv_heads, head_dim, window;
  std::vector<std::pair<int, int>> sequences;  // tokens stored before, and rows of the step
  int chunk = 0;
  bool sinks = false;
};

constexpr int kLayers = 2, kLayer = 1;

/// Inputs of a shape and what attention must answer.
struct Problem {
  explicit Problem(const Shape& s) : shape(s), rng(s.heads * 1000 + s.head_dim) {
    size_t cached = 0;
    for (const auto& [before, added] : s.sequences) {
      rows += added;
      cached += static_cast<size_t>(kLayers) * s.kv_heads * (before + added + 3) * s.head_dim;
    }
    stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
    sink_scores = RandomFloats(s.heads, &rng, 3);
    sinks = std::make_unique<DeviceArray<float>>(sink_scores);
    q = RandomFloats(rows * stride, &rng, 2);
    k = Rounded(RandomFloats(cached, &rng, 2));
    v = Rounded(RandomFloats(cached, &rng));
    keys = std::make_unique<DeviceArray<uint16_t>>(k);
    values = std::make_unique<DeviceArray<uint16_t>>(v);
    queries = std::make_unique<DeviceArray<float>>(q);
    const StepRows step(s.sequences);
    std::vector<SequenceCache> caches;
    size_t at = 0, row = 0;
    for (const auto& [before, added] : s.sequences) {
      const int64_t capacity = before + added + 3;
      // Memory behind the last key must not matter: no number.
      std::vector<uint16_t> none(3 * s.head_dim, 0xffff);
      for (int h = 0; h < kLayers * s.kv_heads; ++h) {
        const size_t tail = at + (h * capacity + before + added) * s.head_dim;
        std::copy(none.begin(), none.end(), k.begin() + tail);
        std::copy(none.begin(), none.end(), v.begin() + tail);
      }
      for (int i = 0; i < added; ++i, ++row) {
        for (int h = 0; h < s.heads; ++h) Expect(at, capacity, before + i, h, row);
      }
      caches.push_back({keys->get() + at, values->get() + at, capacity, 0});
      at += kLayers * s.kv_heads * capacity * s.head_dim;
    }
    last = step.last;
    keys->Set(k);
    values->Set(v);
    row_inputs = std::make_unique<DeviceArray<RowInput>>(step.rows);
    sequences = std::make_unique<DeviceArray<SequenceCache>>(caches);
    tiles = std::make_unique<DeviceArray<QueryTile>>(step.tiles);
    num_tiles = static_cast<int>(step.tiles.size());
  }

  void Expect(size_t at, int64_t capacity, int position, int head, size_t row) {
    const int dim = shape.head_dim, kv = head / (shape.heads / shape.kv_heads);
    const size_t base = at + (kLayer * shape.kv_heads + kv) * capacity * dim;
    const int begin = shape.chunk > 0    ? position / shape.chunk * shape.chunk
                      : shape.window > 0 ? std::max(0, position + 1 - shape.window)
                                         : 0;
    std::vector<double> p;
    for (int key = begin; key <= position; ++key) {
      double dot = 0;
      for (int d = 0; d < dim; ++d) {
        dot += static_cast<double>(q[row * stride + head * dim + d]) *
               Bf16ToF32(k[base + static_cast<size_t>(key) * dim + d]);
      }
      p.push_back(dot / std::sqrt(dim));
    }
    double highest = *std::max_element(p.begin(), p.end());
    if (shape.sinks) highest = std::max<double>(highest, sink_scores[head]);
    double sum = shape.sinks ? std::exp(sink_scores[head] - highest) : 0;
    for (double& x : p) sum += x = std::exp(x - highest);
    for (int d = 0; d < dim; ++d) {
      double mixed = 0;
      for (int key = begin; key <= position; ++key) {
        mixed += p[key - begin] * Bf16ToF32(v[base + static_cast<size_t>(key) * dim + d]);
      }
      expected.push_back(mixed / sum);
    }
  }

  AttentionArgs Args(uint16_t* out) const {
    AttentionArgs a;
    a.inputs = {row_inputs->get(), sequences->get(), tiles->get()};
    a.queries = queries->get();
    a.query_stride = stride;
    a.out = out;
    a.rows = rows;
    a.heads = shape.heads;
    a.kv_heads = shape.kv_heads;
    a.head_dim = shape.head_dim;
    a.channels_before = int64_t{kLayer} * shape.kv_heads * shape.head_dim;
    a.window = shape.window;
    a.chunk = shape.chunk;
    a.sinks = shape.sinks ? sinks->get() : nullptr;
    return a;
  }

  std::vector<uint16_t> Decode(int pieces) const {
    DeviceArray<uint16_t> out(expected.size());
    DeviceArray<float> partials(PartialBytes(rows, shape.heads, shape.head_dim, pieces) /
                                sizeof(float));
    REQUIRE(LaunchDecodeAttention(Args(out.get()), pieces, partials.get(), nullptr) == 0);
    return out.Get();
  }

  const Shape shape;
  std::mt19937 rng;
  int rows = 0, stride = 0, last = 0, num_tiles = 0;
  std::vector<float> q, sink_scores;
  std::vector<uint16_t> k, v;
  std::vector<double> expected;
  std::unique_ptr<DeviceArray<float>> sinks;
  std::unique_ptr<DeviceArray<uint16_t>> keys, values;
  std::unique_ptr<DeviceArray<float>> queries;
  std::unique_ptr<DeviceArray<RowInput>> row_inputs;
  std::unique_ptr<DeviceArray<SequenceCache>> sequences;
  std::unique_ptr<DeviceArray<QueryTile>> tiles;
};

std::vector<Shape> Shapes(bool decode) {
  std::vector<Shape> shapes;
  for (const auto& [heads, kv_heads, dim] : {std::tuple{4, 2, 16},
                                             {4, 4, 32},
                                             {8, 1, 64},
                                             {6, 2, 80},
                                             {4, 2, 96},
                                             {16, 1, 112},
                                             {8, 2, 128},
                                             {2, 1, 256}}) {
    for (const int window : {0, 8, 300}) {
      if (decode) {
        shapes.push_back({heads, kv_heads, dim, window, {{0, 1}, {255, 1}, {256, 2}, {900, 1}}});
      } else {
        shapes.push_back({heads, kv_heads, dim, window, {{0, 70}, {300, 3}, {63, 129}}});
      }
      const bool chunks = dim == 64 || dim == 16;
      if (dim != 128 && !chunks) continue;
      shapes.push_back(shapes.back());
      shapes.back().sinks = true;
      if (chunks) shapes.back().chunk = std::exchange(shapes.back().window, 0);
    }
  }
  return shapes;
}

TEST_CASE("few rows: keys in pieces") {
  for (const Shape& shape : Shapes(true)) {
    INFO(shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << " window "
                     << shape.window);
    const Problem problem(shape);
    const auto out = problem.Decode(PiecesFor(problem.last));
    CHECK(RelativeError(Widened(out), problem.expected) < 3e-3);
    // More pieces than there are keys for: the same bits.
    CHECK(problem.Decode(8) == out);
  }
}

TEST_CASE("few rows: pieces by the thousand keys") {
  for (const int window : {0, 1500, 2500}) {
    INFO("window " << window);
    const Problem problem({4, 2, 64, window, {{2046, 1}, {2047, 2}, {6500, 1}, {30, 1}}});
    const auto out = problem.Decode(PiecesFor(problem.last));
    CHECK(RelativeError(Widened(out), problem.expected) < 3e-3);
    CHECK(problem.Decode(7) == out);
    // A row alone, in as few pieces as it needs: too.
    const Problem alone({4, 2, 64, window, {{2046, 1}}});
    CHECK(alone.Decode(1) == alone.Decode(4));
  }
}

TEST_CASE("many rows: tensor cores") {
  for (const Shape& shape : Shapes(false)) {
    INFO(shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << " window "
                     << shape.window);
    const Problem problem(shape);
    DeviceArray<uint16_t> out(problem.expected.size());
    REQUIRE(LaunchPrefillAttention(problem.Args(out.get()), problem.num_tiles, nullptr) == 0);
    // Queries and probabilities are rounded to bf16 on the way.
    CHECK(RelativeError(Widened(out.Get()), problem.expected) < 1e-2);
  }
}

struct RotateCase {
  const char* what;
  int heads, kv_heads, head_dim, window;
  bool bias, norm;
  float clip;
  int rotated = kMaxRotations;  // pairs
  int extra = 0;                // floats of a row behind the values
  int chunk = 0;
  bool sinks = false;
};

/// Products of the q, k and v matrices, and sequences that earlier steps have begun.
struct RotateProblem {
  explicit RotateProblem(const RotateCase& c) : shape(c) {
    std::mt19937 rng(c.head_dim);
    all = (c.heads + 2 * c.kv_heads) * c.head_dim + c.extra;
    size_t cached = 0;
    const int sequences[][2] = {{0, 1}, {255, 1}, {256, 3}, {1, 8}, {2044, 6}, {40, 2}};
    for (const auto& [before, added] : sequences) {
      last = std::max(last, before + added - 1);
      cached += Elements(before + added);
    }
    // The place of this step's stores is no number before.
    keys.assign(cached, 0xffff);
    values = keys;
    size_t at = 0;
    for (const auto& [before, added] : sequences) {
      const int capacity = before + added;
      for (int h = 0; h < kLayers * c.kv_heads; ++h) {
        const size_t head = at + static_cast<size_t>(h) * capacity * c.head_dim;
        for (int i = 0; i < before * c.head_dim; ++i) {
          keys[head + i] = F32ToBf16(normal(rng));
          values[head + i] = F32ToBf16(normal(rng));
        }
      }
      for (int i = 0; i < added; ++i) {
        rows.push_back({0, before + i, static_cast<int32_t>(starts.size()), i});
      }
      starts.push_back({at, capacity});
      at += Elements(capacity);
    }
    qkv = RandomFloats(rows.size() * all, &rng, 2);
    weights = RandomFloats(all + 2 * c.head_dim + c.head_dim / 2 + c.heads, &rng);
  }
  size_t Elements(int capacity) const {
    return static_cast<size_t>(kLayers) * shape.kv_heads * capacity * shape.head_dim;
  }

  struct Result {
    std::vector<uint16_t> out, keys, values;
    bool operator==(const Result&) const = default;
  };
  /// By one kernel, or by two.
  Result Run(bool fused, int pieces) const {
    const auto count = static_cast<int32_t>(rows.size());
    DeviceArray<uint16_t> k(keys), v(values), out(rows.size() * shape.heads * shape.head_dim);
    DeviceArray<float> products(qkv), w(weights);
    DeviceArray<RowInput> row_inputs(rows);
    std::vector<SequenceCache> caches;
    for (const auto& [at, capacity] : starts) {
      caches.push_back({k.get() + at, v.get() + at, capacity, 0});
    }
    DeviceArray<SequenceCache> sequences(caches);
    DeviceArray<float> partials(PartialBytes(count, shape.heads, shape.head_dim, pieces) /
                                sizeof(float));
    RotatedAttention a;
    a.rope.inputs = a.args.inputs = {row_inputs.get(), sequences.get(), nullptr};
    a.args.queries = a.rope.qkv = products.get();
    a.args.query_stride = all;
    a.args.out = out.get();
    a.args.rows = a.rope.rows = count;
    a.args.heads = a.rope.heads = shape.heads;
    a.args.kv_heads = a.rope.kv_heads = shape.kv_heads;
    a.args.head_dim = a.rope.head_dim = shape.head_dim;
    a.args.channels_before = a.rope.channels_before =
        int64_t{kLayer} * shape.kv_heads * shape.head_dim;
    a.args.window = shape.window;
    a.rope.bias = shape.bias ? w.get() : nullptr;
    a.rope.q_weight = shape.norm ? w.get() + all : nullptr;
    a.rope.k_weight = shape.norm ? w.get() + all + shape.head_dim : nullptr;
    a.rope.norm_eps = 1e-6f;
    a.rope.clip = shape.clip;
    a.rope.frequencies = w.get() + all + 2 * shape.head_dim;
    a.rope.rotated = shape.rotated;
    a.rope.extra = shape.extra;
    a.args.chunk = shape.chunk;
    if (shape.sinks) a.args.sinks = a.rope.frequencies + shape.head_dim / 2;
    if (fused) {
      REQUIRE(LaunchDecodeAttention(a, pieces, partials.get(), nullptr) == 0);
      CHECK(products.Get() == qkv);
    } else {
      REQUIRE(LaunchRope(a.rope, nullptr) == 0);
      REQUIRE(LaunchDecodeAttention(a.args, pieces, partials.get(), nullptr) == 0);
    }
    return {out.Get(), k.Get(), v.Get()};
  }

  const RotateCase shape;
  std::normal_distribution<float> normal;
  int all = 0, last = 0;
  std::vector<RowInput> rows;
  std::vector<std::pair<size_t, int>> starts;  // in the caches, and capacities
  std::vector<uint16_t> keys, values;
  std::vector<float> qkv, weights;
};

TEST_CASE("few rows: rotated, stored and attended for by one kernel, the bits of two") {
  const RotateCase cases[] = {
      {"qwen3", 32, 4, 128, 0, false, true, 0},
      {"qwen2", 4, 4, 64, 0, true, false, 0},
      {"window", 8, 2, 96, 300, true, true, 0},
      {"clipped", 6, 3, 16, 0, true, false, 0.7f},
      {"narrow", 4, 2, 32, 4, false, false, 0},
      {"two groups", 24, 2, 80, 0, false, true, 0},
      {"wide", 2, 1, 256, 0, false, false, 0},
      {"glm4: half of a head", 12, 2, 128, 0, true, true, 0, 32},
      {"qwen3_next: gated, a quarter", 16, 2, 256, 0, false, true, 0, 32, 16 * 256},
      {"gpt_oss: sinks", 16, 2, 64, 128, true, false, 0, kMaxRotations, 0, 0, true},
      {"llama4: chunks", 8, 2, 128, 0, false, true, 0, kMaxRotations, 0, 300},
      {"without RoPE", 4, 2, 32, 0, false, false, 0, 0},
  };
  for (const RotateCase& c : cases) {
    INFO(c.what);
    const RotateProblem problem(c);
    const int pieces = PiecesFor(problem.last);
    REQUIRE(pieces == 2);
    const auto expected = problem.Run(false, pieces);
    CHECK(Widened(expected.out) == Widened(expected.out));  // numbers all
    CHECK(problem.Run(true, pieces) == expected);
    CHECK(problem.Run(true, 4) == expected);
  }
  // In one piece, which a cluster adds up.
  RotateCase one = cases[0];
  one.window = 0;
  RotateProblem problem(one);
  problem.rows.resize(3);
  problem.qkv.resize(3 * problem.all);
  const auto expected = problem.Run(false, 1);
  CHECK(problem.Run(true, 1) == expected);
  CHECK(problem.Run(true, 2) == expected);
}

TEST_CASE("what cannot run is refused") {
  AttentionArgs args;
  args.rows = 1;
  args.heads = args.kv_heads = 1;
  for (const int dim : {8, 24, 272}) {
    args.head_dim = dim;
    CHECK(LaunchDecodeAttention(args, 1, nullptr, nullptr) != 0);
    CHECK(LaunchPrefillAttention(args, 1, nullptr) != 0);
  }
  RotatedAttention rotated;
  rotated.args = args;
  rotated.args.head_dim = 16;
  const float weight = 1;
  rotated.rope.q_weight = &weight;
  RopeArgs& rope = rotated.rope;
  rope.norm_full = true;
  CHECK(LaunchDecodeAttention(rotated, 1, nullptr, nullptr) != 0);
  rope.norm_full = false;
  rope.norm_last = true;
  CHECK(LaunchDecodeAttention(rotated, 1, nullptr, nullptr) != 0);
  rope.norm_last = false;
  rope.temperature_scale = 0.1f;
  CHECK(LaunchDecodeAttention(rotated, 1, nullptr, nullptr) != 0);
}

}  // namespace
}  // namespace moert::test
