#include "plan/low_answers.h"

#include <algorithm>

namespace moert {

void LowAnswers::Begin(const RoutingResult& routing, absl::Span<const int64_t> request_ids) {
  routing_ = &routing;
  request_ids_ = request_ids;
  ledger_.BeginCall(request_ids);
  for (int64_t t = 0; t < routing.tokens; ++t) {
    SubstitutionAccount& account = AccountOf(t);
    for (int i = 0; i < routing.top_k; ++i) account.mass += routing.weights[t * routing.top_k + i];
  }
}

void LowAnswers::Collect(int32_t expert) {
  parts_.clear();
  for (size_t slot = 0; slot < routing_->ids.size(); ++slot) {
    if (routing_->ids[slot] != expert) continue;
    SubstitutionAccount* account = &AccountOf(static_cast<int64_t>(slot) / routing_->top_k);
    const auto it = std::find_if(parts_.begin(), parts_.end(),
                                 [&](const Part& part) { return part.account == account; });
    Part& part = it == parts_.end() ? parts_.emplace_back() : *it;
    part.account = account;
    part.weight += routing_->weights[slot];
  }
}

float LowAnswers::Cost(int32_t expert) {
  Collect(expert);
  double most = 0;
  for (const Part& part : parts_) {
    const double left = max_share_ * part.account->mass - part.account->mass_substituted;
    constexpr double kNever = 1e9;
    most = std::max(most, left > 0 ? std::min(part.weight / left, kNever) : kNever);
  }
  return static_cast<float>(most);
}

bool LowAnswers::Take(int32_t expert) {
  Collect(expert);
  for (const Part& part : parts_) {
    constexpr double kSlack = 1e-9;  // of rounding
    const double after = part.account->mass_substituted + part.weight;
    if (after > max_share_ * part.account->mass * (1 + kSlack)) return false;
  }
  for (const Part& part : parts_) part.account->mass_substituted += part.weight;
  return true;
}

void LowAnswers::End() {
  ledger_.EndCall(request_ids_);
  routing_ = nullptr;
}

}  // namespace moert
