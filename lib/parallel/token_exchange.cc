#include "parallel/token_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/checked_math.h"
#include "base/status_macros.h"

namespace moert {

RowExchange::RowExchange(const MoeModelSpec& model, std::unique_ptr<RowKernels> kernels,
                         Collectives* group, int64_t max_rows)
    : kernels_(std::move(kernels)),
      group_(group),
      // The ranks' blocks are equally long; the last one may reach beyond the rows.
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

absl::StatusOr<MutableMatrixView> RowExchange::Gathered(int64_t rows, int64_t cols, bool narrow) {
  MOERT_RETURN_IF_ERROR(Reserve());
  return MutableMatrixView{gathered_, narrow ? DType::kBF16 : DType::kF32, rows, cols, cols};
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
  // If the sums fill the blocks, they are gathered directly in `out`.
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

namespace {

std::vector<int64_t> Times(absl::Span<const int64_t> counts, int64_t bytes) {
  std::vector<int64_t> scaled(counts.begin(), counts.end());
  for (int64_t& count : scaled) count *= bytes;
  return scaled;
}

int64_t Sum(absl::Span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

TokenExchange::TokenExchange(const MoeModelSpec& model, const std::vector<ShardPlan>& plans,
                             Collectives* group)
    : group_(group),
      ranks_(plans.size()),
      hidden_(model.layers[0].hidden),
      to_(plans.size()),
      send_(plans.size()) {
  for (size_t l = 0; l < model.layers.size(); ++l) {
    top_k_.push_back(model.layers[l].routing.top_k);
    owners_.emplace_back(static_cast<size_t>(model.layers[l].num_experts));
    shared_owners_.emplace_back();
    for (size_t r = 0; r < plans.size(); ++r) {
      const auto rank = static_cast<int32_t>(r);
      for (const int32_t e : plans[r].experts[l]) owners_[l][e].push_back(rank);
      if (plans[r].shared_experts && model.layers[l].shared_intermediate > 0) {
        shared_owners_[l].push_back(rank);
      }
    }
  }
}

bool TokenExchange::Computes(size_t rank, size_t layer, int32_t expert, int64_t token) const {
  if (!one_of_) return true;
  const std::vector<int32_t>& owners = owners_[layer][expert];
  const size_t turn = static_cast<size_t>(token) % owners.size();
  return static_cast<size_t>(owners[turn]) == rank;
}

void TokenExchange::ChooseRanks(int layer, int64_t rows, absl::Span<const int32_t> ids, int64_t k) {
  const auto l = static_cast<size_t>(layer);
  for (std::vector<int64_t>& rows_to : to_) rows_to.clear();
  std::vector<uint8_t> chosen(ranks_);
  for (int64_t t = 0; t < rows; ++t) {
    std::fill(chosen.begin(), chosen.end(), 0);
    for (const int32_t r : shared_owners_[l]) chosen[r] = 1;
    for (int64_t j = 0; j < k; ++j) {
      const int32_t e = ids[t * k + j];
      if (e < 0) continue;
      for (const int32_t r : owners_[l][e]) {
        if (Computes(static_cast<size_t>(r), l, e, t)) chosen[r] = 1;
      }
    }
    for (size_t r = 0; r < ranks_; ++r) {
      if (chosen[r] != 0) to_[r].push_back(t);
    }
  }
  for (size_t r = 0; r < ranks_; ++r) send_[r] = static_cast<int64_t>(to_[r].size());
}

int64_t TokenExchange::CountOthers(absl::Span<const int64_t> counts) const {
  return Sum(counts) - counts[group_->rank()];
}

absl::Status TokenExchange::Dispatch(int layer, int64_t rows, const float* hidden,
                                     absl::Span<const int32_t> ids, absl::Span<const float> weights,
                                     ExchangedRows* received) {
  const int64_t k = top_k_[layer];
  rows_ = rows;
  ChooseRanks(layer, rows, ids, k);
  std::vector<int64_t> all(ranks_ * ranks_);  // [from, to]
  MOERT_RETURN_IF_ERROR(group_->AllGather(
      send_.data(), static_cast<int64_t>(ranks_ * sizeof(int64_t)), all.data(), nullptr));
  const auto me = static_cast<size_t>(group_->rank());
  receive_.clear();
  for (size_t r = 0; r < ranks_; ++r) receive_.push_back(all[r * ranks_ + me]);
  sent_rows_ += CountOthers(send_);
  received_rows_ += CountOthers(receive_);

  // A record is a row of hidden states, its ids and its weights.
  const int64_t hidden_bytes = hidden_ * 4, pair_bytes = k * 4;
  const int64_t record = hidden_bytes + 2 * pair_bytes;
  std::vector<std::byte> out(Sum(send_) * record);
  std::byte* at = out.data();
  const auto put = [&at](const void* from, int64_t bytes) {
    std::memcpy(at, from, bytes);
    at += bytes;
  };
  std::vector<int32_t> own(k);
  for (size_t r = 0; r < ranks_; ++r) {
    for (const int64_t t : to_[r]) {
      for (size_t j = 0; j < own.size(); ++j) {
        const int32_t e = ids[static_cast<size_t>(t * k) + j];
        own[j] = e >= 0 && Computes(r, static_cast<size_t>(layer), e, t) ? e : -1;
      }
      put(hidden + t * hidden_, hidden_bytes);
      put(own.data(), pair_bytes);
      put(weights.data() + t * k, pair_bytes);
    }
  }
  received->rows = Sum(receive_);
  std::vector<std::byte> in(received->rows * record);
  MOERT_RETURN_IF_ERROR(group_->AllToAll(out.data(), Times(send_, record), in.data(),
                                         Times(receive_, record), nullptr));
  received->hidden.resize(received->rows * hidden_);
  received->ids.resize(received->rows * k);
  received->weights.resize(received->rows * k);
  const std::byte* from = in.data();
  const auto take = [&from](void* to, int64_t bytes) {
    std::memcpy(to, from, bytes);
    from += bytes;
  };
  for (int64_t t = 0; t < received->rows; ++t) {
    take(received->hidden.data() + t * hidden_, hidden_bytes);
    take(received->ids.data() + t * k, pair_bytes);
    take(received->weights.data() + t * k, pair_bytes);
  }
  return absl::OkStatus();
}

absl::Status TokenExchange::Combine(const float* computed, float* out) {
  std::vector<float> parts(Sum(send_) * hidden_);
  MOERT_RETURN_IF_ERROR(group_->AllToAll(computed, Times(receive_, hidden_ * 4), parts.data(),
                                         Times(send_, hidden_ * 4), nullptr));
  std::fill(out, out + rows_ * hidden_, 0.0f);
  const float* part = parts.data();
  for (const std::vector<int64_t>& rows_to : to_) {
    for (const int64_t t : rows_to) {
      float* row = out + t * hidden_;
      for (int64_t i = 0; i < hidden_; ++i) row[i] += part[i];
      part += hidden_;
    }
  }
  return absl::OkStatus();
}

}  // namespace moert
