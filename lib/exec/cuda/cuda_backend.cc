// The CUDA backend: device memory pools, transfers through pinned host memory, kernels.
#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "exec/backend.h"
#include "exec/cuda/cache/cpu_experts.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/cuda_executor.h"
#include "exec/cuda/fetch/cuda_fetch_executor.h"
#include "exec/cuda/memory/device_format.h"
#include "exec/cuda/memory/device_pool.h"
#include "exec/cuda/memory/device_transfers.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route/route.h"
#include "moert/tools/machine.h"

namespace moert {
namespace cuda {
namespace {

/// An error if the device is too old: no build has kernels for it.
absl::Status CheckCapability(int device) {
  constexpr int kLeast = 8;
  int major = 0, minor = 0;
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major >= kLeast) return absl::OkStatus();
  return Unavailable(
      "device {}: its compute capability is {}.{}, and {}.0 is the least; the cpu backend works "
      "without",
      device, major, minor, kLeast);
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const EngineOptions& options)
      : options_(options), pinned_limit_(PinnedLimit(options.host_budget, ReadMemoryLimits())) {}
  ~CudaBackend() override { leaving_.emplace(options_.device); }
  absl::Status Init() {
    DeviceScope scope(options_.device);
    MOERT_RETURN_IF_ERROR(scope.status());
    MOERT_RETURN_IF_ERROR(CheckCapability(options_.device));
    if (options_.peers != nullptr) peers_.emplace(options_.peers, options_.device);
    return fence_.Init();
  }

  BackendKind kind() const override { return BackendKind::kCuda; }
  bool hidden_on_host() const override { return false; }
  bool in_ram() const override { return false; }
  int64_t PinnedBytes(const ExecutorSize& size) const override {
    return std::min(pinned_limit_, UnpinnedBytes(*size.source, size.versions));
  }
  absl::Status Check(const ExpertSource& source, absl::Span<const int> versions) const override {
    if (IsOpaque(source)) return absl::OkStatus();  // the library executes no products
    if (options_.activation != ActivationNumerics::kBF16 &&
        options_.activation != ActivationNumerics::kFp8) {
      return absl::UnimplementedError(
          "activations: the cuda backend takes bf16 and fp8 (--dtype bf16 or fp8)");
    }
    const MoeModelSpec& model = source.model();
    for (int l = 0; l < model.num_layers(); ++l) {
      const MoeLayerSpec& layer = model.layers[l];
      if (layer.num_experts > kMaxExperts || layer.routing.top_k > kMaxTopK) {
        return Unimplemented(
            "layer {}: {} experts, top {}: the cuda backend takes at most {}, top {}", l,
            layer.num_experts, layer.routing.top_k, kMaxExperts, kMaxTopK);
      }
    }
    return CheckDeviceFormats(source, versions);
  }

  bool cpu_beside(const ExpertSource& source) const override {
    return !IsOpaque(source) || source.product() != nullptr;
  }

  /// If the host set no number: all CPUs but one for the thread that drives the device and one for
  /// each thread that reads records, at least half of the CPUs. (Half is too few for experts: on 16
  /// virtual CPUs, 8 threads read 91 GB/s of records, 13 read 118 to 135.)
  ThreadPoolOptions Threads(bool cpu_offload) const override {
    ThreadPoolOptions threads;
    threads.cpus = options_.cpus;
    threads.threads = options_.threads;
    if (threads.threads == 0) {
      const int cpus = UsableCpus();
      threads.threads = std::max({1, cpus / 2, cpus - 1 - options_.io_threads});
    }
    if (cpu_offload) threads.spin_microseconds = static_cast<int>(kSpinWithDevice.count());
    return threads;
  }

  absl::StatusOr<int64_t> WorkspaceBytes(const ExecutorSize& size) const override {
    constexpr int64_t kMostTokens = 262140;  // 65535 tiles of 4 rows: a grid's second dimension
    if (size.max_tokens > kMostTokens) {
      return InvalidArgument("max_tokens_per_forward is {}, the cuda backend takes at most {}",
                             size.max_tokens, kMostTokens);
    }
    constexpr int64_t kPools = 2;  // the most pools of an engine
    if (IsOpaque(*size.source)) {
      return CudaFetchExecutor::Bytes(size.source->model(), size.max_tokens, size.served) +
             kPools * kPoolRounding;
    }
    MOERT_ASSIGN_OR_RETURN(const int64_t bytes,
                           ExecutorBytes(*size.source, size.versions, size.max_tokens,
                                         size.numbering, size.served, options_.activation));
    return bytes + kPools * kPoolRounding;
  }

  bool ServesMisses(const ExecutorSize& size) const override {
    const auto few = [](const MoeLayerSpec& layer) { return layer.num_experts <= kFewExperts; };
    const std::vector<MoeLayerSpec>& layers = size.source->model().layers;
    // With a CPU the high version need not be pinned as a whole: the CPU computes, in that version,
    // the experts whose records are not.
    absl::Span<const int> pinned = size.versions;
    if (size.served.cpu()) pinned.remove_prefix(size.served.brings_low() ? 1 : pinned.size());
    return options_.link_gbps == 0 && !IsOpaque(*size.source) &&
           std::all_of(layers.begin(), layers.end(), few) &&
           HostHoldsAll(*size.source, pinned, options_.host_budget);
  }

  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes& sizes, int64_t limit,
                                                      BudgetTracker* budget) override {
    return MakeDevicePool(options_.device, sizes, limit, budget, &fence_, peers());
  }

  absl::StatusOr<std::unique_ptr<TransferQueue>> MakeTransfers(
      const ExpertSource* source, Clock* clock, const HardwareProfile* profile) override {
    auto device_source = std::make_unique<DeviceSource>(
        source, options_.device, options_.host_budget, pinned_limit_, &fence_, peers());
    MOERT_RETURN_IF_ERROR(device_source->Init());
    if (peers() != nullptr) MOERT_RETURN_IF_ERROR(peers()->Join(source));
    records_ = device_source.get();
    if (VirtualClock* logical = clock->as_virtual()) {
      std::unique_ptr<TransferQueue> link = MakeVirtualLink(device_source.get(), logical, profile);
      return MakeDeviceTransfers(std::move(device_source), std::move(link), nullptr, nullptr);
    }
    std::shared_ptr<LinkPacer> pacer;
    if (options_.link_gbps > 0) {
      pacer = std::make_shared<LinkPacer>(clock, options_.link_gbps * 1e9);
    }
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<TransferQueue> readers,
                           MakeReaderQueue(device_source.get(), clock, options_.io_threads, pacer));
    return MakeDeviceTransfers(std::move(device_source), std::move(readers), clock, pacer);
  }

  std::string TakeNotice() const override {
    return records_ == nullptr ? std::string() : records_->TakeNotice();
  }

  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const ExecutorParts& parts) override {
    CudaExecutorOptions executor;
    executor.device = options_.device;
    executor.cpus = options_.cpus;
    executor.fence = &fence_;
    executor.records = records_;
    executor.numerics = options_.activation;
    executor.paced = options_.link_gbps > 0;
    if (IsOpaque(*parts.source)) {
      auto fetch = std::make_unique<CudaFetchExecutor>(parts, executor);
      MOERT_RETURN_IF_ERROR(fetch->Init());
      return fetch;
    }
    return MakeCudaExecutor(parts, executor);
  }

 private:
  std::optional<DeviceScope> leaving_;  // first: memory and events below go within it
  const EngineOptions options_;
  const int64_t pinned_limit_;
  PeerLink* peers() { return peers_.has_value() ? &*peers_ : nullptr; }

  ComputeFence fence_;
  std::optional<PeerLink> peers_;
  DeviceSource* records_ = nullptr;  // owned by the transfers, which outlive the executor
};

}  // namespace
}  // namespace cuda

absl::Status CudaStatus() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return Unavailable("no CUDA device: {}; the cpu backend works without",
                       cudaGetErrorString(error));
  }
  absl::Status status = absl::UnavailableError("no CUDA device; the cpu backend works without");
  for (int device = 0; device < devices; ++device) {
    status = cuda::CheckCapability(device);
    if (status.ok()) break;
  }
  return status;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const EngineOptions& options) {
  MOERT_RETURN_IF_ERROR(CudaStatus());
  auto backend = std::make_unique<cuda::CudaBackend>(options);
  MOERT_RETURN_IF_ERROR(backend->Init());
  return backend;
}

}  // namespace moert
