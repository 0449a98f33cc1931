// Products of few rows with norms and residual stream in one launch, against fp64; and rates.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "device_array.h"
#include "device_step.h"
#include "device_time.h"
#include "host/cuda/attention_kernel.h"
#include "host/cuda/few_rows_kernel.h"

namespace moert::test {
namespace {

using namespace host;

constexpr float kEps = 1e-5f;

/// Inputs of a product of kFewRows rows, and what it must answer.
struct Problem {
  Problem(int in_, int out_, std::mt19937* rng) : in(in_), out(out_) {
    const size_t rows = kFewRows;
    residual = RandomFloats(rows * in, rng, 3);
    delta = RandomFloats(rows * in, rng, 2);
    weight = RandomFloats(in, rng);
    bias = RandomFloats(out, rng);
    before = RandomFloats(rows * out, rng);
    x = Rounded(RandomFloats(rows * in, rng));
    w = Rounded(RandomFloats(static_cast<size_t>(out) * in, rng));
  }

  /// Rows of the norm of residual (+ delta), in fp64.
  std::vector<double> Normed(bool add) const {
    std::vector<double> rows(residual.size());
    for (int r = 0; r < kFewRows; ++r) {
      double squares = 0;
      for (int i = 0; i < in; ++i) {
        double& v = rows[r * in + i];
        v = static_cast<double>(residual[r * in + i]) + (add ? delta[r * in + i] : 0.0f);
        squares += v * v / in;
      }
      for (int i = 0; i < in; ++i) rows[r * in + i] *= weight[i] / std::sqrt(squares + kEps);
    }
    return rows;
  }
  std::vector<double> Product(const std::vector<double>& rows) const {
    std::vector<double> y(kFewRows * static_cast<size_t>(out));
    for (int r = 0; r < kFewRows; ++r) {
      for (int o = 0; o < out; ++o) {
        for (int i = 0; i < in; ++i) {
          y[r * out + o] += rows[r * in + i] * Bf16ToF32(w[static_cast<size_t>(o) * in + i]);
        }
      }
    }
    return y;
  }

  const int in, out;
  std::vector<float> residual, delta, weight, bias, before;
  std::vector<uint16_t> x, w;
};

template <typename T>
std::vector<T> First(const std::vector<T>& values, int64_t count) {
  return {values.begin(), values.begin() + count};
}

/// The first `rows` rows in y, which `fill` says how to make.
std::vector<float> Run(const Problem& p, int rows, const std::function<void(FewRowsProduct*)>& fill,
                       float* y) {
  DeviceArray<uint16_t> w(p.w);
  FewRowsProduct product;
  product.w = w.get();
  product.rows = rows;
  product.in = p.in;
  product.out = p.out;
  product.y = y;
  fill(&product);
  REQUIRE(LaunchFewRows(product, nullptr) == 0);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<float> got(static_cast<size_t>(rows) * p.out);
  REQUIRE(cudaMemcpy(got.data(), y, got.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  return got;
}

/// The rows that both have are the same bits; keeps the more of them.
void CheckSameRows(const std::vector<float>& rows, std::vector<float>* most) {
  const auto both = static_cast<int64_t>(std::min(rows.size(), most->size()));
  CHECK(First(rows, both) == First(*most, both));
  if (rows.size() > most->size()) *most = rows;
}

const std::vector<std::pair<int, int>> kShapes = {
    {8, 5}, {64, 160}, {264, 17}, {2048, 5120}, {2056, 300}, {4096, 2048}, {5000, 33}, {10944, 64}};

TEST_CASE("few rows by a matrix: every number of rows, the same bits") {
  std::mt19937 rng(1);
  for (const auto& [in, out] : kShapes) {
    const Problem p(in, out, &rng);
    std::vector<double> rows;
    for (const uint16_t v : p.x) rows.push_back(Bf16ToF32(v));
    std::vector<double> expected = p.Product(rows), added = expected;
    for (int r = 0; r < kFewRows; ++r) {
      for (int o = 0; o < out; ++o) added[r * out + o] += p.before[r * out + o] + p.bias[o];
    }
    DeviceArray<uint16_t> x(p.x);
    DeviceArray<float> bias(p.bias);
    std::vector<float> whole;
    for (const int count : {kFewRows, 1, 2, 3, 7}) {
      INFO(in << " -> " << out << ", rows " << count);
      if (!FewRowsRun(count, in)) continue;
      DeviceArray<float> y(kFewRows * static_cast<size_t>(out));
      const auto got = Run(
          p, count, [&](FewRowsProduct* f) { f->x = x.get(); }, y.get());
      CHECK(RelativeError(got, First(expected, got.size())) < 1e-5);
      CheckSameRows(got, &whole);

      DeviceArray<float> sum(p.before);
      const auto accumulated = Run(
          p, count,
          [&](FewRowsProduct* f) {
            f->x = x.get();
            f->accumulate = true;
            f->bias = bias.get();
          },
          sum.get());
      CHECK(RelativeError(accumulated, First(added, accumulated.size())) < 1e-5);
      // Rows that are not the product's keep what they held.
      const auto all = sum.Get();
      CHECK(std::equal(all.begin() + accumulated.size(), all.end(),
                       p.before.begin() + accumulated.size()));
    }
  }
}

TEST_CASE("few rows that are normalized on the way") {
  std::mt19937 rng(2);
  for (const auto& [in, out] : kShapes) {
    const Problem p(in, out, &rng);
    DeviceArray<float> residual(p.residual), delta(p.delta), weight(p.weight);
    for (const bool add : {false, true}) {
      const std::vector<double> expected = p.Product(p.Normed(add));
      std::vector<float> whole;
      for (const int count : {kFewRows, 1, 2, 3, 7}) {
        INFO(in << " -> " << out << ", rows " << count << (add ? " + delta" : ""));
        if (!FewRowsRun(count, in)) continue;
        DeviceArray<float> y(kFewRows * static_cast<size_t>(out)), sum(p.residual.size());
        const auto got = Run(
            p, count,
            [&](FewRowsProduct* f) {
              f->normed.residual = residual.get();
              f->normed.delta = add ? delta.get() : nullptr;
              f->normed.sum = sum.get();
              f->normed.weight = weight.get();
              f->normed.eps = kEps;
            },
            y.get());
        // The rows are rounded to bf16.
        CHECK(RelativeError(got, First(expected, got.size())) < 4e-3);
        CheckSameRows(got, &whole);
        if (!add) continue;
        const auto stored = sum.Get();
        for (int i = 0; i < count * in; ++i) REQUIRE(stored[i] == p.residual[i] + p.delta[i]);
        CHECK(residual.Get() == p.residual);
      }
    }
  }
}

TEST_CASE("a product with the next norm behind it") {
  std::mt19937 rng(3);
  for (const auto& [in, out] : kShapes) {
    for (const bool layer_norm : {false, true}) {
      INFO(in << " -> " << out << (layer_norm ? " layer" : " rms"));
      const Problem p(in, out, &rng);
      DeviceArray<uint16_t> x(p.x);
      DeviceArray<float> y(p.before), weight(p.bias), bias(p.bias);
      DeviceArray<float> f32(out), again(out);
      DeviceArray<uint32_t> ticket(std::vector<uint32_t>{0});
      NormArgs then;
      then.residual = y.get();
      then.weight = weight.get();
      then.bias = layer_norm ? bias.get() : nullptr;
      then.eps = kEps;
      then.rows = 1;
      then.width = out;
      then.f32 = f32.get();
      for (int repeat = 0; repeat < 3; ++repeat) {
        Run(
            p, 1,
            [&](FewRowsProduct* f) {
              f->x = x.get();
              f->accumulate = true;
              f->ticket = ticket.get();
              f->then = then;
            },
            y.get());
        // The bits of a norm on its own.
        NormArgs alone = then;
        alone.f32 = again.get();
        REQUIRE(LaunchNorm(alone, nullptr) == 0);
        CHECK(f32.Get() == again.Get());
        CHECK(ticket.Get()[0] == 0);
      }
    }
  }
}

TEST_CASE("few rows: what cannot run is refused") {
  FewRowsProduct product;
  product.out = 16;
  for (const auto& [rows, in] : {std::pair{0, 64}, {9, 64}, {1, 12}, {8, 1 << 20}}) {
    product.rows = rows;
    product.in = in;
    CHECK(LaunchFewRows(product, nullptr) != 0);
  }
}

/// Qwen3-30B-A3B's dense parts, over more copies of the weights than the caches hold.
struct LayerBench {
  static constexpr int kHidden = 2048, kHeads = 32, kKvHeads = 4, kDim = 128, kCopies = 12;
  static constexpr int kQ = kHeads * kDim, kQkv = kQ + 2 * kKvHeads * kDim;

  LayerBench(int rows_, int context) : rows(rows_) {
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    std::mt19937 rng(7);
    const int64_t capacity = context + 8;
    const size_t cached = static_cast<size_t>(rows) * kCopies * kKvHeads * capacity * kDim;
    keys = std::make_unique<DeviceArray<uint16_t>>(cached);
    values = std::make_unique<DeviceArray<uint16_t>>(cached);
    for (auto* array : {keys.get(), values.get()}) {
      REQUIRE(cudaMemset(array->get(), 0x3c, cached * 2) == cudaSuccess);
    }
    for (auto* array : {&qkv_w, &o_w}) {
      REQUIRE(cudaMemset(array->get(), 0x3c,
                         sizeof(uint16_t) * kCopies * kHidden * (array == &o_w ? kQ : kQkv)) ==
              cudaSuccess);
    }
    std::vector<RowInput> inputs;
    std::vector<SequenceCache> caches;
    for (int r = 0; r < rows; ++r) {
      const size_t at = r * (cached / rows);
      inputs.push_back({0, context, r});
      caches.push_back({keys->get() + at, values->get() + at, capacity, 0});
    }
    row_inputs.Set(inputs);
    sequences.Set(caches);
    residual.Set(RandomFloats(kFewRows * kHidden, &rng));
    delta.Set(RandomFloats(kFewRows * kHidden, &rng));
    weight.Set(std::vector<float>(kHidden, 1.0f));
    frequencies.Set(std::vector<float>(kDim / 2, 0.1f));
    ticket.Set({0});
    pieces = PiecesFor(context);
    partials = std::make_unique<DeviceArray<float>>(PartialBytes(rows, kHeads, kDim, pieces) / 4);
  }
  ~LayerBench() { cudaStreamDestroy(stream); }

  void Qkv(int i) {
    FewRowsProduct p;
    p.w = qkv_w.get() + static_cast<size_t>(i % kCopies) * kHidden * kQkv;
    p.rows = rows;
    p.in = kHidden;
    p.out = kQkv;
    p.normed = {residual.get(), delta.get(), sum.get(), weight.get(), kEps};
    p.y = qkv.get();
    REQUIRE(LaunchFewRows(p, stream) == 0);
  }
  void Attention(int i) {
    RotatedAttention a;
    a.args.inputs = a.rope.inputs = {row_inputs.get(), sequences.get(), nullptr};
    a.args.query_stride = kQkv;
    a.args.out = mixed.get();
    a.args.rows = a.rope.rows = rows;
    a.args.heads = a.rope.heads = kHeads;
    a.args.kv_heads = a.rope.kv_heads = kKvHeads;
    a.args.head_dim = a.rope.head_dim = kDim;
    a.args.channels_before = a.rope.channels_before = int64_t{i % kCopies} * kKvHeads * kDim;
    a.rope.qkv = qkv.get();
    a.rope.q_weight = a.rope.k_weight = weight.get();
    a.rope.norm_eps = kEps;
    a.rope.frequencies = frequencies.get();
    REQUIRE(LaunchDecodeAttention(a, pieces, partials->get(), stream) == 0);
  }
  void Output(int i) {
    FewRowsProduct p;
    p.w = o_w.get() + static_cast<size_t>(i % kCopies) * kHidden * kQ;
    p.rows = rows;
    p.in = kQ;
    p.out = kHidden;
    p.x = mixed.get();
    p.y = sum.get();
    p.accumulate = true;
    NormArgs then;
    then.residual = sum.get();
    then.weight = weight.get();
    then.rows = rows;
    then.width = kHidden;
    then.f32 = normed.get();
    if (rows == 1) {
      p.ticket = ticket.get();
      p.then = then;
    }
    REQUIRE(LaunchFewRows(p, stream) == 0);
    if (rows > 1) REQUIRE(LaunchNorm(then, stream) == 0);
  }

  const int rows;
  int pieces = 1;
  cudaStream_t stream = nullptr;
  std::unique_ptr<DeviceArray<uint16_t>> keys, values;
  std::unique_ptr<DeviceArray<float>> partials;
  DeviceArray<uint16_t> qkv_w{size_t{kCopies} * kHidden * kQkv},
      o_w{size_t{kCopies} * kHidden * kQ};
  DeviceArray<float> residual{kFewRows * kHidden}, delta{kFewRows * kHidden},
      sum{kFewRows * kHidden}, normed{kFewRows * kHidden}, weight{kHidden}, frequencies{kDim / 2},
      qkv{kFewRows * kQkv};
  DeviceArray<uint16_t> mixed{kFewRows * kQ};
  DeviceArray<uint32_t> ticket{1};
  DeviceArray<RowInput> row_inputs{kFewRows};
  DeviceArray<SequenceCache> sequences{kFewRows};
};

TEST_CASE("the dense part of a layer", "[.][bench]") {
  std::printf(
      "rows context: microseconds q, k, v; attention; output and norm; all three in turn\n");
  for (const int rows : {1, 4, 8}) {
    for (const int context : {100, 1900, 2100, 16000}) {
      LayerBench bench(rows, context);
      const double qkv = Microseconds(bench.stream, [&](int i) { bench.Qkv(i); });
      const double attention = Microseconds(bench.stream, [&](int i) { bench.Attention(i); });
      const double output = Microseconds(bench.stream, [&](int i) { bench.Output(i); });
      const double all = Microseconds(bench.stream, [&](int i) {
        bench.Qkv(i);
        bench.Attention(i);
        bench.Output(i);
      });
      std::printf("%4d %7d: %7.2f %7.2f %7.2f %7.2f\n", rows, context, qkv, attention, output, all);
      if (rows > 1 && context == 1900) break;
    }
  }
}

}  // namespace
}  // namespace moert::test
