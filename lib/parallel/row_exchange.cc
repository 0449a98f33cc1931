#include "parallel/row_exchange.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"
#include "base/status_macros.h"

namespace moert {

RowExchange::RowExchange(const MoeModelSpec& model, std::unique_ptr<RowKernels> kernels,
                         Collectives* group, int64_t max_rows)
    : kernels_(std::move(kernels)),
      group_(group),
      // Blocks of ranks are equally long; the last one may end behind the rows.
      max_rows_(RoundUp(max_rows, group->size())),
      send_(static_cast<size_t>(group->size())),
      receive_(static_cast<size_t>(group->size())) {
  for (const MoeLayerSpec& layer : model.layers) {
    hidden_ = std::max(hidden_, layer.hidden);
    top_k_ = std::max<int64_t>(top_k_, layer.routing.top_k);
  }
}

absl::Status RowExchange::Reserve() {
  if (gathered_ != nullptr) return absl::OkStatus();
  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t at = end;
    end += RoundUp(bytes, 256);
    return at;
  };
  const int64_t floats = max_rows_ * hidden_ * 4;
  const int64_t gathered = take(max_rows_ * RowRecord(hidden_ * 4, top_k_).bytes);
  const int64_t part = take(floats), parts = take(floats);
  const int64_t ids = take(max_rows_ * top_k_ * 4), weights = take(max_rows_ * top_k_ * 4);
  MOERT_ASSIGN_OR_RETURN(std::byte* const base, kernels_->Allocate(end));
  bytes_ = end;
  gathered_ = base + gathered;
  part_ = base + part;
  parts_ = base + parts;
  ids_ = reinterpret_cast<int32_t*>(base + ids);
  weights_ = reinterpret_cast<float*>(base + weights);
  return absl::OkStatus();
}

absl::Status RowExchange::Gather(const MatrixView& hidden, const RoutedInput& routing, void* stream,
                                 MatrixView* all, RoutedInput* all_routing) {
  MOERT_RETURN_IF_ERROR(Reserve());
  const int64_t element = DTypeBytes(hidden.dtype);
  const auto top_k = static_cast<int64_t>(routing.ids.size()) / hidden.rows;
  const RowRecord record(hidden.cols * element, top_k);
  const int64_t bytes = hidden.rows * record.bytes, rows = hidden.rows * group_->size();
  std::byte* const mine = gathered_ + group_->rank() * bytes;
  MOERT_RETURN_IF_ERROR(
      kernels_->Pack(hidden, routing.ids.data(), routing.weights.data(), record, mine, stream));
  MOERT_RETURN_IF_ERROR(group_->AllGather(mine, bytes, gathered_, stream));
  MOERT_RETURN_IF_ERROR(kernels_->TakeRouting(gathered_, record, rows, ids_, weights_, stream));
  *all = {gathered_, hidden.dtype, rows, hidden.cols, record.bytes / element};
  all_routing->place = Place::kDevice;
  all_routing->ids = {ids_, static_cast<size_t>(rows * top_k)};
  all_routing->weights = {weights_, static_cast<size_t>(rows * top_k)};
  return absl::OkStatus();
}

absl::StatusOr<MutableMatrixView> RowExchange::Part(int64_t rows, int64_t cols, bool narrow) {
  MOERT_RETURN_IF_ERROR(Reserve());
  return MutableMatrixView{part_, narrow ? DType::kBF16 : DType::kF32, rows, cols, cols};
}

int64_t RowExchange::BlockOf(int64_t rows, int rank) const {
  const int64_t each = (rows + group_->size() - 1) / group_->size();
  return std::clamp<int64_t>(rows - each * rank, 0, each);
}

absl::Status RowExchange::AddOwn(const MutableMatrixView& part, void* stream,
                                 const MutableMatrixView& out) {
  const int64_t row_bytes = part.cols * DTypeBytes(part.dtype);
  for (int r = 0; r < group_->size(); ++r) {
    send_[r] = BlockOf(part.rows, r) * row_bytes;
    receive_[r] = out.rows * row_bytes;
  }
  MOERT_RETURN_IF_ERROR(group_->AllToAll(part.data, send_, parts_, receive_, stream));
  return kernels_->Add({parts_, part.dtype, group_->size()}, out, stream);
}

absl::Status RowExchange::AddAll(const MutableMatrixView& part, void* stream,
                                 const MutableMatrixView& out) {
  MOERT_RETURN_IF_ERROR(Reserve());
  const int64_t row_bytes = part.cols * DTypeBytes(part.dtype);
  const int64_t each = BlockOf(part.rows, 0), bytes = each * row_bytes;
  // Sums are gathered where they belong, if they fill the blocks.
  const bool in_place =
      out.dtype == part.dtype && out.row_stride == out.cols && each * group_->size() == part.rows;
  std::byte* const all = in_place ? static_cast<std::byte*>(out.data) : gathered_;
  std::byte* const mine = all + group_->rank() * bytes;
  MutableMatrixView sum = part;
  sum.data = mine;
  sum.rows = BlockOf(part.rows, group_->rank());
  MOERT_RETURN_IF_ERROR(AddOwn(part, stream, sum));
  MOERT_RETURN_IF_ERROR(group_->AllGather(mine, bytes, all, stream));
  if (in_place) return absl::OkStatus();
  sum = part;
  sum.data = all;
  return Copy(sum, stream, out);
}

}  // namespace moert
