// Steps of groups whose ranks each hold every expert.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/rows.h"
#include "base/status_macros.h"
#include "parallel/expert_parallel_impl.h"

namespace moert {
namespace {

/// Rows [first, first + count).
template <typename View>
View RowsOf(const View& all, int64_t first, int64_t count) {
  using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(all.data)>>,
                                   const std::byte*, std::byte*>;
  View rows = all;
  rows.data = static_cast<Bytes>(all.data) + first * all.row_stride * DTypeBytes(all.dtype);
  rows.rows = count;
  return rows;
}

RoutedInput RoutingOf(const RoutedInput& all, int64_t rows, int64_t first, int64_t count) {
  const auto k = static_cast<int64_t>(all.ids.size()) / rows;
  RoutedInput some = all;
  some.ids = all.ids.subspan(static_cast<size_t>(first * k), static_cast<size_t>(count * k));
  some.weights =
      all.weights.subspan(static_cast<size_t>(first * k), static_cast<size_t>(count * k));
  return some;
}

/// Memory and a stream for timing exchanges, on the device or host where ranks compute.
class ExchangeMemory {
 public:
  static absl::StatusOr<ExchangeMemory> Make(bool on_device, int device, int64_t floats) {
    ExchangeMemory memory;
    if (!on_device) {
      memory.on_host_.resize(static_cast<size_t>(floats));
      memory.data_ = memory.on_host_.data();
      return memory;
    }
    MOERT_ASSIGN_OR_RETURN(memory.stream_, MakeSideStream(device));
    MOERT_ASSIGN_OR_RETURN(memory.kernels_, MakeRowKernels(device));
    MOERT_ASSIGN_OR_RETURN(std::byte* const at,
                           memory.kernels_->Allocate(floats * static_cast<int64_t>(sizeof(float))));
    memory.data_ = reinterpret_cast<float*>(at);
    return memory;
  }
  float* data() const { return data_; }
  void* stream() const { return stream_ == nullptr ? nullptr : stream_->get(); }

 private:
  std::unique_ptr<RowKernels> kernels_;
  std::unique_ptr<SideStream> stream_;
  std::vector<float> on_host_;
  float* data_ = nullptr;
};

}  // namespace

absl::Status ExpertParallelImpl::AgreeOnSplit(const ExpertSource& source,
                                              const EngineOptions& options) {
  if (group_->size() == 1) return absl::OkStatus();
  const MemoryPlan memory = engine_->memory();
  const bool holds_all = memory.slots >= memory.total_experts;
  const int64_t few = engine_->model().layers[0].hidden, many = few * 4096;
  const HardwareProfile& profile = options.profile;
  // On the CPU each further token of an expert takes a fraction of a pass over its weights.
  absl::StatusOr<DeviceRates> rates =
      DeviceRates{profile.cpu_weight_bytes_per_s,
                  profile.cpu_weight_bytes_per_s / std::max(1e-3, profile.cpu_next_token_share)};
  if (on_device()) rates = RatesOf(options.device);
  absl::StatusOr<ExchangeMemory> scratch = absl::ResourceExhaustedError("room for some experts");
  if (holds_all) scratch = ExchangeMemory::Make(on_device(), options.device, many);
  // If one rank has no room, or its rates are unknown, all ranks split by experts.
  const bool able = holds_all && rates.ok() && scratch.ok();
  const double mine[3] = {able ? 1.0 : 0.0, able ? rates->read_bytes : 0,
                          able ? rates->operations : 0};
  std::vector<double> all(3 * static_cast<size_t>(group_->size()));
  MOERT_RETURN_IF_ERROR(
      Timed([&] { return group_->AllGather(mine, sizeof(mine), all.data(), nullptr); }));
  DeviceRates slowest = {mine[1], mine[2]};
  for (size_t r = 0; 3 * r < all.size(); ++r) {
    if (!(all[3 * r] > 0 && all[3 * r + 1] > 0 && all[3 * r + 2] > 0)) return absl::OkStatus();
    slowest.read_bytes = std::min(slowest.read_bytes, all[3 * r + 1]);
    slowest.operations = std::min(slowest.operations, all[3 * r + 2]);
  }
  MOERT_ASSIGN_OR_RETURN(const AllReduceCost cost, MeasureAllReduce(group_.get(), scratch->data(),
                                                                    few, many, scratch->stream()));
  rule_ = std::make_unique<SplitRule>(source, group_->size(), slowest, cost);
  return absl::OkStatus();
}

absl::Status ExpertParallelImpl::Split(int64_t all, bool every_rank_has_rows, Step* step) const {
  const bool apart = step->placement == TokenPlacement::kPerRank;
  step->narrow =
      on_device() && group_->size() > 1 && options_.bf16_rows > 0 && all >= options_.bf16_rows;
  if (rule_ != nullptr && every_rank_has_rows && all > 0) {
    step->split = options_.split == StepSplit::kByCost
                      ? rule_->Choose(step->placement, all, step->narrow ? 2 : 4)
                      : options_.split;
    if (apart && step->split == StepSplit::kRows) step->split = StepSplit::kNone;
  }
  switch (step->split) {
    case StepSplit::kNone:
      return absl::OkStatus();
    case StepSplit::kRows:
      step->engine_rows = (all + group_->size() - 1) / group_->size();
      return absl::OkStatus();
    default:
      step->engine_rows = apart ? std::max<int64_t>(all, 1) : all;
      return apart || on_device() ? CheckTotal(all) : absl::OkStatus();
  }
}

StepInfo ExpertParallelImpl::EngineInfo(const StepInfo& info, const Step& step) const {
  StepInfo own = info;
  own.rows = step.engine_rows;
  if (step.split == StepSplit::kNone) return own;
  if (step.split == StepSplit::kRows) {
    own.predict_next = {};  // the host's callback takes all rows, not a block
    const auto first = static_cast<size_t>(BlockBegin(step, group_->rank()));
    const auto block = [&](auto ids) {
      return ids.empty() ? ids : ids.subspan(first, static_cast<size_t>(own.rows));
    };
    own.request_ids = block(info.request_ids);
    own.token_ids = block(info.token_ids);
  } else if (step.placement == TokenPlacement::kPerRank) {
    own.request_ids = {};  // the rows come from several ranks
  }
  return own;
}

absl::Status ExpertParallelImpl::Blocks(StepId id, const Step& step, int layer,
                                        const MatrixView& hidden, const RoutedInput& routing,
                                        const MutableMatrixView& out) {
  const int64_t block = step.engine_rows, cols = out.cols, all = block * group_->size();
  const bool narrow = on_device() && (step.narrow || out.dtype == DType::kBF16);
  const DType dtype = narrow ? DType::kBF16 : DType::kF32;
  const bool in_place = all == step.rows && out.dtype == dtype && out.row_stride == cols;
  MutableMatrixView gathered = out;
  if (!in_place && on_device()) {
    MOERT_ASSIGN_OR_RETURN(gathered, rows_->Gathered(all, cols, narrow));
  } else if (!in_place) {
    y_.resize(static_cast<size_t>(all * cols));
    gathered = {y_.data(), dtype, all, cols, cols};
  }
  const int64_t first = BlockBegin(step, group_->rank());
  const MutableMatrixView mine = RowsOf(gathered, group_->rank() * block, block);
  MOERT_RETURN_IF_ERROR(engine_->ForwardRouted(id, layer, RowsOf(hidden, first, block),
                                               RoutingOf(routing, step.rows, first, block), mine));
  MOERT_RETURN_IF_ERROR(Timed([&] {
    return group_->AllGather(mine.data, block * cols * DTypeBytes(dtype), gathered.data,
                             step.stream);
  }));
  if (in_place) return absl::OkStatus();
  for (int r = 0; r < group_->size(); ++r) {
    const MutableMatrixView from = RowsOf(gathered, r * block, block);
    const MutableMatrixView to = RowsOf(out, BlockBegin(step, r), block);
    if (on_device()) {
      MOERT_RETURN_IF_ERROR(rows_->Copy(from, step.stream, to));
    } else {
      NarrowRows(static_cast<const float*>(from.data), to);
    }
  }
  return absl::OkStatus();
}

}  // namespace moert
