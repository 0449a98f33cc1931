#include "cli/pack/host_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/common/output.h"
#include "host/blocks/linear.h"
#include "host/read_tokens.h"
#include "moert/backend.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

// Multiply-adds from which the way to a device and back is worth it: 16 million are half a
// millisecond of a core.
constexpr int64_t kDeviceWork = int64_t{1} << 24;
// A product holds its lane for less time than quantizing what it multiplies takes a thread.
constexpr int kDeviceLanes = 8;

class HostModel final : public CalibrationModel {
 public:
  HostModel(std::unique_ptr<host::Decoder> decoder, host::DeviceProducts* device, int64_t window)
      : decoder_(std::move(decoder)), scratch_(decoder_->MakeSequence(window)), products_(device) {}

  void Embed(absl::Span<const int32_t> tokens, float* residual) override {
    decoder_->Embed(tokens, residual);
  }
  void Attention(int layer, int64_t rows, float* residual, float* normed) override {
    decoder_->AttentionHalf(layer, scratch_.get(), rows, residual, normed);
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
  const std::unique_ptr<host::SequenceState> scratch_;
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

OpenCalibrationModel HostModelOpener(host::DeviceProducts* device) {
  return [device](const Checkpoint& checkpoint, const HfConfig& config, ThreadPool* pool,
                  int64_t window) -> absl::StatusOr<std::unique_ptr<CalibrationModel>> {
    MOERT_ASSIGN_OR_RETURN(auto decoder, host::Decoder::Load(checkpoint, config, pool, nullptr));
    return MakeHostModel(std::move(decoder), device, window);
  };
}

}  // namespace moert::cli
