// LowAnswers: how much of each request's routing mass low versions may answer, and did.
#ifndef MOERT_LIB_PLAN_LOW_ANSWERS_H_
#define MOERT_LIB_PLAN_LOW_ANSWERS_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "moert/router.h"
#include "route/substitution_ledger.h"
#include "rules/low_answers.h"

namespace moert {

/// One layer call at a time: Begin, then Cost and Take for its experts, then End. The mass of a
/// request is what entered its sums; a call counts with all of its own before anything is taken.
class LowAnswers {
 public:
  explicit LowAnswers(double max_share) : max_share_(max_share) {}

  /// Both borrowed until End.
  void Begin(const RoutingResult& routing, absl::Span<const int64_t> request_ids);
  /// As MissView::low_cost.
  float Cost(int32_t expert);
  /// Answers it low, if every request of it may lose that.
  bool Take(int32_t expert);
  void End();

  /// The largest share that any request reached.
  double worst_share() const { return ledger_.worst_mass_share(); }

 private:
  SubstitutionAccount& LedgerOf(int64_t token) {
    return request_ids_.empty() ? ledger_.anonymous() : ledger_.Of(request_ids_[token]);
  }
  /// Numbers the requests of the call, and fetches their accounts.
  void OpenAccounts(int64_t tokens);
  /// The slots of an expert.
  absl::Span<const int32_t> SlotsOf(int32_t expert);

  const double max_share_;
  SubstitutionLedger ledger_;
  const RoutingResult* routing_ = nullptr;
  absl::Span<const int64_t> request_ids_;
  LowCall call_;
  // Scratch.
  std::unordered_map<int64_t, int32_t> number_of_;
  std::vector<int32_t> account_of_;  // [tokens]
  std::vector<LowAccount> accounts_;
  std::vector<int32_t> slots_;
};

}  // namespace moert

#endif  // MOERT_LIB_PLAN_LOW_ANSWERS_H_
