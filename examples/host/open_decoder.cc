#include "host/open_decoder.h"

#include <fmt/format.h>

#include "host/engine_runner.h"
#include "host/model.h"
#include "moert/offline/tensor_account.h"
#include "util/status_macros.h"
#ifdef MOERT_HOST_CUDA
#include "host/cuda/device_decoder.h"
#endif

namespace moert::host {
namespace {

/// A Decoder with the runner that it borrows.
class CpuModel final : public TokenModel {
 public:
  CpuModel(std::unique_ptr<EngineRunner> runner, std::unique_ptr<Decoder> decoder)
      : runner_(std::move(runner)), decoder_(std::move(decoder)) {}

  const HfConfig& config() const override { return decoder_->config(); }
  absl::StatusOr<std::unique_ptr<Sequence>> NewSequence(int64_t max_tokens) override {
    return decoder_->NewSequence(max_tokens);
  }
  absl::Status Run(StepPhase phase, absl::Span<const SequenceInput> inputs) override {
    return decoder_->Run(phase, inputs);
  }
  absl::Status RowLogits(int64_t first, int64_t rows, float* logits) override {
    return decoder_->RowLogits(first, rows, logits);
  }
  absl::StatusOr<int32_t> Best(int64_t row) override { return decoder_->Best(row); }
  absl::Status Score(int64_t first, absl::Span<const int32_t> targets, double* nll) override {
    return decoder_->Score(first, targets, nll);
  }
  absl::Status Wait() override { return decoder_->Wait(); }
  int64_t max_rows() const override { return decoder_->max_rows(); }
  double NowMs() const override { return decoder_->NowMs(); }

 private:
  const std::unique_ptr<EngineRunner> runner_;
  const std::unique_ptr<Decoder> decoder_;
};

}  // namespace

absl::StatusOr<OpenedDecoder> OpenDecoder(const Checkpoint& checkpoint, const HfConfig& config,
                                          Engine* engine, ThreadPool* pool,
                                          const OpenDecoderOptions& options) {
  OpenedDecoder opened;
  MOERT_RETURN_IF_ERROR(CheckTensors(checkpoint, config));
  if (engine->backend() == BackendKind::kCpu) {
    auto runner = std::make_unique<EngineRunner>(engine, options.max_rows);
    MOERT_ASSIGN_OR_RETURN(auto decoder, Decoder::Load(checkpoint, config, pool, runner.get()));
    opened.model = std::make_unique<CpuModel>(std::move(runner), std::move(decoder));
    return opened;
  }
#ifdef MOERT_HOST_CUDA
  DeviceDecoderOptions device;
  device.device = options.device;
  device.max_rows = options.max_rows;
  device.graphs = options.graphs;
  MOERT_ASSIGN_OR_RETURN(auto decoder, DeviceDecoder::Load(checkpoint, config, engine, device));
  opened.note = decoder->note();
  if (config.indexer.heads > 0) {
    opened.note += fmt::format("{}sequences have at most index_topk ({}) tokens on a device",
                               opened.note.empty() ? "" : "; ", config.indexer.top_k);
  }
  opened.model = std::move(decoder);
  return opened;
#else
  return absl::UnimplementedError("this build of the host has no CUDA");
#endif
}

}  // namespace moert::host
