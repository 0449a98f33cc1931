#include "exec/cuda/memory/shard_numbers.h"

#include "base/status_macros.h"
#include "kernels/cuda/cache/slot_table.h"

namespace moert::cuda {
namespace {

int64_t Entries(const ExpertNumbering& numbering) {
  int64_t entries = 0;
  for (const std::vector<int32_t>& layer : numbering) entries += static_cast<int64_t>(layer.size());
  return entries;
}

}  // namespace

int64_t ShardNumbers::Bytes(const ExpertNumbering& numbering, int64_t pairs) {
  if (numbering.empty()) return 0;
  Carver count;
  count.Take<int32_t>(Entries(numbering));
  count.Take<int32_t>(pairs);
  return count.used();
}

absl::Status ShardNumbers::Init(const ExpertNumbering& numbering, int64_t pairs) {
  if (numbering.empty()) return absl::OkStatus();
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& layer : numbering) {
    first_.push_back(static_cast<int32_t>(all.size()));
    experts_.push_back(static_cast<int32_t>(layer.size()));
    all.insert(all.end(), layer.begin(), layer.end());
  }
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(Bytes(numbering, pairs)));
  Carver carver(memory_.data());
  auto* table = carver.Take<int32_t>(static_cast<int64_t>(all.size()));
  MOERT_RETURN_IF_ERROR(
      CopyNow(table, all.data(), all.size() * sizeof(all[0]), cudaMemcpyHostToDevice));
  table_ = table;
  ids_ = carver.Take<int32_t>(pairs);
  return absl::OkStatus();
}

absl::StatusOr<GivenRouting> ShardNumbers::Own(int layer, const GivenRouting& given,
                                               cudaStream_t stream) {
  if (!any()) return given;
  FindSlotsArgs args;
  args.ids = given.ids;
  args.table = table_ + first_[layer];
  args.own_ids = given.used_ids;
  args.slots = ids_;
  args.pairs = static_cast<int32_t>(given.pairs);
  args.experts = experts_[layer];
  MOERT_CUDA_RETURN_IF_ERROR(LaunchFindSlots(args, stream));
  GivenRouting own = given;
  own.ids = ids_;
  own.used_ids = nullptr;
  return own;
}

}  // namespace moert::cuda
