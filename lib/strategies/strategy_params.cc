#include "moert/strategy_params.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/errors.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace moert {

absl::StatusOr<StrategyParams> StrategyParams::Parse(absl::string_view strategy,
                                                     absl::string_view text,
                                                     const std::vector<std::string>& legal) {
  StrategyParams params;
  params.strategy_ = std::string(strategy);
  if (text.empty()) return params;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> kv = absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (std::find(legal.begin(), legal.end(), kv.first) == legal.end()) {
      return InvalidArgument("strategy {}: unknown key '{}'; it takes {}", params.strategy_,
                             kv.first,
                             legal.empty() ? "none" : fmt::format("{}", fmt::join(legal, ", ")));
    }
    if (kv.second.empty()) {
      return InvalidArgument("strategy {}: key '{}' needs a value", params.strategy_, kv.first);
    }
    if (!params.values_.emplace(kv.first, kv.second).second) {
      return InvalidArgument("strategy {}: key '{}' is given twice", params.strategy_, kv.first);
    }
  }
  return params;
}

std::string StrategyParams::Text(const std::string& key, std::string fallback) const {
  const auto it = values_.find(key);
  return it == values_.end() ? std::move(fallback) : it->second;
}

absl::StatusOr<double> StrategyParams::Number(const std::string& key, double fallback, double low,
                                              double high) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return fallback;
  double value = 0;
  if (!absl::SimpleAtod(it->second, &value) || !(value >= low && value <= high)) {
    return InvalidArgument("strategy {}: {}={}: must be a number in [{}, {}]", strategy_, key,
                           it->second, low, high);
  }
  return value;
}

absl::StatusOr<int64_t> StrategyParams::Integer(const std::string& key, int64_t fallback,
                                                int64_t low, int64_t high) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return fallback;
  int64_t value = 0;
  if (!absl::SimpleAtoi(it->second, &value) || value < low || value > high) {
    return InvalidArgument("strategy {}: {}={}: must be an integer in [{}, {}]", strategy_, key,
                           it->second, low, high);
  }
  return value;
}

absl::StatusOr<bool> StrategyParams::Flag(const std::string& key, bool fallback) const {
  const absl::StatusOr<int64_t> value = Integer(key, fallback ? 1 : 0, 0, 1);
  if (!value.ok()) return value.status();
  return *value == 1;
}

absl::StatusOr<std::vector<ExpertKey>> StrategyParams::Experts(const std::string& key) const {
  std::vector<ExpertKey> experts;
  const auto it = values_.find(key);
  if (it == values_.end()) return experts;
  int32_t layer = 0;
  for (const absl::string_view of_layer : absl::StrSplit(it->second, '/')) {
    for (const absl::string_view number : absl::StrSplit(of_layer, '-', absl::SkipEmpty())) {
      ExpertKey expert{layer, 0};
      if (!absl::SimpleAtoi(number, &expert.expert) || expert.expert < 0) {
        return InvalidArgument(
            "strategy {}: {}: '{}' of layer {} is no expert; write 0-3-7/1-2 for experts 0, 3, 7 "
            "of layer 0 and 1, 2 of layer 1",
            strategy_, key, std::string(number), layer);
      }
      experts.push_back(expert);
    }
    ++layer;
  }
  return experts;
}

absl::StatusOr<int> StrategyParams::OneOf(const std::string& key, int fallback,
                                          const std::vector<std::string>& legal) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return fallback;
  const auto found = std::find(legal.begin(), legal.end(), it->second);
  if (found == legal.end()) {
    return InvalidArgument("strategy {}: {}={}: must be one of {}", strategy_, key, it->second,
                           fmt::join(legal, ", "));
  }
  return static_cast<int>(found - legal.begin());
}

}  // namespace moert
