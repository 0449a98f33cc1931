#include <utility>

#include "base/status_macros.h"
#include "offline/expert_mlp.h"
#include "offline/sensitivity.h"

namespace moert::offline {
namespace {

class DeviceBlocks final : public ExpertBlocks {
 public:
  DeviceBlocks(const MoeLayerSpec& layer, const SensitivitySettings& settings,
               const ExpertMatrices& weights, const Floats& x, std::unique_ptr<DeviceExpert> expert)
      : layer_(layer),
        settings_(settings),
        w_(weights),
        x_(x),
        rows_(static_cast<int64_t>(x.size()) / layer.hidden),
        expert_(std::move(expert)) {}

  absl::Status Prepare(absl::Span<const float> token_weights) override {
    MOERT_RETURN_IF_ERROR(expert_->PrepareChanges(token_weights));
    if (settings_.method != QuantMethod::kGptq) return absl::OkStatus();
    for (const bool down : {false, true}) {
      MOERT_RETURN_IF_ERROR(FactorOnDevice(expert_.get(), down,
                                           down ? layer_.intermediate : layer_.hidden, rows_,
                                           &factor_[down ? 1 : 0]));
    }
    return absl::OkStatus();
  }

  absl::Status Begin(const RecordLayout& layout) override {
    layout_ = layout;
    const Scheme& scheme = layout.gate.scheme;
    if (!RoundsActivations(scheme)) return expert_->SetInputs(nullptr, nullptr);
    rounded_x_ = x_;
    rounded_h_.resize(rows_ * layer_.intermediate);
    MOERT_RETURN_IF_ERROR(expert_->Hidden(rounded_h_.data()));
    RoundActivations(scheme, layer_.hidden, &rounded_x_);
    RoundActivations(scheme, layer_.intermediate, &rounded_h_);
    return expert_->SetInputs(rounded_x_.data(), rounded_h_.data());
  }

  absl::StatusOr<double> Change(Projection block) override {
    switch (block) {
      case Projection::kGate:
        return ChangeOf(block, layout_.gate, w_.gate, factor_[0]);
      case Projection::kUp:
        return ChangeOf(block, layout_.up, w_.up, factor_[0]);
      case Projection::kDown:
        break;
    }
    return ChangeOf(block, layout_.down, w_.down, factor_[1]);
  }

  absl::Status LastChanges(int64_t rows, ExpertChanges* changes) override {
    const auto count = static_cast<size_t>(rows * layer_.hidden);
    changes->gate_up.resize(count);
    changes->down.resize(count);
    return expert_->LastChanges(rows, changes->gate_up.data(), changes->down.data());
  }

  absl::Status Outputs(Floats* y) override {
    y->resize(rows_ * layer_.hidden);
    return expert_->Outputs(y->data());
  }

 private:
  absl::StatusOr<double> ChangeOf(Projection block, const MatrixLayout& layout,
                                  const std::vector<float>& weights,
                                  const absl::StatusOr<GptqFactor>& factor) {
    if (settings_.method == QuantMethod::kGptq && factor.ok() && expert_->CanRound(layout)) {
      return expert_->ChangeByGptq(block, layout);
    }
    return expert_->Change(
        block, Dequantize(layout.scheme, QuantizeMatrix(layout, settings_.method, factor, weights,
                                                        settings_.device)));
  }

  const MoeLayerSpec& layer_;
  const SensitivitySettings& settings_;
  const ExpertMatrices& w_;
  const Floats& x_;
  const int64_t rows_;
  const std::unique_ptr<DeviceExpert> expert_;
  absl::StatusOr<GptqFactor> factor_[2] = {absl::FailedPreconditionError("too few tokens"),
                                           absl::FailedPreconditionError("too few tokens")};
  RecordLayout layout_;  // of a scheme, like what follows
  Floats rounded_x_, rounded_h_;
};

}  // namespace

std::unique_ptr<ExpertBlocks> BlocksOnDevice(const MoeLayerSpec& layer,
                                             const SensitivitySettings& settings,
                                             const ExpertMatrices& weights, const Floats& x) {
  if (settings.device == nullptr || settings.hadamard) return nullptr;
  std::unique_ptr<DeviceExpert> expert =
      settings.device->Expert(layer, static_cast<int64_t>(x.size()) / layer.hidden);
  if (expert == nullptr || !expert->Run(weights, x.data()).ok()) return nullptr;
  return std::make_unique<DeviceBlocks>(layer, settings, weights, x, std::move(expert));
}

}  // namespace moert::offline
