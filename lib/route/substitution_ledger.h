// How much of each request's routing was substituted: the accounts behind the expert-cache rule's
// caps.
#ifndef MOERT_LIB_ROUTE_SUBSTITUTION_LEDGER_H_
#define MOERT_LIB_ROUTE_SUBSTITUTION_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "absl/types/span.h"
#include "moert/policy.h"

namespace moert {

/// The account of a request over the calls that the rule was applied to: slots (token x expert) and
/// routing mass (sum of the model's own weights).
struct SubstitutionAccount {
  int64_t slots = 0;
  int64_t substituted = 0;
  double mass = 0;
  double mass_substituted = 0;
  int64_t last_call = 0;

  double slot_share() const;
  double mass_share() const;
  /// Whether one more slot of weight `weight` may be substituted under the caps.
  bool Allows(double weight, double max_slot_share, double max_mass_share) const;
};

/// The accounts of the most recent requests; the library is not told when a request ends. A request
/// that was forgotten gets a new account. As each account keeps the caps, so does the request.
class SubstitutionLedger {
 public:
  static constexpr int64_t kMostRequests = 4096;
  explicit SubstitutionLedger(size_t max_requests = kMostRequests) : max_requests_(max_requests) {}

  /// Called before a call over these requests.
  void BeginCall(absl::Span<const int64_t> request_ids);
  /// Valid until the next BeginCall.
  SubstitutionAccount& Of(int64_t request_id) { return accounts_[request_id]; }
  /// The account of rows without a request id.
  SubstitutionAccount& anonymous() { return anonymous_; }
  size_t size() const { return accounts_.size(); }

  /// The largest shares that any request had after any call.
  double worst_slot_share() const { return worst_slot_share_; }
  double worst_mass_share() const { return worst_mass_share_; }
  /// Called after a call over these requests (empty: the anonymous account).
  void EndCall(absl::Span<const int64_t> request_ids);

 private:
  const size_t max_requests_;
  std::unordered_map<int64_t, SubstitutionAccount> accounts_;
  SubstitutionAccount anonymous_;
  int64_t call_ = 0;
  double worst_slot_share_ = 0;
  double worst_mass_share_ = 0;
};

/// Bytes of the accounts that a ledger keeps, plus those of a call.
inline int64_t AccountBytes(const PolicyScope& scope) {
  constexpr int64_t kAccount = sizeof(SubstitutionAccount) + 56;  // in a map, sorted by age
  return (SubstitutionLedger::kMostRequests + scope.max_tokens) * kAccount;
}

}  // namespace moert

#endif  // MOERT_LIB_ROUTE_SUBSTITUTION_LEDGER_H_
