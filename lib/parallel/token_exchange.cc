#include "parallel/token_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "base/status_macros.h"

namespace moert {
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
