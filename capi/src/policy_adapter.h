// Policies in C as the five C++ seams.
#ifndef MOERT_CAPI_SRC_POLICY_ADAPTER_H_
#define MOERT_CAPI_SRC_POLICY_ADAPTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "moert.h"
#include "moert/strategy.h"

namespace moert::capi {

/// A host's policies, shared by the adapters of an engine.
struct HostPolicies {
  moert_policies c{};
  bool owns = false;                 // user_data is ours: destroy is to be called
  bool counted = false;              // an adapter of this strategy speaks for c.state_bytes
  std::atomic<int64_t> failures{0};  // decisions that the host failed to make

  ~HostPolicies() {
    if (owns && c.destroy != nullptr) c.destroy(c.user_data);
  }
};

/// Collects the policies of strategies that are made on this thread during its lifetime, so that
/// their engine counts the decisions they fail to make. It uses no thread-local variable: a library
/// that a running process loads would have to allocate memory for one.
class PoliciesOfStrategies {
 public:
  explicit PoliciesOfStrategies(std::vector<std::shared_ptr<HostPolicies>>* into);
  ~PoliciesOfStrategies();
  PoliciesOfStrategies(const PoliciesOfStrategies&) = delete;
  PoliciesOfStrategies& operator=(const PoliciesOfStrategies&) = delete;

  static void Note(std::shared_ptr<HostPolicies> policies);

 private:
  const std::thread::id thread_;
  std::vector<std::shared_ptr<HostPolicies>>* const into_;
  PoliciesOfStrategies* older_ = nullptr;
};

/// Puts adapters into the seams for which `policies` has members. The strategy's own policy makes
/// the decisions that the host leaves.
absl::Status InstallPolicies(std::shared_ptr<HostPolicies> policies, Strategy* strategy);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_POLICY_ADAPTER_H_
