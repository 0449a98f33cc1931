// GPTQ of an expert by way of a device: what is asked of it, in which order, and what is done where
// it fails. The device is one of the CPU.
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/pack/host_model.h"
#include "idle_device.h"
#include "moert/thread_pool.h"
#include "offline/expert_quantizer.h"
#include "support/catch.h"

namespace moert::offline {
namespace {

/// Counts calls, and fails from the n-th on.
struct Failing {
  int fails_at = 1 << 30;
  int calls = 0;
  absl::Status Call() {
    return ++calls < fails_at ? absl::OkStatus() : absl::InternalError("the device is lost");
  }
};

#define RETURN_IF_LOST() \
  if (absl::Status lost = failing_.Call(); !lost.ok()) return lost

class CpuExpert final : public DeviceExpert {
 public:
  CpuExpert(const MoeLayerSpec& layer, int64_t rows, const Compute& compute, Failing* failing)
      : layer_(layer), rows_(rows), compute_(compute), failing_(*failing) {}

  absl::Status Load(const ExpertMatrices& weights, const float* x) override {
    RETURN_IF_LOST();
    w_ = weights;
    x_.assign(x, x + rows_ * layer_.hidden);
    return absl::OkStatus();
  }
  absl::Status SetWeights(Projection block, absl::Span<const float> weights) override {
    RETURN_IF_LOST();
    Weights(block).assign(weights.begin(), weights.end());
    return absl::OkStatus();
  }
  absl::Status RunGateUp() override {
    RETURN_IF_LOST();
    h_ = GluForward(compute_, layer_, w_.gate, w_.up, x_.data(), rows_);
    return absl::OkStatus();
  }
  absl::Status RunDown() override {
    RETURN_IF_LOST();
    y_.resize(x_.size());
    MatMul(compute_, w_.down, layer_.hidden, layer_.intermediate, h_.data(), rows_, y_.data());
    return absl::OkStatus();
  }
  absl::Status Outputs(float* y) override {
    RETURN_IF_LOST();
    std::memcpy(y, y_.data(), y_.size() * sizeof(float));
    return absl::OkStatus();
  }
  absl::Status PrepareChanges(absl::Span<const float> token_weights) override {
    RETURN_IF_LOST();
    token_weights_ = token_weights;
    return absl::OkStatus();
  }
  absl::StatusOr<InputMoments> Moments(bool down) override {
    RETURN_IF_LOST();
    InputMoments moments(down ? layer_.intermediate : layer_.hidden);
    REQUIRE_OK(moments.Add(down ? h_ : x_, token_weights_));
    return moments;
  }
  absl::Status SetFactor(bool down, const GptqFactor& factor) override {
    RETURN_IF_LOST();
    factors_[down ? 1 : 0] = factor;
    return absl::OkStatus();
  }
  absl::StatusOr<QuantizedMatrix> RoundByGptq(Projection block,
                                              const MatrixLayout& layout) override {
    RETURN_IF_LOST();
    return QuantizeGptq(layout, Weights(block), factors_[block == Projection::kDown ? 1 : 0]);
  }
  bool CanRound(const MatrixLayout& layout) const override {
    return layout.scheme.scales != ScaleType::kE4M3;
  }

  // Calibration asks for these.
  absl::Status Hidden(float*) override { return absl::UnimplementedError("unused"); }
  absl::Status SetInputs(const float*, const float*) override {
    return absl::UnimplementedError("unused");
  }
  absl::StatusOr<double> Change(Projection, absl::Span<const float>) override {
    return absl::UnimplementedError("unused");
  }
  absl::StatusOr<double> ChangeByGptq(Projection, const MatrixLayout&) override {
    return absl::UnimplementedError("unused");
  }
  absl::Status LastChanges(int64_t, float*, float*) override {
    return absl::UnimplementedError("unused");
  }

 private:
  std::vector<float>& Weights(Projection block) {
    return block == Projection::kGate ? w_.gate : block == Projection::kUp ? w_.up : w_.down;
  }

  const MoeLayerSpec& layer_;
  const int64_t rows_;
  const Compute compute_;
  Failing& failing_;
  ExpertMatrices w_;
  Floats x_, h_, y_;
  absl::Span<const float> token_weights_;
  GptqFactor factors_[2];
};

/// Leaves matrices to the CPU.
class CpuDevice final : public test::IdleDevice {
 public:
  CpuDevice(const Compute& compute, int fails_at) : compute_(compute) {
    failing.fails_at = fails_at;
  }
  std::unique_ptr<DeviceExpert> Expert(const MoeLayerSpec& layer, int64_t rows) override {
    if (rows == 0) return nullptr;
    return std::make_unique<CpuExpert>(layer, rows, compute_, &failing);
  }

  Failing failing;

 private:
  const Compute compute_;
};

TEST_CASE("an expert passes a device as it passes the CPU, and the CPU where the device is lost") {
  MoeLayerSpec layer;
  layer.hidden = 128;
  layer.intermediate = 64;
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  const auto fill = [&](size_t count, float scale) {
    std::vector<float> values(count);
    for (float& v : values) v = scale * normal(rng);
    return values;
  };
  const ExpertMatrices weights = {fill(128 * 64, 0.1f), fill(128 * 64, 0.1f), fill(128 * 64, 0.1f)};
  const auto pool = *CreateThreadPool({.threads = 1});
  cli::HostProducts products;
  const Compute compute = {pool.get(), &products};
  for (const int64_t rows : {int64_t{800}, int64_t{30}, int64_t{0}}) {
    const std::vector<float> x = fill(static_cast<size_t>(rows * 128), 1);
    std::vector<float> token_weights;
    for (int64_t t = 0; t < rows; ++t) {
      token_weights.push_back(0.2f + 0.01f * static_cast<float>(t % 9));
    }
    for (const char* scheme : {"w3a16_g-1_asym", "w4a16_g32_f16", "nvfp4", "bf16", "w4a8_g128"}) {
      const auto layout = MakeRecordLayout(128, 64, ExpertFormat::Uniform(*Scheme::Parse(scheme)));
      REQUIRE_OK(layout.status());
      const auto pass = [&](OfflineDevice* device, std::vector<std::byte>* record, Floats* y) {
        record->assign(static_cast<size_t>(layout->bytes), std::byte{0});
        *y = x;
        const auto outcome = PassExpertGptq(layer, *layout, weights, token_weights, compute, device,
                                            record->data(), y);
        REQUIRE_OK(outcome.status());
        return *outcome;
      };
      std::vector<std::byte> expected, record;
      Floats outputs, y;
      const GptqOutcome on_cpu = pass(nullptr, &expected, &outputs);
      CpuDevice whole(compute, 1 << 30);
      pass(&whole, &record, &y);
      const bool plain = std::string(scheme) != "w4a8_g128";  // else inputs are rounded
      CHECK((whole.failing.calls >= 8) == (plain && rows > 0));
      for (int n = 1; n <= whole.failing.calls + 1; ++n) {
        INFO(scheme << ", " << rows << " rows, lost at call " << n);
        CpuDevice device(compute, n);
        const GptqOutcome outcome = pass(&device, &record, &y);
        CHECK(outcome.gptq_matrices == on_cpu.gptq_matrices);
        CHECK(outcome.fallback_matrices == on_cpu.fallback_matrices);
        CHECK(record == expected);
        CHECK(y == outputs);
      }
    }
  }
}

}  // namespace
}  // namespace moert::offline
