// The null backend, for simulation: policies decide, blocks are counted and logical time passes,
// but no record is read, no memory held and nothing multiplied. It plans memory as the CPU backend
// does, so a budget means the same as in a real run.
#include <optional>
#include <utility>

#include "exec/backend.h"
#include "exec/cpu/cpu_executor.h"
#include "plan/layer_planner.h"
#include "source/read_records.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

class NullExecutor final : public Executor, public CpuOffload {
 public:
  explicit NullExecutor(bool has_cpu_offload) : has_cpu_offload_(has_cpu_offload) {}

  absl::Status Check(const ExecutorCall& /*call*/, const MoeLayerSpec& /*layer*/,
                     bool routed) const override {
    if (routed) return absl::OkStatus();
    return absl::FailedPreconditionError("simulate: layers run through ForwardRouted only");
  }
  absl::Status Route(const ExecutorCall& call, const RoutingRequest& /*request*/,
                     RoutingResult* /*routing*/) override {
    return Check(call, {}, /*routed=*/false);
  }
  absl::Status SetRouting(const ExecutorCall&, const RoutingResult&) override {
    return absl::OkStatus();
  }
  absl::Status Multiply(const ExecutorCall&, const RoutingResult&, absl::Span<const ReadyExpert>,
                        bool) override {
    return absl::OkStatus();
  }
  absl::Status Combine(const ExecutorCall&, const RoutingResult&) override {
    return absl::OkStatus();
  }

  CpuOffload* cpu_offload() override { return has_cpu_offload_ ? this : nullptr; }
  bool CpuCanCompute(ExpertKey /*key*/, int64_t tokens) const override {
    return tokens <= CpuMisses::kMaxTokens;
  }
  absl::Status BeginCpu(const ExecutorCall&, const RoutingResult&,
                        absl::Span<const int32_t>) override {
    return absl::OkStatus();
  }
  absl::Status JoinCpu(const ExecutorCall&, int64_t* took_ns) override {
    *took_ns = 0;
    return absl::OkStatus();
  }

 private:
  const bool has_cpu_offload_;  // whether the profiled machine has a CPU beside its device
};

class NullBackend final : public Backend {
 public:
  explicit NullBackend(const EngineOptions& options) : options_(options) {}

  BackendKind kind() const override { return BackendKind::kCpu; }
  bool hidden_on_host() const override { return true; }
  bool cpu_beside(const ExpertSource& /*source*/) const override {
    return options_.profile.cpu_executor;
  }
  ThreadPoolOptions Threads(bool /*cpu_offload*/) const override {
    ThreadPoolOptions threads;  // the plan has scratch memory for so many threads
    threads.threads = options_.threads;
    threads.cpus = options_.cpus;
    return threads;
  }
  absl::StatusOr<int64_t> WorkspaceBytes(const ExecutorSize& size) const override {
    return CpuWorkspaceBytes(size, options_.io_threads);
  }
  absl::StatusOr<ModelConstants> ReadConstants(const ExpertSource& source) const override {
    return ModelConstants::SizesOnly(source.model());
  }
  absl::Status CheckLease() const override {
    return absl::FailedPreconditionError("simulate: there are no records to lease");
  }
  bool block_classes() const override { return true; }
  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes& sizes, int64_t limit,
                                                      BudgetTracker* budget) override {
    return MakeCountingBlockPool(sizes, limit, budget);
  }
  absl::StatusOr<std::unique_ptr<TransferQueue>> MakeTransfers(
      const ExpertSource* source, Clock* clock, const HardwareProfile* profile) override {
    std::optional<RamTier> ram;
    if (options_.host_budget >= 0) {
      ram = RamTier{RecordsToKeep(*source, 0, options_.host_budget), options_.host_budget,
                    options_.io_threads};
      for (ExpertKey key : ram->kept) {
        ram->room -= PlaceBytes(*source, key.layer, key.expert, 0);
      }
    }
    // The link has no source: counted blocks have no memory to read into.
    return MakeVirtualLink(nullptr, clock->as_virtual(), profile, std::move(ram));
  }
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const ExecutorParts& parts) override {
    return std::make_unique<NullExecutor>(parts.profile->cpu_executor);
  }

 private:
  const EngineOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeNullBackend(const EngineOptions& options) {
  if (options.clock != ClockKind::kVirtual) {
    return absl::InvalidArgumentError("simulate: needs clock = kVirtual");
  }
  return std::make_unique<NullBackend>(options);
}

}  // namespace moert
