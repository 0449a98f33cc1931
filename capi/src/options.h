// moert_engine_options and the C++ EngineOptions.
#ifndef MOERT_CAPI_SRC_OPTIONS_H_
#define MOERT_CAPI_SRC_OPTIONS_H_

#include "absl/status/statusor.h"
#include "moert.h"
#include "moert/options.h"

namespace moert::capi {

/// NULL: the defaults. Reads the profile file if one is named.
absl::StatusOr<EngineOptions> ReadOptions(const moert_engine_options* options);

Budget ToBudget(int64_t bytes, double fraction);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_OPTIONS_H_
