// The gated delta net's kernels, and the gate behind attention, against fp64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "device_array.h"
#include "device_step.h"
#include "host/cuda/delta_net_kernel.h"
#include "host/cuda/output_gate_kernel.h"

namespace moert::test {
namespace {

using namespace host;

struct Sizes {
  int key_heads, value_heads, key_dim, value_dim, kernel;
  int keys() const { return key_heads * key_dim; }
  int values() const { return value_heads * value_dim; }
  int channels() const { return 2 * keys() + values(); }
  int stride() const { return channels() + values() + 2 * value_heads; }
};
constexpr int kLayers = 3, kLayer = 1;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// A net with the rows of one sequence.
struct Net {
  Net(const Sizes& sizes, int rows) : s(sizes) {
    std::mt19937 rng(s.key_dim + rows);
    projected = RandomFloats(static_cast<size_t>(rows) * s.stride(), &rng);
    convolution = RandomFloats(static_cast<size_t>(s.kernel) * s.channels(), &rng, 0.5f);
    rate = RandomFloats(s.value_heads, &rng);
    for (float& r : rate) r = std::exp(r);
    dt_bias = RandomFloats(s.value_heads, &rng);
    norm = RandomFloats(s.value_dim, &rng);
  }

  /// The outputs of all rows, from an empty state.
  std::vector<double> Expected() const {
    const int rows = static_cast<int>(projected.size()) / s.stride();
    std::vector<double> out(static_cast<size_t>(rows) * s.values());
    std::vector<double> state(static_cast<size_t>(s.value_heads) * s.key_dim * s.value_dim);
    for (int r = 0; r < rows; ++r) {
      const float* const x = projected.data() + static_cast<size_t>(r) * s.stride();
      const std::vector<double> y = Convolved(r);
      for (int h = 0; h < s.value_heads; ++h) {
        const int key_head = h / (s.value_heads / s.key_heads);
        const double beta = Sigmoid(x[s.channels() + s.values() + h]);
        const double a = x[s.channels() + s.values() + s.value_heads + h] + dt_bias[h];
        const double decay = std::exp(-rate[h] * std::log1p(std::exp(a)));
        double squares = 0;
        double* const to = out.data() + (static_cast<size_t>(r) * s.value_heads + h) * s.value_dim;
        for (int j = 0; j < s.value_dim; ++j) {
          double answer = 0;
          const auto at = [&](int i) -> double& {
            return state[(static_cast<size_t>(h) * s.key_dim + i) * s.value_dim + j];
          };
          const double* const query = y.data() + key_head * s.key_dim;
          const double* const key = query + s.keys();
          for (int i = 0; i < s.key_dim; ++i) answer += (at(i) *= decay) * key[i];
          const double delta = (y[2 * s.keys() + h * s.value_dim + j] - answer) * beta;
          for (int i = 0; i < s.key_dim; ++i) to[j] += (at(i) += key[i] * delta) * query[i];
          squares += to[j] * to[j] / s.value_dim;
        }
        const float* const gate = x + s.channels() + h * s.value_dim;
        for (int j = 0; j < s.value_dim; ++j) {
          to[j] *= norm[j] / std::sqrt(squares + 1e-6) * gate[j] * Sigmoid(gate[j]);
        }
      }
    }
    return out;
  }

  std::vector<double> Convolved(int row) const {
    std::vector<double> y(s.channels());
    for (int c = 0; c < s.channels(); ++c) {
      for (int t = 0; t < s.kernel; ++t) {
        const int from = row - (s.kernel - 1 - t);
        if (from < 0) continue;
        y[c] += static_cast<double>(convolution[t * s.channels() + c]) *
                projected[static_cast<size_t>(from) * s.stride() + c];
      }
      y[c] *= Sigmoid(y[c]);
    }
    for (int head = 0; head < 2 * s.key_heads; ++head) {
      double squares = 0;
      for (int i = 0; i < s.key_dim; ++i) {
        squares += y[head * s.key_dim + i] * y[head * s.key_dim + i];
      }
      const double scale = head < s.key_heads ? 1 / std::sqrt(s.key_dim) : 1.0;
      for (int i = 0; i < s.key_dim; ++i) {
        y[head * s.key_dim + i] *= scale / std::sqrt(squares + 1e-6);
      }
    }
    return y;
  }

  const Sizes s;
  std::vector<float> projected, convolution, rate, dt_bias, norm;
};

/// Runs `nets` side by side, each step by step.
class Runner {
 public:
  explicit Runner(const std::vector<Net>& nets) : nets_(nets), s_(nets[0].s) {
    size_ = StateSizeOf(s_.key_heads, s_.value_heads, s_.key_dim, s_.value_dim, s_.kernel);
    for (size_t i = 0; i < nets.size(); ++i) {
      states_.push_back(
          std::make_unique<DeviceArray<float>>(2 * kLayers * (size_.recurrent + size_.history)));
      caches_.emplace_back();
      caches_.back().states = states_.back()->get();
      lengths_.push_back(0);
      outs_.emplace_back();
    }
  }

  /// counts[i]: rows of net i. With tiles: as in a step with a prompt. twice: a step that failed
  /// and is repeated.
  void Step(const std::vector<int>& counts, bool tiles, bool twice = false) {
    std::vector<RowInput> rows;
    std::vector<float> projected;
    std::vector<QueryTile> query_tiles;
    for (size_t n = 0; n < nets_.size(); ++n) {
      for (int i = 0; i < counts[n]; ++i) {
        if (i % QueryTile::kRows == 0) {
          query_tiles.push_back({static_cast<int32_t>(rows.size()),
                                 std::min(counts[n] - i, int32_t{QueryTile::kRows})});
        }
        rows.push_back({0, lengths_[n] + i, static_cast<int32_t>(n), i});
        const auto from =
            nets_[n].projected.begin() + static_cast<int64_t>(lengths_[n] + i) * s_.stride();
        projected.insert(projected.end(), from, from + s_.stride());
      }
    }
    const size_t count = rows.size();
    DeviceArray<RowInput> row_inputs(rows);
    DeviceArray<SequenceCache> caches(caches_);
    DeviceArray<QueryTile> tile_inputs(query_tiles);
    DeviceArray<float> x(projected), convolved(count * s_.channels());
    DeviceArray<float> recurred(count * s_.values());
    DeviceArray<uint16_t> out(count * s_.values());
    DeviceArray<float> convolution(nets_[0].convolution), rate(nets_[0].rate);
    DeviceArray<float> dt_bias(nets_[0].dt_bias), norm(nets_[0].norm);
    DeltaNetArgs a;
    a.inputs = {row_inputs.get(), caches.get(), tile_inputs.get()};
    a.projected = x.get();
    a.stride = s_.stride();
    a.convolution = convolution.get();
    a.rate = rate.get();
    a.dt_bias = dt_bias.get();
    a.norm_weight = norm.get();
    a.norm_eps = 1e-6f;
    a.convolved = convolved.get();
    a.recurred = recurred.get();
    a.out = out.get();
    a.rows = static_cast<int32_t>(count);
    a.tiles = tiles ? static_cast<int32_t>(query_tiles.size()) : 0;
    a.key_heads = s_.key_heads;
    a.value_heads = s_.value_heads;
    a.key_dim = s_.key_dim;
    a.value_dim = s_.value_dim;
    a.kernel = s_.kernel;
    a.layer = kLayer;
    a.state = size_;
    for (int i = 0; i < (twice ? 2 : 1); ++i) REQUIRE(LaunchDeltaNet(a, nullptr) == 0);
    const auto got = out.Get();
    size_t at = 0;
    for (size_t n = 0; n < nets_.size(); ++n) {
      outs_[n].insert(outs_[n].end(), got.begin() + at, got.begin() + at + counts[n] * s_.values());
      at += counts[n] * s_.values();
      lengths_[n] += counts[n];
      if (counts[n] > 0) caches_[n].state = 1 - caches_[n].state;
    }
  }
  const std::vector<uint16_t>& out(int net) const { return outs_[net]; }

 private:
  const std::vector<Net>& nets_;
  const Sizes s_;
  DeltaNetStateSize size_;
  std::vector<std::unique_ptr<DeviceArray<float>>> states_;
  std::vector<SequenceCache> caches_;
  std::vector<int> lengths_;
  std::vector<std::vector<uint16_t>> outs_;
};

TEST_CASE("a gated delta net: the numbers, and the same bits however a sequence is cut") {
  for (const Sizes& s : {Sizes{2, 4, 8, 16, 4}, {1, 2, 128, 128, 4}, {2, 2, 100, 40, 3}}) {
    INFO(s.key_heads << "/" << s.value_heads << " heads " << s.key_dim << " x " << s.value_dim);
    Net first(s, 83), second(s, 21);
    second.convolution = first.convolution;
    second.rate = first.rate;
    second.dt_bias = first.dt_bias;
    second.norm = first.norm;
    const std::vector<Net> nets = {first, second};
    Runner whole(nets);
    whole.Step({83, 21}, true);
    CHECK(RelativeError(Widened(whole.out(0)), first.Expected()) < 4e-3);
    CHECK(RelativeError(Widened(whole.out(1)), second.Expected()) < 4e-3);
    Runner cut(nets);
    cut.Step({2, 0}, false);
    cut.Step({1, 5}, false, /*twice=*/true);
    cut.Step({70, 1}, true);
    cut.Step({8, 8}, false);
    cut.Step({0, 6}, false);
    cut.Step({1, 1}, false, /*twice=*/true);
    cut.Step({1, 0}, false);
    CHECK(cut.out(0) == whole.out(0));
    CHECK(cut.out(1) == whole.out(1));
  }
  DeltaNetArgs wide;
  wide.key_dim = kMaxDeltaKeyDim + 1;
  CHECK(LaunchDeltaNet(wide, nullptr) != 0);
}

TEST_CASE("the gate behind attention") {
  std::mt19937 rng(3);
  const int rows = 3, width = 300, stride = 700;
  const auto gates = RandomFloats(rows * stride, &rng, 2), bias = RandomFloats(width, &rng);
  const auto mixed = Rounded(RandomFloats(rows * width, &rng));
  DeviceArray<float> dg(gates), db(bias);
  for (const bool biased : {false, true}) {
    DeviceArray<uint16_t> dm(mixed);
    REQUIRE(LaunchOutputGate({dm.get(), dg.get(), stride, biased ? db.get() : nullptr, rows, width},
                             nullptr) == 0);
    std::vector<double> expected;
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < width; ++i) {
        expected.push_back(Bf16ToF32(mixed[r * width + i]) *
                           Sigmoid(gates[r * stride + i] + (biased ? bias[i] : 0)));
      }
    }
    CHECK(RelativeError(Widened(dm.Get()), expected) < 3e-3);
  }
}

}  // namespace
}  // namespace moert::test
