// Costs of a tile on the machine that will run the plan: the profile that MxMoE's time T is
// computed from (Sec. 4 of the paper).
#ifndef MOERT_OFFLINE_COST_TABLE_H_
#define MOERT_OFFLINE_COST_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/scheme.h"
#include "moert/tools/env.h"

namespace moert {

struct CostTable {
  struct Point {
    double tokens = 0;              // of an expert
    double weight_bytes_per_s = 0;  // of all processors together, scales included
  };
  struct Rate {
    Scheme scheme = {};
    std::vector<Point> points = {};  // ascending tokens, none empty
  };
  std::string name = {};
  std::string source = {};  // where the rates are from
  std::vector<Rate> rates = {};

  /// Expected seconds to multiply a matrix of `bytes` in `scheme` in batches that bring an expert
  /// `tokens` tokens on average (Poisson arrivals): no time for a batch without tokens, else bytes
  /// at the rate for the mean number of tokens of the others. Rates are interpolated between points
  /// in the logarithms of both; below the first point its rate holds; above the last the time grows
  /// with the tokens. NotFound, listing the known schemes, for a scheme without rates.
  absl::StatusOr<double> Seconds(const Scheme& scheme, int64_t bytes, double tokens) const;
};

/// "h200": the shipped table. Else a file with name, source, and rates: an object of lists of
/// [tokens of an expert, weight bytes a second] by scheme name.
absl::StatusOr<CostTable> LoadCostTable(const std::string& name, Env* env);

}  // namespace moert

#endif  // MOERT_OFFLINE_COST_TABLE_H_
