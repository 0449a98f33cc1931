// Random experts in given schemes, and what a layer of them is by the oracle of the CPU kernels.
#ifndef MOERT_TESTS_GPU_MIXED_SOURCE_H_
#define MOERT_TESTS_GPU_MIXED_SOURCE_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "device_step.h"
#include "moert/router.h"
#include "moert/source/expert_source.h"
#include "offline/rtn.h"
#include "quant/packing.h"
#include "route/route_token.h"
#include "tests/support/catch.h"
#include "tests/support/reference_expert.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {

struct Shape {
  int64_t hidden, intermediate;
  int experts, top_k;
  Activation activation = Activation::kSilu;
};

/// "+h": in the Hadamard domain. "+b": 128 rows share the scales of a group, as published fp8 has
/// them.
inline ExpertFormat FormatOf(const std::string& name) {
  return ExpertFormat::Uniform(*Scheme::Parse(name.substr(0, name.find('+'))),
                               absl::EndsWith(name, "+h"));
}
inline QuantizedMatrix Quantized(const std::string& name, const MatrixLayout& m,
                                 const std::vector<float>& weights) {
  constexpr int64_t kRows = 128;
  QuantizedMatrix q = QuantizeRtn(m, absl::MakeConstSpan(weights), {.grid = 1});
  if (!absl::EndsWith(name, "+b")) return q;
  for (int64_t r = 0; r < q.rows; ++r) {
    const int64_t first = r / kRows * kRows;
    for (int64_t g = 0; g < q.groups(); ++g) {
      q.scales[r * q.groups() + g] = q.scales[first * q.groups() + g];
    }
  }
  return q;
}

/// work(i) for every i below count.
inline absl::Status OnAllThreads(size_t count, const std::function<absl::Status(size_t)>& work) {
  std::atomic<size_t> next{0};
  absl::Mutex mutex;
  absl::Status status;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      const absl::Status done = work(i);
      absl::MutexLock lock(&mutex);
      status.Update(done);
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 1; t < std::min<size_t>(count, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back(run);
  }
  run();
  for (std::thread& thread : threads) thread.join();
  return status;
}

inline MoeLayerSpec LayerOf(const Shape& shape) {
  MoeLayerSpec layer;
  layer.num_experts = shape.experts;
  layer.hidden = shape.hidden;
  layer.intermediate = shape.intermediate;
  layer.activation = shape.activation;
  layer.routing.top_k = shape.top_k;
  layer.routing.renormalize = true;
  return layer;
}

/// One layer; expert e is stored in schemes[e % n].
class MixedSource final : public ExpertSource {
 public:
  MixedSource(const Shape& shape, const std::vector<std::string>& schemes, double skew)
      : MixedSource(LayerOf(shape), schemes, skew) {}
  MixedSource(const MoeLayerSpec& layer, const std::vector<std::string>& schemes, double skew = 0) {
    model_.architecture = "synthetic";
    model_.layers.push_back(layer);
    std::mt19937_64 rng(17);
    for (int e = 0; e < layer.num_experts; ++e) {
      layouts_.push_back(*ExpertRecordLayout(layer, FormatOf(schemes[e % schemes.size()])));
    }
    std::vector<std::vector<float>> weights;  // gate, up and down of every expert
    for (const RecordLayout& layout : layouts_) {
      records_.emplace_back(layout.bytes, std::byte{0xff});
      for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
        weights.push_back(RandomMatrix(*m, &rng));
        if (m->bias_offset != 0) FillBiases(*m, &records_.back(), &rng);
      }
    }
    REQUIRE_OK(OnAllThreads(weights.size(), [&](size_t i) -> absl::Status {
      const RecordLayout& layout = layouts_[i / 3];
      const MatrixLayout& m = i % 3 == 0 ? layout.gate : i % 3 == 1 ? layout.up : layout.down;
      std::byte* record = records_[i / 3].data();
      if (i % 3 == 0 && !layout.contents.gate) return absl::OkStatus();  // up's in its place
      if (m.scheme.is_bf16()) return PackMatrixBf16(m, absl::MakeConstSpan(weights[i]), record);
      return PackMatrix(m, Quantized(schemes[i / 3 % schemes.size()], m, weights[i]), record);
    }));
    experts_.resize(layouts_.size());
    REQUIRE_OK(OnAllThreads(layouts_.size(), [&](size_t e) -> absl::Status {
      auto expert = test::ReferenceExpert::Make(records_[e].data(), layouts_[e]);
      if (expert.ok()) experts_[e] = *std::move(expert);
      return expert.status();
    }));
    constants_.gate = SyntheticSource::RandomFloats(layer.num_experts * layer.hidden, 0.1f, &rng);
    // Positive inputs and a positive bias in a few rows make popular experts.
    for (int64_t i = 0; i < layer.hidden; ++i) constants_.gate[i] += static_cast<float>(skew);
    FillConstants(&rng);
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return 1; }
  absl::string_view version_name(int) const override { return "mixed"; }
  const RecordLayout& layout(int, int expert, int) const override { return layouts_[expert]; }
  absl::Status ReadRecord(int, int expert, int, absl::Span<std::byte> dst) const override {
    std::memcpy(dst.data(), records_[expert].data(), records_[expert].size());
    return absl::OkStatus();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int) const override { return constants_; }

  /// The id of a row's token, for layers that are routed by them.
  int32_t TokenId(int64_t row) const {
    const int64_t vocabulary = std::max<int64_t>(model_.layers[0].routing.hash_vocab, 1);
    return static_cast<int32_t>((row * 7 + 3) % vocabulary);
  }

  /// How the layer itself routes rows of x, without the experts' scales: [rows, top_k].
  void RoutingOf(const std::vector<float>& x, std::vector<int32_t>* ids,
                 std::vector<float>* weights) const {
    const int64_t hidden = model_.layers[0].hidden;
    const auto k = static_cast<size_t>(model_.layers[0].routing.top_k);
    for (size_t r = 0; r < ids->size() / k; ++r) {
      REQUIRE_OK(Choose(x.data() + static_cast<int64_t>(r) * hidden,
                        TokenId(static_cast<int64_t>(r)), absl::MakeSpan(*ids).subspan(r * k, k),
                        absl::MakeSpan(*weights).subspan(r * k, k)));
    }
  }

  /// The layer for some rows of x, and how far sums in fp32 may lie from it.
  void Reference(const std::vector<float>& x, const std::vector<int64_t>& rows,
                 std::vector<double>* out, std::vector<double>* tolerance,
                 ActivationNumerics numerics = ActivationNumerics::kBF16) const {
    const MoeLayerSpec& layer = model_.layers[0];
    const int64_t hidden = layer.hidden;
    out->assign(rows.size() * hidden, 0.0);
    tolerance->assign(rows.size() * hidden, 0.0);
    REQUIRE_OK(OnAllThreads(rows.size(), [&](size_t i) {
      return ReferenceRow(x.data() + rows[i] * hidden, TokenId(rows[i]), out->data() + i * hidden,
                          tolerance->data() + i * hidden, numerics);
    }));
  }

 private:
  static std::vector<float> RandomMatrix(const MatrixLayout& m, std::mt19937_64* rng) {
    return SyntheticSource::RandomFloats(m.rows * m.k, 1.0f / std::sqrt(static_cast<float>(m.k)),
                                         rng);
  }
  static void FillBiases(const MatrixLayout& m, std::vector<std::byte>* record,
                         std::mt19937_64* rng) {
    std::vector<float> biases = SyntheticSource::RandomFloats(m.rows, 0.5f, rng);
    biases.resize(static_cast<size_t>(m.padded_rows));
    std::memcpy(record->data() + m.bias_offset, biases.data(), biases.size() * sizeof(float));
  }

  /// The parts that a layer may have beside its gate.
  void FillConstants(std::mt19937_64* rng) {
    const MoeLayerSpec& layer = model_.layers[0];
    const RoutingSpec& r = layer.routing;
    if (r.logit_bias) {
      constants_.logit_bias = SyntheticSource::RandomFloats(layer.num_experts, 0.5f, rng);
    }
    if (r.selection_bias) {
      constants_.selection_bias = SyntheticSource::RandomFloats(layer.num_experts, 0.1f, rng);
    }
    if (r.expert_scales) {
      constants_.expert_scales = SyntheticSource::RandomFloats(layer.num_experts, 0.2f, rng);
      for (float& v : constants_.expert_scales) v += 1;
    }
    for (int64_t i = 0; i < r.hash_vocab * r.top_k; ++i) {
      constants_.hash_experts.push_back(
          static_cast<int32_t>((i / r.top_k * 5 + i % r.top_k) % layer.num_experts));
    }
    if (layer.shared_intermediate == 0) return;
    if (layer.shared_gate) {
      constants_.shared_gate = SyntheticSource::RandomFloats(layer.hidden, 0.1f, rng);
    }
    constants_.shared_layout = *SharedRecordLayout(layer);
    const RecordLayout& layout = constants_.shared_layout;
    constants_.shared_expert.resize(static_cast<size_t>(layout.bytes));
    for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
      const std::vector<float> weights = RandomMatrix(*m, rng);
      REQUIRE_OK(PackMatrixBf16(*m, absl::MakeConstSpan(weights), constants_.shared_expert.data()));
    }
    shared_ = *test::ReferenceExpert::Make(constants_.shared_expert.data(), layout);
  }

  double GateDot(const std::vector<float>& gate, int64_t row, const float* x) const {
    const int64_t hidden = model_.layers[0].hidden;
    double dot = 0;
    for (int64_t c = 0; c < hidden; ++c) dot += static_cast<double>(gate[row * hidden + c]) * x[c];
    return dot;
  }

  /// The experts of a row, and their weights without the experts' scales.
  absl::Status Choose(const float* row, int32_t token_id, absl::Span<int32_t> ids,
                      absl::Span<float> weights) const {
    const MoeLayerSpec& layer = model_.layers[0];
    std::vector<float> logits(layer.num_experts), scores(layer.num_experts);
    for (int e = 0; e < layer.num_experts; ++e) {
      logits[e] = static_cast<float>(GateDot(constants_.gate, e, row));
      if (!constants_.logit_bias.empty()) logits[e] += constants_.logit_bias[e];
    }
    absl::Status status;
    if (layer.routing.hash_vocab > 0) {
      for (size_t j = 0; j < ids.size(); ++j) {
        ids[j] = constants_.hash_experts[static_cast<size_t>(token_id) * ids.size() + j];
      }
      WeighChosen(layer.routing, logits, scores.data(), ids.data(), weights.data());
    } else {
      status = RouteToken(layer.routing, logits, constants_.selection_bias, scores.data(),
                          ids.data(), weights.data());
    }
    return status;
  }

  absl::Status ReferenceRow(const float* row, int32_t token_id, double* out, double* tolerance,
                            ActivationNumerics numerics) const {
    const MoeLayerSpec& layer = model_.layers[0];
    const int64_t hidden = layer.hidden;
    std::vector<int32_t> ids(layer.routing.top_k);
    std::vector<float> weights(layer.routing.top_k), result(hidden), bound(hidden);
    const auto add = [&](const test::ReferenceExpert& expert, const float* x, double weight) {
      expert.Apply(layer.activation, numerics, x, result.data(), bound.data());
      for (int64_t c = 0; c < hidden; ++c) {
        out[c] += weight * result[c];
        tolerance[c] += std::fabs(weight) * bound[c];
      }
    };
    const absl::Status status = Choose(row, token_id, absl::MakeSpan(ids), absl::MakeSpan(weights));
    for (int j = 0; status.ok() && j < layer.routing.top_k; ++j) {
      if (!constants_.expert_scales.empty()) weights[j] *= constants_.expert_scales[ids[j]];
      std::vector<float> x(row, row + hidden);
      const bool weighted = layer.routing.weight_input;
      for (int64_t c = 0; c < hidden && weighted; ++c) x[c] *= weights[j];
      add(experts_[ids[j]], x.data(), weighted ? 1.0 : static_cast<double>(weights[j]));
    }
    if (layer.shared_intermediate == 0) return status;
    const bool gated = layer.shared_gate;
    add(shared_, row, gated ? 1 / (1 + std::exp(-GateDot(constants_.shared_gate, 0, row))) : 1.0);
    return status;
  }

  MoeModelSpec model_;
  std::string name_ = "mixed";
  std::vector<RecordLayout> layouts_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<test::ReferenceExpert> experts_;
  test::ReferenceExpert shared_;
  LayerConstants constants_;
};

/// A step's rows, and what some of them shall become.
struct MixedStep {
  MixedStep(const MixedSource& source, int64_t rows,
            ActivationNumerics numerics = ActivationNumerics::kBF16)
      : rows(rows) {
    const MoeLayerSpec& layer = source.model().layers[0];
    std::mt19937_64 rng(rows);
    x = SyntheticSource::RandomFloats(rows * layer.hidden, 1.0f, &rng);
    for (float& v : x) v += 0.25f;  // a mean, so that zero points matter
    for (int64_t r = 0; r < rows; ++r) token_ids.push_back(source.TokenId(r));
    // All rows of a small step, some of a large one, the last among them; fewer where one costs
    // more.
    const int64_t weights = layer.hidden * layer.intermediate * layer.routing.top_k;
    const int64_t most = weights > (int64_t{1} << 19) ? 16 : 48;
    for (int64_t r = rows - 1; r >= 0; r -= (rows + most - 1) / most) checked.push_back(r);
    source.Reference(x, checked, &reference, &tolerance, numerics);
  }

  void Check(const std::vector<float>& outputs, int64_t hidden, double relative) {
    std::vector<float> sample;
    for (const int64_t r : checked) {
      sample.insert(sample.end(), outputs.begin() + r * hidden, outputs.begin() + (r + 1) * hidden);
    }
    int64_t outside = 0;
    for (size_t i = 0; i < sample.size(); ++i) {
      // The bound is of one rounding; magic numbers cost h some more. Negated, so that NaN is
      // outside.
      if (!(std::fabs(sample[i] - reference[i]) <= 4 * tolerance[i])) ++outside;
    }
    CHECK(outside == 0);
    // h is rounded at another last bit now and then; everything else is fp32.
    CHECK(RelativeError(sample, reference) < relative);
    if (first.empty()) first = outputs;
    CHECK(std::memcmp(first.data(), outputs.data(), outputs.size() * sizeof(float)) == 0);
  }

  const int64_t rows;
  std::vector<float> x;
  std::vector<int32_t> token_ids;
  std::vector<int64_t> checked;
  std::vector<double> reference, tolerance;
  std::vector<float> first;  // outputs of the first engine
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_MIXED_SOURCE_H_
