// Steps of a workload for moert-bench ranks to time, and the owners of its experts.
#ifndef MOERT_EXAMPLES_CLI_BENCH_RANK_LOAD_H_
#define MOERT_EXAMPLES_CLI_BENCH_RANK_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/rank_host.h"
#include "cli/workload/shapes.h"
#include "moert/options.h"
#include "moert/parallel/placement.h"

namespace moert::cli {

/// A kind of step that is measured.
struct RankLoad {
  Phase phase = Phase::kDecode;
  int64_t rows = 0;
  std::vector<RoutedStep> steps;
  size_t warm = 0;  // the first of them
};

struct RankLoadOptions {
  std::string workload;
  Phase phase = Phase::kDecode;
  int64_t rows = 0;
  int64_t warm = 0, steps = 0;
  uint64_t seed = 1;
};
absl::StatusOr<RankLoad> MakeRankLoad(const Shape& shape, const RankLoadOptions& options);

/// Deals the rows of every step to the ranks: the same number to each, in order.
std::vector<std::vector<RoutedStep>> RowsOfRanks(const RankLoad& load, int ranks);

/// Equal ranges of every layer's experts; the first rank has the shared ones.
std::vector<Shard> ExpertRanges(const MoeModelSpec& model, int ranks);
/// The ranks of shards of whole experts, by expert.
ExpertPlacement OwnersOf(const MoeModelSpec& model, const std::vector<Shard>& shards);
/// Shards by use in the warm-up: calls in decode, where experts are read, tokens in prompts.
absl::StatusOr<std::vector<Shard>> PopularExperts(const MoeModelSpec& model, const RankLoad& load,
                                                  int ranks);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_RANK_LOAD_H_
