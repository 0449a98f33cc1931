#include "host/blocks/head_linear.h"

#include <algorithm>
#include <vector>

#include "host/blocks/panel_gemm.h"
#include "moert/offline/linear_weight.h"
#include "util/status_macros.h"

namespace moert::host {

template <typename T>
void HeadLinear::PackRow(int head, int64_t row, bool transposed, const T* weights,
                         AlignedVector<T>* packed) {
  T* const matrix = packed->data() + head * out_ * in_;
  const int64_t width = transposed ? out_ : in_;
  for (int64_t i = 0; i < width; ++i) {
    const int64_t out = transposed ? i : row, in = transposed ? row : i;
    matrix[(out / kPanelWidth * in_ + in) * kPanelWidth + out % kPanelWidth] = weights[i];
  }
}

absl::StatusOr<HeadLinear> HeadLinear::Load(const Checkpoint& checkpoint,
                                            const QuantizationConfig& form, const std::string& name,
                                            const Part& part, bool transposed) {
  MOERT_ASSIGN_OR_RETURN(
      const LinearWeight weight,
      LinearWeight::Open(checkpoint, form, name, part.heads * part.stride, part.width));
  HeadLinear linear;
  linear.heads_ = part.heads;
  linear.out_ = transposed ? part.width : part.count;
  linear.in_ = transposed ? part.count : part.width;
  const bool as_bf16 = weight.bf16();
  const int64_t weights = part.count * part.width;
  std::vector<uint16_t> bf16(as_bf16 ? weights : 0);
  std::vector<float> f32(as_bf16 ? 0 : weights);
  linear.bf16_.resize(part.heads * static_cast<int64_t>(bf16.size()));
  linear.f32_.resize(part.heads * static_cast<int64_t>(f32.size()));
  for (int head = 0; head < part.heads; ++head) {
    const int64_t at = head * part.stride + part.first;
    if (as_bf16) {
      MOERT_RETURN_IF_ERROR(weight.Read(at, absl::MakeSpan(bf16)));
    } else {
      MOERT_RETURN_IF_ERROR(weight.Read(at, absl::MakeSpan(f32)));
    }
    for (int64_t row = 0; row < part.count; ++row) {
      if (as_bf16) {
        linear.PackRow(head, row, transposed, &bf16[row * part.width], &linear.bf16_);
      } else {
        linear.PackRow(head, row, transposed, &f32[row * part.width], &linear.f32_);
      }
    }
  }
  return linear;
}

void HeadLinear::Forward(ThreadPool* pool, const float* x, int64_t x_stride, int64_t rows, float* y,
                         int64_t y_stride) const {
  constexpr int64_t kRowsPerJob = 64;
  const int64_t row_jobs = (rows + kRowsPerJob - 1) / kRowsPerJob;
  pool->Run(heads_ * row_jobs, [&](int64_t index, int) {
    const int64_t head = index / row_jobs, row = index % row_jobs * kRowsPerJob;
    PanelGemm g{};
    g.x = x + (row * heads_ + head) * x_stride;
    g.x_stride = heads_ * x_stride;
    g.rows = std::min(kRowsPerJob, rows - row);
    g.k = in_;
    g.panel_stride = in_ * kPanelWidth;
    g.num_panels = out_ / kPanelWidth;
    g.y = y + (row * heads_ + head) * y_stride;
    g.y_stride = heads_ * y_stride;
    if (bf16_.empty()) {
      g.panels = f32_.data() + head * out_ * in_;
      Panel().f32(g);
    } else {
      g.panels = bf16_.data() + head * out_ * in_;
      Panel().bf16(g);
    }
  });
}

}  // namespace moert::host
