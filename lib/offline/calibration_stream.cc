#include "offline/calibration_stream.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/hash64.h"
#include "base/status_macros.h"
#include "pack/sealed_json.h"

namespace moert::offline {

absl::StatusOr<CalibrationTokens> ReadCalibrationTokens(const std::vector<std::string>& files,
                                                        int64_t vocab_size, int64_t window,
                                                        int64_t count, const TokenReader& reader) {
  if (window < 1 || count < 0) {
    return InvalidArgument(
        "{} calibration tokens in windows of {}: legal are 0 or more in 1 or more", count, window);
  }
  std::vector<std::vector<int32_t>> read;
  for (const std::string& file : files) {
    MOERT_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                           reader ? reader(file, vocab_size) : ReadTokenFile(file, vocab_size));
    if (static_cast<int64_t>(ids.size()) < window) {
      return InvalidArgument("{}: {} tokens are fewer than one window of {}", file, ids.size(),
                             window);
    }
    read.push_back(std::move(ids));
  }
  CalibrationTokens tokens;
  tokens.window = window;
  // Takes a window of each file in turn, so that a limited amount still covers all files.
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
    return InvalidArgument("{} calibration tokens are fewer than one window of {}", count, window);
  }
  return tokens;
}

std::string ChecksumOf(const CalibrationTokens& tokens) {
  return HexOf(Hash64(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(tokens.ids.data()),
                                          tokens.ids.size() * sizeof(int32_t))));
}

CalibrationStream::CalibrationStream(const ModelContext& context, const CalibrationTokens* tokens)
    : context_(context),
      tokens_(tokens),
      window_(tokens->window),
      hidden_(context.config->hidden_size),
      rows_(static_cast<int64_t>(tokens->ids.size())),
      residual_(static_cast<size_t>(rows_ * hidden_)),
      normed_(static_cast<size_t>(rows_ * hidden_)) {
  for (int64_t row = 0; row < rows_; row += window_) {
    context_.model->Embed(absl::MakeConstSpan(tokens->ids).subspan(row, window_),
                          residual_.data() + row * hidden_);
  }
}

CalibrationStream::CalibrationStream(const ModelContext& context, int64_t window)
    : context_(context), window_(window), hidden_(context.config->hidden_size) {}

void CalibrationStream::Reserve(int64_t rows) {
  residual_.reserve(rows * hidden_);
  normed_.reserve(rows * hidden_);
}

void CalibrationStream::Add(const float* residual, int64_t rows) {
  residual_.insert(residual_.end(), residual, residual + rows * hidden_);
  rows_ += rows;
  normed_.resize(residual_.size());
}

void CalibrationStream::RunLayer(int layer, bool dense) {
  context_.model->AttentionOfMany(layer, rows_ / window_, window_, hidden_, residual_.data(),
                                  normed_.data());
  for (int64_t row = 0; row < rows_ && dense; row += window_) {
    context_.model->Dense(layer, window_, normed_.data() + row * hidden_,
                          residual_.data() + row * hidden_);
  }
}

void CalibrationStream::ToMoe(int moe_layer) {
  const int layer = context_.config->moe.layers[moe_layer].model_layer;
  for (; next_layer_ < layer; ++next_layer_) RunLayer(next_layer_, /*dense=*/true);
  RunLayer(layer, /*dense=*/false);
  next_layer_ = layer + 1;
}

const float* CalibrationStream::FinishHidden() {
  const int layers = context_.config->num_hidden_layers;
  for (; next_layer_ < layers; ++next_layer_) RunLayer(next_layer_, /*dense=*/true);
  for (int64_t row = 0; row < rows_; row += window_) {
    context_.model->Finish(window_, residual_.data() + row * hidden_,
                           normed_.data() + row * hidden_);
  }
  return normed_.data();
}

double CalibrationStream::Nll() const {
  const int64_t vocab = context_.config->vocab_size;
  const int64_t window = window_;
  std::vector<float> logits(window * vocab);
  std::vector<double> nll(window);
  double total = 0;
  for (int64_t row = 0; row < rows_; row += window) {
    context_.model->Logits(window, normed_.data() + row * hidden_, logits.data());
    context_.pool->Run(window - 1, [&](int64_t i, int) {
      const float* const at = logits.data() + i * vocab;
      const float largest = *std::max_element(at, at + vocab);
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(double{at[v]} - largest);
      nll[i] = std::log(sum) + largest - at[tokens_->ids[row + i + 1]];
    });
    for (int64_t i = 0; i + 1 < window; ++i) total += nll[i];
  }
  return total / static_cast<double>(tokens_->windows() * (window - 1));
}

ExpertRows RowsOf(const RoutingResult& routing, int expert) {
  ExpertRows of;
  const size_t e = static_cast<size_t>(expert);
  for (int32_t i = routing.offsets[e]; i < routing.offsets[e + 1]; ++i) {
    of.rows.push_back(routing.grouped_tokens[i]);
    of.weights.push_back(routing.weights[routing.grouped_slots[static_cast<size_t>(i)]]);
  }
  return of;
}

}  // namespace moert::offline
