// ExpertParallel: layers whose experts are dealt out over the ranks of a group. Each rank has an
// engine over its shard; the group adds up what they compute.
//
//   auto parallel = ExpertParallel::Create(source, options, shards, group);   // on every rank
//   step = parallel->BeginStep({Phase::kDecode, rows}, TokenPlacement::kReplicated);
//   for each MoE layer l:  parallel->Forward(step, l, hidden, nullptr, out);
//   parallel->EndStep(step);
//
// Replicated tokens: every rank has all rows, computes what its experts contribute, and one
// all-reduce gives every rank the whole output; for small batches. Own tokens: every rank has rows
// of its own; each row goes to the ranks that own one of its experts, and their parts come back and
// are added in the order of the ranks; for large ones.
//
// A rank that fails makes the others' calls fail: at once where it still can say so, else by the
// group's timeout.
#ifndef MOERT_EXPERT_PARALLEL_H_
#define MOERT_EXPERT_PARALLEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/collectives.h"
#include "moert/engine.h"
#include "moert/expert_source.h"
#include "moert/options.h"
#include "moert/shard.h"

namespace moert {

enum class TokenPlacement : int32_t {
  kReplicated = 0,  // the same rows on every rank
  kPerRank = 1,     // each rank has its own, any number of them. CPU backend
};

/// What a rank counted since it was made.
struct ExpertParallelStats {
  int64_t all_reduced_bytes = 0;
  int64_t sent_rows = 0;      // to other ranks
  int64_t received_rows = 0;  // from other ranks
  int64_t exchange_ns = 0;    // in collectives on the host, waiting for others included
};

/// Not thread-safe: one call at a time per rank.
class ExpertParallel {
 public:
  /// `shards`: of all ranks, in their order; they own everything of the model once (CheckShards).
  /// options.shard is set from them. InvalidArgument where there are not as many as ranks.
  /// Collective: all ranks create theirs, and one that fails fails all, which get its error.
  static absl::StatusOr<std::unique_ptr<ExpertParallel>> Create(
      std::shared_ptr<const ExpertSource> source, EngineOptions options,
      absl::Span<const Shard> shards, std::shared_ptr<Collectives> group);

  virtual ~ExpertParallel() = default;

  /// Collective. kReplicated: info.rows is the same on every rank; on a device that is not checked,
  /// since the host would have to wait for the others. kPerRank: all ranks' rows together are at
  /// most max_tokens_per_forward, since one rank may be asked for all of them. CUDA backend:
  /// info.stream must not be null.
  virtual absl::StatusOr<StepId> BeginStep(const StepInfo& info, TokenPlacement placement) = 0;
  /// Collective. hidden, out: this rank's rows; out gets the whole layer's output, f32 on a device.
  /// routing: ids over the whole model, in host memory or, kReplicated, on the device; null: the
  /// library routes, which kPerRank does not have, and on CUDA ranks over some of the experts.
  /// CUDA backend: out is there when Collectives::Wait has said so for the stream. A call of
  /// kReplicated can be captured where the engine's can.
  virtual absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                               const RoutedInput* routing, const MutableMatrixView& out) = 0;
  virtual absl::Status EndStep(StepId step) = 0;

  /// CUDA backend, kReplicated, where all ranks hold all of their experts (a strategy that
  /// preloads): steps of more rows are computed in parts of at most so many, and the sum of one
  /// travels while the next is computed. 0, as it is at first: never. The same on every rank;
  /// between steps.
  virtual void SetPartRows(int64_t rows) = 0;

  /// This rank's, over its shard.
  virtual Engine* engine() = 0;
  virtual ExpertParallelStats stats() const = 0;
};

}  // namespace moert

#endif  // MOERT_EXPERT_PARALLEL_H_
