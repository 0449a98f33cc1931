// Times of an expert-parallel group: the same steps on every rank, each rank a thread.
#ifndef MOERT_EXAMPLES_CLI_BENCH_RANK_BENCH_H_
#define MOERT_EXAMPLES_CLI_BENCH_RANK_BENCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/bench/rank_host.h"
#include "moert/options.h"
#include "moert/parallel/expert_parallel.h"
#include "moert/source/expert_source.h"

namespace moert::cli {

struct RankRun {
  std::shared_ptr<const ExpertSource> source;
  std::vector<Shard> shards;  // one per rank
  bool whole = false;         // every rank holds every expert, and owns its shard
  EngineOptions options;      // shard and device are set here
  Phase phase = Phase::kDecode;
  std::vector<absl::Span<const RoutedStep>> steps;  // of each rank, or one for all
  size_t warm = 0;                                  // the first of them are not counted
  bool exchange = true;  // false: parts are not added up, to see what that costs
  ExchangeOptions sums;
  TokenPlacement placement = TokenPlacement::kReplicated;
  DType rows = DType::kF32;  // of hidden states and outputs
  bool graph = true;         // steps are captured where engines can be
};

struct RankTimes {
  std::vector<double> step_ms;  // from its beginning until the slowest rank is done
  bool replayed = false;
  StepSplit split = StepSplit::kExperts;
  double hit_ratio = 1;     // over all ranks
  double loaded_bytes = 0;  // per step, all ranks
  double cpu_computed = 0;  // likewise: experts that the CPU multiplied beside GPUs
  int64_t pool_bytes = 0;   // the largest of a rank
};

/// Runs once on `hosts`, whose group it joins and leaves.
absl::StatusOr<RankTimes> TimeRanks(const RankRun& run, RankHosts* hosts);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_RANK_BENCH_H_
