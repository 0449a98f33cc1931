#include "exec/executor.h"

#include <limits>

#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"

namespace moert {
namespace {

constexpr ptrdiff_t kMaxElementBytes = sizeof(float);

}  // namespace

absl::Status Executor::Check(const ExecutorCall& call, const MoeLayerSpec& layer,
                             bool /*routed*/) const {
  MOERT_RETURN_IF_ERROR(CheckRows("hidden", call.hidden, call, layer));
  const MutableMatrixView& out = call.out;
  return CheckRows("out", {out.data, out.dtype, out.rows, out.cols, out.row_stride}, call, layer);
}

absl::Status Executor::CheckRows(absl::string_view what, const MatrixView& rows,
                                 const ExecutorCall& call, const MoeLayerSpec& layer) {
  if (rows.data == nullptr || rows.rows != call.tokens || rows.cols != layer.hidden ||
      rows.row_stride < rows.cols ||
      rows.row_stride > std::numeric_limits<ptrdiff_t>::max() / kMaxElementBytes / rows.rows) {
    return InvalidArgument(
        "{}: [{}, {}] with row stride {}{}; layer {} of this step takes [{}, {}]", what, rows.rows,
        rows.cols, rows.row_stride, rows.data == nullptr ? " at null" : "", call.layer, call.tokens,
        layer.hidden);
  }
  if (rows.dtype != DType::kF32 && rows.dtype != DType::kBF16 && rows.dtype != DType::kF16) {
    return InvalidArgument("{}: dtype {}; legal: f32, bf16, f16", what, DTypeName(rows.dtype));
  }
  return absl::OkStatus();
}

absl::Status Executor::ScoreNext(const ExecutorCall&, bool, std::vector<float>*) {
  return absl::InternalError("this executor scores no next layer");
}

absl::Status Executor::CopyRecords(const ExecutorCall&, const VersionedStore&,
                                   absl::Span<const int32_t>, std::byte*, int64_t) {
  return absl::InternalError("this executor copies no records");
}

absl::Status Executor::MultiplyOnCpu(const VersionedStore&, int64_t, const OpaqueProduct&) {
  return absl::FailedPreconditionError("records are not opaque: the product is the library's");
}

}  // namespace moert
