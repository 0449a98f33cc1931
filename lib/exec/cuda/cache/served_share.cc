// ServedMisses: the misses that the CPU takes (kernels/cuda/cache/cpu_mailbox.h).
#include <algorithm>
#include <cstdlib>

#include "base/status_macros.h"
#include "exec/cuda/cache/served_misses.h"

namespace moert::cuda {
namespace {

/// Whether two sets of costs are so close that decisions by either are nearly the same.
bool Alike(const CpuCosts& a, const CpuCosts& b) {
  constexpr int64_t kShare = 16;
  const auto near = [](int64_t x, int64_t y) { return std::abs(x - y) * kShare <= std::abs(x); };
  return near(a.load, b.load) && near(a.read, b.read) &&
         std::equal(std::begin(a.tokens), std::end(a.tokens), std::begin(b.tokens), near);
}

}  // namespace

absl::Status ServedMisses::ShareMisses(const CpuJobMemory& memory) {
  const CpuBuffers& cpu = on_device_.cpu;
  MOERT_RETURN_IF_ERROR(FillNow(cpu.call, 0, sizeof *cpu.call));
  MOERT_RETURN_IF_ERROR(FillNow(cpu.costs, 0, sizeof *cpu.costs));
  job_ = memory;
  // Loads the kernel, which only its first launch does. Without a job it does not wait.
  AwaitCpuArgs args;
  args.call = cpu.call;
  args.tiles.table = cpu.tiles;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchAwaitCpu(args, own_));
  return MOERT_CUDA_STATUS(cudaStreamSynchronize(own_));
}

absl::Status ServedMisses::SetCosts(const CpuCosts& costs, cudaStream_t stream) {
  if (Alike(costs_, costs)) return absl::OkStatus();
  // The source is pageable: it has been read when the call returns.
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(on_device_.cpu.costs, &costs, sizeof costs, cudaMemcpyHostToDevice, stream));
  costs_ = costs;
  return absl::OkStatus();
}

CpuShareArgs ServedMisses::ShareOf(const Call& call) const {
  const CpuBuffers& cpu = on_device_.cpu;
  CpuShareArgs args;
  if (!Shares(call)) return args;
  args.call = cpu.call;
  args.costs = cpu.costs;
  args.by_completion = rules_.balance == CpuBalance::kByCompletion ? 1 : 0;
  args.spares_low = rules_.spares_low ? 1 : 0;
  args.reads_below = reads_below() ? 1 : 0;
  args.layer = call.layer;
  args.x = call.x;
  args.weights = call.weights;
  args.memory = job_;
  args.slots = cpu.slots;
  args.handles = cpu.handles;
  return args;
}

absl::Status ServedMisses::AwaitCpu(const Call& call, float* out, int64_t out_stride,
                                    cudaStream_t stream) {
  const CpuBuffers& cpu = on_device_.cpu;
  AwaitCpuArgs args;
  args.call = cpu.call;
  args.memory = job_;
  args.slots = cpu.slots;
  args.out = out;
  args.out_stride = out_stride;
  args.cols = call.x.cols;
  args.tiles = *call.tiles;
  args.tiles.table = cpu.tiles;
  args.tiles.handles = cpu.handles;
  args.tally = on_device_.tally + call.layer;
  MOERT_RETURN_IF_ERROR(branch_.ForkCpu(stream));
  return MOERT_CUDA_STATUS(LaunchAwaitCpu(args, branch_.cpu()));
}

}  // namespace moert::cuda
