// ExpertParallel: layers whose experts are dealt out over the ranks of a group. Each rank has an
// engine over its shard; the group adds up what they compute.
//
//   auto parallel = *ExpertParallel::Create(source, options, shards, group);  // on every rank
//   auto step = parallel->BeginStep({Phase::kDecode, rows}, TokenPlacement::kReplicated);
//   for (int l = 0; l < layers; ++l) parallel->Forward(*step, l, hidden, nullptr, out);
//   parallel->EndStep(*step);
//
// Replicated tokens: every rank has all rows, computes what its experts contribute, and one
// all-reduce gives every rank the whole output; for small batches. Own tokens: every rank has rows
// of its own, which go to the ranks that own their experts; their parts come back and are added in
// the order of the ranks; for large ones. In host memory a row goes where it is wanted. On devices
// it goes to all, so that no count has to reach the host.
//
// A rank that fails makes the others' calls fail: at once where it still can say so, else by the
// group's timeout.
//
// Ranks on devices may be processes, or threads of one process. A program with threads sets
// CUDA_MODULE_LOADING=EAGER in its environment before it uses CUDA, its own main() at the latest:
// setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
// Else a kernel is loaded at its first launch, which may wait for what another rank has enqueued,
// an all-reduce that this rank has not come to. Nobody goes on then, the timeout's thread included.
// The library does not set it: loading all kernels at once takes the program's time and memory.
#ifndef MOERT_PARALLEL_EXPERT_PARALLEL_H_
#define MOERT_PARALLEL_EXPERT_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/engine.h"
#include "moert/options.h"
#include "moert/parallel/collectives.h"
#include "moert/parallel/placement.h"
#include "moert/parallel/shard.h"
#include "moert/source/expert_source.h"

namespace moert {

enum class TokenPlacement : int32_t {
  kReplicated = 0,  // the same rows on every rank
  kPerRank = 1,     // each rank has its own
};

/// How the ranks of a placed group share a step, where each of them has room for every expert
/// (MemoryPlan::slots); else they split experts.
enum class StepSplit : int32_t {
  /// The fastest way, by the rows, the rates of the devices and the time of an exchange, measured
  /// when the group was made. All ranks decide alike, and a captured call stays as it was captured.
  kByCost = 0,
  /// A rank computes all rows that it has, and nothing is exchanged. The bits of one engine, the
  /// same on ranks of one kind of device.
  kNone = 1,
  /// Replicated tokens: each rank computes a block of the rows, and all get it. Every row as one
  /// engine computes it in a call of so few. Own tokens: as kNone.
  kRows = 2,
  /// Each rank computes the experts that it owns, and outputs are added up.
  kExperts = 3,
};

/// How ranks exchange rows. The same on every rank; between steps.
struct ExchangeOptions {
  /// kByCost measures anew whenever a group is made: what has to give the same bits again sets one.
  StepSplit split = StepSplit::kByCost;
  /// On devices.
  /// Steps of at least so many rows, of all ranks together, send what ranks computed as bf16 in
  /// place of floats: half the bytes. Each rank's part of a value is rounded, and replicated tokens
  /// get their sum rounded; sums are made in fp32, in the order of the ranks. So an output is off
  /// by at most 2^-9 of the sum of the parts' absolute values, and once more of its own. 0: none.
  int64_t bf16_rows = 0;
};

/// Counts of a rank since it was made.
struct ExpertParallelStats {
  int64_t all_reduced_bytes = 0;
  int64_t sent_rows = 0;                  // to other ranks
  int64_t received_rows = 0;              // from other ranks
  int64_t exchange_ns = 0;                // in collectives on the host, waiting for others included
  int64_t device_bytes = 0;               // of a device's memory, beside the engine's budget
  StepSplit split = StepSplit::kExperts;  // of the last step
};

/// Not thread-safe: one call at a time per rank.
class ExpertParallel {
 public:
  /// `shards`: of all ranks, in their order; they own everything of the model once (CheckShards).
  /// options.shard is set from them. InvalidArgument where there are not as many as ranks.
  /// Collective: all ranks create theirs, and one that fails fails all, which get its error. Ranks
  /// whose options do not say who computes on the CPU (threads, cpus, thread_pool, numa_node) have
  /// one pool in each process, and processes that may run on the same CPUs share these.
  static absl::StatusOr<std::unique_ptr<ExpertParallel>> Create(
      std::shared_ptr<const ExpertSource> source, EngineOptions options,
      absl::Span<const Shard> shards, std::shared_ptr<Collectives> group);

  /// A group whose experts change owners while it runs. Each rank's engine may hold any expert, as
  /// many as options.budget of this GPU has room for, so its strategy should be one that loads what
  /// is asked for, or, with room for all, `resident`: see StepSplit. Every rank has the shared
  /// experts; where experts are split, rank 0 computes them. The same placement on every rank;
  /// routings are given, on a device where the engines are on one, and used_ids is empty.
  static absl::StatusOr<std::unique_ptr<ExpertParallel>> CreatePlaced(
      std::shared_ptr<const ExpertSource> source, EngineOptions options,
      const ExpertPlacement& placement, std::shared_ptr<Collectives> group);

  virtual ~ExpertParallel() = default;

  /// Collective. info.rows is the same on every rank, but for kPerRank in host memory; on a device
  /// that is not checked, since the host would have to wait for the others. There a rank with fewer
  /// rows fills them up, with -1 for all ids. kPerRank: all ranks' rows together are at most
  /// max_tokens_per_forward where experts are split: one rank may be asked for all of them. CUDA
  /// backend: info.stream must not be null; steps on several streams are ordered by the host.
  virtual absl::StatusOr<StepId> BeginStep(const StepInfo& info, TokenPlacement placement) = 0;
  /// Collective. hidden, out: this rank's rows; out gets the whole layer's output. On a device f32
  /// and contiguous is best for kReplicated: it is summed in place. routing: ids over the whole
  /// model, in host memory, or on the device, where kPerRank wants them; null: the library routes,
  /// which kPerRank does not have, and on CUDA ranks over some of the experts. CUDA backend: out is
  /// there when Collectives::Wait has said so for the stream, and calls can be captured where the
  /// engine's can.
  virtual absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                               const RoutedInput* routing, const MutableMatrixView& out) = 0;
  virtual absl::Status EndStep(StepId step) = 0;

  /// For a placed group; collective, between steps, waits for those before. From here on experts
  /// have these owners. Missing experts load on first use: with EngineOptions::peers out
  /// of the pool of a rank that has it, else from host memory. Captured calls stay right. Outputs
  /// are those of any placement, but for the order in which fp32 sums are made.
  virtual absl::Status MoveExperts(const ExpertPlacement& placement) = 0;
  /// Likewise: [L][E], the tokens that the experts were used for since the last call, or since the
  /// group was made, on all ranks, in steps that split experts. For PlaceReplicas.
  virtual absl::StatusOr<std::vector<std::vector<double>>> TakeLoads() = 0;

  virtual void SetExchange(const ExchangeOptions& options) = 0;

  /// This rank's, over its shard.
  virtual Engine* engine() = 0;
  virtual ExpertParallelStats stats() const = 0;
};

}  // namespace moert

#endif  // MOERT_PARALLEL_EXPERT_PARALLEL_H_
