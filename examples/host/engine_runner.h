// The decoder's MoE blocks computed by a libmoert engine on the CPU: all that a host has to write.
#ifndef MOERT_EXAMPLES_HOST_ENGINE_RUNNER_H_
#define MOERT_EXAMPLES_HOST_ENGINE_RUNNER_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "host/moe_runner.h"
#include "moert/engine.h"

namespace moert::host {

class EngineRunner : public MoeRunner {
 public:
  /// `engine` is borrowed. max_rows: EngineOptions::max_tokens_per_forward.
  EngineRunner(Engine* engine, int64_t max_rows) : engine_(engine), max_rows_(max_rows) {}

  absl::Status BeginStep(StepPhase phase, const StepRows& rows) override;
  absl::Status Forward(int moe_layer, const float* x, int64_t rows, float* out) override;
  absl::Status ForwardRouted(int moe_layer, const float* x, int64_t rows, const MoeRouting& routing,
                             float* out) override;
  absl::Status EndStep() override;
  void OfferPrediction(PredictNext predict) override { predict_ = std::move(predict); }
  int64_t max_rows() const override { return max_rows_; }
  double NowMs() const override { return static_cast<double>(engine_->now_ns()) * 1e-6; }

 protected:
  /// The step that is open.
  StepId step() const { return step_->id(); }

 private:
  Engine* const engine_;
  const int64_t max_rows_;
  PredictNext predict_;
  std::optional<Step> step_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_ENGINE_RUNNER_H_
