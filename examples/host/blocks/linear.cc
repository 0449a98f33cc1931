#include "host/blocks/linear.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "host/blocks/panel_gemm.h"
#include "moert/offline/linear_weight.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

// A job's rows share the panels it streams from memory; more rows would only unbalance the threads.
constexpr int64_t kRowsPerJob = 64;
// Multiply-adds below which handing out a job costs more than it gains.
constexpr int64_t kWorkPerJob = 1 << 18;
// Least multiply-adds and rows for which the transfers to and from a device pay off. Each row's
// inputs and outputs are copied.
constexpr int64_t kDeviceWork = int64_t{1} << 26;
constexpr int64_t kDeviceRows = 64;
// Inputs and outputs, in floats, that a thread copies and the device multiplies at once, while
// other threads copy theirs.
constexpr int64_t kDeviceFloats = int64_t{1} << 22;

}  // namespace

Linear::Linear(int64_t out, int64_t in, bool bf16) : out_(out), in_(in) {
  (bf16 ? bf16_.resize(panels() * in * kPanelWidth) : f32_.resize(panels() * in * kPanelWidth));
}

int64_t Linear::bytes() const {
  return static_cast<int64_t>(f32_.size() * sizeof(float) + bf16_.size() * sizeof(uint16_t) +
                              bias_.size() * sizeof(float));
}

template <typename T>
void Linear::PackRow(int64_t row, const T* weights, AlignedVector<T>* packed) {
  T* panel = packed->data() + (row / kPanelWidth) * in_ * kPanelWidth + row % kPanelWidth;
  for (int64_t k = 0; k < in_; ++k) panel[k * kPanelWidth] = weights[k];
}

template <typename T>
absl::Status Linear::PackPart(const LinearWeight& weight, const MatrixPart& part, int64_t first,
                              AlignedVector<T>* packed) {
  const int64_t rows_at_once = std::max<int64_t>(1, (int64_t{1} << 20) / in_);
  std::vector<T> rows;
  for (int64_t row = 0; row < part.out; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, part.out - row);
    rows.resize(count * in_);
    MOERT_RETURN_IF_ERROR(ReadRows(weight, part, in_, row, count, absl::MakeSpan(rows)));
    for (int64_t r = 0; r < count; ++r) PackRow(first + row + r, &rows[r * in_], packed);
  }
  return absl::OkStatus();
}

absl::StatusOr<Linear> Linear::Load(const Checkpoint& checkpoint, const QuantizationConfig& form,
                                    const std::string& name, int64_t out, int64_t in, bool bias) {
  return Load(checkpoint, form, {{name, out, bias}}, in);
}

absl::StatusOr<Linear> Linear::Load(const Checkpoint& checkpoint, const QuantizationConfig& form,
                                    const std::vector<MatrixPart>& parts, int64_t in) {
  int64_t out = 0;
  bool bf16 = true;
  std::vector<LinearWeight> weights;
  std::vector<size_t> weight_of;
  for (const MatrixPart& part : parts) {
    out += part.out;
    const bool opened = !weights.empty() && part.name == parts[weight_of.size() - 1].name;
    weight_of.push_back(opened ? weights.size() - 1 : weights.size());
    if (opened) continue;
    MOERT_ASSIGN_OR_RETURN(LinearWeight weight,
                           LinearWeight::Open(checkpoint, form, part.name, part.stored_rows(), in));
    bf16 = bf16 && weight.bf16();
    weights.push_back(std::move(weight));
  }
  Linear linear(out, in, bf16);
  int64_t first = 0;
  for (size_t p = 0; p < parts.size(); first += parts[p++].out) {
    MOERT_RETURN_IF_ERROR(
        bf16 ? linear.PackPart(weights[weight_of[p]], parts[p], first, &linear.bf16_)
             : linear.PackPart(weights[weight_of[p]], parts[p], first, &linear.f32_));
    if (!parts[p].bias) continue;
    MOERT_ASSIGN_OR_RETURN(const std::vector<float> bias, ReadBias(checkpoint, parts[p]));
    linear.bias_.resize(linear.panels() * kPanelWidth);
    std::copy(bias.begin(), bias.end(), linear.bias_.begin() + first);
  }
  return linear;
}

Linear Linear::FromF32(const float* weights, int64_t out, int64_t in, const float* bias) {
  Linear linear(out, in, /*bf16=*/false);
  for (int64_t r = 0; r < out; ++r) linear.PackRow(r, weights + r * in, &linear.f32_);
  if (bias != nullptr) {
    linear.bias_.assign(linear.panels() * kPanelWidth, 0.0f);
    std::copy(bias, bias + out, linear.bias_.begin());
  }
  return linear;
}

void Linear::UseDevice(DeviceProducts* device) {
  if (empty()) return;
  std::vector<float> weights(static_cast<size_t>(out_ * in_));
  for (int64_t row = 0; row < out_; ++row) Row(row, weights.data() + row * in_);
  auto kept = device->Keep(weights.data(), out_, in_);
  if (!kept.ok()) return;
  device_ = device;
  on_device_ = *std::move(kept);
}

bool Linear::ForwardOnDevice(ThreadPool* pool, const float* x, int64_t rows, float* y) const {
  if (on_device_ == nullptr || rows < kDeviceRows || rows * in_ * out_ < kDeviceWork) return false;
  const int64_t at_once = std::max(kDeviceRows, kDeviceFloats / (in_ + out_));
  std::atomic<bool> good{true};
  const auto part = [&](int64_t index, int) {
    const int64_t first = index * at_once, count = std::min(at_once, rows - first);
    float* const to = y + first * out_;
    if (!good || !device_->MultiplyKept(*on_device_, x + first * in_, count, to).ok()) {
      good = false;
      return;
    }
    for (int64_t row = 0; row < count && !bias_.empty(); ++row) {
      for (int64_t c = 0; c < out_; ++c) to[row * out_ + c] += bias_[c];
    }
  };
  const int64_t parts = (rows + at_once - 1) / at_once;
  if (parts == 1) {
    part(0, 0);
  } else {
    pool->Run(parts, part);
  }
  return good;
}

void Linear::Forward(ThreadPool* pool, const float* x, int64_t rows, float* y) const {
  if (rows <= 0 || ForwardOnDevice(pool, x, rows, y)) return;
  const int64_t row_jobs = (rows + kRowsPerJob - 1) / kRowsPerJob;
  const int64_t panel_work = std::min(rows, kRowsPerJob) * in_ * kPanelWidth;
  // A multiple of 8: the few-rows kernels run 8 panels side by side.
  const int64_t step = (kWorkPerJob / panel_work + 8) / 8 * 8;
  const int64_t panel_jobs = (panels() + step - 1) / step;
  const auto job = [&](int64_t index, int) {
    const int64_t row = index / panel_jobs * kRowsPerJob;
    const int64_t panel = index % panel_jobs * step;
    PanelGemm g;
    g.x = x + row * in_;
    g.x_stride = in_;
    g.rows = std::min(kRowsPerJob, rows - row);
    g.k = in_;
    g.panel_stride = in_ * kPanelWidth;
    g.y_stride = out_;
    const auto run = [&](int64_t first, int64_t count, float* dst) {
      g.num_panels = count;
      g.bias = bias_.empty() ? nullptr : bias_.data() + first * kPanelWidth;
      g.y = dst;
      if (bf16_.empty()) {
        g.panels = f32_.data() + first * g.panel_stride;
        Panel().f32(g);
      } else {
        g.panels = bf16_.data() + first * g.panel_stride;
        Panel().bf16(g);
      }
    };
    const int64_t end = std::min(panels(), panel + step);
    const int64_t whole = std::min(end, out_ / kPanelWidth);
    if (whole > panel) run(panel, whole - panel, y + row * out_ + panel * kPanelWidth);
    if (end > whole) {  // the last panel is only partly there: its padding must not reach y
      float partial[kRowsPerJob * kPanelWidth];
      g.y_stride = kPanelWidth;
      run(whole, 1, partial);
      const int64_t width = out_ - whole * kPanelWidth;
      for (int64_t r = 0; r < g.rows; ++r) {
        std::memcpy(y + (row + r) * out_ + whole * kPanelWidth, partial + r * kPanelWidth,
                    width * sizeof(float));
      }
    }
  };
  const int64_t jobs = row_jobs * panel_jobs;
  if (jobs == 1) {
    job(0, 0);
  } else {
    pool->Run(jobs, job);
  }
}

void Linear::Row(int64_t index, float* dst) const {
  const int64_t at = index / kPanelWidth * in_ * kPanelWidth + index % kPanelWidth;
  for (int64_t k = 0; k < in_; ++k) {
    if (bf16_.empty()) {
      dst[k] = f32_[at + k * kPanelWidth];
    } else {
      const uint32_t bits = static_cast<uint32_t>(bf16_[at + k * kPanelWidth]) << 16;
      std::memcpy(&dst[k], &bits, sizeof(float));
    }
  }
}

}  // namespace moert::host
