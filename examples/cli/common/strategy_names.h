// The strategies that --strategy takes, for completion.
#ifndef MOERT_EXAMPLES_CLI_COMMON_STRATEGY_NAMES_H_
#define MOERT_EXAMPLES_CLI_COMMON_STRATEGY_NAMES_H_

#include <string>
#include <vector>

#include "moert/strategy.h"

namespace moert::cli {

inline std::vector<std::string> StrategyNames() {
  std::vector<std::string> names = {"auto"};
  for (const StrategyInfo& info : ListStrategies()) {
    if (info.name != names.front()) names.push_back(info.name);
  }
  return names;
}

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_STRATEGY_NAMES_H_
