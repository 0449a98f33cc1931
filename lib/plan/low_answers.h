// LowAnswers: how much of each request's routing mass low versions may answer, and did.
#ifndef MOERT_LIB_PLAN_LOW_ANSWERS_H_
#define MOERT_LIB_PLAN_LOW_ANSWERS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "moert/router.h"
#include "route/substitution_ledger.h"

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
  SubstitutionAccount& AccountOf(int64_t token) {
    return request_ids_.empty() ? ledger_.anonymous() : ledger_.Of(request_ids_[token]);
  }
  /// What the call gives the expert, by account.
  void Collect(int32_t expert);

  struct Part {
    SubstitutionAccount* account = nullptr;
    double weight = 0;
  };

  const double max_share_;
  SubstitutionLedger ledger_;
  const RoutingResult* routing_ = nullptr;
  absl::Span<const int64_t> request_ids_;
  std::vector<Part> parts_;  // scratch
};

}  // namespace moert

#endif  // MOERT_LIB_PLAN_LOW_ANSWERS_H_
