// CudaExecutor: the grouped products of a call, and their weighted sum.
#include <algorithm>
#include <iterator>
#include <optional>

#include "base/status_macros.h"
#include "exec/cuda/cuda_executor_impl.h"
#include "kernels/cuda/few/group_gemm.h"

namespace moert::cuda {

PromptPlan CudaExecutor::Prompt(const ExecutorCall& call) const {
  const auto bytes = static_cast<uint64_t>(InputRows(call) *
                                           std::max(extent_.prompt_x_stride(), extent_.x_stride()));
  if (prompt_device_.form == PromptForm::kNone || bytes >> 32 != 0) return {};
  // Calls with family P's products give the CPU no experts. Here the CPU must compute those whose
  // records the device cannot read.
  const bool below = call.capturing && served_ != nullptr && served_->reads_below();
  if (below && call.hidden.rows <= kFewTokens) return {};
  return PlanPrompt(prompt_device_, extent_.use.prompt, Spec(call), call.hidden.rows,
                    extent_.routed[call.layer]);
}

std::optional<CudaExecutor::PromptRows> CudaExecutor::RowsForPrompt(
    const ExecutorCall& call) const {
  if (Prompt(call).sums() || WeightsInput(call)) return std::nullopt;  // sums follow each row
  const int64_t stride = call.hidden.row_stride * 2;
  if (call.hidden.dtype != DType::kBF16 || call.hidden.cols % 64 != 0 || stride % 16 != 0 ||
      reinterpret_cast<uintptr_t>(call.hidden.data) % 16 != 0 ||
      static_cast<uint64_t>(call.hidden.rows * stride) >> 32 != 0) {
    return std::nullopt;
  }
  return PromptRows{static_cast<const uint8_t*>(call.hidden.data), stride};
}

absl::Status CudaExecutor::PromptProducts(const ExecutorCall& call, const PromptPlan& plan,
                                          const ExpertSet& wave, const ExpertHandle* handles) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const auto tokens = static_cast<int32_t>(call.hidden.rows);
  MakePromptTilesArgs tiles;
  tiles.table = w_.prompt;
  tiles.most = plan.most;
  tiles.packings = plan.packings;
  tiles.formats = on_device_.formats();
  tiles.handles = handles;
  tiles.groups = w_.groups;
  tiles.shared_slots = w_.shared_slots;
  tiles.experts = spec.num_experts;
  tiles.tokens = tokens;
  tiles.wave = wave;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchMakePromptTiles(tiles, stream));
  PromptGemmArgs gemm;
  gemm.table = w_.prompt;
  gemm.most = plan.most;
  std::copy(std::begin(plan.of_product), std::end(plan.of_product), gemm.packings);
  const PromptRows rows =
      RowsForPrompt(call).value_or(PromptRows{w_.prompt_x, extent_.prompt_x_stride()});
  gemm.x = rows.data;
  gemm.x_stride = rows.stride;
  gemm.h = w_.h;
  gemm.h_stride = extent_.prompt_h_stride();
  gemm.out = reinterpret_cast<uint16_t*>(w_.out);
  gemm.out_stride = extent_.hidden;
  gemm.pairs = SharingSlots(call);
  gemm.top_k = spec.routing.top_k;
  gemm.biased = spec.expert_bias ? 1 : 0;
  gemm.activation = on_device_.layer(call.layer).activation;
  gemm.form = prompt_device_.form;
  gemm.ctas = prompt_device_.ctas;
  gemm.byte_x[0] = w_.x[static_cast<int>(OperandForm::kInt8Token)];
  gemm.byte_x[1] = w_.x[static_cast<int>(OperandForm::kInt8Group)];
  gemm.byte_x[2] = w_.x[static_cast<int>(OperandForm::kF8Bytes)];
  gemm.byte_x[3] = w_.x[static_cast<int>(OperandForm::kF8GroupBytes)];
  gemm.byte_x_stride = extent_.x_stride();
  gemm.byte_x_scales = OperandScales(spec.hidden);
  gemm.rounded_h = reinterpret_cast<uint8_t*>(w_.wide_h);
  gemm.h_columns = w_.prompt_h_columns;
  gemm.h_columns_stride = extent_.prompt_h_columns();
  gemm.x_sums = extent_.hidden * 2;
  return MOERT_CUDA_STATUS(LaunchPromptProducts(gemm, stream));
}

MakeTilesArgs CudaExecutor::TilesOf(const ExecutorCall& call, const ExpertSet& wave,
                                    const ExpertHandle* handles) const {
  MakeTilesArgs tiles;
  tiles.table = w_.table;
  tiles.formats = on_device_.formats();
  tiles.handles = handles;
  tiles.groups = w_.groups;
  tiles.shared_slots = w_.shared_slots;
  tiles.experts = Spec(call).num_experts;
  tiles.tokens = static_cast<int32_t>(call.hidden.rows);
  tiles.shares = shares_;
  tiles.prompt_packings = Prompt(call).packings;
  tiles.wave = wave;
  return tiles;
}

absl::Status CudaExecutor::Products(const ExecutorCall& call, const ExpertSet& wave,
                                    const ExpertHandle* handles) {
  const PromptPlan prompt = Prompt(call);
  if (prompt.any()) {
    MOERT_RETURN_IF_ERROR(PromptProducts(call, prompt, wave, handles));
    if (!prompt.others) return absl::OkStatus();
  }
  MOERT_CUDA_RETURN_IF_ERROR(LaunchMakeTiles(TilesOf(call, wave, handles), Stream(call)));
  return TileProducts(call, prompt.any(), w_.table, shares_, Stream(call));
}

absl::Status CudaExecutor::TileProducts(const ExecutorCall& call, bool narrow,
                                        const TileTable& table, int shares, cudaStream_t stream) {
  const GroupGemmArgs gemm = GemmOf(call, narrow, table, shares);
  if (!extent_.use.wide_h) {
    return MOERT_CUDA_STATUS(LaunchProducts(gemm, stream));
  }
  MOERT_CUDA_RETURN_IF_ERROR(LaunchGateUp(gemm, stream));
  PackHiddenArgs pack;
  pack.table = table;
  pack.wide_h = w_.wide_h;
  pack.wide_h_stride = extent_.intermediate;
  pack.h = w_.h;
  pack.h_stride = extent_.h_stride();
  pack.shares = shares;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchPackHidden(pack, stream));
  return MOERT_CUDA_STATUS(LaunchDown(gemm, stream));
}

GroupGemmArgs CudaExecutor::GemmOf(const ExecutorCall& call, bool narrow, const TileTable& table,
                                   int shares) const {
  const MoeLayerSpec& spec = Spec(call);
  GroupGemmArgs gemm;
  gemm.table = table;
  std::copy(std::begin(w_.x), std::end(w_.x), gemm.x);
  gemm.h = w_.h;
  gemm.wide_h = w_.wide_h;
  gemm.out = w_.out;
  if (narrow) gemm.narrow_out = reinterpret_cast<uint16_t*>(w_.out);
  gemm.x_stride = extent_.x_stride();
  gemm.h_stride = extent_.h_stride();
  gemm.wide_h_stride = extent_.intermediate;
  gemm.out_stride = extent_.hidden;
  gemm.pairs = SharingSlots(call);
  gemm.top_k = spec.routing.top_k;
  gemm.hidden = static_cast<int32_t>(spec.hidden);
  gemm.biased = spec.expert_bias ? 1 : 0;
  gemm.activation = on_device_.layer(call.layer).activation;
  gemm.shares = shares;
  return gemm;
}

absl::Status CudaExecutor::Multiply(const ExecutorCall& call, const RoutingResult& /*routing*/,
                                    absl::Span<const ReadyExpert> experts, bool first) {
  const bool shared = first && HasShared(call);
  if (experts.empty() && !shared) return absl::OkStatus();
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  ExpertSet set;
  for (const ReadyExpert& ready : experts) {
    MOERT_RETURN_IF_ERROR(table_.Set(call.layer, ready.expert, ready.handle, stream));
    set.Add(ready.expert);
  }
  MOERT_RETURN_IF_ERROR(table_.Flush(stream));
  if (shared) set.Add(Spec(call).num_experts);
  absl::Status status = Products(call, set, table_.rows(call.layer));
  status.Update(fence_->Pass(stream));  // also after a failure: some kernels may be enqueued
  return status;
}

LowCall CudaExecutor::LowOf(const ExecutorCall& call, Phase phase) const {
  LowCall low;
  if (!parts_.served.low() || phase != Phase::kDecode) return low;
  low.ids = w_.ids;
  low.weights = w_.weights;
  low.accounts = w_.rule.low_accounts;
  low.account_of = w_.rule.account_of;
  low.top_k = Spec(call).routing.top_k;
  low.max_share = parts_.served.max_low_share;
  return low;
}

absl::Status CudaExecutor::ServedProducts(const ExecutorCall& call, Phase phase, bool given,
                                          const RouteFewArgs* route, const ExpertCacheArgs* rule) {
  const cudaStream_t stream = Stream(call);
  const ExpertSet all = AllExperts(call);
  const bool prompt = Prompt(call).any();
  const ServedBuffers& served = w_.served;
  MakeTilesArgs tiles = TilesOf(call, all, nullptr);
  ServedMisses::Call misses;
  misses.layer = call.layer;
  misses.tokens = static_cast<int32_t>(call.hidden.rows);
  misses.groups = w_.groups;
  if (!given) misses.scores = w_.scores;
  if (PredictsNext(call, given)) misses.next_scores = w_.next_scores;
  if (HasShared(call)) misses.shared = table_.rows(call.layer) + Spec(call).num_experts;
  if (!prompt) misses.tiles = &tiles;
  misses.route = route;
  misses.rule = rule;
  misses.low = LowOf(call, phase);
  if (Few(call)) {
    misses.x = Rows(call);
    misses.weights = w_.weights;
  }
  const int shares = std::max(1, shares_ - served_->CtasBeside(misses));
  tiles.shares = shares;
  absl::Status status = served_->Begin(misses, stream);
  if (prompt) {  // one set of tiles at a time
    if (status.ok()) status = Products(call, all, served.ready);
    status.Update(served_->Join(stream));  // also after a failure: forked branches must be joined
    return status.ok() ? Products(call, all, served.late) : status;
  }
  // The products of experts that the CPU returns, and those of late experts, are on branches of
  // their own: neither waits for other products.
  if (status.ok() && served_->Shares(misses)) {
    status = served_->AwaitCpu(misses, w_.out, extent_.hidden, stream);
    if (status.ok()) status = TileProducts(call, false, served.cpu.tiles, shares, served_->cpu());
  }
  if (status.ok()) status = TileProducts(call, false, w_.table, shares, stream);
  if (status.ok()) status = TileProducts(call, false, served.late_tiles, shares, served_->copies());
  status.Update(served_->Join(stream));
  return status;
}

absl::Status CudaExecutor::WeightedSum(const ExecutorCall& call, bool given) {
  CombineArgs combine;
  combine.x = Rows(call);
  combine.slots = w_.out;
  combine.narrow = Prompt(call).any();
  combine.slot_stride = extent_.hidden;
  combine.weights = WeightsInput(call) ? w_.ones : w_.weights;
  if (given) combine.ids = w_.ids;
  combine.shared_gate = on_device_.layer(call.layer).shared_gate;
  combine.shared = HasShared(call);
  combine.top_k = Spec(call).routing.top_k;
  combine.out = call.out.data;
  combine.out_dtype = static_cast<int32_t>(call.out.dtype);
  combine.out_stride = call.out.row_stride;
  return MOERT_CUDA_STATUS(LaunchCombine(combine, Stream(call)));
}

absl::Status CudaExecutor::Combine(const ExecutorCall& call, const RoutingResult& /*routing*/) {
  DeviceScope scope(device_);
  MOERT_RETURN_IF_ERROR(WeightedSum(call, given_));
  return fence_->Pass(Stream(call));
}

ExpertSet CudaExecutor::AllExperts(const ExecutorCall& call) const {
  ExpertSet all;
  for (int e = 0; e < Spec(call).num_experts; ++e) all.Add(e);
  if (HasShared(call)) all.Add(Spec(call).num_experts);
  return all;
}

}  // namespace moert::cuda
