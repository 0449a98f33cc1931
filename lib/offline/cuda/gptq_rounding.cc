#include "offline/cuda/gptq_rounding.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cuda/offline/dense_product.h"
#include "kernels/cuda/offline/fit_groups.h"
#include "kernels/cuda/offline/round_columns.h"
#include "offline/fit_forms.h"

namespace moert::offline {
namespace {

static_assert(sizeof(GroupScale) == sizeof(cuda::Fit), "fits are copied as they are");

class Rounding {
 public:
  Rounding(const MatrixLayout& layout, const GptqMatrix& matrix, const GptqOptions& options,
           GptqRoom* room, cudaStream_t stream, std::vector<GroupScale>* scales)
      : layout_(layout),
        matrix_(matrix),
        options_(options),
        room_(*room),
        stream_(stream),
        scales_(*scales),
        form_(MakeRoundingForm(layout.scheme)),
        whole_rows_(layout.group >= layout.k) {}

  absl::Status Run() {
    const int64_t k = layout_.k;
    const int64_t block = GptqBlock(layout_, options_);
    MOERT_RETURN_IF_ERROR(Begin(block));
    if (whole_rows_) MOERT_RETURN_IF_ERROR(FitColumns(0, k));
    for (int64_t begin = 0; begin < k; begin += block) {
      const int64_t end = std::min(k, begin + block);
      for (int64_t at = begin, next; at < end; at = next) {
        next = whole_rows_ ? end : std::min(end, at + layout_.group);
        if (!whole_rows_) MOERT_RETURN_IF_ERROR(FitColumns(at, next));
        MOERT_RETURN_IF_ERROR(RoundColumns(begin, end, at, next));
      }
      if (end == k) break;
      MOERT_CUDA_RETURN_IF_ERROR(
          cuda::LaunchAddProduct({Errors(), end - begin}, {matrix_.shares + begin * k + end, k},
                                 Weights() + end, k, layout_.rows, k - end, end - begin, stream_));
    }
    return absl::OkStatus();
  }

 private:
  float* Weights() const { return reinterpret_cast<float*>(room_.weights.data()); }
  float* Errors() const { return reinterpret_cast<float*>(room_.errors.data()); }
  cuda::Fit* Fits() const { return reinterpret_cast<cuda::Fit*>(room_.fits.data()); }
  int64_t FitBytes() const { return layout_.rows * static_cast<int64_t>(sizeof(cuda::Fit)); }

  absl::Status Begin(int64_t block) {
    const int64_t rows = layout_.rows;
    const int64_t bytes = rows * layout_.k * static_cast<int64_t>(sizeof(float));
    MOERT_RETURN_IF_ERROR(Grow(&room_.weights, bytes));
    MOERT_RETURN_IF_ERROR(Grow(&room_.errors, rows * block * static_cast<int64_t>(sizeof(float))));
    MOERT_RETURN_IF_ERROR(Grow(&room_.fits, FitBytes()));
    const int64_t group = std::min(layout_.group, layout_.k);
    MOERT_RETURN_IF_ERROR(Grow(&room_.host,
                               FitBytes() + rows * group * static_cast<int64_t>(sizeof(float)),
                               PinnedOrPageable));
    scales_.assign(rows * layout_.groups(), GroupScale());
    return MOERT_CUDA_STATUS(cudaMemcpyAsync(room_.weights.data(), matrix_.original,
                                             static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                             stream_));
  }

  /// Fits the scales of the group formed by these columns, for all rows.
  absl::Status FitColumns(int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const auto form = MakeRangeForm(layout_.scheme, count, options_.clip);
    if (!form) return absl::InternalError("a form that no device searches");
    const cuda::FitMatrix columns = {Weights() + begin, layout_.rows, count,
                                     static_cast<int>(count), layout_.k};
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchFitRtn(columns, *form, Fits(), stream_));
    auto* const found = reinterpret_cast<GroupScale*>(room_.host.data());
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(found, Fits(), static_cast<size_t>(FitBytes()),
                                               cudaMemcpyDeviceToHost, stream_));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_));
    const auto unknown = [](const GroupScale& g) { return !g.Known(); };
    if (std::any_of(found, found + layout_.rows, unknown)) {
      MOERT_RETURN_IF_ERROR(FitOnHost(begin, count, found));
    }
    const int64_t group = begin / layout_.group, groups = layout_.groups();
    for (int64_t r = 0; r < layout_.rows; ++r) scales_[r * groups + group] = found[r];
    return absl::OkStatus();
  }

  /// Fits the scales that the device could not determine.
  absl::Status FitOnHost(int64_t begin, int64_t count, GroupScale* found) {
    auto* const values = reinterpret_cast<float*>(room_.host.data() + FitBytes());
    const auto width = static_cast<size_t>(count) * sizeof(float);
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(
        values, width, Weights() + begin, static_cast<size_t>(layout_.k) * sizeof(float), width,
        static_cast<size_t>(layout_.rows), cudaMemcpyDeviceToHost, stream_));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_));
    for (int64_t r = 0; r < layout_.rows; ++r) {
      if (found[r].Known()) continue;
      found[r] =
          FitGroup(layout_.scheme, absl::MakeConstSpan(values + r * count, count), options_.clip);
    }
    // The next fits are copied into the same memory after this copy, in stream order.
    return MOERT_CUDA_STATUS(cudaMemcpyAsync(Fits(), found, static_cast<size_t>(FitBytes()),
                                             cudaMemcpyHostToDevice, stream_));
  }

  absl::Status RoundColumns(int64_t begin, int64_t end, int64_t at, int64_t next) {
    cuda::ColumnRounding rounding;
    rounding.original = matrix_.original;
    rounding.weights = Weights();
    rounding.shares = matrix_.shares;
    rounding.fits = Fits();
    rounding.errors = Errors();
    rounding.codes = matrix_.codes;
    rounding.back = matrix_.back;
    rounding.rows = layout_.rows;
    rounding.k = layout_.k;
    rounding.begin = begin;
    rounding.width = static_cast<int>(end - begin);
    rounding.first = static_cast<int>(at - begin);
    rounding.count = static_cast<int>(next - at);
    return MOERT_CUDA_STATUS(cuda::LaunchRoundColumns(rounding, form_, stream_));
  }

  const MatrixLayout& layout_;
  const GptqMatrix& matrix_;
  const GptqOptions& options_;
  GptqRoom& room_;
  const cudaStream_t stream_;
  std::vector<GroupScale>& scales_;
  const cuda::RoundingForm form_;
  const bool whole_rows_;
};

}  // namespace

bool CanRoundGptq(const MatrixLayout& layout, const GptqOptions& options) {
  const int64_t group = std::min(layout.group, layout.k);
  return layout.scheme.scales != ScaleType::kE4M3 && group <= cuda::kMostGroupValues &&
         GptqBlock(layout, options) <= cuda::kMostBlockColumns &&
         MakeRangeForm(layout.scheme, group, options.clip).has_value();
}

absl::Status RoundGptq(const MatrixLayout& layout, const GptqMatrix& matrix,
                       const GptqOptions& options, GptqRoom* room, cudaStream_t stream,
                       std::vector<GroupScale>* scales) {
  return Rounding(layout, matrix, options, room, stream, scales).Run();
}

absl::StatusOr<QuantizedMatrix> RoundGptqToHost(const MatrixLayout& layout, GptqMatrix matrix,
                                                const GptqOptions& options, GptqRoom* room,
                                                LaneStream* lane) {
  QuantizedMatrix q = MakeQuantizedMatrix(layout);
  const auto count = static_cast<int64_t>(q.codes.size());
  MOERT_RETURN_IF_ERROR(Grow(&room->codes, count));
  matrix.codes = reinterpret_cast<uint8_t*>(room->codes.data());
  std::vector<GroupScale> scales;
  MOERT_RETURN_IF_ERROR(RoundGptq(layout, matrix, options, room, lane->stream, &scales));
  MOERT_RETURN_IF_ERROR(lane->Download<uint8_t>(matrix.codes, count, q.codes.data()));
  for (size_t i = 0; i < scales.size(); ++i) {
    q.scales[i] = scales[i].scale;
    if (!q.offsets.empty()) q.offsets[i] = scales[i].offset;
  }
  return q;
}

}  // namespace moert::offline
