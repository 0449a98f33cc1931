#include "examples/cli/pack/calibration_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "examples/cli/common/token_file.h"

namespace moert::cli {

absl::StatusOr<CalibrationTokens> ReadCalibrationTokens(const std::vector<std::string>& files,
                                                        int64_t vocab_size, int64_t window,
                                                        int64_t count) {
  std::vector<std::vector<int32_t>> read;
  for (const std::string& file : files) {
    MOERT_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadTokenFile(file, vocab_size, 0));
    if (static_cast<int64_t>(ids.size()) < window) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {} tokens are fewer than one window of {}", file, ids.size(), window));
    }
    read.push_back(std::move(ids));
  }
  CalibrationTokens tokens;
  tokens.window = window;
  // A window of each file in turn: an amount that ends early still covers all of them.
  for (int64_t w = 0;; ++w) {
    bool any = false;
    for (const std::vector<int32_t>& ids : read) {
      if ((w + 1) * window > static_cast<int64_t>(ids.size())) continue;
      if (count > 0 && static_cast<int64_t>(tokens.ids.size()) + window > count) continue;
      tokens.ids.insert(tokens.ids.end(), ids.begin() + w * window, ids.begin() + (w + 1) * window);
      any = true;
    }
    if (!any) break;
  }
  if (tokens.ids.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} calibration tokens are fewer than one window of {}", count, window));
  }
  return tokens;
}

CalibrationStream::CalibrationStream(host::Decoder* decoder, const CalibrationTokens* tokens)
    : decoder_(decoder),
      tokens_(tokens),
      window_(tokens->window),
      hidden_(decoder->config().hidden_size),
      rows_(static_cast<int64_t>(tokens->ids.size())),
      cache_(decoder->config(), tokens->window),
      residual_(static_cast<size_t>(rows_ * hidden_)),
      normed_(static_cast<size_t>(rows_ * hidden_)) {
  decoder_->Embed(tokens->ids, residual_.data());
}

CalibrationStream::CalibrationStream(host::Decoder* decoder, int64_t window)
    : decoder_(decoder),
      window_(window),
      hidden_(decoder->config().hidden_size),
      cache_(decoder->config(), window) {}

void CalibrationStream::Add(const float* residual, int64_t rows) {
  residual_.insert(residual_.end(), residual, residual + rows * hidden_);
  rows_ += rows;
  normed_.resize(residual_.size());
}

void CalibrationStream::RunLayer(int layer, bool dense) {
  for (int64_t row = 0; row < rows_; row += window_) {
    float* const residual = residual_.data() + row * hidden_;
    float* const normed = normed_.data() + row * hidden_;
    decoder_->AttentionHalf(layer, &cache_, window_, residual, normed);
    if (dense) decoder_->DenseHalf(layer, window_, normed, residual);
  }
}

void CalibrationStream::ToMoe(int moe_layer) {
  const int layer = decoder_->config().moe.layers[static_cast<size_t>(moe_layer)].model_layer;
  for (; next_layer_ < layer; ++next_layer_) RunLayer(next_layer_, /*dense=*/true);
  RunLayer(layer, /*dense=*/false);
  next_layer_ = layer + 1;
}

const float* CalibrationStream::FinishHidden() {
  const int layers = decoder_->config().num_hidden_layers;
  for (; next_layer_ < layers; ++next_layer_) RunLayer(next_layer_, /*dense=*/true);
  decoder_->FinishHidden(rows_, residual_.data(), normed_.data());
  return normed_.data();
}

double CalibrationStream::Nll() const {
  const int64_t vocab = decoder_->config().vocab_size;
  const int64_t window = window_;
  host::AlignedVector<float> logits(static_cast<size_t>(window * vocab));
  std::vector<double> nll(static_cast<size_t>(window));
  double total = 0;
  for (int64_t row = 0; row < rows_; row += window) {
    decoder_->Logits(normed_.data() + row * hidden_, window, logits.data());
    decoder_->pool()->Run(window - 1, [&](int64_t i, int) {
      const float* const at = logits.data() + i * vocab;
      const float largest = *std::max_element(at, at + vocab);
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(double{at[v]} - largest);
      nll[static_cast<size_t>(i)] =
          std::log(sum) + largest - at[tokens_->ids[static_cast<size_t>(row + i + 1)]];
    });
    for (int64_t i = 0; i + 1 < window; ++i) total += nll[static_cast<size_t>(i)];
  }
  return total / static_cast<double>(tokens_->windows() * (window - 1));
}

ExpertRows RowsOf(const RoutingResult& routing, int expert) {
  ExpertRows of;
  const size_t e = static_cast<size_t>(expert);
  for (int32_t i = routing.offsets[e]; i < routing.offsets[e + 1]; ++i) {
    of.rows.push_back(routing.grouped_tokens[static_cast<size_t>(i)]);
    of.weights.push_back(
        routing.weights[static_cast<size_t>(routing.grouped_slots[static_cast<size_t>(i)])]);
  }
  return of;
}

}  // namespace moert::cli
