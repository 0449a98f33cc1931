// The executor behind cuda_executor.h.
#ifndef MOERT_LIB_EXEC_CUDA_CUDA_EXECUTOR_IMPL_H_
#define MOERT_LIB_EXEC_CUDA_CUDA_EXECUTOR_IMPL_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/aligned_array.h"
#include "exec/cuda/cache/cpu_experts.h"
#include "exec/cuda/cache/device_rule.h"
#include "exec/cuda/cache/routing_return.h"
#include "exec/cuda/cache/served_cpu.h"
#include "exec/cuda/cache/served_misses.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/cuda_executor.h"
#include "exec/cuda/fetch/device_fetch.h"
#include "exec/cuda/memory/device_model.h"
#include "exec/cuda/memory/residency_table.h"
#include "exec/cuda/workspace.h"
#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/route/route.h"
#include "kernels/cuda/route/rows.h"

namespace moert::cuda {

class CudaExecutor final : public Executor,
                           public DevicePath,
                           public DeviceCache,
                           public CpuOffload {
 public:
  CudaExecutor(const ExecutorParts& parts, const OperandUse& use,
               const CudaExecutorOptions& options)
      : parts_(parts),
        options_(options),
        model_(parts.source->model()),
        device_(options.device),
        fence_(options.fence),
        extent_(model_, use, parts.max_tokens, parts.numbering, parts.served),
        rule_(parts.max_tokens) {}

  ~CudaExecutor() override {
    leaving_.emplace(device_);
    fence_->Await();  // kernels of the last calls use the memory that is freed here
    if (rows_arrived_ != nullptr) cudaEventDestroy(rows_arrived_);
  }

  absl::Status Init();

  ExecutorStats stats() const override {
    const LostShares replayed = served_ != nullptr ? served_->worst_shares() : LostShares{};
    return {host_syncs_,
            captured_ || fetch_.captured(),
            std::max(returned_.worst_slot_share(), replayed.slots),
            std::max(returned_.worst_mass_share(), replayed.mass),
            replayed.low,
            options_.records->pinned_bytes(),
            options_.records->swaps()};
  }

  absl::Status Route(const ExecutorCall& call, const RoutingRequest& request,
                     RoutingResult* routing) override;
  absl::Status SetRouting(const ExecutorCall& call, const RoutingResult& routing) override;
  absl::Status Multiply(const ExecutorCall& call, const RoutingResult& routing,
                        absl::Span<const ReadyExpert> experts, bool first) override;
  absl::Status Combine(const ExecutorCall& call, const RoutingResult& routing) override;

  absl::StatusOr<const int32_t*> PlaceSlots(const ExecutorCall& call, const GivenRouting& given,
                                            const PolicyContext* late,
                                            const VersionedStore& store) override;
  absl::Status LeaveSlots(void* stream) override;
  absl::Status ScoreNext(const ExecutorCall& call, bool filled,
                         std::vector<float>* scores) override;

  CpuOffload* cpu_offload() override { return cpu_ != nullptr ? this : nullptr; }
  bool CpuCanCompute(ExpertKey key, int64_t tokens) const override;
  absl::Status BeginCpu(const ExecutorCall& call, const RoutingResult& routing,
                        absl::Span<const int32_t> experts) override;
  absl::Status JoinCpu(const ExecutorCall& call, int64_t* took_ns) override;

  DevicePath* device_path() override { return this; }
  bool present() const override { return true; }
  DeviceCache* cache() override { return this; }
  absl::Status RunResident(const ExecutorCall& call, const PolicyContext& context,
                           const RoutingRule& rule, const VersionedStore& store) override;
  absl::Status RunGiven(const ExecutorCall& call, const GivenRouting& given,
                        const PolicyContext& context, const VersionedStore& store) override;
  absl::Status BringGiven(const ExecutorCall& call, const GivenRouting& given,
                          std::vector<int32_t>* ids, std::vector<float>* weights) override;
  absl::Status ReturnUsed(const ExecutorCall& call, absl::Span<const int32_t> used,
                          int32_t* to) override;
  absl::Status ServeMisses(const VersionedStore& store) override;
  int64_t most_captured_rows() const override {
    const bool few = served_ != nullptr && served_->reads_below() && extent_.tokens > kFewTokens;
    return few ? kFewTokens : 0;
  }
  bool lent() const override { return served_ != nullptr && served_->lent(); }
  absl::Status TakeBack(VersionedStore* store) override;
  void SetCpuCosts(const CpuCosts& costs) override { cpu_costs_ = costs; }
  bool TakeServed(ServedCount* added) override;
  absl::Status TakeCpuFailure() override;
  absl::StatusOr<bool> Capturing(void* stream) const override { return IsCapturing(stream); }
  bool TakeRouting(PolicyContext* context, RoutingResult* routing) override;
  bool TakeSelections(std::vector<SelectionCount>* added) override;
  absl::Status OpenStep(VersionedStore* store, int64_t epoch, const StepRows& rows,
                        void* stream) override;
  absl::Status CloseStep(void* stream) override;

 private:
  const MoeLayerSpec& Spec(const ExecutorCall& call) const { return model_.layers[call.layer]; }
  bool HasShared(const ExecutorCall& call) const {
    return call.shared && on_device_.layer(call.layer).shared_record != nullptr;
  }
  static DeviceRows Rows(const ExecutorCall& call) {
    return {call.hidden.data, static_cast<int32_t>(call.hidden.dtype),
            static_cast<int32_t>(call.hidden.rows), static_cast<int32_t>(call.hidden.cols),
            call.hidden.row_stride};
  }
  static cudaStream_t Stream(const ExecutorCall& call) {
    return static_cast<cudaStream_t>(call.stream);
  }

  /// A whole call for which no expert can be missing, or whose misses the device serves. Routed by
  /// the layer's gate, or as `given`. `rule`: the rule of a captured call that is not routed by the
  /// model's own choice; else null.
  absl::Status RunWhole(const ExecutorCall& call, const PolicyContext& context,
                        const VersionedStore& store, const GivenRouting* given,
                        const RoutingRule* rule);
  /// The routing that the launch of a captured call's decision also does. `rule`: if there is one.
  struct LastRouting {
    RouteFewArgs route;
    ExpertCacheArgs rule;
  };
  /// The routing of RunWhole. `last`: null, or receives the part that is left to the decision's
  /// launch. `served`: the decision makes the tiles.
  absl::Status RouteWhole(const ExecutorCall& call, const GivenRouting* given,
                          const RoutingRule* rule, bool served, LastRouting* last);
  /// Routes by the model's own choice.
  absl::Status RouteOnDevice(const ExecutorCall& call);
  absl::Status LoadRule();
  /// Before a step with captured calls: tells the device what it has to know of the host's state.
  absl::Status PrepareServed(cudaStream_t stream);
  ExpertCacheArgs RuleOf(const ExecutorCall& call, const RoutingRule& rule) const;
  /// Applies a rule after RouteOnDevice, in a capture.
  absl::Status ApplyRule(const ExecutorCall& call, const RoutingRule& rule);
  /// Scores the next layer's experts for these rows.
  absl::Status RouteNext(const ExecutorCall& call);
  /// Whether one launch routes, groups and makes tiles.
  bool Few(const ExecutorCall& call) const {
    return call.hidden.rows <= kFewTokens && Spec(call).num_experts <= kFewExperts &&
           !Prompt(call).any();
  }
  /// All of RouteFew but its last launch, whose arguments are returned in *route.
  absl::Status PrepareFew(const ExecutorCall& call, const GivenRouting* given, bool tallied,
                          RouteFewArgs* route);
  /// RouteOnDevice (or the given routing) and GroupAndPack for few rows. `tiles`: also makes the
  /// tiles of all experts. `rule`: as in RunWhole.
  absl::Status RouteFew(const ExecutorCall& call, const GivenRouting* given,
                        const RoutingRule* rule, bool tallied, bool tiles);
  /// Uploads the token ids for a layer that is routed by them. Captured calls read the ids of the
  /// step that replays them.
  absl::Status BringTokenIds(const ExecutorCall& call);
  absl::Status UploadTokenIds(absl::Span<const int32_t> ids, cudaStream_t stream);
  bool WeightsInput(const ExecutorCall& call) const { return Spec(call).routing.weight_input; }
  /// Rows of input: one per token, and one more per slot if the slot's weight multiplies its input.
  int64_t InputRows(const ExecutorCall& call) const {
    return call.hidden.rows +
           (WeightsInput(call) ? call.hidden.rows * Spec(call).routing.top_k : 0);
  }
  RowWeights WeightsOfRows(const ExecutorCall& call) const;
  /// The number of slots that read the row of their token.
  int32_t SharingSlots(const ExecutorCall& call) const {
    return WeightsInput(call) ? 0
                              : static_cast<int32_t>(call.hidden.rows) * Spec(call).routing.top_k;
  }
  /// Packs rows of the operands from `first` on.
  absl::Status PackOperands(const ExecutorCall& call, int first);
  absl::Status RouteOnHost(const ExecutorCall& call, const RoutingRequest& request,
                           RoutingResult* routing);
  /// `tallied`: selections are counted on the device.
  absl::Status GroupAndPack(const ExecutorCall& call, bool tallied = false);
  SelectionTally* Tally(const ExecutorCall& call) const {
    return w_.tally + on_device_.layer(call.layer).first_handle;
  }
  /// The same for a routing from the host.
  absl::Status UploadRouting(const ExecutorCall& call, const RoutingResult& routing);
  absl::Status WaitForRows(cudaStream_t stream);
  /// Copies the call's rows into host_rows_.
  absl::Status BringHostRows(const ExecutorCall& call);
  bool OffersCpu(const ExecutorCall& call) const {
    return cpu_ != nullptr && call.hidden.rows <= cpu_->max_tokens();
  }
  /// The part of a call that kernel family P multiplies.
  PromptPlan Prompt(const ExecutorCall& call) const;
  /// The call's own rows if they already have the form that family P reads; else they have to be
  /// rounded first.
  struct PromptRows {
    const uint8_t* data;
    int64_t stride;  // bytes
  };
  std::optional<PromptRows> RowsForPrompt(const ExecutorCall& call) const;
  /// Makes tiles of the experts in `wave` that have a record in `handles` (MakeTilesArgs).
  MakeTilesArgs TilesOf(const ExecutorCall& call, const ExpertSet& wave,
                        const ExpertHandle* handles) const;
  absl::Status Products(const ExecutorCall& call, const ExpertSet& wave,
                        const ExpertHandle* handles);
  /// Multiplies tiles that have been made.
  absl::Status TileProducts(const ExecutorCall& call, bool narrow, const TileTable& table,
                            int shares, cudaStream_t stream);
  GroupGemmArgs GemmOf(const ExecutorCall& call, bool narrow, const TileTable& table,
                       int shares) const;
  /// Whether the products' launch also chooses the experts, for a call that can miss none.
  bool ProductsRoute(const ExecutorCall& call) const {
    return Few(call) && !extent_.use.wide_h && !WeightsInput(call) &&
           ProductsChoose(call.hidden.rows, Spec(call).routing.top_k, Spec(call).num_experts);
  }
  /// The routing and the products of such a call. `tallied`: as in GroupAndPack.
  absl::Status RouteInProducts(const ExecutorCall& call, bool tallied);
  absl::Status PromptProducts(const ExecutorCall& call, const PromptPlan& plan,
                              const ExpertSet& wave, const ExpertHandle* handles);
  /// Whether a captured call prefetches for the next layer.
  bool PredictsNext(const ExecutorCall& call, bool given) const {
    return served_ != nullptr && !given && Few(call) &&
           served_->Predicts(call.layer, call.hidden.rows);
  }
  /// Whether the launch that decides about a captured call also routes it.
  bool ServesAndRoutes(const ExecutorCall& call) const { return Few(call) && !WeightsInput(call); }
  /// Multiplies all experts of a captured call: the ready ones beside the copies of the missing
  /// ones, which are multiplied when they have arrived. `route`: null, or the result of PrepareFew.
  /// `rule`: null, or a rule that the decision then also applies.
  absl::Status ServedProducts(const ExecutorCall& call, Phase phase, bool given,
                              const RouteFewArgs* route, const ExpertCacheArgs* rule);
  /// The accounts and limit by which misses of a captured call may be answered low.
  LowCall LowOf(const ExecutorCall& call, Phase phase) const;
  ExpertSet AllExperts(const ExecutorCall& call) const;
  /// `given`: leaves out slots with an id below 0.
  absl::Status WeightedSum(const ExecutorCall& call, bool given);

  std::optional<DeviceScope> leaving_;  // first: memory and events below go within it
  const ExecutorParts parts_;
  int64_t host_syncs_ = 0;
  const CudaExecutorOptions options_;
  const MoeModelSpec& model_;
  const int device_;
  ComputeFence* const fence_;
  const Extent extent_;
  int shares_ = 0;
  PromptDevice prompt_device_;

  Buffer memory_;
  Workspace w_{};
  DeviceModel on_device_;
  ResidencyTable table_;
  RoutingReturn returned_;
  SelectionReturn selections_;
  DeviceRule rule_;
  DeviceFetch fetch_;
  ShardNumbers numbers_;
  std::unique_ptr<ServedMisses> served_;   // null: the host serves misses
  std::unique_ptr<ServedCpu> served_cpu_;  // null: the device gives the CPU no misses
  CpuCosts cpu_costs_;
  bool lost_ = false;                       // some rows that only the CPU can compute did not come
  std::vector<cudaStream_t> open_streams_;  // streams of open steps, if served_ is not null
  bool given_ = false;                      // the call's routing is the host's
  std::vector<int32_t> token_ids_;          // what w_.token_ids holds, or will hold
  cudaEvent_t rows_arrived_ = nullptr;
  bool captured_ = false;  // some call was captured: its replays read the table
  AlignedArray<float> host_rows_;
  std::unique_ptr<CpuExperts> cpu_;  // null: no CPU beside the device; answers served_cpu_'s jobs
  std::vector<HostExpert> on_cpu_;   // scratch
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CUDA_EXECUTOR_IMPL_H_
