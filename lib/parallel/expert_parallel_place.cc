// Groups whose experts change owners while they run.
#include <cstddef>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/hash64.h"
#include "base/status_macros.h"
#include "parallel/expert_parallel_impl.h"

namespace moert {
namespace {

uint64_t OwnersFingerprint(const ExpertPlacement& placement) {
  std::vector<int32_t> owners;
  for (const auto& layer : placement.owners) {
    for (const std::vector<int32_t>& of_expert : layer) {
      owners.push_back(-static_cast<int32_t>(of_expert.size()));
      owners.insert(owners.end(), of_expert.begin(), of_expert.end());
    }
  }
  return Hash64(
      {reinterpret_cast<const std::byte*>(owners.data()), owners.size() * sizeof(owners[0])});
}

}  // namespace

absl::Status ExpertParallelImpl::StartPlaced(const ExpertPlacement& placement,
                                             std::unique_ptr<PlacedIds> placed) {
  MOERT_RETURN_IF_ERROR(placed->Set(placement));
  exchange_.Place(placement);
  placed_ = std::move(placed);
  return absl::OkStatus();
}

absl::Status ExpertParallelImpl::CheckPlaced() const {
  if (placed_ == nullptr) {
    return absl::FailedPreconditionError("the group's experts lie in shards, which do not move");
  }
  if (steps_.empty()) return absl::OkStatus();
  return FailedPrecondition("step {} is open; owners are changed and loads taken between steps",
                            steps_.begin()->first);
}

absl::Status ExpertParallelImpl::MoveExperts(const ExpertPlacement& placement) try {
  absl::Status status = CheckPlaced();
  status.Update(CheckPlacement(engine_->model(), placement));
  if (status.ok() && placement.ranks != group_->size()) {
    status = InvalidArgument("a placement of {} ranks; the group has {}", placement.ranks,
                             group_->size());
  }
  MOERT_RETURN_IF_ERROR(OrAbort(status));
  const uint64_t mine = OwnersFingerprint(placement);
  std::vector<uint64_t> all(group_->size());
  MOERT_RETURN_IF_ERROR(
      Timed([&] { return group_->AllGather(&mine, sizeof(mine), all.data(), nullptr); }));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == mine) continue;
    return OrAbort(
        InvalidArgument("ranks were given different placements: {} and {}", group_->rank(), r));
  }
  MOERT_RETURN_IF_ERROR(OrAbort(AwaitSteps()));
  MOERT_RETURN_IF_ERROR(OrAbort(placed_->Set(placement)));
  exchange_.Place(placement);
  return absl::OkStatus();
} catch (...) {
  return OrAbort(ExceptionStatus("placing experts"));
}

absl::StatusOr<std::vector<std::vector<double>>> ExpertParallelImpl::TakeLoads() try {
  MOERT_RETURN_IF_ERROR(OrAbort(CheckPlaced()));
  MOERT_RETURN_IF_ERROR(OrAbort(AwaitSteps()));
  absl::StatusOr<std::vector<int64_t>> own = placed_->TakeCounts();
  MOERT_RETURN_IF_ERROR(OrAbort(own.status()));
  const auto ranks = static_cast<size_t>(group_->size());
  std::vector<int64_t> all(own->size() * ranks);
  const auto bytes = static_cast<int64_t>(own->size() * sizeof(int64_t));
  MOERT_RETURN_IF_ERROR(
      Timed([&] { return group_->AllGather(own->data(), bytes, all.data(), nullptr); }));
  std::vector<std::vector<double>> loads;
  size_t at = 0;
  for (const MoeLayerSpec& layer : engine_->model().layers) {
    std::vector<double>& of_layer = loads.emplace_back();
    for (int e = 0; e < layer.num_experts; ++e, ++at) {
      int64_t tokens = 0;
      for (size_t r = 0; r < ranks; ++r) tokens += all[r * own->size() + at];
      of_layer.push_back(static_cast<double>(tokens));
    }
  }
  return loads;
} catch (...) {
  return OrAbort(ExceptionStatus("taking loads"));
}

}  // namespace moert
