// The whole forward pass on a device: dense parts by this class, MoE blocks by an engine of the
// CUDA backend; hidden states never reach the host. A decode step of an engine that always has a
// usable version of every expert is one CUDA graph.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DEVICE_DECODER_H_
#define MOERT_EXAMPLES_HOST_CUDA_DEVICE_DECODER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/blocks/rope.h"
#include "host/cuda/dense.h"
#include "host/cuda/device_mixers.h"
#include "host/cuda/device_weights.h"
#include "host/cuda/norm_kernel.h"
#include "host/cuda/step_graphs.h"
#include "host/cuda/step_upload.h"
#include "host/token_model.h"
#include "moert/engine.h"
#include "util/cuda_api.h"

namespace moert::host {

struct DeviceDecoderOptions {
  int device = 0;        // the engine's
  int64_t max_rows = 0;  // EngineOptions::max_tokens_per_forward
  /// Record decode steps as CUDA graphs where the engine's strategy allows it. Not for an engine
  /// with a trace or a virtual clock, which have to see every step.
  bool graphs = true;
  DenseKernels kernels = DenseKernels::kAuto;
};

/// bf16 matrices, activations and KV cache; residual stream, routing input, softmax and all sums
/// fp32.
class DeviceDecoder final : public TokenModel {
 public:
  /// `engine` is borrowed for the object's life.
  static absl::StatusOr<std::unique_ptr<DeviceDecoder>> Load(const Checkpoint& checkpoint,
                                                             const HfConfig& config, Engine* engine,
                                                             const DeviceDecoderOptions& options);
  /// Load with weights that are already on the engine's device.
  static absl::StatusOr<std::unique_ptr<DeviceDecoder>> Create(DeviceWeights weights,
                                                               const HfConfig& config,
                                                               Engine* engine,
                                                               const DeviceDecoderOptions& options);
  ~DeviceDecoder() override;

  const HfConfig& config() const override { return config_; }
  absl::StatusOr<std::unique_ptr<Sequence>> NewSequence(int64_t max_tokens) override;
  absl::Status Run(StepPhase phase, absl::Span<const SequenceInput> inputs) override;
  absl::Status RowLogits(int64_t first, int64_t rows, float* logits) override;
  absl::StatusOr<int32_t> Best(int64_t row) override;
  absl::Status Score(int64_t first, absl::Span<const int32_t> targets, double* nll) override;
  absl::Status Wait() override;
  int64_t max_rows() const override { return options_.max_rows; }
  double NowMs() const override { return static_cast<double>(engine_->now_ns()) * 1e-6; }

  /// Whether decode steps are recorded, and how many were replayed.
  bool graphs() const { return graphs_allowed_; }
  int64_t replays() const { return replays_; }
  /// A notice for the user about how it runs; empty: nothing.
  const std::string& note() const { return products_->note(); }

 private:
  DeviceDecoder(const HfConfig& config, Engine* engine, const DeviceDecoderOptions& options)
      : config_(config), engine_(engine), options_(options), rope_(config.rope) {}
  absl::Status Init(DeviceWeights weights);
  absl::StatusOr<StepId> BeginStep(StepPhase phase, absl::Span<const SequenceInput> inputs);
  /// Enqueues a step's work, or replays its graph.
  absl::Status Execute(StepPhase phase, const StepShape& shape, StepId step);
  // The parts of a step, in device_step.cc.

  /// The residual stream of a step under way.
  struct Stream {
    float* residual = nullptr;
    float* spare = nullptr;        // second buffer, for few rows
    const float* delta = nullptr;  // null, or an MoE block's output not yet added to `residual`
  };
  absl::Status EnqueueStep(const StepShape& shape, StepId step);
  absl::Status EnqueueLayer(int index, const StepShape& shape, StepId step, Stream* stream);
  /// y = norm(stream) w^T; also adds the stream's delta to it.
  absl::Status NormedProduct(const DeviceNorm& norm, const DeviceMatrix& w, const StepShape& shape,
                             Stream* stream, uint16_t* rounded, float* y);
  /// Adds x w^T and the matrix's bias to the stream, which must have no delta. `then`: null, or a
  /// norm of the new stream, whose result goes to normed_.
  absl::Status AddProduct(const DeviceMatrix& w, const uint16_t* x, const StepShape& shape,
                          Stream* stream, const DeviceNorm* then);
  absl::Status Normalize(const DeviceNorm& norm, const StepShape& shape, const Stream& stream,
                         float* f32, uint16_t* bf16);
  NormArgs NormOf(const DeviceNorm& norm, const StepShape& shape, const Stream& stream) const;

  /// Returns the logits of these rows: those of the step, or else computed now into logits_.
  absl::StatusOr<const float*> LogitsOf(int64_t first, int64_t rows);
  /// Computes the logits of these rows into logits_.
  absl::Status EnqueueHead(int64_t first, int64_t rows);
  /// Whether the step itself computes the logits of all its rows.
  bool WithLogits(const StepShape& shape) const {
    return shape.tiles == 0 && shape.rows <= logit_rows_;
  }
  uint32_t* ticket() const { return reinterpret_cast<uint32_t*>(zeros_); }
  std::byte* best_scratch() const { return zeros_ + kZeroBytes; }

  const HfConfig config_;
  Engine* const engine_;
  const DeviceDecoderOptions options_;
  const Rope rope_;
  cudaStream_t stream_ = nullptr;
  DeviceWeights weights_;
  std::unique_ptr<DenseProducts> products_;
  DeviceMixers mixers_;
  StepUpload upload_;
  StepGraphs graphs_;
  bool graphs_allowed_ = false;
  int64_t graph_rows_ = 0;   // most rows of a recorded step; 0: any number
  int64_t eager_every_ = 0;  // of steps that may be replayed, every so-manyth is eager; 0: none
  int64_t turn_ = 0;
  int64_t replays_ = 0;

  // Buffers for all rows of a step.
  gpu::Buffer memory_;
  float* residual_ = nullptr;      // [rows, hidden]
  float* spare_ = nullptr;         // [kFewRows, hidden]
  float* normed_ = nullptr;        // likewise, the input of an MoE block
  float* delta_ = nullptr;         // likewise, its output
  uint16_t* rounded_ = nullptr;    // likewise, the input of a dense product
  uint16_t* hidden_ = nullptr;     // likewise, the final norm's output
  float* gate_up_ = nullptr;       // [rows, 2 dense_intermediate]
  uint16_t* activated_ = nullptr;  // [rows, dense_intermediate]
  // Buffers for logit_rows_ rows.
  int64_t logit_rows_ = 0;
  float* logits_ = nullptr;  // [rows, vocabulary]
  int32_t* best_ = nullptr;
  static constexpr int64_t kZeroBytes = 256;
  std::byte* zeros_ = nullptr;  // zero before and after each kernel: a ticket, LaunchBest's scratch
  int32_t* targets_ = nullptr;
  double* nll_ = nullptr;
  gpu::Buffer pinned_;
  int32_t* best_on_host_ = nullptr;
  int32_t* targets_on_host_ = nullptr;
  double* nll_on_host_ = nullptr;

  int64_t rows_ = 0;          // of the last Run
  bool have_logits_ = false;  // of all of them
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DEVICE_DECODER_H_
