#include "plan/low_answers.h"

namespace moert {

void LowAnswers::OpenAccounts(int64_t tokens) {
  number_of_.clear();
  accounts_.clear();
  account_of_.assign(tokens, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t request = request_ids_.empty() ? 0 : request_ids_[t];
    const auto [it, fresh] =
        number_of_.try_emplace(request, static_cast<int32_t>(accounts_.size()));
    account_of_[t] = it->second;
    if (!fresh) continue;
    const SubstitutionAccount& kept = LedgerOf(t);
    accounts_.push_back({kept.mass, kept.mass_substituted});
  }
}

void LowAnswers::Begin(const RoutingResult& routing, absl::Span<const int64_t> request_ids) {
  routing_ = &routing;
  request_ids_ = request_ids;
  ledger_.BeginCall(request_ids);
  OpenAccounts(routing.tokens);
  call_ = {routing.ids.data(), routing.weights.data(), accounts_.data(),
           account_of_.data(), routing.top_k,          max_share_};
  for (int64_t t = 0; t < routing.tokens; ++t) call_.Enter(t);
}

absl::Span<const int32_t> LowAnswers::SlotsOf(int32_t expert) {
  slots_.clear();
  for (size_t slot = 0; slot < routing_->ids.size(); ++slot) {
    if (routing_->ids[slot] == expert) slots_.push_back(static_cast<int32_t>(slot));
  }
  return slots_;
}

float LowAnswers::Cost(int32_t expert) {
  const absl::Span<const int32_t> slots = SlotsOf(expert);
  return call_.Cost(slots.data(), static_cast<int>(slots.size()));
}

bool LowAnswers::Take(int32_t expert) {
  const absl::Span<const int32_t> slots = SlotsOf(expert);
  return call_.Take(slots.data(), static_cast<int>(slots.size()));
}

void LowAnswers::End() {
  for (int64_t t = 0; t < routing_->tokens; ++t) {
    const LowAccount& account = accounts_[account_of_[t]];
    SubstitutionAccount& kept = LedgerOf(t);
    kept.mass = account.mass;
    kept.mass_substituted = account.low;
  }
  ledger_.EndCall(request_ids_);
  routing_ = nullptr;
}

}  // namespace moert
