// One adapter per seam: a C++ policy that asks the host, and falls back to the policy it replaces.
#ifndef MOERT_CAPI_SRC_POLICY_SEAMS_H_
#define MOERT_CAPI_SRC_POLICY_SEAMS_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "guard.h"
#include "moert.h"
#include "moert/policy.h"
#include "policy_adapter.h"

namespace moert::capi {

template <typename P>
PolicyTraits TraitsOf(const std::unique_ptr<P>& policy) {
  return policy == nullptr ? PolicyTraits{} : policy->traits();
}

/// Shared by all adapters: makes calls into the host, and counts those that fail or throw.
class Adapter {
 public:
  explicit Adapter(std::shared_ptr<HostPolicies> host)
      : host_(std::move(host)), counts_(!std::exchange(host_->counted, true)) {}

 protected:
  const moert_policies& c() const { return host_->c; }
  /// Policy::StateBytes: the host's own bytes, reported by one adapter only, the bytes of the
  /// adapter's views, and those of the policy it replaces.
  template <typename P>
  int64_t StateOf(const std::unique_ptr<P>& fallback, int64_t views,
                  const PolicyScope& scope) const {
    return (counts_ ? c().state_bytes : 0) + views +
           (fallback == nullptr ? 0 : fallback->StateBytes(scope));
  }

  /// True if the host has decided. Without the host's member, `call` is not called.
  template <typename Member, typename Call>
  bool Decided(Member member, Call call) const {
    if (member == nullptr) return false;
    try {
      if (call() == MOERT_OK) return true;
    } catch (...) {  // the contract forbids it; dying for it helps nobody
    }
    ++host_->failures;
    return false;
  }
  template <typename Member, typename Call>
  void Tell(Member member, Call call) {
    if (member == nullptr) return;
    try {
      call();
    } catch (...) {
      ++host_->failures;
    }
  }
  void CountFailure() const { ++host_->failures; }
  /// Asks a question whose failure is itself the host's answer.
  template <typename Call>
  absl::Status Ask(const char* what, Call call) const {
    moert_failure failure;
    try {
      return FromCallback(call(&failure), failure, what);
    } catch (...) {
      return absl::InternalError(absl::StrCat(what, ": the callback threw"));
    }
  }

 private:
  const std::shared_ptr<HostPolicies> host_;
  const bool counts_;  // the host's state
};

/// Replaces the strategy's policies by the host's rules. InvalidArgument for a rule that is out of
/// range or together with another member of its seam.
absl::Status InstallRules(const std::shared_ptr<HostPolicies>& policies, Strategy* strategy);

/// `fallback` may be null.
std::unique_ptr<RoutingPolicy> AdaptRouting(std::shared_ptr<HostPolicies> host,
                                            std::unique_ptr<RoutingPolicy> fallback);
std::unique_ptr<PrefetchPolicy> AdaptPrefetch(std::shared_ptr<HostPolicies> host,
                                              std::unique_ptr<PrefetchPolicy> fallback);
std::unique_ptr<ResidencyPolicy> AdaptResidency(std::shared_ptr<HostPolicies> host,
                                                std::unique_ptr<ResidencyPolicy> fallback);
std::unique_ptr<PrecisionPolicy> AdaptPrecision(std::shared_ptr<HostPolicies> host,
                                                std::unique_ptr<PrecisionPolicy> fallback);
std::unique_ptr<PlacementPolicy> AdaptPlacement(std::shared_ptr<HostPolicies> host,
                                                std::unique_ptr<PlacementPolicy> fallback);

moert_policy_context ToC(const PolicyContext& context);
moert_routing_view ToC(const RoutingView& routing);
moert_precision_snapshot ToC(const PrecisionSnapshot& snapshot,
                             const moert_policy_context* context);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_POLICY_SEAMS_H_
