// moert_engine_options and the C++ EngineOptions.
#ifndef MOERT_CAPI_SRC_OPTIONS_H_
#define MOERT_CAPI_SRC_OPTIONS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "closable_trace.h"
#include "moert.h"
#include "moert/options.h"
#include "moert/tools/trace.h"
#include "policy_adapter.h"
#include "services.h"

namespace moert::capi {

/// Options, and what the host gave with them. Call Arm when an engine has taken them: from then on
/// the host's destroy callbacks are ours to call.
struct ParsedOptions {
  EngineOptions options;
  std::shared_ptr<HostPolicies> policies;  // null: none
  std::shared_ptr<Ownership> ownership = std::make_shared<Ownership>();
  TracePaths trace;

  void Arm() {
    ownership->armed = true;
    if (policies != nullptr) policies->owns = true;
  }
};

/// NULL: the defaults. Reads the profile file if one is named.
absl::StatusOr<ParsedOptions> ReadOptions(const moert_engine_options* options);

Budget ToBudget(int64_t bytes, double fraction);

/// Checks what the engine cannot see. `name` is for messages.
absl::StatusOr<Shard> ReadShard(const moert_shard* shard, const char* name);

std::shared_ptr<TraceSink> AdaptTraceSink(const moert_trace_sink& sink,
                                          std::shared_ptr<const Ownership> ownership);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_OPTIONS_H_
