// The CPU backend: pools in RAM, records read from the source, arithmetic on the caller's thread.
#include "base/numa.h"
#include "exec/backend.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/fetch_executor.h"

namespace moert {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const EngineOptions& options) : options_(options) {}

  BackendKind kind() const override { return BackendKind::kCpu; }
  bool hidden_on_host() const override { return true; }
  ThreadPoolOptions Threads(bool /*cpu_offload*/) const override {
    ThreadPoolOptions threads;
    threads.threads = options_.threads;
    threads.cpus = options_.cpus;
    if (threads.cpus.empty() && options_.numa_node >= 0) {
      // The options have been checked: the node has CPUs.
      absl::StatusOr<std::vector<int>> cpus = NumaCpus(options_.numa_node);
      if (cpus.ok()) threads.cpus = *std::move(cpus);
      if (threads.threads == 0) threads.threads = static_cast<int>(threads.cpus.size());
    }
    return threads;
  }
  absl::StatusOr<int64_t> WorkspaceBytes(const ExecutorSize& size) const override {
    if (IsOpaque(*size.source)) return FetchWorkspaceBytes(size, options_.io_threads);
    return CpuWorkspaceBytes(size, options_.io_threads);
  }
  bool block_classes() const override { return true; }
  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes& sizes, int64_t limit,
                                                      BudgetTracker* budget) override {
    if (options_.allocator != nullptr) {
      return MakeHostBlockPool(options_.allocator.get(), sizes, limit, budget);
    }
    return MakeRamBlockPool(sizes, limit, budget, options_.numa_node);
  }
  absl::StatusOr<std::unique_ptr<TransferQueue>> MakeTransfers(
      const ExpertSource* source, Clock* clock, const HardwareProfile* profile) override {
    if (VirtualClock* logical = clock->as_virtual()) {
      return MakeVirtualLink(source, logical, profile);
    }
    std::shared_ptr<LinkPacer> pacer;
    if (options_.link_gbps > 0) {
      pacer = std::make_shared<LinkPacer>(clock, options_.link_gbps * 1e9);
    }
    return MakeReaderQueue(source, clock, options_.io_threads, std::move(pacer));
  }
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const ExecutorParts& parts) override {
    if (IsOpaque(*parts.source)) return std::make_unique<FetchExecutor>(parts);
    return std::make_unique<CpuExecutor>(parts);
  }

 private:
  const EngineOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const EngineOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace moert
