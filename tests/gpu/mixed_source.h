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

#include "absl/synchronization/mutex.h"
#include "kernels/reference/expert_mlp.h"
#include "moert/expert_source.h"
#include "moert/router.h"
#include "offline/rtn.h"
#include "quant/packing.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {

struct Shape {
  int64_t hidden, intermediate;
  int experts, top_k;
  Activation activation = Activation::kSilu;
};

/// "+h": in the Hadamard domain.
inline ExpertFormat FormatOf(const std::string& name) {
  const bool hadamard = name.size() > 2 && name.substr(name.size() - 2) == "+h";
  return ExpertFormat::Uniform(*Scheme::Parse(hadamard ? name.substr(0, name.size() - 2) : name),
                               hadamard);
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

/// One layer; expert e is stored in schemes[e % n].
class MixedSource final : public ExpertSource {
 public:
  MixedSource(const Shape& shape, const std::vector<std::string>& schemes, double skew) {
    model_.architecture = "synthetic";
    MoeLayerSpec layer;
    layer.num_experts = shape.experts;
    layer.hidden = shape.hidden;
    layer.intermediate = shape.intermediate;
    layer.activation = shape.activation;
    layer.routing.top_k = shape.top_k;
    layer.routing.renormalize = true;
    model_.layers.push_back(layer);
    std::mt19937_64 rng(17);
    for (int e = 0; e < shape.experts; ++e) {
      layouts_.push_back(*MakeRecordLayout(shape.hidden, shape.intermediate,
                                           FormatOf(schemes[e % schemes.size()])));
    }
    std::vector<std::vector<float>> weights;  // gate, up and down of every expert
    for (const RecordLayout& layout : layouts_) {
      records_.emplace_back(layout.bytes, std::byte{0xff});
      for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
        weights.push_back(SyntheticSource::RandomFloats(
            m->rows * m->k, 1.0f / std::sqrt(static_cast<float>(m->k)), &rng));
      }
    }
    REQUIRE_OK(OnAllThreads(weights.size(), [&](size_t i) -> absl::Status {
      const RecordLayout& layout = layouts_[i / 3];
      const MatrixLayout& m = i % 3 == 0 ? layout.gate : i % 3 == 1 ? layout.up : layout.down;
      std::byte* record = records_[i / 3].data();
      if (m.scheme.is_bf16()) return PackMatrixBf16(m, absl::MakeConstSpan(weights[i]), record);
      return PackMatrix(m, QuantizeRtn(m, absl::MakeConstSpan(weights[i]), {.grid = 1}), record);
    }));
    experts_.resize(layouts_.size());
    REQUIRE_OK(OnAllThreads(layouts_.size(), [&](size_t e) -> absl::Status {
      auto expert = kernels::ReferenceExpert::Make(records_[e].data(), layouts_[e]);
      if (expert.ok()) experts_[e] = *std::move(expert);
      return expert.status();
    }));
    gate_ = SyntheticSource::RandomFloats(shape.experts * shape.hidden, 0.1f, &rng);
    // Positive inputs and a positive bias in a few rows make popular experts.
    for (int64_t i = 0; i < shape.hidden; ++i) gate_[i] += static_cast<float>(skew);
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
  absl::StatusOr<LayerConstants> ReadConstants(int) const override {
    LayerConstants c;
    c.gate = gate_;
    return c;
  }

  /// The layer for some rows of x, and how far sums in fp32 may lie from it.
  void Reference(const std::vector<float>& x, const std::vector<int64_t>& rows,
                 std::vector<double>* out, std::vector<double>* tolerance) const {
    const MoeLayerSpec& layer = model_.layers[0];
    const int64_t hidden = layer.hidden;
    out->assign(rows.size() * hidden, 0.0);
    tolerance->assign(rows.size() * hidden, 0.0);
    REQUIRE_OK(OnAllThreads(rows.size(), [&](size_t i) {
      return ReferenceRow(x.data() + rows[i] * hidden, out->data() + i * hidden,
                          tolerance->data() + i * hidden);
    }));
  }

 private:
  absl::Status ReferenceRow(const float* row, double* out, double* tolerance) const {
    const MoeLayerSpec& layer = model_.layers[0];
    const int64_t hidden = layer.hidden;
    std::vector<float> logits(layer.num_experts), scores(layer.num_experts);
    std::vector<int32_t> ids(layer.routing.top_k);
    std::vector<float> weights(layer.routing.top_k), result(hidden), bound(hidden);
    for (int e = 0; e < layer.num_experts; ++e) {
      double dot = 0;
      for (int64_t c = 0; c < hidden; ++c) {
        dot += static_cast<double>(gate_[e * hidden + c]) * row[c];
      }
      logits[e] = static_cast<float>(dot);
    }
    absl::Status status =
        RouteToken(layer.routing, logits, {}, scores.data(), ids.data(), weights.data());
    for (int j = 0; status.ok() && j < layer.routing.top_k; ++j) {
      experts_[ids[j]].Apply(layer.activation, ActivationNumerics::kBF16, row, result.data(),
                             bound.data());
      for (int64_t c = 0; c < hidden; ++c) {
        out[c] += static_cast<double>(weights[j]) * result[c];
        tolerance[c] += static_cast<double>(weights[j]) * bound[c];
      }
    }
    return status;
  }

  MoeModelSpec model_;
  std::string name_ = "mixed";
  std::vector<RecordLayout> layouts_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<kernels::ReferenceExpert> experts_;
  std::vector<float> gate_;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_MIXED_SOURCE_H_
