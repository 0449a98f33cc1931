// Layer calls on a device in which the host multiplies the experts itself (Engine::Fetch). The
// library tells the host's kernels the slots, and may score gates for prediction; it multiplies
// nothing.
#ifndef MOERT_LIB_EXEC_CUDA_FETCH_CUDA_FETCH_EXECUTOR_H_
#define MOERT_LIB_EXEC_CUDA_FETCH_CUDA_FETCH_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exec/cpu/fetch_executor.h"
#include "exec/cuda/cache/cpu_experts.h"
#include "exec/cuda/cache/routing_return.h"
#include "exec/cuda/cache/served_misses.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/cuda_executor.h"
#include "exec/cuda/fetch/captured_fetches.h"
#include "exec/cuda/fetch/device_fetch.h"
#include "exec/cuda/fetch/fetched_product.h"
#include "exec/cuda/memory/copy_batch.h"
#include "exec/cuda/memory/device_model.h"
#include "exec/cuda/memory/device_transfers.h"
#include "exec/cuda/memory/read_copies.h"
#include "exec/step_fence.h"

namespace moert::cuda {

/// Serves opaque records.
class CudaFetchExecutor final : public FetchExecutor,
                                public DevicePath,
                                public DeviceCache,
                                public CpuOffload {
 public:
  CudaFetchExecutor(const ExecutorParts& parts, const CudaExecutorOptions& options);
  ~CudaFetchExecutor() override;
  absl::Status Init();
  /// Bytes of device memory for calls of up to `max_tokens` rows.
  static int64_t Bytes(const MoeModelSpec& model, int64_t max_tokens, const ServedRules& rules);

  ExecutorStats stats() const override {
    ExecutorStats stats{host_syncs_, fetch_.captured() || captured_.any(), 0, 0};
    stats.pinned_bytes = records_->pinned_bytes();
    stats.pinned_swaps = records_->swaps();
    return stats;
  }

  DevicePath* device_path() override { return this; }
  bool present() const override { return true; }
  DeviceCache* cache() override { return this; }

  absl::StatusOr<const int32_t*> PlaceSlots(const ExecutorCall& call, const GivenRouting& given,
                                            const PolicyContext* late,
                                            const VersionedStore& store) override;
  absl::Status LeaveSlots(void* stream) override;
  absl::Status ScoreNext(const ExecutorCall& call, bool filled,
                         std::vector<float>* scores) override;
  absl::Status CopyRecords(const ExecutorCall& call, const VersionedStore& store,
                           absl::Span<const int32_t> experts, std::byte* to,
                           int64_t stride) override;
  const std::byte* RecordInRam(const VersionedStore& store, int64_t epoch,
                               ExpertKey key) const override;

  absl::Status ServeFetches(const VersionedStore& store) override;
  absl::StatusOr<const int32_t*> FetchServed(const ExecutorCall& call, const GivenRouting& given,
                                             VersionedStore* store) override;
  absl::Status TakeCpuRows(const ExecutorCall& call, const MutableMatrixView& rows) override;
  bool owes_cpu_rows(int layer) const override { return owed_ == layer; }
  absl::Status TakeCpuFailure() override;
  int64_t most_cpu_rows() const override {
    return product_ == nullptr ? 0 : product_->max_tokens();
  }
  CpuOffload* cpu_offload() override { return cpu_ != nullptr ? this : nullptr; }
  /// False: only the device gives the CPU experts, in fetches that it serves. The host gives none.
  bool CpuCanCompute(ExpertKey /*key*/, int64_t /*tokens*/) const override { return false; }
  absl::Status BeginCpu(const ExecutorCall& call, const RoutingResult& routing,
                        absl::Span<const int32_t> experts) override;
  absl::Status JoinCpu(const ExecutorCall& call, int64_t* took_ns) override;
  void SetCpuCosts(const CpuCosts& costs) override { cpu_costs_ = costs; }
  int64_t lent_slots(int layer) const override { return lent() ? served_->slots(layer) : 0; }
  bool lent() const override { return served_ != nullptr && served_->lent(); }
  absl::Status TakeBack(VersionedStore* store) override;
  bool TakeServed(ServedCount* added) override;

  absl::Status BringGiven(const ExecutorCall& call, const GivenRouting& given,
                          std::vector<int32_t>* ids, std::vector<float>* weights) override;
  absl::StatusOr<bool> Capturing(void* stream) const override { return IsCapturing(stream); }
  bool TakeRouting(PolicyContext* context, RoutingResult* routing) override;
  absl::Status OpenStep(VersionedStore* store, int64_t epoch, const StepRows& rows,
                        void* stream) override;
  absl::Status CloseStep(void* stream) override;

 private:
  bool Shares(const GivenRouting& given) const;
  int64_t LeastSlots(const GivenRouting& given) const { return Shares(given) ? 1 : given.pairs; }
  /// Starts the thread that answers jobs for the CPU, if the strategy gives the CPU any.
  absl::Status StartCpu();
  absl::Status ServeFetch(const ExecutorCall& call, const GivenRouting& given,
                          const SlotRegion& region);
  absl::StatusOr<const int32_t*> FetchCaptured(const ExecutorCall& call, const GivenRouting& given,
                                               const VersionedStore& store);
  /// Whether the device has slots for the call.
  bool Fits(const ExecutorCall& call, const GivenRouting& given, const SlotRegion& region) const;
  /// Before the first call of a step: what the CPU's share and replays need. Nothing in a capture.
  absl::Status PrepareServed(VersionedStore* store, cudaStream_t stream);
  /// Enqueue the copies of CopyRecords.
  absl::Status EnqueueCopies(cudaStream_t stream);
  absl::Status EnqueueKept(cudaStream_t stream);

  std::optional<DeviceScope> leaving_;  // first: memory and events below go within it
  const MoeModelSpec& model_;
  const int device_;
  ComputeFence* const fence_;
  DeviceSource* const records_;
  const bool paced_;
  const std::vector<int> cpus_;
  const Extent extent_;
  Buffer memory_;
  ServedBuffers served_buffers_{};
  DeviceModel on_device_;                 // gates, for predictions
  ExpertHandle* no_shared_ = nullptr;     // in device memory: a handle without a record
  float* next_scores_ = nullptr;          // in device memory, [experts of a layer]
  int32_t* served_slots_ = nullptr;       // in device memory, [all experts]
  std::vector<int64_t> first_;            // index of each layer's first expert
  std::unique_ptr<ServedMisses> served_;  // null: the host serves misses
  RoutingReturn returned_;
  DeviceFetch fetch_;
  CopyBatch copies_, copies_within_;  // copies of CopyRecords: from the host, and from slots
  ReadCopies copies_read_;            // likewise: read from the source first
  std::unique_ptr<SideStream> side_;  // for copies_within_
  cudaEvent_t arrived_ = nullptr;
  int64_t host_syncs_ = 0;
  CpuCosts cpu_costs_;
  CapturedFetches captured_;
  int owed_ = -1;      // the layer for which the CPU still owes rows; -1: none
  bool late_ = false;  // some rows did not come in time
  std::unique_ptr<FetchedProduct> product_;  // null: the CPU takes no misses
  std::unique_ptr<CpuExperts> cpu_;          // declared last: its thread answers product_'s jobs
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_FETCH_CUDA_FETCH_EXECUTOR_H_
