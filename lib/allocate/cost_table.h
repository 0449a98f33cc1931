// What a tile costs on the machine that will run the plan: the profile that MxMoE's time T is
// computed from (Sec. 4 of the paper).
#ifndef MOERT_LIB_ALLOCATE_COST_TABLE_H_
#define MOERT_LIB_ALLOCATE_COST_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/env.h"
#include "moert/scheme.h"

namespace moert {

struct CostTable {
  struct Rate {
    Scheme scheme;
    double weight_bytes_per_s = 0;  // of all processors together, scales included
  };
  std::string name;
  std::string source;  // where the rates are from
  int64_t tile_tokens = 16;
  std::vector<Rate> rates;

  /// Seconds to multiply a matrix of `bytes` in `scheme`, expected over batches in which an expert
  /// gets `tokens` on average: its weights are read once a tile, and not at all when no token comes
  /// (arrivals taken as Poisson). NotFound, listing those there are, for a scheme without a rate.
  absl::StatusOr<double> Seconds(const Scheme& scheme, int64_t bytes, double tokens) const;
};

/// "h200": the shipped table. Else a file with name, source, tile_tokens and rates, an object of
/// bytes a second by scheme name.
absl::StatusOr<CostTable> LoadCostTable(const std::string& name, Env* env);

}  // namespace moert

#endif  // MOERT_LIB_ALLOCATE_COST_TABLE_H_
