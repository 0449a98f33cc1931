// The host's side of misses that the device serves (kernels/cuda/cache/serve_misses.h): the table
// that changes hands, the copies' branch of a captured call, the counters.
//
// Nothing can wait for ever. Kernels of a call are ordered by edges of the graph alone: the
// decision in front of all branches, the copies and behind them the products of late experts on
// one, the products of what is there on another, what waits for the CPU on a third, all in front of
// the weighted sum; a prefetch behind the copies of its call and in front of those of the next. No
// kernel waits for what another one writes while both run, so none needs the other to be on the
// device, and edges of a graph make no circle. Within a launch of products a CTA waits only for
// those that run and wait for nothing (kernels/cuda/few/group_gemm.h), so such launches side by
// side, which share nothing but the rows that they read, all end. A decision's order to stop, to a
// prefetch that runs beside it, only makes it end sooner. The kernel that waits for the CPU ends by
// its clock (kernels/cuda/cache/cpu_mailbox.h).
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_SERVED_MISSES_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_SERVED_MISSES_H_

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "exec/backend.h"
#include "exec/cuda/cache/copy_branch.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_model.h"
#include "exec/cuda/memory/device_transfers.h"
#include "exec/cuda/memory/late_copy.h"
#include "exec/cuda/workspace.h"
#include "exec/executor.h"
#include "kernels/cuda/route/expert_cache.h"
#include "store/versioned_store.h"

namespace moert::cuda {

/// Prefetches beside the host's stream where calls are not captured: predictions, and copies of the
/// records that they list. One caller at a time, with the device current.
class PrefetchStream {
 public:
  PrefetchStream() = default;
  PrefetchStream(const PrefetchStream&) = delete;
  PrefetchStream& operator=(const PrefetchStream&) = delete;
  ~PrefetchStream() {
    if (ended_ != nullptr) {  // nobody may have joined the last ones
      AwaitEvent(predicted_);
      Await();
    }
    for (cudaEvent_t event : {begun_, predicted_, ended_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Init() {
    MOERT_RETURN_IF_ERROR(MakeUrgentStream(&stream_));
    for (cudaEvent_t* event : {&begun_, &predicted_, &ended_}) {
      MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
    return absl::OkStatus();
  }
  cudaStream_t get() const { return stream_; }

  /// Work that this gets from now on comes behind the work that `stream` has got.
  absl::Status Follow(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(begun_, stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream_, begun_, 0));
    return absl::OkStatus();
  }
  /// A prediction ends here.
  absl::Status EndPrediction() {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(predicted_, stream_));
    return absl::OkStatus();
  }
  /// The copies of what it lists do.
  absl::Status EndCopies() {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(ended_, stream_));
    return absl::OkStatus();
  }
  /// `stream` goes on behind the last prediction.
  absl::Status JoinPrediction(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, predicted_, 0));
    return absl::OkStatus();
  }
  /// And behind the last copies.
  absl::Status JoinCopies(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, ended_, 0));
    return absl::OkStatus();
  }
  /// The host waits for the last copies.
  cudaError_t Await() { return AwaitEvent(ended_); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begun_ = nullptr, predicted_ = nullptr, ended_ = nullptr;
};

/// The largest shares of a request's slots and mass that were substituted, and of its mass that was
/// answered low.
struct LostShares {
  double slots = 0, mass = 0, low = 0;
};

/// One caller at a time.
class ServedMisses {
 public:
  ServedMisses() = default;
  ~ServedMisses();
  ServedMisses(const ServedMisses&) = delete;
  ServedMisses& operator=(const ServedMisses&) = delete;

  /// Every record of `version` must be kept by `records`, unless it moves them: then calls of few
  /// tokens have to share with the CPU. FailedPrecondition where the device cannot read one that is
  /// kept. `on_device`: null where nothing is multiplied here. `first_shared`: the
  /// handle of layer 0's shared expert. All borrowed. Where misses are answered low, needs a
  /// PlaceLow behind it.
  absl::Status Init(const MoeModelSpec* model, const DeviceModel* on_device, DeviceSource* records,
                    int version, const ServedRules& rules, const ServedBuffers& buffers,
                    const ExpertHandle* first_shared);
  /// Where the records of the lower version lie: in `store`, where they stand by, else in host
  /// memory, where `records` must keep all of `version`.
  absl::Status PlaceLow(const VersionedStore& store, int version);
  /// From now on calls give misses to the CPU, by jobs in mapped memory, by the costs that were
  /// set.
  absl::Status ShareMisses(const CpuJobMemory& memory);
  absl::Status SetCosts(const CpuCosts& costs, cudaStream_t stream);
  /// Whether some records may be where the device cannot read them.
  bool reads_below() const { return records_->moves(); }
  /// In front of a step, while no other one is open: the device hears which records came into
  /// pinned memory and left it.
  absl::Status MoveRecords(cudaStream_t stream);

  /// Whether the device decides who is in the slots.
  bool lent() const { return lent_; }
  /// A call failed half way: the blocks have to be taken back before the device may decide again.
  bool must_return() const { return returning_ || in_doubt_; }
  /// Hands the store's blocks to the device, in the order of `stream`. Nothing changes where the
  /// store does not lend now.
  absl::Status Lend(VersionedStore* store, cudaStream_t stream);
  /// The way back; waits. Calls that the device was given before must have ended.
  absl::Status TakeBack(VersionedStore* store);

  /// Whether calls of so many tokens of the layer also bring what the next one will want.
  bool Predicts(int layer, int64_t tokens) const;

  /// Lists the resident experts when a call of the layer is routed by that, in front of its Begin.
  ServedResidents Residents(int layer) const;
  /// As far as TakeCounts has seen.
  LostShares worst_shares() const { return worst_; }

  /// A call, behind its grouping; or, with `route`, in front of it: then the decision does both.
  struct Call {
    int layer = 0;
    int32_t tokens = 0;
    SlotGroups groups;
    const float* scores = nullptr;  // [tokens, experts]; null: the routing was given
    // Where something is predicted: the next layer's logits of the same rows. Else null.
    float* next_scores = nullptr;
    const ExpertHandle* shared = nullptr;  // the handle of the shared expert; null: none
    const MakeTilesArgs* tiles = nullptr;
    const RouteFewArgs* route = nullptr;
    const ExpertCacheArgs* rule = nullptr;  // with route: what changes its choice
    LowCall low;                            // without accounts: nothing is answered low
    // For the CPU; of no rows: it is given nothing. With tiles only.
    DeviceRows x;
    const float* weights = nullptr;  // [tokens, top_k]
  };
  /// Decides and begins the copies, and behind them the prefetch. Then buffers.ready can be
  /// multiplied, and, in the stream of the copies or behind Join, which must follow, buffers.late.
  /// `tiles` not null: their tiles are made instead, the late ones in buffers.late_tiles.
  absl::Status Begin(const Call& call, cudaStream_t stream);
  cudaStream_t copies() const { return branch_.copies(); }
  /// Whether the CPU may be given some of the call.
  bool Shares(const Call& call) const { return job_.mailbox != nullptr && call.x.rows > 0; }
  /// Then, behind Begin, on a branch: what the CPU computed is in its slots of `out`, and what was
  /// taken back in buffers.cpu.tiles, to be multiplied in the stream of that branch. Needs the
  /// Join.
  absl::Status AwaitCpu(const Call& call, float* out, int64_t out_stride, cudaStream_t stream);
  cudaStream_t cpu() const { return branch_.cpu(); }
  absl::Status Join(cudaStream_t stream) { return branch_.Join(stream); }
  /// That products leave room for: CTAs that copy, or predict beside them.
  int CtasBeside(const Call& call) const;

  /// A call whose product is the host's. `hidden`: what its router saw, or no rows; of one token
  /// it says what the next layer will want, which is brought on a stream beside.
  struct HostCall {
    int layer = 0;
    int32_t tokens = 0;
    GivenRouting given;
    SlotRegion region;
    int32_t* table = nullptr;
    DeviceRows hidden;
    float* next_scores = nullptr;  // [experts] for that
    // The CPU's offer; of no rows: nothing. Then AwaitRows has to follow.
    DeviceRows cpu_rows;
  };
  /// Behind it, in `stream`, the given experts are in slots of the region, given.used_ids has them,
  /// and `table` those of all experts that are there. Needs a slot for each pair; with
  /// cpu_rows, one. Not in a capture where records are prefetched.
  absl::Status Fetch(const HostCall& call, cudaStream_t stream);
  /// The CPU's results of a Fetch are in its pairs' rows of `out` behind this.
  absl::Status AwaitRows(int layer, const MutableMatrixView& out, cudaStream_t stream) const;
  /// That the device has for a layer; 0: nothing is lent.
  int64_t slots(int layer) const {
    return lent_ ? static_cast<int64_t>(loans_[layer].slots.size()) : 0;
  }

  /// Behind a step: see LateCopy.
  absl::Status BringCounts(cudaStream_t stream) {
    if (reads_below()) MOERT_RETURN_IF_ERROR(taken_.Bring(stream));
    return tally_.Bring(stream);
  }
  /// Counts added since it was last asked; false: none, or they have not arrived.
  bool TakeCounts(ServedCount* added);

 private:
  using BlockPlaces = std::unordered_map<const uint8_t*, int32_t>;

  /// Where they lie in host memory, as the table's experts.
  absl::StatusOr<std::vector<ServedRecord>> RecordsOf(int version) const;
  /// The same of memory of a record, as the device sees it; null: it does not.
  const uint8_t* Mapped(const std::byte* host, int64_t bytes) const;
  absl::Status InitMoving(const std::vector<ServedRecord>& placed);
  void CountTaken();
  /// Changes placed_ by what comes and goes now.
  void TurnRecords();
  /// All of the table, or of its layers alone.
  absl::Status Copy(bool to_device, bool layers_alone, cudaStream_t stream);
  /// Behind `stream`: what the next layer will want.
  absl::Status PredictBeside(const HostCall& call, cudaStream_t stream);
  ServeMissesArgs Args(const Call& call) const;
  /// Arguments of the decision about a call.
  ServeMissesArgs DecisionOf(const Call& call) const;
  /// The prediction by the next layer's gate in the decision's launch, if there is one.
  std::optional<PredictArgs> PredictionBeside(const Call& call, const ServeMissesArgs& args) const;
  /// In a launch of its own, beside what follows. Needs a Join.
  absl::Status Predict(const Call& call, cudaStream_t stream);
  CpuShareArgs ShareOf(const Call& call) const;
  /// Layers that may lend slots to a captured call of the layer.
  SlotLenders LendersOf(int layer) const;
  PredictArgs PredictionOf(int layer, const Call& call) const;
  void PlaceLoan(int layer, const LentLayer& loan, VersionedStore* store);
  /// Layers may have given each other slots: `blocks` says which block lies where.
  void TakeLoan(int layer, const BlockPlaces& blocks, LentLayer* loan);
  BlockPlaces PlacesOf(VersionedStore* store) const;
  /// A kernel's first launch loads it, which is not possible in a capture.
  absl::Status LoadKernels(const ExpertHandle* shared);
  /// Those that decide about calls of few tokens.
  absl::Status LoadDecisions(ServeMissesArgs args);
  absl::Status ForgetPredictions() const;
  int64_t First(int layer) const { return first_[layer]; }
  float* ScoresOf(const ServedTable& table, int layer) const {
    return table.scores + First(layer) * rules_.score_window;
  }

  const MoeModelSpec* model_ = nullptr;
  const DeviceModel* constants_ = nullptr;
  ServedRules rules_;
  DeviceSource* records_ = nullptr;
  // Where records move: the table of these as the device has it or will, and how often it read
  // them.
  Buffer placed_;  // pinned
  cudaEvent_t moved_ = nullptr;
  bool moving_ = false;                       // what was let go may still be read
  size_t untold_begin_ = 0, untold_end_ = 0;  // rows that the device has not been told yet
  LateCopy taken_;
  std::vector<uint32_t> seen_taken_;
  ServedBuffers on_device_{};
  Buffer memory_;  // pinned: the table on its way
  ServedTable table_{};
  int64_t table_bytes_ = 0;
  std::vector<int64_t> first_;    // of each layer's experts
  bool gives_slots_ = false;      // layers give each other slots
  std::vector<LentLayer> loans_;  // what was handed over
  bool lent_ = false;
  bool returning_ = false;        // the device may know already that nothing is lent
  bool in_doubt_ = false;         // a layer is
  std::vector<char> unfinished_;  // [layers] the table may have records that were not brought
  LateCopy tally_;
  CpuJobMemory job_;  // without a mailbox: the CPU takes nothing
  CpuCosts costs_;    // as the device has them
  std::vector<ServedTally> seen_;
  LostShares worst_;
  cudaStream_t own_ = nullptr;  // for the way back
  CopyBranch branch_;
  PrefetchStream beside_;  // of calls whose product is the host's
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_SERVED_MISSES_H_
