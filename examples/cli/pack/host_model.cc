#include "cli/pack/host_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "cli/common/output.h"
#include "host/blocks/linear.h"
#include "host/read_tokens.h"
#include "moert/backend.h"
#include "moert/offline/tensor_account.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

// Multiply-adds from which the way to a device and back is worth it: 16 million are half a
// millisecond of a core.
constexpr int64_t kDeviceWork = int64_t{1} << 24;
// A thread copies what its lane multiplies.
constexpr int kDeviceLanes = 16;
// Rows of sequences that pass a layer together: enough for every thread to have a part of each
// product.
constexpr int64_t kAttentionRows = 16384;

class HostModel final : public CalibrationModel {
 public:
  HostModel(std::unique_ptr<host::Decoder> decoder, host::DeviceProducts* device, int64_t window)
      : decoder_(std::move(decoder)), window_(window), products_(device) {
    if (device != nullptr) decoder_->UseDevice(device);
  }

  void Embed(absl::Span<const int32_t> tokens, float* residual) override {
    decoder_->Embed(tokens, residual);
  }
  void Attention(int layer, int64_t rows, float* residual, float* normed) override {
    AttentionOfMany(layer, 1, rows, decoder_->config().hidden_size, residual, normed);
  }
  void AttentionOfMany(int layer, int64_t sequences, int64_t rows, int64_t hidden_size,
                       float* residual, float* normed) override {
    const int64_t at_once = std::clamp<int64_t>(kAttentionRows / rows, 1, sequences);
    std::vector<std::unique_ptr<host::SequenceState>> scratch;
    for (int64_t s = 0; s < at_once; ++s) {
      scratch.push_back(decoder_->MakeLayerSequence(layer, window_));
    }
    for (int64_t s = 0; s < sequences; s += at_once) {
      const int64_t count = std::min(at_once, sequences - s), at = s * rows * hidden_size;
      decoder_->AttentionHalf(layer, absl::MakeConstSpan(scratch).first(static_cast<size_t>(count)),
                              rows, residual + at, normed + at);
    }
  }
  void Dense(int layer, int64_t rows, const float* normed, float* residual) override {
    decoder_->DenseHalf(layer, rows, normed, residual);
  }
  void Finish(int64_t rows, const float* residual, float* hidden) override {
    decoder_->FinishHidden(rows, residual, hidden);
  }
  void Logits(int64_t rows, const float* hidden, float* logits) override {
    decoder_->Logits(hidden, rows, logits);
  }
  MatrixProducts* products() override { return &products_; }

 private:
  const std::unique_ptr<host::Decoder> decoder_;
  const int64_t window_;
  HostProducts products_;
};

}  // namespace

void HostProducts::Multiply(ThreadPool* pool, const float* w, int64_t out, int64_t in,
                            const float* x, int64_t rows, float* y) {
  if (device_ != nullptr && out * in >= kDeviceWork / rows &&
      device_->Multiply(w, out, in, x, rows, y).ok()) {
    return;
  }
  host::Linear::FromF32(w, out, in, nullptr).Forward(pool, x, rows, y);
}

std::unique_ptr<CalibrationModel> MakeHostModel(std::unique_ptr<host::Decoder> decoder,
                                                host::DeviceProducts* device, int64_t window) {
  return std::make_unique<HostModel>(std::move(decoder), device, window);
}

BackendKind BackendOf(const std::string& backend) {
  if (backend == "cpu") return BackendKind::kCpu;
  return backend == "cuda" ? BackendKind::kCuda : BackendKind::kAuto;
}

absl::StatusOr<std::unique_ptr<host::DeviceProducts>> OpenProducts(const std::string& backend,
                                                                   int threads, std::string* note) {
  if (backend == "cpu") return nullptr;
  absl::Status status = CudaStatus();
  if (!status.ok() && backend == "auto") return nullptr;
  if (status.ok()) {
    const int lanes = threads > 0 ? std::min(threads, kDeviceLanes) : kDeviceLanes;
    auto opened = host::DeviceProducts::Open(lanes);
    if (opened.ok()) {
      *note = fmt::format("products on {}", (*opened)->name());
      return opened;
    }
    status = opened.status();
  }
  if (backend == "auto") {
    *note = fmt::format("note: all on the CPU: {}", std::string(status.message()));
    return nullptr;
  }
  return absl::Status(status.code(), fmt::format("--backend cuda: {}; legal are cpu and auto",
                                                 std::string(status.message())));
}

void NoteRefusals(const host::DeviceProducts& device) {
  if (device.first_error().ok()) return;
  Print(stderr, "note: the device refused products, which the CPU did: {}\n",
        std::string(device.first_error().message()));
}

TokenReader HostTokenReader(const std::string& model) {
  return [model](const std::string& path, int64_t vocab_size) {
    return host::ReadTokens(path, model, vocab_size, 0);
  };
}

namespace {

// Layers run one at a time, so positions chosen in one layer are gone when the next would share
// them.
absl::Status CheckWindow(const Checkpoint& checkpoint, const HfConfig& config, int64_t window) {
  const bool shares = std::any_of(config.mixers.begin(), config.mixers.end(),
                                  [](const MixerConfig& mixer) { return mixer.shares_index; });
  if (!shares || window <= config.indexer.top_k) return absl::OkStatus();
  return absl::UnimplementedError(fmt::format(
      "{}: config.json: layers share the index_topk ({}) positions that an earlier layer chose, so "
      "calibration takes --window 2 to {}, not {}",
      checkpoint.path(), config.indexer.top_k, config.indexer.top_k, window));
}

// The halves of a layer are called one by one, with one residual stream between them. Layers with a
// dense block beside their experts cannot be divided like this.
absl::Status CheckHalves(const Checkpoint& checkpoint, const HfConfig& config) {
  if (config.hyper.streams > 0) {
    return absl::UnimplementedError(fmt::format(
        "{}: model_type {}: calibration needs one residual stream, not hyper-connections; without "
        "calibration it is quantized (rtn, hqq)",
        checkpoint.path(), config.model_type));
  }
  if (!config.side_experts) return absl::OkStatus();
  return absl::UnimplementedError(fmt::format(
      "{}: model_type {}: calibration needs layers whose experts stand alone, not beside a dense "
      "block; without calibration it is quantized (rtn, hqq)",
      checkpoint.path(), config.model_type));
}

}  // namespace

OpenCalibrationModel HostModelOpener(host::DeviceProducts* device) {
  return [device](const Checkpoint& checkpoint, const HfConfig& config, ThreadPool* pool,
                  int64_t window) -> absl::StatusOr<std::unique_ptr<CalibrationModel>> {
    MOERT_RETURN_IF_ERROR(CheckTensors(checkpoint, config));
    MOERT_RETURN_IF_ERROR(CheckWindow(checkpoint, config, window));
    MOERT_RETURN_IF_ERROR(CheckHalves(checkpoint, config));
    MOERT_ASSIGN_OR_RETURN(auto decoder, host::Decoder::Load(checkpoint, config, pool, nullptr));
    return MakeHostModel(std::move(decoder), device, window);
  };
}

}  // namespace moert::cli
