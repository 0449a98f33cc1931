// Pictures of reports: the script plot.py, which draws with matplotlib.
#ifndef MOERT_EXAMPLES_CLI_COMMON_PLOT_H_
#define MOERT_EXAMPLES_CLI_COMMON_PLOT_H_

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

/// Writes `report` as JSON to `json` and as a picture (.svg, .png, .pdf) to `picture`; empty: not.
/// FailedPrecondition if there is no python3, script or matplotlib.
absl::Status WriteFigures(const std::string& json, const std::string& picture,
                          const nlohmann::json& report);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_PLOT_H_
