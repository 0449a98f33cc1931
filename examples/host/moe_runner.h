// The interface between the decoder and the code that computes its MoE blocks: libmoert's engine,
// or the reference implementation of the tests.
#ifndef MOERT_EXAMPLES_HOST_MOE_RUNNER_H_
#define MOERT_EXAMPLES_HOST_MOE_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace moert::host {

enum class StepPhase { kPrefill, kDecode };

/// One request id and one token a row; rows of one request are adjacent, in ascending position.
struct StepRows {
  absl::Span<const int64_t> request_ids;
  absl::Span<const int32_t> tokens;
  int64_t count() const { return static_cast<int64_t>(request_ids.size()); }
};

/// A routing computed by the model's own router: for each row k experts, their weights, and the
/// probabilities of all experts.
struct MoeRouting {
  absl::Span<const int32_t> ids;
  absl::Span<const float> weights, scores;
};

/// One step: BeginStep, Forward for MoE layers 0, 1, ... in order, EndStep. Used by one thread.
class MoeRunner {
 public:
  virtual ~MoeRunner() = default;

  virtual absl::Status BeginStep(StepPhase phase, const StepRows& rows) = 0;
  /// The block's output, routed and shared experts, before the residual addition. x and out are
  /// fp32 [rows, hidden], dense, 64-byte aligned, not overlapping. `moe_layer` counts MoE layers
  /// only.
  virtual absl::Status Forward(int moe_layer, const float* x, int64_t rows, float* out) = 0;
  /// Forward with a given routing, for models whose router the host computes.
  virtual absl::Status ForwardRouted(int moe_layer, const float* x, int64_t rows,
                                     const MoeRouting& routing, float* out) {
    return absl::UnimplementedError("this runner of MoE blocks takes no routing of the host's");
  }
  /// Called after every successful BeginStep, also when a Forward failed.
  virtual absl::Status EndStep() = 0;

  /// Predicts the input of MoE layer `moe_layer` + 1 from a partial output of layer `moe_layer`;
  /// both dense fp32 [rows, hidden]. Returns false if it cannot.
  using PredictNext = std::function<bool(int moe_layer, const float* partial, float* next_input)>;
  /// Sets the predictor of the steps that begin from now on, until another one or null is set. It
  /// is called during Forward. A runner may ignore it.
  virtual void OfferPrediction(PredictNext predict) {}

  /// Most rows that one step may have.
  virtual int64_t max_rows() const = 0;

  /// The clock that latencies are reported in; a runner under a virtual clock overrides it.
  virtual double NowMs() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
  }
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_MOE_RUNNER_H_
