// Bytes of the accounts of requests, for Policy::StateBytes.
#ifndef MOERT_LIB_ROUTE_ACCOUNT_BYTES_H_
#define MOERT_LIB_ROUTE_ACCOUNT_BYTES_H_

#include <cstdint>

#include "moert/policy.h"
#include "route/substitution_ledger.h"

namespace moert {

/// Accounts of requests: those that a ledger keeps, and those of a call.
inline int64_t AccountBytes(const PolicyScope& scope) {
  constexpr int64_t kAccount = sizeof(SubstitutionAccount) + 56;  // in a map, sorted by age
  return (SubstitutionLedger::kMostRequests + scope.max_tokens) * kAccount;
}
}  // namespace moert

#endif  // MOERT_LIB_ROUTE_ACCOUNT_BYTES_H_
