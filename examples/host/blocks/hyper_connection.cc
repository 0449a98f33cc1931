#include "host/blocks/hyper_connection.h"

#include <algorithm>
#include <cmath>

#include "host/blocks/mlp.h"
#include "host/blocks/norm.h"
#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<HyperConnection> HyperConnection::Load(const Checkpoint& checkpoint,
                                                      const HfConfig& config,
                                                      const std::string& name, bool last) {
  HyperConnection c;
  const int64_t streams = config.hyper.streams;
  if (streams == 0) return c;
  const int64_t weights = last ? streams : (2 + streams) * streams;
  const int64_t width = streams * config.hidden_size;
  MOERT_ASSIGN_OR_RETURN(const auto matrix, checkpoint.ReadF32(name + "_fn", {weights, width}));
  MOERT_ASSIGN_OR_RETURN(c.base_, checkpoint.ReadF32(name + "_base", {weights}));
  MOERT_ASSIGN_OR_RETURN(c.scale_, checkpoint.ReadF32(name + "_scale", {last ? 1 : 3}));
  c.project_ = Linear::FromF32(matrix.data(), weights, width, nullptr);
  c.streams_ = config.hyper.streams;
  c.hidden_ = config.hidden_size;
  c.iterations_ = config.hyper.iterations;
  c.eps_ = static_cast<float>(config.hyper.eps);
  c.norm_eps_ = static_cast<float>(config.norm_eps);
  return c;
}

const float* HyperConnection::Collapse(ThreadPool* pool, const float* streams, int64_t rows) {
  if (empty()) return streams;
  weights_.resize(rows * weights());
  collapsed_.resize(rows * hidden_);
  project_.Forward(pool, streams, rows, weights_.data());
  pool->Run(rows, [&](int64_t row, int) {
    const float* const from = streams + row * streams_ * hidden_;
    float* const w = weights_.data() + row * weights();
    Weigh(from, w);
    float* const to = collapsed_.data() + row * hidden_;
    for (int64_t i = 0; i < hidden_; ++i) {
      float sum = 0.0f;
      for (int s = 0; s < streams_; ++s) sum += w[s] * from[s * hidden_ + i];
      to[i] = sum;
    }
  });
  return collapsed_.data();
}

void HyperConnection::Weigh(const float* streams, float* w) const {
  const float root = InverseRoot(streams_ * hidden_, norm_eps_, streams);
  for (int64_t i = 0; i < weights(); ++i) {
    const auto part = static_cast<size_t>(std::min<int64_t>(i / streams_, 2));
    w[i] = w[i] * root * scale_[part] + base_[i];
  }
  for (int s = 0; s < streams_; ++s) w[s] = Sigmoid(w[s]) + eps_;
  if (weights() == streams_) return;
  for (int s = streams_; s < 2 * streams_; ++s) w[s] = 2 * Sigmoid(w[s]);
  Balance(w + 2 * int64_t{streams_});
}

// Sinkhorn-Knopp: divides rows (at first by a softmax) and columns by their sums in turns.
void HyperConnection::Balance(float* mixture) const {
  const int64_t n = streams_;
  const auto divide = [&](int64_t step, int64_t stride) {
    for (int64_t line = 0; line < n; ++line) {
      float* const first = mixture + line * step;
      float sum = 0.0f;
      for (int64_t i = 0; i < n; ++i) sum += first[i * stride];
      for (int64_t i = 0; i < n; ++i) first[i * stride] /= sum + eps_;
    }
  };
  for (int64_t row = 0; row < n; ++row) {
    float* const x = mixture + row * n;
    const float largest = *std::max_element(x, x + n);
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      x[i] = std::exp(x[i] - largest);
      sum += x[i];
    }
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] / sum + eps_;
  }
  divide(1, n);
  for (int i = 1; i < iterations_; ++i) {
    divide(n, 1);
    divide(1, n);
  }
}

void HyperConnection::Expand(ThreadPool* pool, const float* out, int64_t rows, int64_t hidden,
                             float* streams) const {
  if (empty()) {
    for (int64_t i = 0; i < rows * hidden; ++i) streams[i] += out[i];
    return;
  }
  pool->Run(rows, [&](int64_t row, int) {
    const float* const gains = weights_.data() + row * weights() + streams_;
    const float* const mixture = gains + streams_;
    float* const x = streams + row * streams_ * hidden_;
    std::vector<float> before(streams_);
    for (int64_t i = 0; i < hidden_; ++i) {
      for (int s = 0; s < streams_; ++s) before[s] = x[s * hidden_ + i];
      for (int to = 0; to < streams_; ++to) {
        float sum = gains[to] * out[row * hidden_ + i];
        for (int s = 0; s < streams_; ++s) sum += mixture[s * streams_ + to] * before[s];
        x[to * hidden_ + i] = sum;
      }
    }
  });
}

}  // namespace moert::host
