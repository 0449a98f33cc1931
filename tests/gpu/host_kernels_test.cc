// Every kernel of the host's dense parts against the same arithmetic in fp64 on the CPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "device_array.h"
#include "device_step.h"
#include "device_time.h"
#include "host/blocks/mlp.h"
#include "host/blocks/rope.h"
#include "host/cuda/cublas.h"
#include "host/cuda/few_rows_kernel.h"
#include "host/cuda/gemm_kernel.h"
#include "host/cuda/norm_kernel.h"
#include "host/cuda/rope_kernel.h"
#include "host/cuda/token_kernels.h"
#include "host/sampling.h"

namespace moert::test {
namespace {

using namespace host;

TEST_CASE("root-mean-square and layer norms, with and without something added first") {
  std::mt19937 rng(1);
  for (const int width : {16, 64, 160, 2048, 5000}) {
    for (const bool layer : {false, true}) {
      for (const bool add : {false, true}) {
        INFO("width " << width << (layer ? " layer" : " rms") << (add ? " + delta" : ""));
        const int rows = 5;
        const auto x = RandomFloats(rows * width, &rng, 3), d = RandomFloats(rows * width, &rng);
        const auto w = RandomFloats(width, &rng), b = RandomFloats(width, &rng);
        DeviceArray<float> residual(x), delta(d), weight(w), bias(b), f32(rows * width);
        DeviceArray<uint16_t> bf16(rows * width);
        NormArgs args;
        args.residual = residual.get();
        args.delta = add ? delta.get() : nullptr;
        args.weight = weight.get();
        args.bias = layer ? bias.get() : nullptr;
        args.eps = 1e-5f;
        args.rows = rows;
        args.width = width;
        args.f32 = f32.get();
        args.bf16 = bf16.get();
        REQUIRE(LaunchNorm(args, nullptr) == 0);
        std::vector<double> sum(rows * width), expected(rows * width);
        for (int r = 0; r < rows; ++r) {
          double mean = 0, squares = 0;
          for (int i = 0; i < width; ++i) {
            const int at = r * width + i;
            sum[at] = static_cast<double>(x[at]) + (add ? d[at] : 0.0f);
            mean += sum[at] / width;
          }
          if (!layer) mean = 0;
          for (int i = 0; i < width; ++i) squares += std::pow(sum[r * width + i] - mean, 2) / width;
          for (int i = 0; i < width; ++i) {
            const int at = r * width + i;
            expected[at] = (sum[at] - mean) / std::sqrt(squares + 1e-5) * w[i] + (layer ? b[i] : 0);
          }
        }
        CHECK(RelativeError(residual.Get(), sum) < 1e-6);
        CHECK(RelativeError(f32.Get(), expected) < 1e-6);
        CHECK(Widened(bf16.Get()) == Widened(Rounded(f32.Get())));
      }
    }
  }
}

struct RopeCase {
  const char* what;
  RopeKind kind;
  bool bias, per_head, full;
  float clip;
  int head_dim, heads, kv_heads;
  int rotated = 0;  // channels; 0: all
  bool last = false;
  float temperature = 0;
  int extra = 0;
};

/// Rotates `rotated` channels of a head whose pairs are half a head apart.
void RotatePairs(const Rope& rope, int set, int position, int rotated, int head_dim, float* head) {
  const int turning = rotated / 2, half = head_dim / 2;
  std::vector<float> part(rotated);
  for (int i = 0; i < turning; ++i) part[i] = head[i], part[turning + i] = head[half + i];
  rope.Rotate(set, position, part.data());
  for (int i = 0; i < turning; ++i) head[i] = part[i], head[half + i] = part[turning + i];
}

TEST_CASE("bias, norms, clipping, rotation and the cache") {
  const RopeCase cases[] = {
      {"plain", RopeKind::kDefault, false, false, false, 0, 32, 4, 2},
      {"qwen2: bias", RopeKind::kDefault, true, false, false, 0, 64, 4, 4},
      {"qwen3: norm of each head, YaRN", RopeKind::kYarn, false, true, false, 0, 128, 8, 2},
      {"olmoe: norm of all heads, clipped", RopeKind::kLinear, false, false, true, 0.7f, 16, 6, 3},
      {"phimoe: two sets", RopeKind::kLongRope, true, false, false, 0, 96, 4, 1},
      {"llama3", RopeKind::kLlama3, false, false, false, 0, 256, 2, 1},
      {"glm4: half of a head", RopeKind::kYarn, true, true, false, 0, 128, 6, 2, 64},
      {"qwen3_next: a quarter, gated", RopeKind::kDefault, false, true, false, 0, 256, 4, 2, 64,
       false, 0, 4 * 256},
      {"minimax: norm of all heads, a part", RopeKind::kDefault, false, false, true, 0, 32, 4, 2,
       16},
      {"hunyuan: norm behind the rotation", RopeKind::kYarn, false, true, false, 0, 128, 4, 2, 0,
       true},
      {"llama4: without RoPE, with a temperature", RopeKind::kDefault, false, false, false, 0, 16,
       4, 2, -1, false, 0.1f},
  };
  std::mt19937 rng(2);
  for (const RopeCase& c : cases) {
    INFO(c.what);
    RopeConfig config;
    config.kind = c.kind;
    config.factor = 4;
    config.original_max_positions = 64;
    config.low_freq_factor = 1;
    config.high_freq_factor = 4;
    config.short_factor.assign(c.head_dim / 2, 1.1);
    config.long_factor.assign(c.head_dim / 2, 1.7);
    const int rotated = c.rotated == 0 ? c.head_dim : std::max(c.rotated, 0);
    config.dim = std::max(rotated, 2);
    Rope rope(config);
    rope.Extend(4096);
    std::vector<float> frequencies;
    for (int s = 0; s < rope.num_sets(); ++s) {
      auto f = rope.inverse_frequencies(s);
      f.resize(c.head_dim / 2);
      frequencies.insert(frequencies.end(), f.begin(), f.end());
    }
    const int layers = 3, layer = 1, rows = 6, capacity = 4000;
    const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, all = q + 2 * kv;
    const size_t cached = static_cast<size_t>(layers) * c.kv_heads * capacity * c.head_dim;
    DeviceArray<uint16_t> keys(2 * cached), values(2 * cached);
    const std::vector<RowInput> inputs = {{0, 0, 0},    {0, 1, 0},   {0, 2, 0},
                                          {0, 3999, 1}, {0, 513, 1}, {0, 17, 0}};
    const int set = rope.SetOf(capacity);
    const std::vector<SequenceCache> sequences = {
        {keys.get(), values.get(), capacity, 0},
        {keys.get() + cached, values.get() + cached, capacity, set}};
    const int stride = all + c.extra;
    const auto x = RandomFloats(rows * stride, &rng), bias = RandomFloats(all, &rng);
    const auto qw = RandomFloats(q, &rng), kw = RandomFloats(kv, &rng);
    DeviceArray<float> qkv(x), b(bias), q_weight(qw), k_weight(kw), f(frequencies);
    DeviceArray<RowInput> row_inputs(inputs);
    DeviceArray<SequenceCache> caches(sequences);
    RopeArgs args;
    args.inputs = {row_inputs.get(), caches.get(), nullptr};
    args.qkv = qkv.get();
    args.bias = c.bias ? b.get() : nullptr;
    args.q_weight = c.per_head || c.full ? q_weight.get() : nullptr;
    args.k_weight = c.per_head || c.full ? k_weight.get() : nullptr;
    args.norm_full = c.full;
    args.norm_last = c.last;
    args.rotated = rotated / 2;
    args.temperature_scale = c.temperature;
    args.temperature_floor = 4;
    args.extra = c.extra;
    args.norm_eps = 1e-6f;
    args.clip = c.clip;
    args.frequencies = f.get();
    for (int s = 0; s < rope.num_sets(); ++s) args.factors[s] = rope.attention_factor(s);
    args.rows = rows;
    args.heads = c.heads;
    args.kv_heads = c.kv_heads;
    args.head_dim = c.head_dim;
    args.channels_before = int64_t{layer} * c.kv_heads * c.head_dim;
    REQUIRE(LaunchRope(args, nullptr) == 0);

    const auto norm = [](float* v, int n, const float* weight) {
      double squares = 0;
      for (int i = 0; i < n; ++i) squares += static_cast<double>(v[i]) * v[i] / n;
      for (int i = 0; i < n; ++i) {
        v[i] = static_cast<float>(v[i] / std::sqrt(squares + 1e-6)) * weight[i];
      }
    };
    const auto got = qkv.Get();
    const auto k_got = keys.Get(), v_got = values.Get();
    for (int r = 0; r < rows; ++r) {
      INFO("row " << r);
      std::vector<float> y(x.begin() + r * stride, x.begin() + r * stride + all);
      for (int i = 0; i < all && c.bias; ++i) y[i] += bias[i];
      if (c.full) {
        norm(y.data(), q, qw.data());
        norm(y.data() + q, kv, kw.data());
      }
      for (int i = 0; i < all && c.clip > 0; ++i) y[i] = std::clamp(y[i], -c.clip, c.clip);
      const int used = sequences[inputs[r].sequence].rope_set;
      for (int h = 0; h < c.heads + c.kv_heads; ++h) {
        float* head = y.data() + h * c.head_dim;
        const float* weight = h < c.heads ? qw.data() : kw.data();
        if (c.per_head && !c.last) norm(head, c.head_dim, weight);
        if (rotated > 0) RotatePairs(rope, used, inputs[r].position, rotated, c.head_dim, head);
        if (c.last) norm(head, c.head_dim, weight);
      }
      const double warm =
          1 + c.temperature * std::log1p(std::floor((inputs[r].position + 1) / 4.0));
      for (int i = 0; i < q; ++i) y[i] = static_cast<float>(y[i] * warm);
      const std::vector<float> queries(got.begin() + r * stride, got.begin() + r * stride + q);
      // Gates stay.
      CHECK(std::equal(x.begin() + r * stride + all, x.begin() + (r + 1) * stride,
                       got.begin() + r * stride + all));
      CHECK(RelativeError(queries, {y.begin(), y.begin() + q}) < 2e-6);
      std::vector<float> stored_k, stored_v;
      for (int h = 0; h < c.kv_heads; ++h) {
        const size_t at =
            inputs[r].sequence * cached +
            ((static_cast<size_t>(layer) * c.kv_heads + h) * capacity + inputs[r].position) *
                c.head_dim;
        for (int i = 0; i < c.head_dim; ++i) {
          stored_k.push_back(Bf16ToF32(k_got[at + i]));
          stored_v.push_back(Bf16ToF32(v_got[at + i]));
        }
      }
      CHECK(RelativeError(stored_k, {y.begin() + q, y.begin() + q + kv}) < 3e-3);
      CHECK(RelativeError(stored_v, {y.begin() + q + kv, y.end()}) < 3e-3);
    }
    // Nothing else was written.
    size_t written = 0;
    for (const uint16_t v : k_got) written += v != 0xffff;
    CHECK(written == static_cast<size_t>(rows) * kv);
  }
}

/// x W^T (+ y), in fp64.
std::vector<double> Product(const std::vector<uint16_t>& x, const std::vector<uint16_t>& w,
                            const std::vector<float>& y, int rows, int in, int out) {
  const auto a = Widened(x), b = Widened(w);
  std::vector<double> expected(rows * out);
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < out; ++n) {
      double sum = y.empty() ? 0 : y[r * out + n];
      for (int k = 0; k < in; ++k) sum += static_cast<double>(a[r * in + k]) * b[n * in + k];
      expected[r * out + n] = sum;
    }
  }
  return expected;
}

void CheckProducts(const std::function<int(const DenseGemm&)>& multiply, bool rows_alone) {
  std::mt19937 rng(3);
  for (const int rows : {1, 2, 3, 4, 7, 8, 9, 33, 130}) {
    for (const auto& [in, out] : {std::pair{64, 128}, {128, 4096}, {160, 48}, {264, 33}}) {
      for (const bool accumulate : {false, true}) {
        INFO(rows << " x " << in << " -> " << out << (accumulate ? ", added" : ""));
        const auto x = Rounded(RandomFloats(rows * in, &rng));
        const auto w = Rounded(RandomFloats(out * in, &rng));
        const auto before = RandomFloats(rows * out, &rng);
        DeviceArray<uint16_t> dx(x), dw(w);
        DeviceArray<float> dy(static_cast<size_t>(rows) * out);
        if (accumulate) dy.Set(before);
        REQUIRE(multiply({dx.get(), dw.get(), dy.get(), rows, in, out, accumulate}) == 0);
        const auto got = dy.Get();
        const auto expected =
            Product(x, w, accumulate ? before : std::vector<float>{}, rows, in, out);
        CHECK(RelativeError(got, expected) < 2e-6);
        if (!rows_alone || accumulate) continue;
        REQUIRE(multiply({dx.get() + (rows - 1) * in, dw.get(), dy.get(), 1, in, out}) == 0);
        CHECK(std::memcmp(dy.Get().data(), got.data() + (rows - 1) * out, out * 4) == 0);
      }
    }
  }
}

TEST_CASE("the own product, whose rows do not depend on each other") {
  CheckProducts([](const DenseGemm& g) { return LaunchDenseGemm(g, nullptr); }, true);
  // A width that is no multiple of a 16-byte load.
  std::mt19937 rng(4);
  const auto x = Rounded(RandomFloats(5 * 51, &rng)), w = Rounded(RandomFloats(9 * 51, &rng));
  DeviceArray<uint16_t> dx(x), dw(w);
  DeviceArray<float> dy(5 * 9);
  REQUIRE(LaunchDenseGemm({dx.get(), dw.get(), dy.get(), 5, 51, 9}, nullptr) == 0);
  CHECK(RelativeError(dy.Get(), Product(x, w, {}, 5, 51, 9)) < 2e-6);
}

TEST_CASE("cuBLAS, where it is installed") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  {
    const auto cublas = Cublas::Open(stream);
    if (absl::IsNotFound(cublas.status())) {
      WARN(cublas.status().ToString());
      CHECK(std::string(cublas.status().message()).find("libcublas.so.") != std::string::npos);
    } else {
      REQUIRE_OK(cublas.status());
      CheckProducts([&](const DenseGemm& g) { return (*cublas)->Multiply(g).ok() ? 0 : 1; }, false);
    }
  }
  cudaStreamDestroy(stream);
}

TEST_CASE("embedding, activations and bias") {
  std::mt19937 rng(5);
  const int rows = 3, width = 300;
  const auto table = Rounded(RandomFloats(50 * width, &rng));
  const std::vector<RowInput> inputs = {{49, 0, 0}, {0, 1, 0}, {7, 2, 0}};
  DeviceArray<uint16_t> dt(table);
  DeviceArray<RowInput> di(inputs);
  DeviceArray<float> out(rows * width);
  REQUIRE(LaunchEmbed(di.get(), dt.get(), rows, width, out.get(), nullptr) == 0);
  const auto widened = Widened(table);
  for (int r = 0; r < rows; ++r) {
    CHECK(std::memcmp(out.Get().data() + r * width, widened.data() + inputs[r].token * width,
                      width * 4) == 0);
  }
  const auto x = RandomFloats(rows * 2 * width, &rng, 3);
  DeviceArray<float> dx(x);
  DeviceArray<uint16_t> activated(rows * width);
  for (const Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
    REQUIRE(LaunchGatedActivation(dx.get(), static_cast<int>(kind), rows, width, activated.get(),
                                  nullptr) == 0);
    std::vector<double> expected;
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < width; ++i) {
        expected.push_back(Activate(kind, x[r * 2 * width + i]) * x[r * 2 * width + width + i]);
      }
    }
    CHECK(RelativeError(Widened(activated.Get()), expected) < 3e-3);
  }
  const auto bias = RandomFloats(width, &rng);
  DeviceArray<float> db(bias);
  REQUIRE(LaunchAddBias(out.get(), db.get(), rows, width, nullptr) == 0);
  CHECK(out.Get()[2 * width + 5] == widened[7 * width + 5] + bias[5]);
}

TEST_CASE("the best token and a target's score") {
  std::mt19937 rng(6);
  const float inf = std::numeric_limits<float>::infinity();
  for (const int vocab : {5, 128, 4096, 151936}) {
    INFO(vocab);
    const int rows = 6;
    auto x = RandomFloats(static_cast<size_t>(rows) * vocab, &rng, 4);
    x[vocab + 3] = x[vocab + 2] = 100;  // equals: the lower index
    x[2 * vocab + vocab - 1] = std::nanf("");
    std::fill_n(x.begin() + 3 * vocab, vocab, -inf);
    x[4 * vocab + 1] = inf;
    std::fill_n(x.begin() + 5 * vocab, vocab - 1, -inf);
    DeviceArray<float> logits(x);
    DeviceArray<int32_t> best(rows);
    DeviceArray<std::byte> scratch(std::vector<std::byte>(BestBytes(rows)));
    const auto row = [&](int r) {
      return absl::MakeConstSpan(x).subspan(static_cast<size_t>(r) * vocab, vocab);
    };
    for (const int again : {rows, 1, rows}) {  // it leaves its scratch as it found it
      REQUIRE(LaunchBest(logits.get(), again, vocab, scratch.get(), best.get(), nullptr) == 0);
      CHECK(best.Get() == std::vector<int32_t>{*ArgMax(row(0)), 2, kNotANumber, kNotFinite,
                                               kNotFinite, vocab - 1});
    }
    DeviceArray<int32_t> targets(std::vector<int32_t>{vocab - 1, 4});
    DeviceArray<double> nll(2);
    REQUIRE(LaunchScore(logits.get(), targets.get(), 2, vocab, nll.get(), nullptr) == 0);
    const auto got = nll.Get();
    CHECK(got[0] == Approx(LogSumExp(row(0)) - row(0)[vocab - 1]).margin(1e-5));
    CHECK(got[1] == Approx(LogSumExp(row(1)) - row(1)[4]).margin(1e-5));
  }
}

TEST_CASE("rates of the own products and cuBLAS", "[.][bench]") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  const auto cublas = Cublas::Open(stream);
  std::mt19937 rng(7);
  std::printf("rows  in -> out: microseconds of few rows, of any, of cuBLAS\n");
  for (const auto& [in, out] :
       {std::pair{128, 256}, {128, 4096}, {2048, 5120}, {4096, 2048}, {2048, 151936}}) {
    for (const int rows : {1, 2, 8, 16, 512, 2048}) {
      if (rows == 2048 && out > 100000) continue;
      // Copies that together do not fit the cache.
      const int copies = std::clamp<int>((256 << 20) / (in * out * 2), 1, 256);
      DeviceArray<uint16_t> w(static_cast<size_t>(copies) * in * out);
      REQUIRE(cudaMemset(w.get(), 0x3c, static_cast<size_t>(copies) * in * out * 2) == cudaSuccess);
      DeviceArray<uint16_t> x(Rounded(RandomFloats(static_cast<size_t>(rows) * in, &rng)));
      DeviceArray<float> y(static_cast<size_t>(rows) * out);
      const auto weights = [&](int i) {
        return w.get() + static_cast<size_t>(i % copies) * in * out;
      };
      double us[3] = {0, 0, 0};
      if (FewRowsRun(rows, in)) {
        us[0] = Microseconds(stream, [&](int i) {
          FewRowsProduct f;
          f.w = weights(i);
          f.rows = rows;
          f.in = in;
          f.out = out;
          f.x = x.get();
          f.y = y.get();
          REQUIRE(LaunchFewRows(f, stream) == 0);
        });
      }
      const auto gemm = [&](int i) {
        return DenseGemm{x.get(), weights(i), y.get(), rows, in, out};
      };
      if (rows <= 16) {
        us[1] =
            Microseconds(stream, [&](int i) { REQUIRE(LaunchDenseGemm(gemm(i), stream) == 0); });
      }
      if (cublas.ok()) {
        us[2] = Microseconds(stream, [&](int i) { REQUIRE_OK((*cublas)->Multiply(gemm(i))); });
      }
      std::printf("%4d  %5d -> %6d: %8.2f %8.2f %8.2f\n", rows, in, out, us[0], us[1], us[2]);
    }
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace moert::test
