// moert_engine_options and the C++ EngineOptions.
#ifndef MOERT_CAPI_SRC_OPTIONS_H_
#define MOERT_CAPI_SRC_OPTIONS_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "closable_trace.h"
#include "moert.h"
#include "moert/allocator.h"
#include "moert/options.h"
#include "moert/thread_pool.h"
#include "moert/tools/trace.h"
#include "policy_adapter.h"

namespace moert::capi {

/// The destroy callbacks of the objects that an engine was given. They are called with the last
/// reference if `armed`; until then the host owns their user_data.
struct Ownership {
  bool armed = false;
};

/// A struct of callbacks, and its user_data once the library owns it.
template <typename Callbacks>
class Owned {
 public:
  Owned(const Callbacks& c, std::shared_ptr<const Ownership> ownership)
      : c_(c), ownership_(std::move(ownership)) {}
  Owned(const Owned&) = delete;
  ~Owned() {
    if (ownership_->armed && c_.destroy != nullptr) c_.destroy(c_.user_data);
  }
  const Callbacks* operator->() const { return &c_; }

 private:
  const Callbacks c_;
  const std::shared_ptr<const Ownership> ownership_;
};

using LogFunction = std::function<void(LogLevel, absl::string_view)>;

absl::StatusOr<std::shared_ptr<ThreadPool>> AdaptThreadPool(
    const moert_thread_pool& pool, std::shared_ptr<const Ownership> ownership);
absl::StatusOr<std::shared_ptr<HostAllocator>> AdaptAllocator(
    const moert_allocator& allocator, std::shared_ptr<const Ownership> ownership);
absl::StatusOr<LogFunction> AdaptLogger(const moert_logger& logger,
                                        std::shared_ptr<const Ownership> ownership);

/// Options, and the objects that the host gave with them. Call Arm when an engine has taken them:
/// from then on the library calls the host's destroy callbacks.
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

/// Checks only what the engine cannot. `name` is for messages.
absl::StatusOr<Shard> ReadShard(const moert_shard* shard, const char* name);

std::shared_ptr<TraceSink> AdaptTraceSink(const moert_trace_sink& sink,
                                          std::shared_ptr<const Ownership> ownership);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_OPTIONS_H_
