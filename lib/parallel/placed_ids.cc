#include "parallel/placed_ids.h"

#include <utility>

#include "base/status_macros.h"

namespace moert {

PlacedIds::PlacedIds(const MoeModelSpec& model, int rank, std::unique_ptr<OwnedIds> device)
    : rank_(rank), device_(std::move(device)), first_{0} {
  for (const MoeLayerSpec& layer : model.layers) {
    first_.push_back(first_.back() + static_cast<size_t>(layer.num_experts));
  }
  counts_.resize(first_.back());
}

absl::Status PlacedIds::Set(const ExpertPlacement& placement) {
  std::vector<OwnerShare> shares;
  for (const auto& layer : placement.owners) {
    for (const std::vector<int32_t>& owners : layer) {
      OwnerShare& share = shares.emplace_back();
      for (size_t i = 0; i < owners.size(); ++i) {
        if (owners[i] != rank_) continue;
        share = {static_cast<int16_t>(owners.size()), static_cast<int16_t>(i)};
      }
    }
  }
  if (device_ != nullptr) MOERT_RETURN_IF_ERROR(device_->Set(shares));
  shares_ = std::move(shares);
  return absl::OkStatus();
}

absl::StatusOr<RoutedInput> PlacedIds::Keep(int layer, int64_t rows, const RoutedInput& routing,
                                            void* stream) {
  RoutedInput own = routing;
  const auto pairs = static_cast<int64_t>(routing.ids.size());
  const auto experts = static_cast<int>(ExpertsOf(layer));
  if (device_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(const int32_t* const kept,
                           device_->Keep(static_cast<int64_t>(First(layer)), experts,
                                         routing.ids.data(), rows, pairs / rows, stream));
    own.ids = {kept, routing.ids.size()};
    return own;
  }
  kept_.assign(routing.ids.begin(), routing.ids.end());
  for (int64_t i = 0; i < pairs; ++i) {
    int32_t& id = kept_[i];
    if (id < 0 || id >= experts) continue;  // the engine reports ids out of range
    if (!shares_[First(layer) + static_cast<size_t>(id)].Has(i / (pairs / rows))) id = -1;
  }
  Count(layer, kept_);
  own.ids = kept_;
  return own;
}

void PlacedIds::Count(int layer, absl::Span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<size_t>(id) < ExpertsOf(layer)) {
      ++counts_[First(layer) + static_cast<size_t>(id)];
    }
  }
}

absl::StatusOr<std::vector<int64_t>> PlacedIds::TakeCounts() {
  if (device_ != nullptr) return device_->TakeCounts();
  return std::exchange(counts_, std::vector<int64_t>(counts_.size()));
}

}  // namespace moert
