#include "host/blocks/norm.h"

#include <algorithm>
#include <cmath>

#include "util/status_macros.h"

namespace moert::host {
namespace {

// Sum of f(x[i]) in 16 interleaved partial sums, which vectorizes without changing the order of
// additions.
template <typename F>
float Sum(const float* x, int64_t n, F f) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += f(x[i + l]);
  }
  for (int l = 0; i < n; ++i, ++l) lanes[l] += f(x[i]);
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

absl::StatusOr<Norm> Norm::Load(const Checkpoint& checkpoint, const std::string& name,
                                NormKind kind, int64_t width, float eps) {
  Norm norm;
  norm.kind_ = kind;
  norm.eps_ = eps;
  MOERT_ASSIGN_OR_RETURN(norm.weight_, checkpoint.ReadF32(name + ".weight", {width}));
  if (kind == NormKind::kRmsOffset) {
    for (float& w : norm.weight_) w += 1.0f;
  }
  if (kind == NormKind::kLayer) {
    MOERT_ASSIGN_OR_RETURN(norm.bias_, checkpoint.ReadF32(name + ".bias", {width}));
  }
  return norm;
}

void Norm::Apply(const float* x, float* y) const {
  const int64_t n = static_cast<int64_t>(weight_.size());
  const float mean = kind_ == NormKind::kLayer ? Sum(x, n, [](float v) { return v; }) / n : 0.0f;
  const float square = Sum(x, n, [mean](float v) { return (v - mean) * (v - mean); }) / n;
  const float scale = 1.0f / std::sqrt(square + eps_);
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * weight_[i];
  for (size_t i = 0; i < bias_.size(); ++i) y[i] += bias_[i];
}

float InverseRoot(int64_t width, float eps, const float* x) {
  const float square = Sum(x, width, [](float v) { return v * v; }) / width;
  return 1.0f / std::sqrt(square + eps);
}

void NormalizeL2(int64_t width, float eps, float* x) {
  const float scale = InverseRoot(width, eps, x);
  for (int64_t i = 0; i < width; ++i) x[i] *= scale;
}

void Norm::Forward(ThreadPool* pool, const float* x, int64_t rows, float* y) const {
  constexpr int64_t kRowsPerJob = 16;
  const int64_t n = static_cast<int64_t>(weight_.size());
  const auto job = [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * kRowsPerJob);
    for (int64_t r = index * kRowsPerJob; r < end; ++r) Apply(x + r * n, y + r * n);
  };
  const int64_t jobs = (rows + kRowsPerJob - 1) / kRowsPerJob;
  if (jobs == 1) {
    job(0, 0);
  } else {
    pool->Run(jobs, job);
  }
}

}  // namespace moert::host
