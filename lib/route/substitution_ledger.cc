#include "route/substitution_ledger.h"

#include <algorithm>
#include <vector>

namespace moert {
namespace {

// Tolerance for rounding: a cap of 0.3 on 10 slots must allow 3.
constexpr double kSlack = 1e-9;

}  // namespace

double SubstitutionAccount::slot_share() const {
  return slots == 0 ? 0 : static_cast<double>(substituted) / static_cast<double>(slots);
}

double SubstitutionAccount::mass_share() const { return mass > 0 ? mass_substituted / mass : 0; }

bool SubstitutionAccount::Allows(double weight, double max_slot_share,
                                 double max_mass_share) const {
  return static_cast<double>(substituted + 1) <=
             max_slot_share * static_cast<double>(slots) + kSlack &&
         mass_substituted + weight <= max_mass_share * mass * (1 + kSlack);
}

void SubstitutionLedger::BeginCall(absl::Span<const int64_t> request_ids) {
  ++call_;
  for (const int64_t id : request_ids) accounts_[id].last_call = call_;
  if (accounts_.size() <= max_requests_) return;
  // Forgets half of the requests at once, so that this is rare. Those of this call are the newest.
  std::vector<int64_t> calls;
  calls.reserve(accounts_.size());
  for (const auto& [id, account] : accounts_) calls.push_back(account.last_call);
  const auto middle = calls.begin() + static_cast<std::ptrdiff_t>(calls.size() / 2);
  std::nth_element(calls.begin(), middle, calls.end());
  const int64_t oldest_kept = std::min(*middle, call_);
  for (auto it = accounts_.begin(); it != accounts_.end();) {
    it = it->second.last_call < oldest_kept ? accounts_.erase(it) : std::next(it);
  }
}

void SubstitutionLedger::EndCall(absl::Span<const int64_t> request_ids) {
  const auto note = [this](const SubstitutionAccount& account) {
    worst_slot_share_ = std::max(worst_slot_share_, account.slot_share());
    worst_mass_share_ = std::max(worst_mass_share_, account.mass_share());
  };
  if (request_ids.empty()) note(anonymous_);
  for (const int64_t id : request_ids) note(accounts_[id]);
}

}  // namespace moert
