// The host's side of misses that the device serves (kernels/cuda/cache/serve_misses.h): the table
// of slots that host and device hand to each other, the branches of a captured call, the counters.
//
// Why nothing can deadlock. Kernels of a call are ordered by edges of the graph alone. The decision
// precedes all branches: (1) the copies, then the products of late experts; (2) the products of
// ready experts; (3) the kernel that waits for the CPU. All of them precede the weighted sum. A
// prefetch follows the copies of its call and precedes those of the next. No kernel waits for what
// another one writes while both run, so none needs the other to be on the device, and the edges of
// a graph form no cycle. Within a launch of products a CTA waits only for CTAs that run and wait
// for nothing (kernels/cuda/few/group_gemm.h), so concurrent launches of products, which share only
// the rows that they read, all end. A decision may tell a prefetch that runs beside it to stop,
// which only makes the prefetch end sooner. The kernel that waits for the CPU has a deadline on the
// device's clock (kernels/cuda/cache/cpu_mailbox.h).
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

/// The stream of prefetches for calls that are not captured. It runs beside the host's stream:
/// predictions, and copies of the records that they list. One caller at a time, with the device
/// current.
class PrefetchStream {
 public:
  PrefetchStream() = default;
  PrefetchStream(const PrefetchStream&) = delete;
  PrefetchStream& operator=(const PrefetchStream&) = delete;
  ~PrefetchStream() {
    if (ended_ != nullptr) {  // the last prediction and copies may not have been joined
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

  /// Orders later work of this stream behind the work that `stream` has been given so far.
  absl::Status Follow(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(begun_, stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream_, begun_, 0));
    return absl::OkStatus();
  }
  /// Marks the end of a prediction.
  absl::Status EndPrediction() {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(predicted_, stream_));
    return absl::OkStatus();
  }
  /// Marks the end of the copies that the prediction listed.
  absl::Status EndCopies() {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(ended_, stream_));
    return absl::OkStatus();
  }
  /// Makes `stream` wait for the last prediction.
  absl::Status JoinPrediction(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, predicted_, 0));
    return absl::OkStatus();
  }
  /// Makes `stream` wait for the last copies.
  absl::Status JoinCopies(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, ended_, 0));
    return absl::OkStatus();
  }
  /// Blocks the host until the last copies are done.
  cudaError_t Await() { return AwaitEvent(ended_); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begun_ = nullptr, predicted_ = nullptr, ended_ = nullptr;
};

/// The largest shares that any request reached: of its slots and mass that were substituted, and of
/// its mass that was answered low.
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

  /// `records` must keep every record of `version`, unless it moves them by use: then calls of few
  /// tokens have to share misses with the CPU. FailedPrecondition if the device cannot read a
  /// record that is kept. `on_device`: null if the library multiplies nothing. `first_shared`: the
  /// handle of layer 0's shared expert. All borrowed. If misses are answered low, PlaceLow has to
  /// follow.
  absl::Status Init(const MoeModelSpec* model, const DeviceModel* on_device, DeviceSource* records,
                    int version, const ServedRules& rules, const ServedBuffers& buffers,
                    const ExpertHandle* first_shared);
  /// Tells the device where the records of the lower version lie: in `store` if they stand by
  /// there, else in host memory, where `records` must keep all records of `version`.
  absl::Status PlaceLow(const VersionedStore& store, int version);
  /// From now on calls give misses to the CPU, as jobs in mapped memory, split by the costs of
  /// SetCosts.
  absl::Status ShareMisses(const CpuJobMemory& memory);
  absl::Status SetCosts(const CpuCosts& costs, cudaStream_t stream);
  /// Whether some records may lie outside of pinned memory, where the device cannot read them.
  bool reads_below() const { return records_->moves(); }
  /// Before a step, while no other step is open: tells the device which records came into pinned
  /// memory and which left it.
  absl::Status MoveRecords(cudaStream_t stream);

  /// Whether the store's blocks are lent: the device decides which experts are in the slots.
  bool lent() const { return lent_; }
  /// Whether a call failed half way, so that the blocks have to be taken back before the device may
  /// decide again.
  bool must_return() const { return returning_ || in_doubt_; }
  /// Hands the store's blocks to the device, in the order of `stream`. Does nothing if the store
  /// does not lend now.
  absl::Status Lend(VersionedStore* store, cudaStream_t stream);
  /// Returns the blocks to the store; waits. Calls that the device was given before must have
  /// ended.
  absl::Status TakeBack(VersionedStore* store);

  /// Whether a call of `tokens` tokens of the layer also prefetches for the next layer.
  bool Predicts(int layer, int64_t tokens) const;

  /// The layer's resident experts, for a call whose routing depends on them. Used before its Begin.
  ServedResidents Residents(int layer) const;
  /// The largest shares that TakeCounts has seen.
  LostShares worst_shares() const { return worst_; }

  /// A call whose slots are grouped by expert; or, with `route`, a call that is not routed yet:
  /// then the launch of the decision also routes and groups.
  struct Call {
    int layer = 0;
    int32_t tokens = 0;
    SlotGroups groups;
    const float* scores = nullptr;  // [tokens, experts]; null: the routing was given
    // The next layer's logits for the same rows; null: nothing is predicted.
    float* next_scores = nullptr;
    const ExpertHandle* shared = nullptr;  // the handle of the shared expert; null: none
    const MakeTilesArgs* tiles = nullptr;
    const RouteFewArgs* route = nullptr;
    const ExpertCacheArgs* rule = nullptr;  // with route: the rule that changes its choice
    LowCall low;                            // without accounts: nothing is answered low
    // The rows for the CPU; no rows: the CPU is given no misses. With tiles only.
    DeviceRows x;
    const float* weights = nullptr;  // [tokens, top_k]
  };
  /// Enqueues the decision, the copies and, behind them, the prefetch. After that buffers.ready can
  /// be multiplied on `stream`, and buffers.late on the stream of the copies or after the Join,
  /// which must follow. If `tiles` is not null, tiles are made of both instead, the late ones in
  /// buffers.late_tiles.
  absl::Status Begin(const Call& call, cudaStream_t stream);
  cudaStream_t copies() const { return branch_.copies(); }
  /// Whether the CPU may be given some of the call's misses.
  bool Shares(const Call& call) const { return job_.mailbox != nullptr && call.x.rows > 0; }
  /// If so, called after Begin: forks a branch that waits for the CPU and puts its results into
  /// their slots of `out`. Experts that were taken back are in buffers.cpu.tiles, to be multiplied
  /// on the stream of that branch. Needs the Join.
  absl::Status AwaitCpu(const Call& call, float* out, int64_t out_stride, cudaStream_t stream);
  cudaStream_t cpu() const { return branch_.cpu(); }
  absl::Status Join(cudaStream_t stream) { return branch_.Join(stream); }
  /// The CTAs that copy or predict beside the products, for which the products must leave room.
  int CtasBeside(const Call& call) const;

  /// A call in which the host multiplies. `hidden`: the input of its router, or no rows. For one
  /// token it also serves to predict the next layer's experts, which are then prefetched on a side
  /// stream.
  struct HostCall {
    bool capturing = false;
    int layer = 0;
    int32_t tokens = 0;
    GivenRouting given;
    SlotRegion region;
    int32_t* table = nullptr;
    DeviceRows hidden;
    float* next_scores = nullptr;  // [experts], scratch for that prediction
    // The rows that the CPU may compute; no rows: none. Otherwise AwaitRows has to follow.
    DeviceRows cpu_rows;
  };
  /// Brings the given experts, in the order of `stream`: they are then in slots of the region,
  /// given.used_ids holds these slots, and `table` the slots of all experts that are present. Needs
  /// a slot for each pair; with cpu_rows, one slot. If the call is captured, Leave has to follow.
  absl::Status Fetch(const HostCall& call, cudaStream_t stream);
  /// Ends a captured Fetch, after the host's products: `stream` waits for its prediction.
  absl::Status Leave(cudaStream_t stream) { return branch_.Join(stream); }
  /// Makes `stream`, in which captured fetches will be replayed, wait for the prefetches of others.
  absl::Status AwaitPrefetches(cudaStream_t stream);
  /// Makes `stream` wait for the CPU's results of a Fetch, in the rows of `out` of its pairs.
  absl::Status AwaitRows(int layer, const MutableMatrixView& out, cudaStream_t stream) const;
  /// The slots that the device has for a layer; 0: nothing is lent.
  int64_t slots(int layer) const {
    return lent_ ? static_cast<int64_t>(loans_[layer].slots.size()) : 0;
  }

  /// Enqueues copies of the counters behind a step (LateCopy::Bring).
  absl::Status BringCounts(cudaStream_t stream) {
    if (reads_below()) MOERT_RETURN_IF_ERROR(taken_.Bring(stream));
    return tally_.Bring(stream);
  }
  /// Counts added since the last call; false: none, or they have not arrived.
  bool TakeCounts(ServedCount* added);

 private:
  using BlockPlaces = std::unordered_map<const uint8_t*, int32_t>;

  /// Where the records of a version lie in host memory, in the order of the table's experts.
  absl::StatusOr<std::vector<ServedRecord>> RecordsOf(int version) const;
  /// The device's address of a record in host memory; null: the device cannot read it.
  const uint8_t* Mapped(const std::byte* host, int64_t bytes) const;
  absl::Status InitMoving(const std::vector<ServedRecord>& placed);
  void CountTaken();
  /// Updates placed_ with the records that come into and leave pinned memory now.
  void TurnRecords();
  /// Copies the whole table, or only its `layers`.
  absl::Status Copy(bool to_device, bool layers_alone, cudaStream_t stream);
  bool Predicts(const HostCall& call) const;
  ServeMissesArgs ArgsOf(const HostCall& call) const;
  /// Predicts the next layer's experts.
  absl::Status PredictNext(const HostCall& call, cudaStream_t stream);
  absl::Status FetchCaptured(const HostCall& call, cudaStream_t stream);
  ServeMissesArgs Args(const Call& call) const;
  /// Arguments of the decision about a call.
  ServeMissesArgs DecisionOf(const Call& call) const;
  /// The arguments of the prediction by the next layer's gate if the decision's launch can make it.
  std::optional<PredictArgs> PredictionBeside(const Call& call, const ServeMissesArgs& args) const;
  /// Makes the prediction in a launch of its own, on a branch. Needs a Join.
  absl::Status Predict(const Call& call, cudaStream_t stream);
  CpuShareArgs ShareOf(const Call& call) const;
  /// The layers that may give slots to a captured call of `layer`.
  SlotLenders LendersOf(int layer) const;
  PredictArgs PredictionOf(int layer, const Call& call) const;
  void PlaceLoan(int layer, const LentLayer& loan, VersionedStore* store);
  /// Reads a layer's slots back from the table. Layers may have given each other slots, so `blocks`
  /// maps addresses to blocks.
  void TakeLoan(int layer, const BlockPlaces& blocks, LentLayer* loan);
  BlockPlaces PlacesOf(VersionedStore* store) const;
  /// Launches the kernels once. The first launch loads a kernel, which is not possible in a
  /// capture.
  absl::Status LoadKernels(const ExpertHandle* shared);
  /// The same for the kernels that decide about calls of few tokens.
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
  // If records move: their addresses as the device has them or will have them, and the counts of
  // the device's reads.
  Buffer placed_;  // pinned
  cudaEvent_t moved_ = nullptr;
  bool moving_ = false;                       // places that were let go may still be read
  size_t untold_begin_ = 0, untold_end_ = 0;  // rows of placed_ that the device does not have yet
  LateCopy taken_;
  std::vector<uint32_t> seen_taken_;
  ServedBuffers on_device_{};
  Buffer memory_;  // pinned: the host's copy of the table
  ServedTable table_{};
  int64_t table_bytes_ = 0;
  std::vector<int64_t> first_;    // index of each layer's first expert
  bool gives_slots_ = false;      // layers give each other slots
  std::vector<LentLayer> loans_;  // the blocks that were handed over
  bool lent_ = false;
  bool returning_ = false;        // a TakeBack is not complete: the device may know of it already
  bool in_doubt_ = false;         // some layer may be unfinished
  std::vector<char> unfinished_;  // [layers] the table may list records that were not brought
  LateCopy tally_;
  CpuJobMemory job_;  // without a mailbox: the CPU takes nothing
  CpuCosts costs_;    // as the device has them
  std::vector<ServedTally> seen_;
  LostShares worst_;
  cudaStream_t own_ = nullptr;  // for TakeBack and the loading of kernels
  CopyBranch branch_;
  PrefetchStream beside_;  // for calls in which the host multiplies
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_SERVED_MISSES_H_
