// The launches of a measured layer, as the executor makes them.
#include <algorithm>
#include <iterator>

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "bench/gemm_bench.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/route/device_routing.h"
#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/route/route.h"
#include "kernels/cuda/route/rows.h"

namespace moert::cli {

absl::Status GemmBench::PackOperands(bool besides) {
  for (int o = besides ? 1 : 0; o < cuda::kOperands; ++o) {
    const bool read = prompt_.any() ? cuda::IsPromptOperand(o) : !cuda::IsPromptOnly(o);
    if (!used_.x[o] || !read) continue;
    MOERT_CUDA_RETURN_IF_ERROR(LaunchPackRows(rows_, o, shared_.packed_x[o],
                                              cuda::OperandBytes(spec_.hidden), stream_.get()));
  }
  return absl::OkStatus();
}

absl::Status GemmBench::Pack() {
  if (!prompt_.any()) return PackOperands(false);
  if (prompt_.bytes()) MOERT_RETURN_IF_ERROR(PackOperands(true));
  if (!prompt_.rounded() || prompt_x_ != shared_.prompt_x) return absl::OkStatus();
  MOERT_CUDA_RETURN_IF_ERROR(
      cuda::LaunchRoundRows(rows_, shared_.prompt_x, PromptXStride(spec_), stream_.get()));
  if (prompt_.sums()) {
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchSumPromptX(
        shared_.prompt_x, PromptXStride(spec_), RoundUp(spec_.hidden, 64) * 2, rows_.rows,
        static_cast<int>(spec_.hidden), stream_.get()));
  }
  return absl::OkStatus();
}

template <typename Args>
void GemmBench::DescribeExperts(int layer, Args* args) const {
  args->formats = reinterpret_cast<const cuda::DeviceFormat*>(formats_.data());
  args->handles = reinterpret_cast<const cuda::ExpertHandle*>(handles_.data()) +
                  int64_t{layer} * (spec_.num_experts + 1);
  args->groups = calls_[layer].groups;
  args->experts = spec_.num_experts;
  args->tokens = rows_.rows;
  for (int e = 0; e < spec_.num_experts; ++e) args->wave.Add(e);
}

absl::Status GemmBench::PromptTiles(int layer) {
  cuda::MakePromptTilesArgs args;
  args.table = calls_[layer].prompt;
  args.most = prompt_.most;
  args.packings = prompt_.packings;
  DescribeExperts(layer, &args);
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchMakePromptTiles(args, stream_.get()));
  return absl::OkStatus();
}

absl::Status GemmBench::PromptProducts(int layer) {
  cuda::PromptGemmArgs args;
  args.table = calls_[layer].prompt;
  args.most = prompt_.most;
  for (int p = 0; p < 2; ++p) args.packings[p] = prompt_.of_product[p];
  args.x = prompt_x_;
  args.x_stride =
      prompt_x_ == shared_.prompt_x ? PromptXStride(spec_) : RoundUp(spec_.hidden, 64) * 2;
  args.h = shared_.h;
  args.h_stride = RoundUp(spec_.intermediate, 64) * 2;
  args.out = reinterpret_cast<uint16_t*>(shared_.out);
  args.out_stride = RoundUp(spec_.hidden, 64);
  args.pairs = rows_.rows * spec_.routing.top_k;
  args.top_k = spec_.routing.top_k;
  args.biased = spec_.expert_bias ? 1 : 0;
  args.activation = cuda::MakeDeviceActivation(spec_.activation);
  args.form = prompt_device_.form;
  args.ctas = prompt_device_.ctas;
  args.byte_x[0] = shared_.packed_x[static_cast<int>(cuda::OperandForm::kInt8Token)];
  args.byte_x[1] = shared_.packed_x[static_cast<int>(cuda::OperandForm::kInt8Group)];
  args.byte_x[2] = shared_.packed_x[static_cast<int>(cuda::OperandForm::kF8Bytes)];
  args.byte_x[3] = shared_.packed_x[static_cast<int>(cuda::OperandForm::kF8GroupBytes)];
  args.byte_x_stride = cuda::OperandBytes(spec_.hidden);
  args.byte_x_scales = cuda::OperandScales(spec_.hidden);
  args.rounded_h = reinterpret_cast<uint8_t*>(shared_.wide_h);
  args.h_columns = shared_.h_columns;
  args.h_columns_stride = cuda::PromptSums(RoundUp(spec_.intermediate, 64));
  args.x_sums = RoundUp(spec_.hidden, 64) * 2;
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchPromptProducts(args, stream_.get()));
  return absl::OkStatus();
}

cuda::MakeTilesArgs GemmBench::TilesOf(int layer) {
  cuda::MakeTilesArgs args;
  args.table = calls_[layer].table;
  DescribeExperts(layer, &args);
  args.shares = shares_;
  return args;
}

absl::Status GemmBench::Tiles(int layer) {
  if (prompt_.any()) return PromptTiles(layer);
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchMakeTiles(TilesOf(layer), stream_.get()));
  return absl::OkStatus();
}

cuda::GroupGemmArgs GemmBench::GemmOf(int layer) {
  cuda::GroupGemmArgs args;
  args.table = calls_[layer].table;
  std::copy(std::begin(shared_.packed_x), std::end(shared_.packed_x), args.x);
  args.h = shared_.h;
  args.wide_h = shared_.wide_h;
  args.out = shared_.out;
  args.x_stride = cuda::OperandBytes(spec_.hidden);
  args.h_stride = cuda::OperandBytes(RoundUp(spec_.intermediate, 64));
  args.wide_h_stride = RoundUp(spec_.intermediate, 64);
  args.out_stride = RoundUp(spec_.hidden, 64);
  args.pairs = rows_.rows * spec_.routing.top_k;
  args.top_k = spec_.routing.top_k;
  args.hidden = static_cast<int32_t>(spec_.hidden);
  args.biased = spec_.expert_bias ? 1 : 0;
  args.activation = cuda::MakeDeviceActivation(spec_.activation);
  args.shares = shares_;
  return args;
}

absl::Status GemmBench::Products(int layer) {
  if (prompt_.any()) return PromptProducts(layer);
  const cuda::GroupGemmArgs args = GemmOf(layer);
  if (!used_.wide_h) {
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchProducts(args, stream_.get()));
    return absl::OkStatus();
  }
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchGateUp(args, stream_.get()));
  cuda::PackHiddenArgs pack;
  pack.table = args.table;
  pack.wide_h = args.wide_h;
  pack.wide_h_stride = args.wide_h_stride;
  pack.h = args.h;
  pack.h_stride = args.h_stride;
  pack.shares = shares_;
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchPackHidden(pack, stream_.get()));
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchDown(args, stream_.get()));
  return absl::OkStatus();
}

cuda::DeviceRouting GemmBench::Routing() const {
  cuda::DeviceRouting routing;
  routing.num_experts = spec_.num_experts;
  routing.top_k = spec_.routing.top_k;
  return routing;
}

absl::Status GemmBench::RouteFew(int layer) {
  const LayerBuffers& l = calls_[layer];
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchGateLogits(
      rows_, l.gate, spec_.num_experts, shared_.scores, stream_.get(),
      used_.x[0] ? shared_.packed_x[0] : nullptr, cuda::OperandBytes(spec_.hidden)));
  MOERT_RETURN_IF_ERROR(PackOperands(true));
  cuda::RouteFewArgs args;
  args.routing = Routing();
  args.tokens = rows_.rows;
  args.scores = shared_.scores;
  args.ids = shared_.drawn_ids;
  args.weights = shared_.weights;
  args.groups = l.groups;
  args.makes_tiles = 1;
  args.tiles = TilesOf(layer);
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchRouteFew(args, stream_.get()));
  return absl::OkStatus();
}

absl::Status GemmBench::ChooseAndMultiply(int layer) {
  const LayerBuffers& l = calls_[layer];
  const cuda::GateZeros zeros{l.table.ready, rows_.rows * spec_.routing.top_k, l.table.ticket};
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchGateLogits(
      rows_, l.gate, spec_.num_experts, shared_.logits, stream_.get(),
      used_.x[0] ? shared_.packed_x[0] : nullptr, cuda::OperandBytes(spec_.hidden), {}, zeros));
  MOERT_RETURN_IF_ERROR(PackOperands(true));
  cuda::MakeTilesArgs experts;
  DescribeExperts(layer, &experts);
  cuda::FewProductsArgs args;
  args.routing = Routing();
  args.tokens = rows_.rows;
  args.logits = shared_.logits;
  args.scores = shared_.scores;
  args.ids = shared_.drawn_ids;
  args.weights = shared_.weights;
  args.formats = experts.formats;
  args.num_formats = static_cast<int32_t>(device_formats_.size());
  args.handles = experts.handles;
  args.gemm = GemmOf(layer);
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchFewProducts(args, stream_.get()));
  return absl::OkStatus();
}

absl::Status GemmBench::RouteMany(int layer) {
  const LayerBuffers& l = calls_[layer];
  const int pairs = rows_.rows * spec_.routing.top_k;
  MOERT_CUDA_RETURN_IF_ERROR(
      cuda::LaunchGateLogits(rows_, l.gate, spec_.num_experts, shared_.scores, stream_.get()));
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchTopK(Routing(), rows_.rows, shared_.scores,
                                              shared_.drawn_ids, shared_.weights, stream_.get()));
  MOERT_CUDA_RETURN_IF_ERROR(
      cuda::LaunchGroup(l.ids, pairs, spec_.num_experts, l.groups, stream_.get()));
  MOERT_RETURN_IF_ERROR(Pack());
  return Tiles(layer);
}

absl::Status GemmBench::Layer(int layer) {
  if (chooses_) {
    MOERT_RETURN_IF_ERROR(ChooseAndMultiply(layer));
  } else {
    MOERT_RETURN_IF_ERROR(few_ ? RouteFew(layer) : RouteMany(layer));
    MOERT_RETURN_IF_ERROR(Products(layer));
  }
  cuda::CombineArgs combine;
  combine.x = rows_;
  combine.slots = shared_.out;
  combine.slot_stride = RoundUp(spec_.hidden, 64);
  combine.narrow = prompt_.any();
  combine.weights = shared_.weights;
  combine.top_k = spec_.routing.top_k;
  combine.out = shared_.y;
  combine.out_dtype = static_cast<int32_t>(dtype_);
  combine.out_stride = spec_.hidden;
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchCombine(combine, stream_.get()));
  return absl::OkStatus();
}

}  // namespace moert::cli
