// ExpertParallel: layers whose experts are distributed over the ranks of a group. Each rank has an
// engine over its shard; the group sums the ranks' outputs.
//
//   auto parallel = *ExpertParallel::Create(source, options, shards, group);  // on every rank
//   auto step = parallel->BeginStep({Phase::kDecode, rows}, TokenPlacement::kReplicated);
//   for (int l = 0; l < layers; ++l) parallel->Forward(*step, l, hidden, nullptr, out);
//   parallel->EndStep(*step);
//
// Replicated tokens: every rank has all rows and computes what its experts contribute, and one
// all-reduce gives every rank the whole output; for small batches. Own tokens: every rank has rows
// of its own, which go to the ranks that own their experts; the results come back and are added in
// the order of the ranks; for large batches. In host memory a row goes only to the ranks that need
// it. On devices it goes to all ranks, so that no count has to reach the host.
//
// If a rank fails, the others' calls fail: at once if the rank can still report it, else after the
// group's timeout.
//
// Ranks on devices may be processes, or threads of one process. A program with threads sets
// CUDA_MODULE_LOADING=EAGER in its environment before it uses CUDA, at the latest in its main():
// setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
// Otherwise a kernel is loaded at its first launch, and loading may wait for work that another rank
// has enqueued, such as an all-reduce that this rank has not reached. That is a deadlock, which
// stops the timeout's thread too. The library does not set the variable: loading all kernels at
// once takes the program's time and memory.
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
  kPerRank = 1,     // each rank has its own rows
};

/// How the ranks of a placed group share a step if each of them has room for every expert
/// (MemoryPlan::slots); otherwise they split experts.
enum class StepSplit : int32_t {
  /// The fastest way by the number of rows, the rates of the devices and the time of an exchange,
  /// measured when the group was made. All ranks decide alike, and a captured call keeps its way.
  kByCost = 0,
  /// A rank computes all rows that it has, and nothing is exchanged. Results have the bits of a
  /// single engine, the same on ranks of one kind of device.
  kNone = 1,
  /// Replicated tokens: each rank computes a block of the rows, and every rank receives all blocks.
  /// Each row is computed as by one engine in a call of that many rows. Own tokens: as kNone.
  kRows = 2,
  /// Each rank computes the experts that it owns, and outputs are summed.
  kExperts = 3,
};

/// How ranks exchange rows. The same on every rank; between steps.
struct ExchangeOptions {
  /// kByCost measures anew for every group: set another value to get the same bits again.
  StepSplit split = StepSplit::kByCost;
  /// On devices: steps of at least this many rows, over all ranks, exchange results as bf16 in
  /// place of floats, half the bytes. Each rank's part of a value is rounded, and with replicated
  /// tokens the sum too; sums are made in fp32, in the order of the ranks. An output is then off by
  /// at most 2^-9 of the sum of the parts' absolute values, plus 2^-9 of its own. 0: never.
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
  /// `shards`: of all ranks, in their order; together they own everything of the model exactly once
  /// (CheckShards). options.shard is set from them. InvalidArgument if there are not as many as
  /// ranks. Collective: all ranks create theirs, and if one fails all fail with its error. Ranks
  /// whose options leave the CPU threads open (threads, cpus, thread_pool, numa_node) have one pool
  /// in each process, and processes that may run on the same CPUs divide them.
  static absl::StatusOr<std::unique_ptr<ExpertParallel>> Create(
      std::shared_ptr<const ExpertSource> source, EngineOptions options,
      absl::Span<const Shard> shards, std::shared_ptr<Collectives> group);

  /// A group whose experts change owners while it runs. Each rank's engine may hold any expert, as
  /// many as fit this GPU's options.budget: its strategy should load experts on demand or, with
  /// room for all, be `resident` (see StepSplit). Every rank has the shared experts; if experts are
  /// split, rank 0 computes them. The placement must be the same on every rank; routings are given,
  /// on a device if the engines are on one, and used_ids is empty.
  static absl::StatusOr<std::unique_ptr<ExpertParallel>> CreatePlaced(
      std::shared_ptr<const ExpertSource> source, EngineOptions options,
      const ExpertPlacement& placement, std::shared_ptr<Collectives> group);

  virtual ~ExpertParallel() = default;

  /// Collective. info.rows is the same on every rank, except for kPerRank in host memory. On a
  /// device this is not checked, since the host would have to wait for the others; there a rank
  /// with fewer rows pads them with rows whose ids are all -1. kPerRank: all ranks' rows together
  /// are at most max_tokens_per_forward if experts are split, since one rank may get all of them.
  /// CUDA backend: info.stream must not be null; the host orders steps on several streams.
  virtual absl::StatusOr<StepId> BeginStep(const StepInfo& info, TokenPlacement placement) = 0;
  /// Collective. hidden, out: this rank's rows; out gets the whole layer's output. For kReplicated
  /// on a device, contiguous f32 is best: it is summed in place. routing: ids over the whole model,
  /// in host memory or on the device (kPerRank on devices needs them there); null: the library
  /// routes, which is not available for kPerRank, nor for CUDA ranks over some of the experts. CUDA
  /// backend: out is ready when Collectives::Wait has returned for the stream, and calls can be
  /// captured if the engine's can.
  virtual absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                               const RoutedInput* routing, const MutableMatrixView& out) = 0;
  virtual absl::Status EndStep(StepId step) = 0;

  /// For a placed group; collective, between steps, waits for the steps before. Gives experts these
  /// owners from now on. Missing experts load on first use: with EngineOptions::peers from the pool
  /// of a rank that has them, else from host memory. Captured calls stay valid. Outputs equal those
  /// of any placement, except for the order in which fp32 sums are made.
  virtual absl::Status MoveExperts(const ExpertPlacement& placement) = 0;
  /// For a placed group, collective, between steps: [L][E], the tokens that the experts were used
  /// for since the last call (or since the group was made), on all ranks, in steps that split
  /// experts. Input of PlaceReplicas.
  virtual absl::StatusOr<std::vector<std::vector<double>>> TakeLoads() = 0;

  virtual void SetExchange(const ExchangeOptions& options) = 0;

  /// This rank's engine, over its shard.
  virtual Engine* engine() = 0;
  virtual ExpertParallelStats stats() const = 0;
};

}  // namespace moert

#endif  // MOERT_PARALLEL_EXPERT_PARALLEL_H_
