// The key=value part of a strategy spec. Errors name the strategy, key, value and what is legal.
#ifndef MOERT_STRATEGY_PARAMS_H_
#define MOERT_STRATEGY_PARAMS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/policy.h"

namespace moert {

class StrategyParams {
 public:
  StrategyParams() = default;
  /// `text` is "key=value,..." or empty. Keys that are not `legal` and repeated ones are errors.
  static absl::StatusOr<StrategyParams> Parse(absl::string_view strategy, absl::string_view text,
                                              const std::vector<std::string>& legal);

  bool Has(const std::string& key) const { return values_.count(key) != 0; }
  std::string Text(const std::string& key, std::string fallback) const;
  absl::StatusOr<double> Number(const std::string& key, double fallback, double low,
                                double high) const;
  absl::StatusOr<int64_t> Integer(const std::string& key, int64_t fallback, int64_t low,
                                  int64_t high) const;
  absl::StatusOr<bool> Flag(const std::string& key, bool fallback) const;  // 0 or 1
  /// One of `legal`, as its index; `fallback` is an index, too.
  absl::StatusOr<int> OneOf(const std::string& key, int fallback,
                            const std::vector<std::string>& legal) const;
  /// Experts by layer: "0-3-7/1-2" are experts 0, 3 and 7 of layer 0, 1 and 2 of layer 1. A layer
  /// may be empty. An opening engine checks that its model has them. Empty without the key.
  absl::StatusOr<std::vector<ExpertKey>> Experts(const std::string& key) const;

 private:
  std::string strategy_;
  std::map<std::string, std::string> values_;
};

}  // namespace moert

#endif  // MOERT_STRATEGY_PARAMS_H_
